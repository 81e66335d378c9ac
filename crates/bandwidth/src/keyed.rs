//! A bandwidth for each key: the streams of a key share it. The number of stored keys is bounded.

use super::{Bandwidth, BandwidthBuilder, BandwidthInner, BandwidthSettings, stream_handle::SharedScheduler};
use indexmap::IndexMap;
use std::{
    fmt,
    hash::{BuildHasher, Hash},
    task::Waker,
};
use tidegate_core::Quota;
use tidegate_limiter::{
    BuildError, Capacity, Clock, Overflow,
    sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock},
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
/// soon after, together with a rate that [`Bandwidth::change`] set for it. So keep the [`Bandwidth`] as long as its
/// own rate must apply.
///
/// At most [`BandwidthBuilder::capacity`] keys are stored. A new key beyond that takes the place of one that is not in
/// use, or shares a rate with other such keys, by [`BandwidthBuilder::overflow`]. Keys in use always stay.
pub struct KeyedBandwidth {
    shards: Box<[Mutex<Shard>]>,
    /// The number of keys in all shards.
    stored: AtomicU64,
    /// Locked after a shard, never before one.
    settings: Mutex<KeyedSettings>,
    clock: Clock,
    hasher: foldhash::quality::RandomState,
}

#[derive(Clone, Copy)]
struct KeyedSettings {
    bandwidth: BandwidthSettings,
    /// The maximum number of keys.
    capacity: u64,
    overflow: Overflow,
}

/// A part of the keys, by their hash, so that threads rarely wait for each other.
#[derive(Default)]
struct Shard {
    keys: IndexMap<u64, Bandwidth, foldhash::fast::RandomState>,
    /// The index of the next key that is checked for removal.
    next: usize,
    /// The rate that new keys share while the table is full of keys in use.
    overflow: Option<Bandwidth>,
}

/// A table of fewer keys has one shard, which uses all of its capacity.
const MIN_SHARDED_CAPACITY: u64 = 1_024;
const SHARDS: usize = 16;
/// The number of keys that are checked for each new one. More than one, so that idle keys are removed faster than added.
const SWEEP_COUNT: usize = 2;
/// The number of keys that are checked for each new one while the table is full.
const FULL_SWEEP_COUNT: usize = 16;
/// The memory of one key: its rate, its scheduler, and its entry with the spare room of the map.
const KEY_BYTES: usize =
    size_of::<BandwidthInner>() + size_of::<SharedScheduler>() + 3 * size_of::<(u64, u64, Bandwidth)>();

