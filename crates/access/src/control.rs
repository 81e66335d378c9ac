//! An access list and bans together.

use super::{
    bans::Bans,
    list::{AccessList, AccessMatch},
};
use arc_swap::ArcSwap;
use std::{net::IpAddr, sync::Arc};
use tidegate_core::Micros;
use tidegate_limiter::LimitKey;

/// The access decision for an address or a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessDecision {
    /// Allowed by the list, which takes precedence over bans.
    Allowed,
    /// Denied by the list.
    Denied,
    /// Banned for this remaining time.
    Banned(Micros),
    /// Neither listed nor banned.
    Unlisted,
}

/// An access list and bans. The list takes precedence: an allowed address or key is never banned.
///
/// ```
/// use std::{net::IpAddr, time::Duration};
/// use tidegate_access::{AccessControl, AccessList, Bans, AccessDecision};
///
/// let control = AccessControl::new("allow 192.0.2.0/24\ndeny key mallory".parse()?, Bans::builder().build()?);
/// let (internal, other): (IpAddr, IpAddr) = ("192.0.2.7".parse()?, "198.51.100.1".parse()?);
/// for address in [internal, other] {
///     control.bans().ban(&address, Duration::from_secs(60));
/// }
/// assert_eq!(control.check(internal), AccessDecision::Allowed);
/// assert!(matches!(control.check(other), AccessDecision::Banned(_)));
/// control.replace(AccessList::default());
/// assert_eq!(control.check_key("mallory"), AccessDecision::Unlisted);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AccessControl {
    list: ArcSwap<AccessList>,
    bans: Bans,
}

impl AccessControl {
    /// Combines a list and bans.
    pub fn new(list: AccessList, bans: Bans) -> Self {
        Self { list: ArcSwap::from_pointee(list), bans }
    }

    /// Checks an address. An IPv4-mapped IPv6 address is checked as IPv4.
    pub fn check(&self, address: IpAddr) -> AccessDecision {
        let address = address.to_canonical();
        self.decide(self.list.load().check(address), &address)
    }

    /// Checks a key.
    pub fn check_key(&self, key: &str) -> AccessDecision {
        self.decide(self.list.load().check_key(key), key)
    }

    /// Counts a denial of an address, unless it is listed; see [`Bans::record_denial`].
    pub fn record_denial(&self, address: IpAddr) -> AccessDecision {
        let address = address.to_canonical();
        self.decide_denied(self.list.load().check(address), &address)
    }

    /// Counts a denial of a key, unless it is listed; see [`Bans::record_denial`].
    pub fn record_key_denial(&self, key: &str) -> AccessDecision {
        self.decide_denied(self.list.load().check_key(key), key)
    }

    /// Replaces the list. Checks in progress finish with the old list.
    pub fn replace(&self, list: AccessList) {
        self.list.store(Arc::new(list));
    }

    /// The current list.
    pub fn list(&self) -> Arc<AccessList> {
        self.list.load_full()
    }

    /// The bans. Addresses in it are canonical; see [`IpAddr::to_canonical`].
    pub fn bans(&self) -> &Bans {
        &self.bans
    }

    fn decide<K: LimitKey + ?Sized>(&self, access: AccessMatch, key: &K) -> AccessDecision {
        AccessDecision::from_list(access, || self.bans.check(key))
    }

    fn decide_denied<K: LimitKey + ?Sized>(&self, access: AccessMatch, key: &K) -> AccessDecision {
        AccessDecision::from_list(access, || self.bans.record_denial(key))
    }
}

impl AccessDecision {
    fn from_list(access: AccessMatch, ban: impl FnOnce() -> Option<Micros>) -> Self {
        match access {
            AccessMatch::Allowed => Self::Allowed,
            AccessMatch::Denied => Self::Denied,
            AccessMatch::Unlisted => ban().map_or(Self::Unlisted, Self::Banned),
        }
    }
}
