//! Whatever can be asked: one key under one quota, wherever its state lives.

use tidegate_core::{CarryOver, ChargeResult, Demand, Micros, Quota, Receipt, StateEntries};

/// One key under one quota. The core, every store and every surface can be one, so that they all run the same
/// stories.
pub trait Subject {
    /// Answers a demand at `now`.
    fn decide(&mut self, now: Micros, demand: Demand) -> ChargeResult;

    /// Gives back up to `cost` of what `receipt` proves.
    fn refund(&mut self, now: Micros, receipt: Receipt, cost: u64);

    /// Goes on under another quota.
    fn change(&mut self, now: Micros, quota: Quota, how: CarryOver);

    /// Starts as a limiter that is created at `now`, where that differs from a key that was never seen.
    fn create(&mut self, now: Micros);
}

/// The core itself: the model that stores are compared with.
#[derive(Clone, Debug, PartialEq)]
pub struct CoreModel {
    /// The quota that counts.
    pub quota: Quota,
    /// The states.
    pub entries: StateEntries,
}

impl CoreModel {
    /// A key that was never seen.
    pub fn new(quota: Quota) -> Self {
        Self { quota, entries: StateEntries::for_quotas(&[quota]) }
    }

    /// What `demand` would get at `now`; the state stays as it is, whatever the demand's effect.
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
