//! The expansion of attributes: one static per site in the code.
//!
//! A site declares its rule on its first call, under the settings at that time; later settings apply to the rule too. This
//! module is for generated code only.
//!
//! ```text
//!   policy file ──▶ Settings ──Rules::apply──▶ rules of sites that were called
//!                      └──────────────────────▶ rules of other sites, on their first call
//! ```

mod breaker;
mod limit;
mod name;
mod retry;

pub use crate::permit::CountedCall;
pub use crate::{FromLimited, KeyPair, Mode, RuleConfig, RuleKey};
pub use breaker::{BreakerSite, ClassifyOutcome, classify};
pub use limit::{ActiveSite, AdmitError, LimitSite, SiteReservation};
pub use name::{config_for_function, config_for_type};
pub use retry::{AttemptRejection, RetrySite, TimeLimitSite, classify_retry, clock, retry_failure};
pub use std::time::Duration;
pub use tidegate_core::{Micros, SettingError};
pub use tidegate_limiter::{BuildError, Capacity};
pub use tidegate_overload::{BreakerSettings, HedgeDelay, Retrier};

use crate::{
    Limited, RequestContext, events,
    request::{AddressKey, KeyValue},
};
use std::{
    cell::Cell,
    env, fmt,
    hash::{Hash, Hasher},
    path::Path,
    sync::{
        Arc, Once,
        atomic::{AtomicBool, Ordering},
    },
};

/// The environment variable with the path of the policy file, for programs that do not set one.
pub const POLICY_VARIABLE: &str = "TIDEGATE_POLICY";

/// Loads the policy file of [`POLICY_VARIABLE`] once, before the first attribute declares its rule. `load` is
/// `None` if the program cannot read policy files.
pub fn load_policy(load: Option<fn(&Path)>) {
    static LOADED: Once = Once::new();
    thread_local!(static IS_LOADING: Cell<bool> = const { Cell::new(false) });
    // A log subscriber may call a function with an attribute.
    if LOADED.is_completed() || IS_LOADING.replace(true) {
        return;
    }
    LOADED.call_once_force(|_| {
        let Some(path) = env::var_os(POLICY_VARIABLE).filter(|path| !path.is_empty()) else { return };
        match load {
            Some(load) => load(Path::new(&path)),
            None => events::PolicyFeatureDisabled { variable: POLICY_VARIABLE }.emit(),
        }
    });
    IS_LOADING.set(false);
}

/// The key that calls of an attribute are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteKey {
    /// One bucket for all calls.
    All,
    /// `key = ip`: the address of the client.
    Ip,
    /// `key = user`: the name of the user.
    User,
    /// An expression over the arguments.
    Expression,
}

impl SiteKey {
    /// Whether an attribute with the key `site` can count by this policy key. For an expression this is
    /// assumed.
    pub(crate) fn matches(self, site: Self) -> bool {
        self == site || site == Self::Expression
    }

    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::All => "all calls together",
            Self::Ip => "by `ip`",
            Self::User => "by `user`",
            Self::Expression => "by an expression",
        }
    }
}

impl fmt::Display for SiteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::All => "all",
            Self::Ip => "ip",
            Self::User => "user",
            Self::Expression => "an expression",
        })
    }
}

/// The key of all calls, for `key = method`: equal to [`KeyValue::All`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalKey;

impl Hash for GlobalKey {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        "".hash(state);
    }
}

impl fmt::Display for GlobalKey {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

/// The client address, for `key = ip`. All calls without one share one key; the first is logged.
pub fn ip() -> KeyValue<'static> {
    match RequestContext::with_current(RequestContext::ip).flatten() {
        Some(ip) => KeyValue::Address(AddressKey::new(ip)),
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
        events::ClientAddressUnknown.emit();
    }
}

/// The user name, for `key = user`. All calls without one share one key.
pub fn user() -> Arc<str> {
    RequestContext::with_current(RequestContext::shared_user).flatten().unwrap_or_default()
}

/// One part of a combined key.
#[inline]
pub fn key_part<K: RuleKey + ?Sized>(part: &K) -> &K {
    part
}

/// Converts a rejection with a function, for `map_err = …`.
#[cold]
pub fn convert_rejection<E>(limited: Limited, convert: impl FnOnce(Limited) -> E) -> E {
    convert(limited)
}

/// Calls a function once, so that it may move its captures.
#[inline]
pub fn call<R>(call: impl FnOnce() -> R) -> R {
    call()
}
