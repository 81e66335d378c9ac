//! What attributes expand to: one static for each place in the code.
//!
//! A site makes its rule when it is first passed, under the settings as they are then, and the rule follows them from there
//! on. Nothing here is meant to be written by hand.
//!
//! ```text
//!   policy file ──▶ Settings ──Rules::apply──▶ rules of all sites that were passed
//!                      └──────────────────────▶ rules of other sites, when they are first passed
//! ```

mod breaker;
mod limit;
mod name;

pub use crate::{FromLimited, KeyPair, Mode, RuleConfig, RuleKey};
pub use breaker::{BreakerSite, ClassifyOutcome, classify};
pub use limit::{ActiveSite, AdmitError, LimitSite, SiteReservation};
pub use name::{config_for_function, config_for_type};
pub use std::time::Duration;
pub use tidegate_core::{Micros, SettingError};
pub use tidegate_limiter::{BuildError, Capacity};
pub use tidegate_overload::BreakerSettings;

use crate::{
    Facts, Limited,
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

/// The variable that names the policy file of a program that does not name one itself.
pub const POLICY_VARIABLE: &str = "TIDEGATE_POLICY";

/// Loads the policy file that [`POLICY_VARIABLE`] names, once, before the first attribute declares its rule. `load` is
/// `None` in a program that cannot read policy files.
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
            None => tracing::error!("{POLICY_VARIABLE} is set, but the feature `policy` is off"),
        }
    });
    IS_LOADING.set(false);
}

/// The key that calls of an attribute are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteKey {
    /// None: one bucket for all calls.
    All,
    /// `key = ip`: the address of the client.
    Ip,
    /// `key = user`: the name of the user.
    User,
    /// An expression over the arguments.
    Expression,
}

impl SiteKey {
    /// Whether an attribute with the key `site` counts by this key of a policy. An expression is taken to.
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

/// Everybody, for `key = method`: the key that [`KeyValue::All`] is.
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

/// The client by its address, for `key = ip`. All callers of whom none is known share one key; the first is logged.
pub fn ip() -> KeyValue<'static> {
    match Facts::with_current(Facts::ip).flatten() {
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
pub fn key_part<K: RuleKey + ?Sized>(part: &K) -> &K {
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
