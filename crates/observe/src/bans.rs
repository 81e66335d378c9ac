//! Temporary bans by operators.
//!
//! Without bans, a check costs one atomic load. A new ban rebuilds the index.

use super::{KeyLabel, effective_key_display};
use arc_swap::ArcSwap;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    fmt,
    net::IpAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};
use tidegate_access::{AccessList, Prefix};
use tidegate_core::{Micros, Utc};
use tidegate_limiter::Clock;
use tidegate_policy::{compile::PolicyGate, matching::RequestView, model::KeyDisplay};

/// The bans that operators made.
pub struct OperatorBans {
    has_bans: AtomicBool,
    index: ArcSwap<BanIndex>,
    write_lock: Mutex<()>,
    clock: Clock,
}

/// All bans, indexed by network and key.
#[derive(Default)]
struct BanIndex {
    bans: Vec<Arc<OperatorBan>>,
    networks: Option<AccessList>,
    by_network: HashMap<Prefix, Arc<OperatorBan>>,
    by_key: HashMap<Arc<str>, HashMap<String, Arc<OperatorBan>>>,
}

/// A ban that an operator made.
#[derive(Debug)]
pub struct OperatorBan {
    id: String,
    target: BanTarget,
    until: Micros,
    note: BanNote,
}

/// Who made a ban, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BanNote {
    /// The name of the operator.
    pub author: Arc<str>,
    /// The reason, if the operator stated one.
    pub reason: Option<String>,
}

/// The target of a ban.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BanTarget {
    /// A client: an IPv4 address, or the /64 network of an IPv6 client.
    Client(Prefix),
    /// All addresses of a network.
    Network(Prefix),
    /// A key of a rule.
    Key {
        /// The rule.
        rule: Arc<str>,
        /// The key.
        key: String,
    },
}

/// The maximum number of bans is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BanLimitReached;

/// The maximum number of concurrent bans.
pub(crate) const MAX_BANS: usize = 10_000;
/// The prefix length of the network of one IPv6 client.
const IPV6_CLIENT_BITS: u8 = 64;

impl BanTarget {
    /// The client at this address.
    pub fn client(address: IpAddr) -> Self {
        let address = address.to_canonical();
        let network = match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(address) => {
                let first =
                    std::net::Ipv6Addr::from_bits(address.to_bits() >> IPV6_CLIENT_BITS << IPV6_CLIENT_BITS);
                Prefix::new(first.into(), IPV6_CLIENT_BITS).ok()
            }
        };
        Self::Client(network.unwrap_or_else(|| address.into()))
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Client(_) => "ip",
            Self::Network(_) => "network",
            Self::Key { .. } => "key",
        }
    }
}

