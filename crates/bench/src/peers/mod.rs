//! The limiters that are compared, one file each, behind one small trait.

mod floor;
mod governor;
mod leaky_bucket;
mod mutex;
mod pingora;
mod ratelimit;
mod tidegate;
mod trypema;

use crate::{BenchResult, keys::BenchKey};
use std::{hint::black_box, time::Duration};

/// The peer that every ratio is taken to: governor with its default hasher and its default clock.
pub(crate) const REFERENCE: &str = "governor";
/// Ourselves.
pub(crate) const TIDEGATE: &str = "tidegate";
/// What is no limiter, only a bound for them.
pub(crate) const FLOOR: &str = "floor: array";

/// What a limiter must be able to do to take part: the one thing that each peer's file writes down.
trait Decide<K>: Send + Sync {
    /// Decides one request, by its key or (the floor only) by the key's place in an array. True is allowed. Always
    /// inlined, for every peer, and called in one place: no compiler's whim shall come between them.
    fn decide(&self, key: &K, place: u32) -> bool;

    /// How many keys found no room for a state of their own, where a limiter can tell.
    fn overflowed(&self) -> u64 {
        0
    }
}

/// A limiter that was made for one case.
pub(crate) trait Peer<K>: Send + Sync {
    /// Decides one request after the other and counts the allowed ones. This is the loop that is timed: it is
    /// compiled for each limiter by itself, so that a decision costs no virtual call.
    fn decide_all(&self, keys: &[K], places: &[u32]) -> u64;

    /// See [`Decide::overflowed`].
    fn overflowed(&self) -> u64;
}

impl<K, D: Decide<K>> Peer<K> for D {
    fn decide_all(&self, keys: &[K], places: &[u32]) -> u64 {
        let mut allowed = 0;
        for (key, place) in keys.iter().zip(places) {
            allowed += u64::from(black_box(self.decide(key, *place)));
        }
        allowed
    }

    fn overflowed(&self) -> u64 {
        Decide::overflowed(self)
    }
}

/// A peer that can be made: several may be too big to stand in memory when only one is asked for.
pub(crate) struct PeerEntry<K> {
    /// What it is called in the tables.
    pub(crate) name: &'static str,
    /// Makes it.
    pub(crate) make: fn(&PeerSetup) -> BenchResult<Box<dyn Peer<K>>>,
}

/// What a peer is made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerSetup {
    /// How many different keys will come.
    pub(crate) keys: u32,
    /// The quota of each.
    pub(crate) quota: PeerQuota,
    /// Which clock Tidegate reads; the peers have their own.
    pub(crate) clock: ClockKind,
}

/// A quota in numbers that every peer can translate: `tokens` per `unit`, at most `burst` at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerQuota {
    pub(crate) tokens: u32,
    pub(crate) unit: QuotaPeriod,
    pub(crate) burst: u32,
}

/// The time that a quota counts by.
#[derive(Clone, Copy, Debug)]
pub(crate) enum QuotaPeriod {
    Second,
    Hour,
}

impl QuotaPeriod {
    /// The same as a duration.
    pub(crate) fn duration(self) -> Duration {
        match self {
            Self::Second => Duration::from_secs(1),
            Self::Hour => Duration::from_secs(3_600),
        }
    }
}

/// Tidegate's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockKind {
    Exact,
    Coarse,
}

/// All peers that limit by a key of type `K`.
pub(crate) fn keyed_peers<K: BenchKey>() -> Vec<PeerEntry<K>> {
    let mut entries = vec![
        PeerEntry { name: TIDEGATE, make: tidegate::keyed },
        PeerEntry { name: REFERENCE, make: governor::keyed },
        PeerEntry { name: "governor, foldhash", make: governor::keyed_foldhash },
        PeerEntry { name: "pingora-limits", make: pingora::keyed },
        PeerEntry { name: "Mutex<HashMap>", make: mutex::keyed },
    ];
    entries.extend(K::extra_peers());
    entries.push(PeerEntry { name: FLOOR, make: floor::build });
    entries
}

/// Peers that take no keys but strings.
pub(crate) fn string_peers() -> Vec<PeerEntry<String>> {
    vec![PeerEntry { name: "trypema", make: trypema::keyed }]
}

/// All peers that have one bucket and no keys.
pub(crate) fn direct_peers() -> Vec<PeerEntry<()>> {
    vec![
        PeerEntry { name: TIDEGATE, make: tidegate::direct },
        PeerEntry { name: REFERENCE, make: governor::direct },
        PeerEntry { name: "ratelimit", make: ratelimit::direct },
        PeerEntry { name: "leaky-bucket", make: leaky_bucket::fair },
        PeerEntry { name: "leaky-bucket, unfair", make: leaky_bucket::unfair },
        PeerEntry { name: "Mutex", make: mutex::direct },
        PeerEntry { name: FLOOR, make: floor::build },
    ]
}
