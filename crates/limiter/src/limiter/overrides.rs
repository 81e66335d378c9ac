//! Quotas of single keys in place of those of their limiter, until they end.
//!
//! ```text
//!   fingerprint ──▶ shard ──▶ (slot, end)        the quota in slot `n` is tier `declared + n` of the limiter
//! ```
//!
//! A check reads one flag, and looks into one shard only while there are overrides. A change copies one shard. An entry that has
//! ended does not apply; its owner removes it.

use crate::{
    clock::Clock,
    sync::{Mutex, lock},
};
use arc_swap::ArcSwap;
use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};
use tidegate_core::{Micros, Quota, SettingError};

/// A quota of one key in place of those of its limiter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuotaOverride {
    /// The quota.
    pub quota: Quota,
    /// When it ends, by the clock of the limiter.
    pub until: Micros,
}

/// A change of the override of one key: its [id](super::Limiter::override_id), and the override; `None` removes it.
pub type OverrideChange = (u64, Option<QuotaOverride>);

/// The maximum number of different quotas of the overrides of one limiter: a store can tell that many apart.
pub const MAX_OVERRIDE_QUOTAS: usize = 64;

/// The overrides of one limiter.
pub(super) struct OverrideTable {
    has_entries: AtomicBool,
    shards: OnceLock<Box<[ArcSwap<OverrideShard>]>>,
    /// The quotas, each with the number of entries that use it. The lock serializes all changes.
    slots: Mutex<Vec<QuotaSlot>>,
}

/// A change copies a shard: with a million overrides, one of a thousand entries.
const SHARDS: usize = 1_024;

type OverrideShard = HashMap<u64, OverrideEntry, foldhash::fast::FixedState>;

#[derive(Clone, Copy)]
struct OverrideEntry {
    slot: usize,
    until: u64,
}

#[derive(Clone, Copy)]
struct QuotaSlot {
    quota: Quota,
    uses: usize,
}

impl OverrideTable {
    pub(super) fn new() -> Self {
        Self { has_entries: AtomicBool::new(false), shards: OnceLock::new(), slots: Mutex::new(Vec::new()) }
    }

    /// Whether no key has an override.
    #[cfg(feature = "tokio")]
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        !self.has_entries.load(Ordering::Relaxed)
    }

    /// The slot of the override that applies to a key.
    #[inline]
    pub(super) fn find(&self, owner: u64, clock: &Clock) -> Option<usize> {
        match self.has_entries.load(Ordering::Relaxed) {
            false => None,
            true => self.find_entry(owner, clock),
        }
    }

    #[inline(never)]
    fn find_entry(&self, owner: u64, clock: &Clock) -> Option<usize> {
        let shard = self.shards.get()?.get(shard_of(owner))?.load();
        let entry = shard.get(&owner)?;
        (entry.until > clock.micros()).then_some(entry.slot)
    }

    /// The quotas, by slot.
    pub(super) fn quotas(&self) -> Vec<Quota> {
        lock(&self.slots).iter().map(|slot| slot.quota).collect()
    }

    /// Whether a key can have this quota now.
    pub(super) fn check(&self, quota: &Quota, declared: &[Quota]) -> Result<(), SettingError> {
        let mut slots = lock(&self.slots).clone();
        take_slot(&mut slots, quota, |quota| check_override(quota, declared)).map(drop)
    }

    /// Runs a change of the declared quotas, which must not overlap with a change of overrides.
    pub(super) fn exclusively<T>(&self, change: impl FnOnce(&[Quota]) -> T) -> T {
        let slots = lock(&self.slots);
        let quotas: Vec<Quota> = slots.iter().map(|slot| slot.quota).collect();
        change(&quotas)
    }

    /// Applies changes. Changes that are rejected have no effect and are returned by their index. `install` puts the quotas of
    /// all slots in force before an entry uses them.
    pub(super) fn apply(
        &self,
        changes: &[OverrideChange],
        check: impl Fn(&Quota) -> Result<(), SettingError>,
        install: impl Fn(&[Quota]) -> Result<(), SettingError>,
    ) -> Vec<(usize, SettingError)> {
        let mut slots = lock(&self.slots);
        let before: Vec<Quota> = slots.iter().map(|slot| slot.quota).collect();
        let (mut rejected, mut entries) = (Vec::new(), Vec::with_capacity(changes.len()));
        for (index, (owner, change)) in changes.iter().enumerate() {
            let entry = match change {
                None => None,
                Some(QuotaOverride { quota, until }) => match take_slot(&mut slots, quota, &check) {
                    Ok(slot) => Some(OverrideEntry { slot, until: until.get() }),
                    Err(error) => {
                        rejected.push((index, error));
                        continue;
                    }
                },
            };
            entries.push((*owner, entry, index));
        }
        let quotas: Vec<Quota> = slots.iter().map(|slot| slot.quota).collect();
        if quotas != before
            && let Err(error) = install(&quotas)
        {
            *slots =
                slots.iter().zip(&before).map(|(slot, quota)| QuotaSlot { quota: *quota, ..*slot }).collect();
            for (_, entry, index) in &entries {
                release_slot(&mut slots, entry.as_ref());
                rejected.push((*index, error.clone()));
            }
            return rejected;
        }
        // Stable, so that the last change of a key applies.
        entries.sort_by_key(|(owner, ..)| shard_of(*owner));
        let shards = self.shards.get_or_init(|| (0..SHARDS).map(|_| ArcSwap::default()).collect());
        for part in entries.chunk_by(|a, b| shard_of(a.0) == shard_of(b.0)) {
            let Some(shard) = part.first().and_then(|(owner, ..)| shards.get(shard_of(*owner))) else {
                continue;
            };
            let mut next = OverrideShard::clone(&shard.load());
            for (owner, entry, _) in part {
                let replaced = match entry {
                    Some(entry) => next.insert(*owner, *entry),
                    None => next.remove(owner),
                };
                release_slot(&mut slots, replaced.as_ref());
            }
            if next.len() < next.capacity() / 4 {
                next.shrink_to_fit();
            }
            shard.store(Arc::new(next));
        }
        self.has_entries.store(slots.iter().any(|slot| slot.uses > 0), Ordering::Relaxed);
        rejected
    }
}

