//! Requests as rules see them, independent of frameworks.

mod address;
mod client_certificate;
mod cookie;
mod descriptor;
mod forwarded;
mod head;
pub mod key;
mod key_value;
mod missing_peer_warning;
mod query;
mod trusted_proxies;

pub use address::AddressKey;
pub use client_certificate::{CertificateName, ClientCertificate};
pub use cookie::for_each_cookie;
pub use descriptor::DescriptorHead;
pub use head::{RequestHead, ResponseHead};
pub use key::{DuplicateKeys, MissingKey, RequestKey, normalize_host};
pub use key_value::KeyValue;
pub(crate) use missing_peer_warning::MissingPeerWarning;
pub use query::{PlusDecoding, for_each_query, percent_decode, query_parameters};
pub use trusted_proxies::{ClientIpHeader, TrustedProxies};

use tidegate_core::SettingError;

/// Validates the name of a header or a cookie, and converts it to lower case.
pub(crate) fn parse_name(name: &str, what: &str) -> Result<String, SettingError> {
    let is_name_char = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    match !name.is_empty() && name.len() <= 256 && name.bytes().all(is_name_char) {
        true => Ok(name.to_ascii_lowercase()),
        false => Err(SettingError::new(
            format!("invalid {what} name `{}`", name.escape_debug()),
            "use letters, digits and dashes, as in `x-api-key`",
        )),
    }
}
