//! A request as rules see it, whatever wire it came by.

mod address;
mod cookie;
mod forwarded;
mod head;
pub mod key;
mod peer;
mod proxies;
mod query;
mod value;

pub use address::Address;
pub use cookie::each_cookie;
pub use head::{Head, Reply};
pub use key::{Duplicates, Key, Missing, host_name};
pub(crate) use peer::PeerWarning;
pub use proxies::{AddressHeader, TrustedProxies};
pub use query::{Plus, decoded, each_query, query_parameters};
pub use value::KeyValue;

use tidegate_core::SettingError;

/// The name of a header or a cookie, in lower case.
pub(crate) fn name(name: &str, what: &str) -> Result<String, SettingError> {
    let is_sign = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    match !name.is_empty() && name.len() <= 256 && name.bytes().all(is_sign) {
        true => Ok(name.to_ascii_lowercase()),
        false => Err(SettingError::new(
            format!("`{}` is not the name of a {what}", name.escape_debug()),
            "write letters, digits and dashes, as in `x-api-key`",
        )),
    }
}
