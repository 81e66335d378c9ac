//! The backend in the memory of this process.

use super::LocalBucket;
use super::{
    BuildError, FIRST_TIER, OverrideChange,
    overrides::{OverrideTable, check_override, not_overridable},
};
use crate::{
    clock::Clock,
    denied::{DeniedKey, DeniedKeys},
    key::LimitKey,
    memory::KeyTable,
    wait::WaitQueues,
};
use std::{
    fmt,
    hash::{BuildHasher, Hash},
    sync::Arc,
};
use tidegate_core::{Bound, CarryOver, Decision, Micros, Quota, SettingError};

/// A limiter in the memory of this process.
pub(crate) struct MemoryLimiter {
    key_table: KeyTable,
    clock: Clock,
    hasher: foldhash::quality::RandomState,
    overflow: Overflow,
    denied_keys: Option<DeniedKeys>,
    wait_queues: WaitQueues,
    /// The number of quotas without those of overrides.
    declared: usize,
    /// `None` if keys have no overrides.
    overrides: Option<Box<OverrideTable>>,
}

/// The id of a key in one limiter; see [`Limiter::key_id`](super::Limiter::key_id).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyId(pub(super) u64);

impl KeyId {
    /// The id as a number. Different keys almost always have different ids; an id is stable for the lifetime of its limiter.
    pub fn get(self) -> u64 {
        self.0
    }
}

/// What happens to a new key when the table is full of keys in use. A limited key always stays, so that a flood of new keys
/// cannot reset it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// It replaces the neighbouring key that has used least and is not limited: new clients get their quota during a flood of
    /// random keys, and a replaced key starts afresh. Counted in [`LimiterStats::replaced`]. If all neighbouring keys are
    /// limited, it shares a bucket as with [`Overflow::Share`]. The default.
    #[default]
    Replace,
    /// It shares a bucket with other such keys: no key gets more than the quota, some get less. Counted in
    /// [`LimiterStats::overflowed`].
    Share,
    /// It is denied, and counted in [`LimiterStats::overflowed`]. Always used for concurrency quotas, because the permits of a
    /// shared bucket cannot be distinguished, and for totals, because a replaced key would get its total again.
    Deny,
}

/// The usage of a limiter in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimiterStats {
    /// The maximum number of keys with a cell of their own; at least the configured capacity.
    pub capacity: u64,
    /// Keys whose state has not expired.
    pub live: u64,
    /// Cells that hold a key, live or expired; expired ones are reused first.
    pub used: u64,
    /// The number of checks that found the table full, and shared a bucket or were denied.
    pub overflowed: u64,
    /// The number of keys that were replaced by others.
    pub replaced: u64,
    /// The maximum memory of the table.
    pub bytes: u64,
}

/// The size of a limiter in memory, without a scan of its cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSize {
    /// The maximum number of keys with a cell of their own.
    pub capacity: u64,
    /// Cells that hold a key, live or expired.
    pub used: u64,
    /// The number of checks that found the table full, and shared a bucket or were denied.
    pub overflowed: u64,
    /// The number of keys that were replaced by others.
    pub replaced: u64,
    /// The maximum memory of the table.
    pub bytes: u64,
}

/// The callback of a full table; see [`LimiterBuilder::on_full`](super::LimiterBuilder::on_full).
#[derive(Clone)]
pub(crate) struct TableFullListener(pub(crate) Arc<dyn Fn(TableSize) + Send + Sync>);

impl TableFullListener {
    pub(crate) fn notify(&self, size: TableSize) {
        (self.0)(size);
    }
}

impl fmt::Debug for TableFullListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TableFullListener")
    }
}

/// One of several checks that are decided atomically in memory.
#[derive(Clone, Copy)]
pub(crate) struct LocalCheck<'a> {
    pub(crate) memory: &'a MemoryLimiter,
    pub(crate) owner: u64,
    pub(crate) cost: u64,
    pub(crate) tier: usize,
    pub(crate) max_wait: Micros,
}