/// The high bits: a table of keys uses the low ones, and the map mixes all.
fn shard_of(owner: u64) -> usize {
    usize::try_from(owner >> 54).unwrap_or(0) % SHARDS
}

/// The slot of a quota: its own, a new one, or one that no entry uses.
fn take_slot(
    slots: &mut Vec<QuotaSlot>,
    quota: &Quota,
    check: impl Fn(&Quota) -> Result<(), SettingError>,
) -> Result<usize, SettingError> {
    let own = slots.iter().position(|slot| slot.quota == *quota);
    let index = match own {
        Some(index) => index,
        None => {
            check(quota)?;
            if let Some(other) = slots.iter().find(|slot| slot.quota.tag() == quota.tag()) {
                return Err(same_tag_error(quota, &other.quota));
            }
            match slots.len() < MAX_OVERRIDE_QUOTAS {
                true => slots.push(QuotaSlot { quota: *quota, uses: 0 }),
                false => {
                    let is_free = |slot: &&mut QuotaSlot| slot.uses == 0 && quota.shares_state(&slot.quota);
                    let unused = slots.iter_mut().find(is_free).ok_or_else(|| {
                        let problem =
                            format!("the overrides of the rule have {MAX_OVERRIDE_QUOTAS} different quotas");
                        SettingError::new(problem, "use one of them, or remove the overrides of one")
                    })?;
                    unused.quota = *quota;
                }
            }
            slots.iter().position(|slot| slot.quota == *quota).unwrap_or_default()
        }
    };
    if let Some(slot) = slots.get_mut(index) {
        slot.uses += 1;
    }
    Ok(index)
}

fn release_slot(slots: &mut [QuotaSlot], entry: Option<&OverrideEntry>) {
    if let Some(slot) = entry.and_then(|entry| slots.get_mut(entry.slot)) {
        slot.uses = slot.uses.saturating_sub(1);
    }
}

/// Whether a key of a limiter with these quotas can have this quota.
pub(super) fn check_override(quota: &Quota, declared: &[Quota]) -> Result<(), SettingError> {
    let shown = declared.iter().map(ToString::to_string).collect::<Vec<_>>().join("`, `");
    let Some(base) = declared.iter().find(|declared| quota.shares_state(declared)) else {
        let is_in_flight = |quota: &Quota| quota.is_concurrency();
        let (problem, fix) = match (is_in_flight(quota), declared.iter().any(is_in_flight)) {
            (true, false) => (
                format!("`{quota}` counts requests in flight, but the rule (`{shown}`) counts requests"),
                "give a rate, as in `10/s`".to_owned(),
            ),
            (false, true) => (
                format!("`{quota}` counts requests, but the rule (`{shown}`) counts those in flight"),
                "give a concurrency quota, as in `3 at once`".to_owned(),
            ),
            _ => (
                format!("`{quota}` counts in another way than the rule (`{shown}`)"),
                "use the algorithm and the period of the rule, with another amount".to_owned(),
            ),
        };
        return Err(SettingError::new(problem, fix));
    };
    if quota.state_len() > base.state_len() {
        let problem = format!("`{quota}` needs more memory per key than the rule (`{shown}`)");
        return Err(SettingError::new(
            problem,
            "use a smaller amount, or the algorithm `sliding-strict` in the rule",
        ));
    }
    match declared.iter().find(|declared| *declared != quota && declared.tag() == quota.tag()) {
        Some(other) => Err(same_tag_error(quota, other)),
        None => Ok(()),
    }
}

/// States in a store name the quota that wrote them by its tag.
fn same_tag_error(quota: &Quota, other: &Quota) -> SettingError {
    let problem = format!("a store cannot tell `{quota}` from `{other}`");
    SettingError::new(problem, "use a slightly different amount")
}

/// The error of a limiter without overrides.
pub(super) fn not_overridable() -> SettingError {
    SettingError::new("the rule has no overrides", "use a rule with a single quota or tiers")
}
