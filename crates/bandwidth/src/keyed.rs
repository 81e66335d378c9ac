//! A bandwidth for each key: the streams of a key share it.

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
/// A key is stored while it has a stream or a debt, or while its [`Bandwidth`] is in use. Otherwise it is dropped
/// when room is needed, together with a rate that [`Bandwidth::change`] set for it. So keep the [`Bandwidth`] as
/// long as its own rate must apply.
pub struct KeyedBandwidth {
    keys: Mutex<KeyedState>,
    settings: BandwidthBuilder,
    hasher: foldhash::quality::RandomState,
}

struct KeyedState {
    quota: Quota,
    scheduler_settings: SchedulerSettings,
    bandwidths: HashMap<u64, Bandwidth>,
    /// The number of keys at which idle ones are dropped.
    sweep_at: usize,
}

/// A sweep of fewer keys is not worth its cost.
const MIN_SWEEP_SIZE: usize = 64;

impl KeyedBandwidth {
    /// A bandwidth for each key, on the system clock; see [`Bandwidth::new`].
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

    /// Returns the bandwidth of a key, which all streams of the key share.
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

    /// Changes the rate of all keys at run time, including keys with their own rate.
    pub fn change<Q>(&self, quota: Q) -> Result<(), BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        let (quota, settings) = self.settings.resolve(quota.try_into()?)?;
        let mut keys = lock(&self.keys);
        (keys.quota, keys.scheduler_settings) = (quota, settings);
        let waiting: Vec<_> =
            keys.bandwidths.values().flat_map(|known| known.apply_settings(quota, settings)).collect();
        drop(keys);
        waiting.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// The rate of each key and its burst.
    pub fn quota(&self) -> Quota {
        lock(&self.keys).quota
    }

    /// The number of stored keys; at most about twice the number that was in use at the same time.
    pub fn key_count(&self) -> usize {
        lock(&self.keys).bandwidths.len()
    }
}

impl fmt::Debug for KeyedBandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyedBandwidth({}, {} keys)", self.quota(), self.key_count())
    }
}
