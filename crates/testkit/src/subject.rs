//! Whatever can be asked: one key under one quota, wherever its state lives.

use tidegate_core::{Demand, Inherit, Micros, Quota, Receipt, Step};

/// One key under one quota. The core, every store and every surface can be one, so that they all run the same
/// stories.
pub trait Subject {
    /// Answers a demand at `now`.
    fn decide(&mut self, now: Micros, demand: Demand) -> Step;

    /// Gives back up to `cost` of what `receipt` proves.
    fn refund(&mut self, now: Micros, receipt: Receipt, cost: u64);

    /// Goes on under another quota.
    fn change(&mut self, now: Micros, quota: Quota, how: Inherit);

    /// Starts as a limiter that is created at `now`, where that differs from a key that was never seen.
    fn create(&mut self, now: Micros);
}

/// The core itself, on a plain vector of words.
#[derive(Clone, Debug, PartialEq)]
pub struct Plain {
    /// The quota that counts.
    pub quota: Quota,
    /// The state: exactly as many words as the quota asks for.
    pub words: Vec<u64>,
}

impl Plain {
    /// A key that was never seen.
    pub fn new(quota: Quota) -> Self {
        Self { quota, words: vec![0; quota.width()] }
    }

    /// What `demand` would get at `now`; the state stays as it is, whatever the demand's effect.
    pub fn would(&self, now: Micros, demand: Demand) -> Step {
        self.clone().decide(now, demand)
    }
}

impl Subject for Plain {
    fn decide(&mut self, now: Micros, demand: Demand) -> Step {
        self.quota.decide(self.words.as_mut_slice(), now, demand)
    }

    fn refund(&mut self, now: Micros, receipt: Receipt, cost: u64) {
        self.quota.refund(self.words.as_mut_slice(), now, receipt, cost);
    }

    fn change(&mut self, now: Micros, quota: Quota, how: Inherit) {
        // Both the old state and the new one need room while one turns into the other.
        self.words.resize(self.quota.width().max(quota.width()), 0);
        quota.inherit(&self.quota, self.words.as_mut_slice(), now, how);
        self.words.truncate(quota.width());
        self.quota = quota;
    }

    fn create(&mut self, now: Micros) {
        self.quota.create(self.words.as_mut_slice(), now);
    }
}
