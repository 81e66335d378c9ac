//! A list and bans together: what both say of one request.

use super::{
    bans::Bans,
    list::{AccessList, AccessMatch},
};
use arc_swap::ArcSwap;
use std::{net::IpAddr, sync::Arc};
use tidegate_core::Micros;
use tidegate_limiter::LimitKey;

/// Where an address or a key stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessDecision {
    /// The list lets it in. No ban changes that.
    Allowed,
    /// The list keeps it out.
    Denied,
    /// It is banned, for so long.
    Banned(Micros),
    /// Nothing is known against it.
    Unlisted,
}

/// A list and bans. What the list says comes first, so that whoever is allowed there is never banned.
///
/// ```
/// use std::{net::IpAddr, time::Duration};
/// use tidegate_access::{AccessControl, AccessList, Bans, AccessDecision};
///
/// let control = AccessControl::new("allow 192.0.2.0/24\ndeny key mallory".parse()?, Bans::builder().build()?);
/// let (office, other): (IpAddr, IpAddr) = ("192.0.2.7".parse()?, "198.51.100.1".parse()?);
/// for address in [office, other] {
///     control.bans().ban(&address, Duration::from_secs(60));
/// }
/// assert_eq!(control.check(office), AccessDecision::Allowed);
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
    /// A list, and bans.
    pub fn new(list: AccessList, bans: Bans) -> Self {
        Self { list: ArcSwap::from_pointee(list), bans }
    }

    /// Where an address stands. A mapped IPv4 address is the IPv4 address.
    pub fn check(&self, address: IpAddr) -> AccessDecision {
        let address = address.to_canonical();
        self.decide(self.list.load().check(address), &address)
    }

    /// Where a key stands.
    pub fn check_key(&self, key: &str) -> AccessDecision {
        self.decide(self.list.load().check_key(key), key)
    }

    /// Counts a denial of an address, see [`Bans::record_denial`], unless it is on the list.
    pub fn record_denial(&self, address: IpAddr) -> AccessDecision {
        let address = address.to_canonical();
        self.decide_denied(self.list.load().check(address), &address)
    }

    /// Counts a denial of a key, see [`Bans::record_denial`], unless it is on the list.
    pub fn record_key_denial(&self, key: &str) -> AccessDecision {
        self.decide_denied(self.list.load().check_key(key), key)
    }

    /// Puts another list in place of the one there is. Checks that are under way finish with the old one.
    pub fn replace(&self, list: AccessList) {
        self.list.store(Arc::new(list));
    }

    /// The list as it is now.
    pub fn list(&self) -> Arc<AccessList> {
        self.list.load_full()
    }

    /// The bans. Addresses among them are canonical: see [`IpAddr::to_canonical`].
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
