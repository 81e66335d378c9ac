//! The states of one key under all quotas that count it.
//!
//! ```text
//!   key   ┬ entry   written by `100/min`             `120/min` reads it too: both count tokens
//!         └ entry   written by `100/min sliding-log`
//! ```
//!
//! A quota reads the entry that it wrote, or one whose state it [shares](Quota::shares_state), and becomes its
//! writer when it charges. So processes with different quotas can count the same key, a denial writes nothing, and
//! a change that is reverted immediately has no effect. Stores have their own representations of entries; this one
//! is the model in their tests.

use crate::{
    algorithm::{CarryOver, ChargeResult, Demand, Effect, Receipt},
    quota::Quota,
    units::Micros,
};
use alloc::{vec, vec::Vec};

/// The maximum number of entries of other quotas in a key. The least recently charged one is dropped first; only
/// quotas that share no state reach this limit.
const MAX_FOREIGN_ENTRIES: usize = 8;

/// The states of one key, one for each quota.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StateEntries {
    entries: Vec<StateEntry>,
}

/// A state and the quota that wrote it.
#[derive(Clone, Debug, PartialEq)]
pub struct StateEntry {
    /// The quota that wrote the state.
    pub writer: Quota,
    /// The state: at least [`Quota::state_len`] words.
    pub state: Vec<u64>,
}

impl StateEntries {
    /// An unused key.
    pub fn new() -> Self {
        Self::default()
    }

    /// An unused key, with an empty state for each quota.
    pub fn for_quotas(quotas: &[Quota]) -> Self {
        let entry = |quota: &Quota| StateEntry { writer: *quota, state: vec![0; quota.state_len()] };
        Self { entries: quotas.iter().map(entry).collect() }
    }

    /// The index of the writer whose state each quota reads: its own, or else the first unused one whose state it
    /// shares.
    ///
    /// Under [`CarryOver::Reset`] a quota shares a state only when a new one would evict the state of another
    /// quota, which could then admit its whole limit again.
    pub fn match_writers(quotas: &[Quota], writers: &[Quota], carry_over: CarryOver) -> Vec<Option<usize>> {
        let mut found = vec![None; quotas.len()];
        let mut used = vec![false; writers.len()];
        for is_exact in [true, false] {
            let missing = found.iter().filter(|found| found.is_none()).count();
            let is_full = writers.len() + missing > quotas.len() + MAX_FOREIGN_ENTRIES;
            let is_shared =
                |quota: &Quota| carry_over == CarryOver::Keep || is_full || quota.is_concurrency();
            let fits = |quota: &Quota, writer: &Quota| match is_exact {
                true => quota == writer,
                false => is_shared(quota) && quota.shares_state(writer),
            };
            for (quota, found) in quotas.iter().zip(&mut found) {
                if found.is_none() {
                    *found = (0..writers.len()).find(|index| !used[*index] && fits(quota, &writers[*index]));
                    found.iter().for_each(|index| used[*index] = true);
                }
            }
        }
        found
    }

    /// Decides a demand on all of `quotas`; charges all of them or none.
    pub fn decide(
        &mut self,
        quotas: &[Quota],
        carry_over: CarryOver,
        now: Micros,
        demand: Demand,
    ) -> Vec<ChargeResult> {
        if demand.effect == Effect::Charge && demand.cost > 0 {
            self.begin(quotas, carry_over, now);
        }
        if quotas.len() > 1 && demand.effect == Effect::Charge {
            let peeked =
                self.clone().decide_each(quotas, carry_over, now, Demand { effect: Effect::Peek, ..demand });
            if !peeked.iter().all(|result| result.decision.is_granted()) {
                return peeked;
            }
        }
        self.decide_each(quotas, carry_over, now, demand)
    }

    /// Starts the states that change with time from the first check on; see [`Quota::begin`].
    pub fn begin(&mut self, quotas: &[Quota], carry_over: CarryOver, now: Micros) {
        if quotas.iter().all(|quota| quota.retention() == Micros::ZERO) {
            return;
        }
        let found = Self::match_writers(quotas, &self.writers(), carry_over);
        let (mut has_begun, mut own) = (false, Vec::with_capacity(quotas.len()));
        let mut entries = self.entries.clone();
        for (quota, found) in quotas.iter().zip(found) {
            let index = found.unwrap_or_else(|| {
                entries.push(StateEntry { writer: *quota, state: Vec::new() });
                entries.len() - 1
            });
            own.push(index);
            let entry = &mut entries[index];
            entry.state.resize(entry.state.len().max(quota.state_len()), 0);
            if quota.begin(&entry.writer, entry.state.as_mut_slice(), now) {
                entry.writer = *quota;
                has_begun = true;
            }
        }
        // Quotas without an entry get one too: a change of quotas matches entries in their order.
        if has_begun {
            let is_needed = |(index, entry): &mut (usize, StateEntry)| {
                own.contains(index)
                    || entry.writer.forgotten_after(entry.state.as_mut_slice(), now) > Micros::ZERO
            };
            let mut entries: Vec<_> = entries.into_iter().enumerate().collect();
            entries.retain_mut(is_needed);
            self.entries = entries.into_iter().map(|(_, entry)| entry).collect();
        }
    }

