//! What both sides make of a step.

use super::{
    Compared, Difference,
    pair::{Deed, Pair, Taken},
};
use std::fmt;
use tidegate_core::{ChargeResult, Decision, Demand, Micros, Receipt};
use tidegate_limiter::store::{StoreCharge, StoreDecision, StoreReply};

impl Pair {
    /// Does the step in this process, and compares.
    pub(super) fn compare(
        &mut self,
        now: Micros,
        deed: &Deed,
        reply: StoreReply,
        done: &mut Compared,
    ) -> Result<(), Box<Difference>> {
        match (deed, reply) {
            (Deed::Check(cost), StoreReply::Decided(answers)) => {
                self.note(format!("at {}us check {cost}", now.get()));
                let mut steps = self.decide(now, Demand::new(*cost));
                // Nobody asked for receipts.
                steps.iter_mut().for_each(|step| step.receipt = Receipt::default());
                done.checks += 1;
                self.decided(&steps, &answers[0], done)
            }
            (Deed::Decide(demand), StoreReply::Decided(answers)) => {
                self.note(format!("at {}us {demand:?}", now.get()));
                let steps = self.decide(now, *demand);
                self.decided(&steps, &answers[0], done)
            }
            (Deed::TakeUpTo(most), StoreReply::Decided(answers)) => {
                self.note(format!("at {}us up to {most}", now.get()));
                let steps = self.take_up_to(now, *most);
                self.decided(&steps, &answers[0], done)
            }
            (Deed::Refund(taken, cost), StoreReply::Done) => {
                self.note(format!("at {}us refund {cost} of {:?}", now.get(), taken.charged));
                self.refund(now, taken, *cost, false);
                done.refunds += 1;
                Ok(())
            }
            (Deed::RefundSettled(taken), StoreReply::Done) => {
                self.note(format!("at {}us refund settled {:?}", now.get(), taken.charged));
                self.refund(now, taken, u64::MAX, true);
                Ok(())
            }
            (Deed::Reset, StoreReply::Done) => {
                self.note(format!("at {}us reset", now.get()));
                self.entries.reset();
                self.settle();
                done.resets += 1;
                Ok(())
            }
            (Deed::Renew(taken), StoreReply::Renewed(redis)) => {
                self.note(format!("at {}us renew {:?}", now.get(), taken.receipts));
                let memory = self.entries.renew(now, taken.receipts[0]);
                done.renewals += 1;
                if memory != redis {
                    return Err(self.difference(&memory, &redis));
                }
                if let Some(receipt) = memory {
                    let charged = StoreCharge { receipts: vec![receipt], ..taken.charged.clone() };
                    self.outstanding.push(Taken {
                        charged,
                        receipts: vec![receipt],
                        place: taken.place.clone(),
                    });
                }
                Ok(())
            }
            (_, reply) => Err(self.difference(&"an answer of its kind", &reply)),
        }
    }

    fn decide(&mut self, now: Micros, demand: Demand) -> Vec<ChargeResult> {
        self.entries.decide(self.limit.quotas(), self.limit.carry_over(), now, demand)
    }

    fn take_up_to(&mut self, now: Micros, most: u64) -> Vec<ChargeResult> {
        let looks = self.decide(now, Demand::probe(1));
        if !looks.iter().all(|step| step.decision.is_allowed()) {
            return looks;
        }
        let least = looks.iter().map(|step| step.decision.remaining().max(1)).min().unwrap_or(1);
        self.decide(now, Demand::new(least.min(most)))
    }

    fn refund(&mut self, now: Micros, taken: &Taken, cost: u64, is_settled: bool) {
        self.entries.refund(taken.place.limit.quotas(), now, &taken.receipts, cost, is_settled);
    }

    fn decided(
        &mut self,
        steps: &[ChargeResult],
        answer: &StoreDecision,
        done: &mut Compared,
    ) -> Result<(), Box<Difference>> {
        for (memory, redis) in steps.iter().zip(&answer.steps) {
            if memory != redis {
                return Err(self.difference(memory, redis));
            }
        }
        done.decisions += 1;
        let decisions: Vec<&Decision> = steps.iter().map(|step| &step.decision).collect();
        let granted = decisions.iter().all(|decision| decision.is_granted());
        done.denied += u64::from(!granted);
        done.delayed += u64::from(granted && decisions.iter().any(|decision| !decision.is_allowed()));
        self.last_wait = decisions.iter().map(|decision| decision.wait()).max().unwrap_or_default();
        self.last_reset = decisions.iter().map(|decision| decision.reset_after()).max().unwrap_or_default();
        let receipts: Vec<_> = steps.iter().map(|step| step.receipt).collect();
        if receipts.iter().any(|receipt| receipt.cost > 0) {
            self.outstanding.push(Taken { place: self.place(), charged: answer.charge(), receipts });
        }
        Ok(())
    }

    fn difference(&self, memory: &dyn fmt::Debug, redis: &dyn fmt::Debug) -> Box<Difference> {
        Box::new(Difference {
            quotas: self.limit.quotas().to_vec(),
            story: self.story.iter().cloned().collect(),
            memory: format!("{memory:?}"),
            redis: format!("{redis:?}"),
        })
    }
}
