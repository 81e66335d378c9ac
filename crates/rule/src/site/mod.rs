//! What attributes expand to: one static for each place in the code.
//!
//! A site makes its rule when it is first passed, under the settings as they are then, and the rule follows them from there
//! on. Nothing here is meant to be written by hand.

mod breaker;
mod limit;

pub use crate::{Declaration, FromLimited, Joined, Mode, RuleKey};
pub use breaker::{BreakerSite, Judged, judge};
pub use limit::{LimitSite, Opened, Stopped, Taken};
pub use std::time::Duration;
pub use tidegate_core::{BreakerSettings, Micros, SettingError};
pub use tidegate_engine::{BuildError, Capacity};

use crate::{
    Facts, Limited,
    request::{Address, KeyValue},
};
use std::{
    any::type_name,
    borrow::Cow,
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

/// Everybody, for `key = method`: the key that [`KeyValue::All`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Everybody;

impl Hash for Everybody {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        "".hash(state);
    }
}

impl fmt::Display for Everybody {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

/// The client by its address, for `key = ip`. All callers of whom none is known share one key.
pub fn ip() -> KeyValue<'static> {
    let ip = Facts::with_current(Facts::ip).flatten();
    ip.map_or(KeyValue::All, |ip| KeyValue::Address(Address::of(ip)))
}

/// The client by its name, for `key = user`. All callers of whom none is known share one key.
pub fn user() -> Arc<str> {
    Facts::with_current(Facts::shared_user).flatten().unwrap_or_default()
}

/// One of several parts of a key.
#[inline]
pub fn part<K: RuleKey + ?Sized>(part: &K) -> &K {
    part
}

/// The name of the function that `within` was declared in, such as `shop::Orders::place`, with something behind it that
/// tells apart what else is on that function.
pub fn name_of<T>(_within: T, behind: &str) -> Cow<'static, str> {
    format!("{}{behind}", path_of::<T>()).into()
}

/// The name of what that function is a method of, such as `shop::Orders`.
pub fn name_of_owner<T>(_within: T, behind: &str) -> Cow<'static, str> {
    let path = path_of::<T>();
    let owner = path.rsplit_once("::").map_or(&*path, |(owner, _)| owner);
    format!("{owner}{behind}").into()
}

/// Futures are closures of their function.
fn path_of<T>() -> String {
    let path = type_name::<T>().replace("::{{closure}}", "");
    path.rsplit_once("::").map_or(path.clone(), |(function, _)| function.to_owned())
}

/// What a function makes of a refusal, for `or = …`.
#[cold]
pub fn refuse<E>(limited: Limited, or: impl FnOnce(Limited) -> E) -> E {
    or(limited)
}

/// Calls once: what is called may then give away what it captured.
#[inline]
pub fn call<R>(call: impl FnOnce() -> R) -> R {
    call()
}