    fn decide_each(
        &mut self,
        quotas: &[Quota],
        carry_over: CarryOver,
        now: Micros,
        demand: Demand,
    ) -> Vec<ChargeResult> {
        let found = Self::match_writers(quotas, &self.writers(), carry_over);
        let mut results = Vec::with_capacity(quotas.len());
        let mut is_charged = false;
        for (quota, found) in quotas.iter().zip(found) {
            let mut entry = match found {
                Some(index) => self.entries[index].clone(),
                None => StateEntry { writer: *quota, state: Vec::new() },
            };
            entry.state.resize(entry.state.len().max(quota.state_len()), 0);
            let result = match entry.writer == *quota {
                true => quota.decide(entry.state.as_mut_slice(), now, demand),
                false => quota.decide_converted(&entry.writer, entry.state.as_mut_slice(), now, demand),
            };
            if result.decision.is_granted() && demand.effect == Effect::Charge && demand.cost > 0 {
                entry.writer = *quota;
                match found {
                    Some(index) => self.entries[index] = entry,
                    None => self.entries.push(entry),
                }
                is_charged = true;
            }
            results.push(result);
        }
        if is_charged {
            self.arrange(quotas, now);
        }
        results
    }

    /// Moves the entries of `quotas` to the front, in their order, and drops empty entries of other quotas.
    fn arrange(&mut self, quotas: &[Quota], now: Micros) {
        let mut others = core::mem::take(&mut self.entries);
        for quota in quotas {
            let own = others.iter().position(|entry| entry.writer == *quota);
            self.entries.extend(own.map(|index| others.remove(index)));
        }
        others.retain_mut(|StateEntry { writer, state }| {
            writer.forgotten_after(state.as_mut_slice(), now) > Micros::ZERO
        });
        others.truncate(MAX_FOREIGN_ENTRIES);
        self.entries.append(&mut others);
    }

    /// Converts the states to `quotas` at `now`, as an in-memory limiter does at the time of a change.
    pub fn change_quotas(&mut self, quotas: &[Quota], carry_over: CarryOver, now: Micros) {
        if carry_over == CarryOver::Reset {
            self.reset();
        }
        for (quota, found) in quotas.iter().zip(Self::match_writers(quotas, &self.writers(), CarryOver::Keep))
        {
            let Some(entry) = found.map(|index| &mut self.entries[index]) else { continue };
            entry.state.resize(entry.state.len().max(quota.state_len()), 0);
            quota.convert_state(&entry.writer, entry.state.as_mut_slice(), now);
            entry.writer = *quota;
        }
    }

    /// Refunds up to `cost` of the charges that `receipts` of `quotas` record.
    ///
    /// Does nothing when another quota has written the state since, or when `is_settled`: the key was reset since.
    /// Permits are always released.
    pub fn refund(
        &mut self,
        quotas: &[Quota],
        now: Micros,
        receipts: &[Receipt],
        cost: u64,
        is_settled: bool,
    ) {
        let found = Self::match_writers(quotas, &self.writers(), CarryOver::Keep);
        for ((quota, found), receipt) in quotas.iter().zip(found).zip(receipts) {
            let Some(entry) = found.map(|index| &mut self.entries[index]) else { continue };
            let counts = entry.writer == *quota && !is_settled;
            if receipt.cost > 0 && (counts || quota.is_concurrency()) {
                entry.writer.refund(entry.state.as_mut_slice(), now, *receipt, cost);
            }
        }
    }

    /// Removes all states except permits in flight.
    pub fn reset(&mut self) {
        self.entries.retain(|entry| entry.writer.is_concurrency());
    }

    /// Extends the lease of a permit; `None` when it has expired or does not exist.
    pub fn renew(&mut self, now: Micros, receipt: Receipt) -> Option<Receipt> {
        let entry = self.entries.iter_mut().find(|entry| entry.writer.is_concurrency())?;
        entry.writer.renew(entry.state.as_mut_slice(), now, receipt)
    }

    /// Starts the states of a limiter that is created at `now`.
    pub fn create(&mut self, quotas: &[Quota], now: Micros) {
        *self = Self::for_quotas(quotas);
        for StateEntry { writer, state } in &mut self.entries {
            writer.create(state.as_mut_slice(), now);
        }
    }

    /// All entries.
    pub fn as_slice(&self) -> &[StateEntry] {
        &self.entries
    }

    fn writers(&self) -> Vec<Quota> {
        self.entries.iter().map(|entry| entry.writer).collect()
    }
}
