//! What attributes expand to: one static for each place in the code.
//!
//! A site makes its rule when it is first passed, under the settings as they are then, and the rule follows them from there
//! on. Nothing here is meant to be written by hand.

mod breaker;
mod limit;
mod name;

pub use crate::{Declaration, FromLimited, Joined, Mode, RuleKey};
pub use breaker::{BreakerSite, Judged, judge};
pub use limit::{LimitSite, Opened, Stopped, Taken};
pub use name::{declaration_of, declaration_of_owner};
pub use std::time::Duration;
pub use tidegate_core::{BreakerSettings, Micros, SettingError};
pub use tidegate_engine::{BuildError, Capacity};

use crate::{
    Facts, Limited,
    request::{Address, KeyValue},
};
use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
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

/// The client by its address, for `key = ip`. All callers of whom none is known share one key; the first is logged.
pub fn ip() -> KeyValue<'static> {
    match Facts::with_current(Facts::ip).flatten() {
        Some(ip) => KeyValue::Address(Address::of(ip)),
        None => {
            report_unknown_ip();
            KeyValue::All
        }
    }
}

#[cold]
fn report_unknown_ip() {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    if !IS_REPORTED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            fix = "put `FactsLayer` or `FactsMiddleware` around the service, on a server that records the peer's address",
            "no client address for `key = ip`; all such calls share one bucket"
        );
    }
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
