//! The interface of an implementation under test: one key under one quota.

use tidegate_core::{CarryOver, ChargeResult, Demand, Micros, Quota, Receipt, StateEntries};

/// One key under one quota. The core, every store and every integration implement it, so that they all run the same
/// traces.
pub trait Subject {
    /// Decides a demand at `now`.
    fn decide(&mut self, now: Micros, demand: Demand) -> ChargeResult;

    /// Refunds up to `cost` of the charge of `receipt`.
    fn refund(&mut self, now: Micros, receipt: Receipt, cost: u64);

    /// Replaces the quota.
    fn change(&mut self, now: Micros, quota: Quota, how: CarryOver);

    /// Starts as a limiter that is created at `now`, for algorithms where that differs from a new key.
    fn create(&mut self, now: Micros);
}

/// The core, which is the reference model for stores.
#[derive(Clone, Debug, PartialEq)]
pub struct CoreModel {
    /// The current quota.
    pub quota: Quota,
    /// The states.
    pub entries: StateEntries,
}

impl CoreModel {
    /// Creates a new key.
    pub fn new(quota: Quota) -> Self {
        Self { quota, entries: StateEntries::for_quotas(&[quota]) }
    }

    /// Returns the decision for `demand` at `now` without changing the state.
    pub fn peek(&self, now: Micros, demand: Demand) -> ChargeResult {
        self.clone().decide(now, demand)
    }

    /// All words of its states.
    pub fn state_words(&self) -> impl Iterator<Item = u64> {
        self.entries.as_slice().iter().flat_map(|entry| entry.state.iter().copied())
    }
}

impl Subject for CoreModel {
    fn decide(&mut self, now: Micros, demand: Demand) -> ChargeResult {
        let mut steps = self.entries.decide(&[self.quota], CarryOver::Keep, now, demand);
        // One quota gives one step.
        steps.remove(0)
    }

    fn refund(&mut self, now: Micros, receipt: Receipt, cost: u64) {
        self.entries.refund(&[self.quota], now, &[receipt], cost, false);
    }

    fn change(&mut self, now: Micros, quota: Quota, how: CarryOver) {
        self.entries.change_quotas(&[quota], how, now);
        self.quota = quota;
    }

    fn create(&mut self, now: Micros) {
        self.entries.create(&[self.quota], now);
    }
}
