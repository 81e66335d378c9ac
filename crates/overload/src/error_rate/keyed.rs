//! The error rate of each key, in bounded memory.

use super::{ErrorRate, ErrorRateSettings};
use crate::{
    CallOutcome,
    call_guard::{CallPermit, RecordOutcome},
};
use foldhash::quality::RandomState;
use std::{
    fmt,
    hash::{BuildHasher, Hash},
    sync::Arc,
};
use tidegate_core::Micros;
use tidegate_limiter::{
    Clock,
    sync::{Mutex, lock},
};

/// The error rate of each key. Beyond its capacity, a new key replaces the one of its group that was used least recently.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_core::Percent;
/// use tidegate_overload::{ErrorRateSettings, error_rate::KeyedErrorRate};
///
/// let settings = ErrorRateSettings::builder().request_threshold(1).error_threshold(Percent::ZERO).build()?;
/// let rates = Arc::new(KeyedErrorRate::new(settings, 1_000));
/// (0..2).for_each(|_| rates.start_call("alice").fail());
/// assert!(rates.is_exceeded("alice") && !rates.is_exceeded("bob"));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
pub struct KeyedErrorRate {
    settings: ErrorRateSettings,
    groups: Box<[Mutex<Vec<KeyEntry>>]>,
    hasher: RandomState,
    clock: Clock,
}

struct KeyEntry {
    hash: u64,
    last_used: Micros,
    rate: ErrorRate,
}

/// The number of keys that share a lock.
const GROUP_KEYS: usize = 8;

impl KeyedErrorRate {
    /// Creates rates for about this number of keys, on the system clock.
    pub fn new(settings: ErrorRateSettings, capacity: usize) -> Self {
        Self::with_clock(settings, capacity, Clock::default())
    }

    /// Creates rates on this clock.
    pub fn with_clock(settings: ErrorRateSettings, capacity: usize, clock: Clock) -> Self {
        let groups = capacity.div_ceil(GROUP_KEYS).max(1);
        let groups = (0..groups).map(|_| Mutex::new(Vec::new())).collect();
        Self { settings, groups, hasher: RandomState::default(), clock }
    }

    /// Whether the settings and the capacity of another one are the same.
    pub fn is_equivalent(&self, other: &Self) -> bool {
        self.settings == other.settings && self.groups.len() == other.groups.len()
    }

    /// Counts a call of a key. The permit records its outcome.
    pub fn start_call<K: Hash + ?Sized>(self: &Arc<Self>, key: &K) -> CallPermit<Arc<Self>> {
        let hash = self.hasher.hash_one(key);
        self.update(hash, ErrorRate::record_request);
        CallPermit::new(self.clone(), hash)
    }

    /// Whether both the calls of a key and their errors exceed the thresholds.
    pub fn is_exceeded<K: Hash + ?Sized>(&self, key: &K) -> bool {
        let hash = self.hasher.hash_one(key);
        let Some(group) = self.group(hash) else { return false };
        let group = lock(group);
        let now = self.clock.now();
        group.iter().any(|entry| entry.hash == hash && entry.rate.is_exceeded(now))
    }

    /// The number of keys for which [`is_exceeded`](Self::is_exceeded).
    pub fn exceeded_count(&self) -> usize {
        let now = self.clock.now();
        let exceeded = |group: &Mutex<Vec<KeyEntry>>| {
            lock(group).iter().filter(|entry| entry.rate.is_exceeded(now)).count()
        };
        self.groups.iter().map(exceeded).sum()
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.groups.iter().map(|group| lock(group).len()).sum()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn group(&self, hash: u64) -> Option<&Mutex<Vec<KeyEntry>>> {
        // The number of groups is at least one and fits in 64 bits.
        let index = (u128::from(hash) * self.groups.len() as u128) >> 64;
        self.groups.get(index as usize)
    }

    fn update(&self, hash: u64, change: impl FnOnce(&mut ErrorRate, Micros)) {
        let Some(group) = self.group(hash) else { return };
        let mut group = lock(group);
        let now = self.clock.now();
        if let Some(entry) = group.iter_mut().find(|entry| entry.hash == hash) {
            entry.last_used = now;
            change(&mut entry.rate, now);
            return;
        }
        let mut entry = KeyEntry { hash, last_used: now, rate: ErrorRate::new(self.settings.clone()) };
        change(&mut entry.rate, now);
        match group.len() < GROUP_KEYS {
            true => group.push(entry),
            false => {
                if let Some(oldest) = group.iter_mut().min_by_key(|entry| entry.last_used) {
                    *oldest = entry;
                }
            }
        }
    }
}

impl RecordOutcome for KeyedErrorRate {
    /// The hash of the key.
    type Entry = u64;

    fn record(&self, hash: u64, outcome: CallOutcome) {
        if outcome != CallOutcome::Ignored {
            self.update(hash, |rate, now| rate.record(outcome, now));
        }
    }
}

impl fmt::Debug for KeyedErrorRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyedErrorRate({} keys)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Percent;

    fn rates(capacity: usize) -> Arc<KeyedErrorRate> {
        let settings =
            ErrorRateSettings::builder().request_threshold(2).error_threshold(Percent::from_ratio(1, 2));
        let (clock, _) = Clock::manual();
        Arc::new(KeyedErrorRate::with_clock(settings.build().unwrap(), capacity, clock))
    }

    #[test]
    fn rate_of_one_key_does_not_affect_another() {
        let rates = rates(100);
        for _ in 0..3 {
            rates.start_call("failing").fail();
            rates.start_call("working").succeed();
            drop(rates.start_call("cancelled"));
        }
        let exceeded = ["failing", "working", "cancelled", "unused"].map(|key| rates.is_exceeded(key));
        assert_eq!(exceeded, [true, false, false, false]);
        assert_eq!((rates.exceeded_count(), rates.len()), (1, 3));
    }

    #[test]
    fn number_of_keys_is_bounded() {
        let rates = rates(80);
        (0..10_000).for_each(|key| rates.start_call(&key).fail());
        assert!((70..=80).contains(&rates.len()), "{rates:?}");
    }
}