impl MemoryLimiter {
    pub(crate) fn from_parts(
        key_table: KeyTable,
        clock: Clock,
        hasher: foldhash::quality::RandomState,
        overflow: Overflow,
        denied_keys: Option<DeniedKeys>,
        wait_queues: WaitQueues,
    ) -> Self {
        let declared = key_table.quotas().len();
        Self { key_table, clock, hasher, overflow, denied_keys, wait_queues, declared, overrides: None }
    }

    /// Lets keys have overrides. The table must have tiers.
    pub(crate) fn with_overrides(self) -> Self {
        Self { overrides: Some(Box::new(OverrideTable::new())), ..self }
    }

    #[inline]
    pub(crate) fn check_cost<K: LimitKey + ?Sized>(&self, key: &K, cost: u64) -> Decision {
        let owner = self.fingerprint(key);
        let decision = match self.tier_for(owner, FIRST_TIER) {
            FIRST_TIER => self.key_table.check(owner, &self.clock, cost, self.overflow),
            tier => LocalBucket::for_key(self, owner, tier).check(cost),
        };
        if let Some(denied) = &self.denied_keys
            && !decision.is_granted()
        {
            denied.record(owner, &key);
        }
        decision
    }

    /// The bucket of one key under a tier; under the first tier if there is no such tier.
    #[cfg(any(feature = "tokio", all(test, not(loom))))]
    #[inline]
    pub(crate) fn bucket<K: Hash + ?Sized>(&self, key: &K, tier: usize) -> LocalBucket<'_> {
        self.bucket_of(self.fingerprint(key), tier)
    }

    /// Like `bucket`, for the fingerprint of a key.
    #[cfg(any(feature = "tokio", all(test, not(loom))))]
    #[inline]
    pub(crate) fn bucket_of(&self, owner: u64, tier: usize) -> LocalBucket<'_> {
        LocalBucket::for_key(self, owner, if tier < self.key_table.tiers() { tier } else { 0 })
    }

    /// The tier of a key: that of its override, or the requested one; the first if there is no such tier.
    #[inline]
    pub(crate) fn tier_for(&self, owner: u64, requested: usize) -> usize {
        if let Some(overrides) = &self.overrides
            && let Some(slot) = overrides.find(owner, &self.clock)
        {
            return self.declared + slot;
        }
        if requested == FIRST_TIER || requested < self.tiers() { requested } else { FIRST_TIER }
    }

    pub(crate) fn is_overridable(&self) -> bool {
        self.overrides.is_some()
    }

    pub(crate) fn override_quotas(&self) -> Vec<Quota> {
        self.overrides.as_ref().map(|overrides| overrides.quotas()).unwrap_or_default()
    }

    pub(crate) fn check_override(&self, quota: &Quota) -> Result<(), SettingError> {
        self.overrides.as_ref().ok_or_else(not_overridable)?.check(quota, &self.quotas())
    }

    pub(crate) fn apply_overrides(&self, changes: &[OverrideChange]) -> Vec<(usize, SettingError)> {
        let Some(overrides) = &self.overrides else {
            return (0..changes.len()).map(|index| (index, not_overridable())).collect();
        };
        let declared = self.quotas();
        overrides.apply(
            changes,
            |quota| check_override(quota, &declared),
            |quotas| self.set_override_quotas(quotas),
        )
    }

    /// Sets the quotas of the tiers behind the declared ones. Usage of a quota that is replaced is converted.
    pub(crate) fn set_override_quotas(&self, quotas: &[Quota]) -> Result<(), SettingError> {
        let mut all = self.key_table.quotas();
        let known = all.split_off(self.declared.min(all.len()));
        if known.iter().zip(quotas).any(|(known, quota)| known != quota) {
            all.extend(quotas.iter().zip(&known).map(|(quota, _)| *quota));
            all.extend(known.iter().skip(quotas.len()));
            let changed = self.key_table.change(&all, CarryOver::Keep, self.clock.now());
            changed.map_err(|()| not_overridable())?;
        }
        let new = quotas.get(known.len()..).unwrap_or_default();
        self.key_table.add_tiers(new).map_err(|()| not_overridable())
    }

    /// Whether the key has a cell of its own.
    #[cfg(feature = "tokio")]
    pub(crate) fn has_cell(&self, key: &str) -> bool {
        self.key_table.table().find(self.fingerprint(key)).is_some()
    }

    pub(crate) fn change_all(&self, quotas: &[Quota], how: CarryOver) -> Result<(), BuildError> {
        self.can_change_all(quotas)?;
        let change = |quotas: &[Quota]| self.key_table.change(quotas, how, self.clock.now());
        let changed = match &self.overrides {
            None => change(quotas),
            Some(overrides) => overrides.exclusively(|_| change(&self.with_override_quotas(quotas))),
        };
        changed.map_err(|()| BuildError::incompatible_quota(&self.quotas(), quotas))?;
        self.wait_queues.wake_all_first();
        Ok(())
    }

    pub(crate) fn can_change_all(&self, quotas: &[Quota]) -> Result<(), BuildError> {
        let old = self.quotas();
        let shares_states =
            old.len() == quotas.len() && old.iter().zip(quotas).all(|(old, new)| new.shares_state(old));
        match shares_states && self.key_table.has_room_for(&self.with_override_quotas(quotas)) {
            true => Ok(()),
            false => Err(BuildError::incompatible_quota(&old, quotas)),
        }
    }

    pub(crate) fn take_over(&self, old: &Self) {
        self.key_table.take_over(&old.key_table, &self.clock);
        self.wait_queues.wake_all_first();
    }

    /// The number of tiers without those of overrides.
    pub(crate) fn tiers(&self) -> usize {
        self.key_table.tiers().min(self.declared)
    }

    /// The quotas without those of overrides.
    pub(crate) fn quotas(&self) -> Vec<Quota> {
        let mut quotas = self.key_table.quotas();
        quotas.truncate(self.declared);
        quotas
    }

    /// These quotas in place of the declared ones, followed by those of overrides.
    fn with_override_quotas(&self, quotas: &[Quota]) -> Vec<Quota> {
        quotas.iter().copied().chain(self.key_table.quotas().into_iter().skip(self.declared)).collect()
    }

    pub(crate) fn bounds(&self) -> Vec<Bound> {
        self.quotas().iter().map(|quota| self.clock.widen_bound(quota.bound())).collect()
    }

    pub(crate) fn stats(&self) -> LimiterStats {
        let TableSize { capacity, used, overflowed, replaced, bytes } = self.size();
        LimiterStats {
            capacity,
            live: self.key_table.live_keys(self.clock.now()),
            used,
            overflowed,
            replaced,
            bytes,
        }
    }

    pub(crate) fn size(&self) -> TableSize {
        self.key_table.table().size()
    }

    pub(crate) fn top_denied(&self) -> Vec<DeniedKey> {
        self.denied_keys.as_ref().map(DeniedKeys::top).unwrap_or_default()
    }

    pub(crate) fn hasher(&self) -> foldhash::quality::RandomState {
        self.hasher.clone()
    }

    pub(crate) fn key_table(&self) -> &KeyTable {
        &self.key_table
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) fn overflow(&self) -> Overflow {
        self.overflow
    }

    pub(crate) fn wait_queues(&self) -> &WaitQueues {
        &self.wait_queues
    }

    /// The 64-bit fingerprint of the key; zero marks an empty cell and is never returned.
    #[inline]
    pub(crate) fn fingerprint<K: Hash + ?Sized>(&self, key: &K) -> u64 {
        self.hasher.hash_one(key).max(1)
    }
}