impl KeyedBandwidth {
    /// A bandwidth for each key, on the system clock; see [`Bandwidth::new`].
    pub fn new<Q>(quota: Q) -> Result<Self, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        Bandwidth::builder().build_keyed(quota)
    }

    pub(super) fn from_parts(bandwidth: BandwidthSettings, builder: BandwidthBuilder) -> Self {
        let settings = KeyedSettings::new(bandwidth, &builder);
        let shards = if settings.capacity < MIN_SHARDED_CAPACITY { 1 } else { SHARDS };
        Self {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            stored: AtomicU64::new(0),
            settings: Mutex::new(settings),
            clock: builder.clock.unwrap_or_default(),
            hasher: foldhash::quality::RandomState::default(),
        }
    }

    /// Returns the bandwidth of a key, which all streams of the key share.
    pub fn key<K: Hash + ?Sized>(&self, key: &K) -> Bandwidth {
        let fingerprint = self.hasher.hash_one(key);
        let mut shard = self.shard(fingerprint);
        if let Some(known) = shard.keys.get(&fingerprint) {
            return known.clone();
        }
        let settings = *lock(&self.settings);
        self.forget(shard.remove_idle(SWEEP_COUNT));
        let has_room = self.reserve(settings.capacity) || {
            self.forget(shard.make_room(settings.overflow));
            self.reserve(settings.capacity)
        };
        let build = || Bandwidth::from_parts(settings.bandwidth, self.clock.clone());
        if !has_room {
            return shard.overflow.get_or_insert_with(build).clone();
        }
        let added = build();
        shard.keys.insert(fingerprint, added.clone());
        added
    }

    /// Changes the rate of all keys at run time, including keys with their own rate.
    pub fn change<Q>(&self, quota: Q) -> Result<(), BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        let mut settings = lock(&self.settings);
        settings.bandwidth = settings.bandwidth.with_quota(quota.try_into()?)?;
        drop(settings);
        self.apply_settings();
        Ok(())
    }

    /// Applies all settings of a builder but its clock, and the rate, to all keys. A smaller capacity applies to new keys.
    pub fn reconfigure<Q>(&self, builder: &BandwidthBuilder, quota: Q) -> Result<(), BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        let bandwidth = builder.resolve(quota.try_into()?)?;
        *lock(&self.settings) = KeyedSettings::new(bandwidth, builder);
        self.apply_settings();
        Ok(())
    }

    /// The rate of each key and its burst.
    pub fn quota(&self) -> Quota {
        lock(&self.settings).bandwidth.quota
    }

    /// The number of stored keys; a few more than are in use, and at most the capacity.
    pub fn key_count(&self) -> usize {
        usize::try_from(self.stored.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
    }

    /// Applies the current settings to all keys. Of concurrent changes, the last one reads its own settings or later ones.
    fn apply_settings(&self) {
        for shard in &self.shards {
            let shard = lock(shard);
            let settings = lock(&self.settings).bandwidth;
            let known = shard.keys.values().chain(&shard.overflow);
            let waiting: Vec<_> = known.flat_map(|known| known.apply_settings(settings)).collect();
            drop(shard);
            waiting.into_iter().for_each(Waker::wake);
        }
    }

    #[allow(clippy::indexing_slicing, reason = "the remainder is within the bounds")]
    fn shard(&self, fingerprint: u64) -> MutexGuard<'_, Shard> {
        // The low bits; the map of a shard hashes the fingerprint again.
        lock(&self.shards[fingerprint as usize % self.shards.len()])
    }

    /// Counts another key if there is room for it.
    fn reserve(&self, capacity: u64) -> bool {
        let more = |stored: u64| (stored < capacity).then(|| stored.saturating_add(1));
        self.stored.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn forget(&self, removed: u64) {
        self.stored.fetch_sub(removed, Ordering::Relaxed);
    }
}

impl KeyedSettings {
    fn new(bandwidth: BandwidthSettings, builder: &BandwidthBuilder) -> Self {
        let capacity = match builder.capacity {
            Capacity::Keys(keys) => keys,
            Capacity::Bytes(bytes) => bytes / KEY_BYTES as u64,
        };
        Self { bandwidth, capacity: capacity.max(1), overflow: builder.overflow }
    }
}

impl Shard {
    /// Removes the idle ones of the next `count` keys, and returns their number.
    fn remove_idle(&mut self, count: usize) -> u64 {
        let mut removed = 0;
        for _ in 0..count.min(self.keys.len()) {
            if self.unused_level_of_next() == Some(0) {
                self.keys.swap_remove_index(self.next);
                removed += 1;
            } else {
                self.next += 1;
            }
        }
        removed
    }

    /// Removes at least one key that is not in use, if the next keys have one. Without idle keys, [`Overflow::Replace`]
    /// removes the one with the least debt.
    fn make_room(&mut self, overflow: Overflow) -> u64 {
        let mut least: Option<(u64, u64)> = None;
        for _ in 0..FULL_SWEEP_COUNT.min(self.keys.len()) {
            let level = self.unused_level_of_next();
            if level == Some(0) {
                self.keys.swap_remove_index(self.next);
                return 1;
            }
            let fingerprint = self.keys.get_index(self.next).map(|(fingerprint, _)| *fingerprint);
            let candidate = level.zip(fingerprint);
            least = [least, candidate].into_iter().flatten().min();
            self.next += 1;
        }
        match (overflow, least) {
            (Overflow::Replace, Some((_, fingerprint))) => {
                u64::from(self.keys.swap_remove(&fingerprint).is_some())
            }
            _ => 0,
        }
    }

    /// The debt of the next key; `None` if it is in use.
    fn unused_level_of_next(&mut self) -> Option<u64> {
        if self.next >= self.keys.len() {
            self.next = 0;
        }
        self.keys.get_index(self.next).and_then(|(_, bandwidth)| bandwidth.unused_level())
    }
}

impl fmt::Debug for KeyedBandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyedBandwidth({}, {} keys)", self.quota(), self.key_count())
    }
}