impl OperatorBans {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            has_bans: AtomicBool::new(false),
            index: ArcSwap::default(),
            write_lock: Mutex::new(()),
            clock,
        }
    }

    /// Returns the ban that rejects a request, and its remaining time.
    #[inline]
    pub fn check(&self, request: &RequestView<'_>, gate: &PolicyGate) -> Option<(Arc<OperatorBan>, Micros)> {
        match self.has_bans.load(Ordering::Relaxed) {
            false => None,
            true => self.find_ban(request, gate),
        }
    }

    #[cold]
    fn find_ban(&self, request: &RequestView<'_>, gate: &PolicyGate) -> Option<(Arc<OperatorBan>, Micros)> {
        let (index, now) = (self.index.load(), self.clock.now());
        let found = request.client().and_then(|client| index.find_client(client, now));
        let found = found.or_else(|| index.find_key(request, gate, now))?;
        let left = found.until.saturating_sub(now);
        Some((found, left))
    }

    /// Adds a ban; replaces a ban of the same target.
    pub fn ban(
        &self,
        target: BanTarget,
        length: Micros,
        note: BanNote,
    ) -> Result<Arc<OperatorBan>, BanLimitReached> {
        let _guard = self.write_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        let id = format!("b-{:08x}", fastrand::u32(..));
        let ban = Arc::new(OperatorBan { id, target, until: now.saturating_add(length), note });
        let mut bans = self.index.load().active_except(now, |other| other.target == ban.target);
        if bans.len() >= MAX_BANS {
            return Err(BanLimitReached);
        }
        bans.push(ban.clone());
        self.store(bans);
        Ok(ban)
    }

    /// Lifts the ban with this id; `None` if it does not exist.
    pub fn lift(&self, id: &str) -> Option<()> {
        let _guard = self.write_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let index = self.index.load();
        index.bans.iter().find(|ban| ban.id == id)?;
        self.store(index.active_except(self.clock.now(), |ban| ban.id == id));
        Some(())
    }

    /// Removes expired bans; call it about once per second.
    pub(crate) fn remove_expired(&self) {
        if !self.has_bans.load(Ordering::Relaxed) {
            return;
        }
        let _guard = self.write_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let (index, now) = (self.index.load(), self.clock.now());
        let rest = index.active_except(now, |_| false);
        if rest.len() != index.bans.len() {
            self.store(rest);
        }
    }

    /// The number of bans.
    pub(crate) fn count(&self) -> usize {
        self.index.load().bans.len()
    }

    /// Up to `limit` bans, longest remaining time first.
    pub fn to_json(&self, limit: usize, display: KeyDisplay, gate: &PolicyGate) -> Vec<Value> {
        let (index, now) = (self.index.load(), self.clock.now());
        let mut bans: Vec<_> = index.bans.iter().filter(|ban| ban.until > now).collect();
        bans.sort_by_key(|ban| std::cmp::Reverse(ban.until));
        bans.into_iter().take(limit).map(|ban| ban.to_json(now, display, gate)).collect()
    }

    fn store(&self, bans: Vec<Arc<OperatorBan>>) {
        self.has_bans.store(!bans.is_empty(), Ordering::Relaxed);
        self.index.store(Arc::new(BanIndex::new(bans)));
    }
}

impl BanIndex {
    fn new(bans: Vec<Arc<OperatorBan>>) -> Self {
        let mut list = AccessList::builder();
        let mut by_network = HashMap::new();
        let mut by_key: HashMap<Arc<str>, HashMap<String, Arc<OperatorBan>>> = HashMap::new();
        for ban in &bans {
            match &ban.target {
                BanTarget::Client(network) | BanTarget::Network(network) => {
                    // If a client and a network have the same prefix, the longer ban applies.
                    let longest = by_network.entry(*network).or_insert_with(|| ban.clone());
                    if longest.until < ban.until {
                        *longest = ban.clone();
                    }
                }
                BanTarget::Key { rule, key } => {
                    by_key.entry(rule.clone()).or_default().insert(key.clone(), ban.clone());
                }
            }
        }
        for network in by_network.keys() {
            list = list.deny(*network);
        }
        // Building a list of distinct networks does not fail.
        Self { networks: list.build().ok(), bans, by_network, by_key }
    }

    fn active_except(
        &self,
        now: Micros,
        is_excluded: impl Fn(&OperatorBan) -> bool,
    ) -> Vec<Arc<OperatorBan>> {
        let is_active = |ban: &&Arc<OperatorBan>| ban.until > now && !is_excluded(ban);
        self.bans.iter().filter(is_active).cloned().collect()
    }

    fn find_client(&self, client: IpAddr, now: Micros) -> Option<Arc<OperatorBan>> {
        let (_, network) = self.networks.as_ref()?.find(client)?;
        let narrowest = self.by_network.get(&network).filter(|ban| ban.until > now);
        // If the narrowest ban has just expired, a wider one may still apply.
        let wider = || {
            let applies =
                |(network, ban): &(&Prefix, &Arc<OperatorBan>)| network.contains(client) && ban.until > now;
            self.by_network.iter().find(applies).map(|(_, ban)| ban)
        };
        narrowest.or_else(wider).cloned()
    }

