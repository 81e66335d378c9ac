//! A copy of the state of a key, on which time can be simulated.

use super::multi_word::PermitHold;
use crate::most_restrictive::MostRestrictive;
use tidegate_core::{Decision, Demand, Effect, Micros, Outcome, Quota, Retry};

/// A copy of the state of one key.
#[derive(Debug)]
pub(crate) struct StateSnapshot {
    pub(crate) time: Micros,
    pub(crate) states: Vec<(Quota, Vec<u64>)>,
}

impl StateSnapshot {
    /// The state of a new key.
    pub(crate) fn empty(at: Micros, quotas: Vec<Quota>) -> Self {
        let blank = |quota: Quota| (quota, vec![0; quota.state_len()]);
        Self { time: at, states: quotas.into_iter().map(blank).collect() }
    }

    /// When the last of `costs` is ready if each waits for the one before it. Skips costs that exceed the limit. Stops at
    /// `latest`, and at a slot that a holder must release first.
    pub(crate) fn ready_at(mut self, costs: impl IntoIterator<Item = u64>, latest: Micros) -> Micros {
        for cost in costs {
            let demand = Demand::with_max_wait(cost, Micros::MAX);
            // At the maximum time the state no longer changes.
            while self.time <= latest && self.time < Micros::MAX {
                match self.decide(Demand { effect: Effect::Peek, ..demand }).outcome() {
                    Outcome::Allow | Outcome::Delay(_) => {
                        self.time = self.time.saturating_add(self.decide(demand).wait());
                        break;
                    }
                    Outcome::Deny(Retry::After(wait)) => self.time = self.time.saturating_add(wait),
                    Outcome::Deny(Retry::WhenReleased) => return self.time,
                    Outcome::Deny(Retry::Never) => break,
                }
            }
        }
        self.time
    }

    fn decide(&mut self, demand: Demand) -> Decision {
        let mut combined = MostRestrictive::default();
        for (quota, state) in &mut self.states {
            let demand = PermitHold::Nothing.apply_to(quota, demand);
            combined.add(quota.decide(state.as_mut_slice(), self.time, demand).decision);
        }
        combined.finish()
    }
}
