//! The limiters that are compared, one file each, behind one small trait.

mod floor;
mod governor;
mod leaky_bucket;
mod mutex;
mod pingora;
mod ratelimit;
mod tidegate;
mod trypema;

use crate::{Result, keys::Key};
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
    fn crowded_out(&self) -> u64 {
        0
    }
}

/// A limiter that was made for one case.
pub(crate) trait Peer<K>: Send + Sync {
    /// Decides one request after the other and counts the allowed ones. This is the loop that is timed: it is
    /// compiled for each limiter by itself, so that a decision costs no virtual call.
    fn pass(&self, keys: &[K], places: &[u32]) -> u64;

    /// See [`Decide::crowded_out`].
    fn crowded_out(&self) -> u64;
}

impl<K, D: Decide<K>> Peer<K> for D {
    fn pass(&self, keys: &[K], places: &[u32]) -> u64 {
        let mut allowed = 0;
        for (key, place) in keys.iter().zip(places) {
            allowed += u64::from(black_box(self.decide(key, *place)));
        }
        allowed
    }

    fn crowded_out(&self) -> u64 {
        Decide::crowded_out(self)
    }
}

/// A peer that can be made: several may be too big to stand in memory when only one is asked for.
pub(crate) struct Entry<K> {
    /// What it is called in the tables.
    pub(crate) name: &'static str,
    /// Makes it.
    pub(crate) make: fn(&Setup) -> Result<Box<dyn Peer<K>>>,
}

/// What a peer is made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// How many different keys will come.
    pub(crate) keys: u32,
    /// The quota of each.
    pub(crate) quota: Quota,
    /// Which clock Tidegate reads; the peers have their own.
    pub(crate) tick: Tick,
}

/// A quota in numbers that every peer can translate: `tokens` per `unit`, at most `burst` at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quota {
    pub(crate) tokens: u32,
    pub(crate) unit: Unit,
    pub(crate) burst: u32,
}

/// The time that a quota counts by.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unit {
    Second,
    Hour,
}

impl Unit {
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
pub(crate) enum Tick {
    Exact,
    Coarse,
}

/// All peers that limit by a key of type `K`.
pub(crate) fn keyed<K: Key>() -> Vec<Entry<K>> {
    let mut entries = vec![
        Entry { name: TIDEGATE, make: tidegate::keyed },
        Entry { name: REFERENCE, make: governor::keyed },
        Entry { name: "governor, foldhash", make: governor::keyed_foldhash },
        Entry { name: "pingora-limits", make: pingora::keyed },
        Entry { name: "Mutex<HashMap>", make: mutex::keyed },
    ];
    entries.extend(K::only_for_these());
    entries.push(Entry { name: FLOOR, make: floor::array });
    entries
}

/// Peers that take no keys but strings.
pub(crate) fn only_strings() -> Vec<Entry<String>> {
    vec![Entry { name: "trypema", make: trypema::keyed }]
}

/// All peers that have one bucket and no keys.
pub(crate) fn direct() -> Vec<Entry<()>> {
    vec![
        Entry { name: TIDEGATE, make: tidegate::direct },
        Entry { name: REFERENCE, make: governor::direct },
        Entry { name: "ratelimit", make: ratelimit::direct },
        Entry { name: "leaky-bucket", make: leaky_bucket::fair },
        Entry { name: "leaky-bucket, unfair", make: leaky_bucket::unfair },
        Entry { name: "Mutex", make: mutex::direct },
        Entry { name: FLOOR, make: floor::array },
    ]
}
