//! The compared limiters, one file each, behind one trait.

mod floor;
mod governor;
mod leaky_bucket;
mod mutex;
mod pingora;
mod ratelimit;
mod tidegate;
mod trypema;

use crate::{BenchResult, keys::BenchKey};
use std::{fmt, hint::black_box, time::Duration};

/// The reference of every ratio: governor with its default hasher and clock.
pub(crate) const REFERENCE: &str = "governor";
/// Tidegate itself.
pub(crate) const TIDEGATE: &str = "tidegate";
/// The same limiters, behind a call that is not inlined.
pub(crate) const REFERENCE_CALLED: &str = "governor, called";
pub(crate) const TIDEGATE_CALLED: &str = "tidegate, called";
/// The competitors of the published ratios. A wrong result of one of them ends the run.
pub(crate) const REQUIRED: [&str; 4] = [TIDEGATE, REFERENCE, TIDEGATE_CALLED, REFERENCE_CALLED];
/// A lower bound for limiters, not a limiter.
pub(crate) const FLOOR: &str = "floor: array";

/// The interface that each peer implements.
trait Decide<K>: Send + Sync {
    /// Returns whether a request is allowed, by its key or (the floor only) by the key's index. It is always inlined and
    /// called from one place, so that inlining does not differ between peers.
    fn decide(&self, key: &K, index: u32) -> bool;

    /// The number of keys without their own state, if the limiter reports it.
    fn overflowed(&self) -> u64 {
        0
    }
}

/// A limiter of one case.
pub(crate) trait Peer<K>: Send + Sync {
    /// Decides all requests in order and counts the allowed ones. This is the timed loop; it is compiled for each limiter
    /// separately, so that a decision is not a virtual call.
    fn decide_all(&self, keys: &[K], indexes: &[u32]) -> u64;

    /// See [`Decide::overflowed`].
    fn overflowed(&self) -> u64;
}

impl<K, D: Decide<K>> Peer<K> for D {
    fn decide_all(&self, keys: &[K], indexes: &[u32]) -> u64 {
        let mut allowed = 0;
        for (key, index) in keys.iter().zip(indexes) {
            allowed += u64::from(black_box(self.decide(key, *index)));
        }
        allowed
    }

    fn overflowed(&self) -> u64 {
        Decide::overflowed(self)
    }
}

/// A limiter behind a call that is not inlined.
struct Called<D>(D);

impl<K, D: Decide<K>> Decide<K> for Called<D> {
    #[inline(always)]
    fn decide(&self, key: &K, index: u32) -> bool {
        decide_called(&self.0, key, index)
    }
}

#[inline(never)]
fn decide_called<K, D: Decide<K>>(limiter: &D, key: &K, index: u32) -> bool {
    limiter.decide(key, index)
}

/// How a competitor is compiled into the timed loop. Ratios compare equal shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallShape {
    /// Each decision is inlined.
    Inlined,
    /// Each decision is a call that is not inlined.
    Called,
}

impl CallShape {
    /// The shape of a competitor.
    pub(crate) fn from_name(name: &str) -> Self {
        if [TIDEGATE_CALLED, REFERENCE_CALLED].contains(&name) { Self::Called } else { Self::Inlined }
    }

    /// Tidegate in this shape.
    pub(crate) fn tidegate(self) -> &'static str {
        match self {
            Self::Inlined => TIDEGATE,
            Self::Called => TIDEGATE_CALLED,
        }
    }

    /// The reference in this shape.
    pub(crate) fn reference(self) -> &'static str {
        match self {
            Self::Inlined => REFERENCE,
            Self::Called => REFERENCE_CALLED,
        }
    }
}

impl fmt::Display for CallShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inlined => "inlined",
            Self::Called => "called",
        })
    }
}

/// A factory of a peer, because all peers together may need too much memory.
pub(crate) struct PeerEntry<K> {
    /// The name in the tables.
    pub(crate) name: &'static str,
    /// Creates the peer.
    pub(crate) make: fn(&PeerSetup) -> BenchResult<Box<dyn Peer<K>>>,
}

/// The settings of a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerSetup {
    /// The number of distinct keys.
    pub(crate) keys: u32,
    /// The quota of each key.
    pub(crate) quota: PeerQuota,
    /// Tidegate's clock; the peers have their own.
    pub(crate) clock: ClockKind,
}

/// A quota that every peer supports: `tokens` per `unit`, at most `burst` at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerQuota {
    pub(crate) tokens: u32,
    pub(crate) unit: QuotaPeriod,
    pub(crate) burst: u32,
}

/// The period of a quota.
#[derive(Clone, Copy, Debug)]
pub(crate) enum QuotaPeriod {
    Second,
    Hour,
}

impl QuotaPeriod {
    /// The length of the period.
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

/// Returns all peers with keys of type `K`.
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

/// Returns the peers that support only string keys.
pub(crate) fn string_peers() -> Vec<PeerEntry<String>> {
    vec![PeerEntry { name: "trypema", make: trypema::keyed }]
}

/// Returns all peers with one bucket and no keys.
pub(crate) fn direct_peers() -> Vec<PeerEntry<()>> {
    vec![
        PeerEntry { name: TIDEGATE, make: tidegate::direct },
        PeerEntry { name: REFERENCE, make: governor::direct },
        PeerEntry { name: TIDEGATE_CALLED, make: tidegate::direct_called },
        PeerEntry { name: REFERENCE_CALLED, make: governor::direct_called },
        PeerEntry { name: "ratelimit", make: ratelimit::direct },
        PeerEntry { name: "leaky-bucket", make: leaky_bucket::fair },
        PeerEntry { name: "leaky-bucket, unfair", make: leaky_bucket::unfair },
        PeerEntry { name: "Mutex", make: mutex::direct },
        PeerEntry { name: FLOOR, make: floor::build },
    ]
}
