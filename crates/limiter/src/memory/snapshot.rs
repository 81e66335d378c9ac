//! What a key will do if nothing unforeseen happens: a copy of its state, on which time can run ahead.

use super::multi_word::SlotHold;
use crate::most_restrictive::MostRestrictive;
use tidegate_core::{Decision, Demand, Effect, Micros, Outcome, Quota, Retry};

/// A copy of one key's state.
#[derive(Debug)]
pub(crate) struct StateSnapshot {
    pub(crate) time: Micros,
    pub(crate) states: Vec<(Quota, Vec<u64>)>,
}

impl StateSnapshot {
    /// A key that was never seen.
    pub(crate) fn empty(at: Micros, quotas: Vec<Quota>) -> Self {
        let blank = |quota: Quota| (quota, vec![0; quota.state_len()]);
        Self { time: at, states: quotas.into_iter().map(blank).collect() }
    }

    /// When the last of `costs` may go if each waits for the one before it. Who never may is passed over. Looks no
    /// further than `latest`, nor than a slot that somebody must give back first.
    pub(crate) fn ready_at(mut self, costs: impl IntoIterator<Item = u64>, latest: Micros) -> Micros {
        for cost in costs {
            let demand = Demand::with_max_wait(cost, Micros::MAX);
            // At the end of time nothing changes any more.
            while self.time <= latest && self.time < Micros::MAX {
                match self.decide(Demand { effect: Effect::Probe, ..demand }).outcome() {
                    Outcome::Allow | Outcome::Delay(_) => {
                        self.time = self.time.plus(self.decide(demand).wait());
                        break;
                    }
                    Outcome::Deny(Retry::After(wait)) => self.time = self.time.plus(wait),
                    Outcome::Deny(Retry::WhenReleased) => return self.time,
                    Outcome::Deny(Retry::Never) => break,
                }
            }
        }
        self.time
    }

    fn decide(&mut self, demand: Demand) -> Decision {
        let mut fold = MostRestrictive::default();
        for (quota, words) in &mut self.states {
            let demand = SlotHold::Nothing.apply_to(quota, demand);
            fold.add(quota.decide(words.as_mut_slice(), self.time, demand).decision);
        }
        fold.finish()
    }
}