    fn find_key(
        &self,
        request: &RequestView<'_>,
        gate: &PolicyGate,
        now: Micros,
    ) -> Option<Arc<OperatorBan>> {
        if self.by_key.is_empty() {
            return None;
        }
        let banned = gate.views().find_map(|rule| {
            let keys = self.by_key.get(rule.name())?;
            keys.get(&rule.key_for(request.head())?.to_string())
        });
        banned.filter(|ban| ban.until > now).cloned()
    }
}

impl OperatorBan {
    pub fn target(&self) -> &BanTarget {
        &self.target
    }

    pub fn to_json(&self, now: Micros, display: KeyDisplay, gate: &PolicyGate) -> Value {
        let label = |rule: &str, value: &dyn fmt::Display| KeyLabel::new(display, rule, value).text();
        let (value, rule) = match &self.target {
            BanTarget::Client(network) if network.network_address().is_ipv4() => {
                (label("", &network.network_address()), None)
            }
            BanTarget::Client(network) => (label("", network), None),
            // A network identifies no single client, so it is never hashed.
            BanTarget::Network(network) => (network.to_string(), None),
            BanTarget::Key { rule, key } => {
                let display = effective_key_display(display, gate.has_credential(rule));
                (KeyLabel::new(display, rule, key).text(), Some(&**rule))
            }
        };
        json!({
            "id": self.id,
            "by": "operator",
            "kind": self.target.kind(),
            "value": value,
            "rule": rule,
            "remaining": super::denial::seconds(self.until.saturating_sub(now)),
            "until": Utc::from(self.until).to_string(),
            "ban-count": 1,
            "author": &*self.note.author,
            "reason": self.note.reason,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn banning_id(bans: &OperatorBans, client: &str) -> Option<String> {
        let now = bans.clock.now();
        bans.index.load().find_client(client.parse().unwrap(), now).map(|ban| ban.id.clone())
    }

    #[test]
    fn wider_ban_remains_after_narrow_ban_expires() {
        let (clock, manual_clock) = Clock::manual();
        let bans = OperatorBans::new(clock);
        let note = || BanNote { author: "ann".into(), reason: None };
        let network = BanTarget::Network("192.0.2.0/24".parse().unwrap());
        let client = BanTarget::client("192.0.2.7".parse().unwrap());
        let wide = bans.ban(network, Micros::from_secs(60), note()).unwrap();
        let narrow = bans.ban(client.clone(), Micros::from_secs(10), note()).unwrap();
        assert_eq!(banning_id(&bans, "192.0.2.7"), Some(narrow.id.clone()));
        assert_eq!(banning_id(&bans, "192.0.2.8"), Some(wide.id.clone()));
        assert_eq!(banning_id(&bans, "192.0.3.1"), None);

        manual_clock.advance(Duration::from_secs(10));
        assert_eq!(banning_id(&bans, "192.0.2.7"), Some(wide.id.clone()));
        bans.remove_expired();
        assert_eq!(bans.count(), 1);
        let again = bans.ban(client.clone(), Micros::from_secs(5), note()).unwrap();
        let longer = bans.ban(client, Micros::from_secs(50), note()).unwrap();
        assert_eq!((bans.count(), bans.lift(&again.id)), (2, None), "the first ban was replaced");
        assert_eq!((bans.lift(&longer.id), bans.lift(&wide.id)), (Some(()), Some(())));
        assert!(banning_id(&bans, "192.0.2.7").is_none() && !bans.has_bans.load(Ordering::Relaxed));
    }

    #[test]
    fn ipv6_client_ban_covers_its_network() {
        let bans = OperatorBans::new(Clock::manual().0);
        let note = BanNote { author: "ann".into(), reason: None };
        bans.ban(BanTarget::client("2001:db8::1".parse().unwrap()), Micros::from_secs(1), note).unwrap();
        assert!(banning_id(&bans, "2001:db8::2").is_some() && banning_id(&bans, "2001:db8:0:1::1").is_none());
    }
}
