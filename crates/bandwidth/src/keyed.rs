//! One bandwidth for each key: a user's streams together.

use super::{Bandwidth, BandwidthBuilder, scheduler::SchedulerSettings};
use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasher, Hash},
    task::Waker,
};
use tidegate_core::Quota;
use tidegate_limiter::{
    BuildError,
    sync::{Mutex, lock},
};

/// A byte rate for each key, which all streams of that key share.
///
/// ```
/// use tidegate_bandwidth::KeyedBandwidth;
///
/// let per_user = KeyedBandwidth::new("5MB/s")?;
/// let first = per_user.key("alice").limit_reads(&b"one download"[..]);
/// let second = per_user.key("alice").limit_reads(&b"another, of the same user"[..]);
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
///
/// A key is kept while one of its streams is there or owes something, or somebody holds its [`Bandwidth`]. After that
/// it is forgotten when room is made for others, and with it a rate of its own: whoever gives a key one by
/// [`Bandwidth::change`] keeps that bandwidth for as long as the rate is to hold.
pub struct KeyedBandwidth {
    keys: Mutex<KeyedState>,
    settings: BandwidthBuilder,
    hasher: foldhash::quality::RandomState,
}

struct KeyedState {
    quota: Quota,
    scheduler_settings: SchedulerSettings,
    bandwidths: HashMap<u64, Bandwidth>,
    /// How many there may be before those that nobody needs are looked for.
    sweep_at: usize,
}

/// Fewer keys than this are not worth a look.
const MIN_SWEEP_SIZE: usize = 64;

impl KeyedBandwidth {
    /// A bandwidth for each key, on the machine's clock; see [`Bandwidth::new`].
    pub fn new<Q>(quota: Q) -> Result<Self, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        Bandwidth::builder().build_keyed(quota)
    }

    pub(super) fn from_parts(
        quota: Quota,
        scheduler_settings: SchedulerSettings,
        settings: BandwidthBuilder,
    ) -> Self {
        let keys =
            KeyedState { quota, scheduler_settings, bandwidths: HashMap::new(), sweep_at: MIN_SWEEP_SIZE };
        Self { keys: Mutex::new(keys), settings, hasher: foldhash::quality::RandomState::default() }
    }

    /// The bandwidth of one key, the same for all who ask.
    pub fn key<K: Hash + ?Sized>(&self, key: &K) -> Bandwidth {
        let fingerprint = self.hasher.hash_one(key);
        let mut keys = lock(&self.keys);
        if let Some(known) = keys.bandwidths.get(&fingerprint) {
            return known.clone();
        }
        if keys.bandwidths.len() >= keys.sweep_at {
            keys.bandwidths.retain(|_, bandwidth| !bandwidth.is_idle());
            keys.sweep_at = (2 * keys.bandwidths.len()).max(MIN_SWEEP_SIZE);
        }
        let made = Bandwidth::from_parts(keys.quota, keys.scheduler_settings, self.settings.clone());
        keys.bandwidths.insert(fingerprint, made.clone());
        made
    }

    /// Replaces the rate of all keys while running, of those too that were given one of their own.
    pub fn change<Q>(&self, quota: Q) -> Result<(), BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        let (quota, terms) = self.settings.resolve(quota.try_into()?)?;
        let mut keys = lock(&self.keys);
        (keys.quota, keys.scheduler_settings) = (quota, terms);
        let waiting: Vec<_> =
            keys.bandwidths.values().flat_map(|known| known.apply_settings(quota, terms)).collect();
        drop(keys);
        waiting.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// The rate of each key, and how many bytes go at once.
    pub fn quota(&self) -> Quota {
        lock(&self.keys).quota
    }

    /// How many keys are kept; at most twice as many as there was a need for at one time, and a few.
    pub fn key_count(&self) -> usize {
        lock(&self.keys).bandwidths.len()
    }
}

impl fmt::Debug for KeyedBandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyedBandwidth({}, {} keys)", self.quota(), self.key_count())
    }
}
