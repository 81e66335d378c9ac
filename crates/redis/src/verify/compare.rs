//! What both sides make of a step.

use super::{
    Compared, Difference,
    pair::{Deed, Pair, Taken, is_concurrency},
};
use std::fmt;
use tidegate_core::{Decision, Demand, Effect, Micros, Receipt, Step};
use tidegate_engine::store::{Answer, Charged, Reply};

impl Pair {
    /// Does the step in this process, and compares.
    pub(super) fn compare(
        &mut self,
        now: Micros,
        deed: &Deed,
        reply: Reply,
        done: &mut Compared,
    ) -> Result<(), Box<Difference>> {
        if matches!(deed, Deed::Check(_) | Deed::Decide(_) | Deed::TakeUpTo(_)) {
            self.carry_over(now);
        }
        match (deed, reply) {
            (Deed::Check(cost), Reply::Decided(answers)) => {
                self.note(format!("at {}us check {cost}", now.get()));
                let mut steps = self.decide(now, Demand::now(*cost));
                // Nobody asked for receipts.
                steps.iter_mut().for_each(|step| step.receipt = Receipt::default());
                done.checks += 1;
                self.decided(&steps, &answers[0], done)
            }
            (Deed::Decide(demand), Reply::Decided(answers)) => {
                self.note(format!("at {}us {demand:?}", now.get()));
                let steps = self.decide(now, *demand);
                self.decided(&steps, &answers[0], done)
            }
            (Deed::TakeUpTo(most), Reply::Decided(answers)) => {
                self.note(format!("at {}us up to {most}", now.get()));
                let steps = self.take_up_to(now, *most);
                self.decided(&steps, &answers[0], done)
            }
            (Deed::Refund(taken, cost), Reply::Done) => {
                self.note(format!("at {}us refund {cost} of {:?}", now.get(), taken.charged));
                self.refund(now, taken, *cost, |_| true);
                done.refunds += 1;
                Ok(())
            }
            (Deed::RefundSettled(taken), Reply::Done) => {
                self.note(format!("at {}us refund settled {:?}", now.get(), taken.charged));
                self.refund(now, taken, u64::MAX, |slot| slot);
                Ok(())
            }
            (Deed::Reset, Reply::Done) => {
                self.note(format!("at {}us reset", now.get()));
                let writer = self.before.clone().unwrap_or_else(|| self.limit.clone());
                for (quota, words) in writer.quotas().iter().zip(&mut self.states) {
                    if !is_concurrency(quota) {
                        words.fill(0);
                    }
                }
                self.settle();
                done.resets += 1;
                Ok(())
            }
            (Deed::Renew(taken), Reply::Renewed(redis)) => {
                self.note(format!("at {}us renew {:?}", now.get(), taken.receipts));
                let quota = self.before.as_ref().unwrap_or(&self.limit).quotas()[0];
                let renew = |words: &mut Vec<u64>| quota.renew(words.as_mut_slice(), now, taken.receipts[0]);
                let memory = if is_concurrency(&quota) { renew(&mut self.states[0]) } else { None };
                done.renewals += 1;
                if memory != redis {
                    return Err(self.difference(&memory, &redis));
                }
                if let Some(receipt) = memory {
                    let charged = Charged { receipts: vec![receipt], ..taken.charged.clone() };
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

    /// Turns the states of earlier quotas into states of the current ones.
    fn carry_over(&mut self, now: Micros) {
        let Some(before) = self.before.take() else { return };
        self.settle();
        let pairs = self.limit.quotas().iter().zip(before.quotas());
        for ((new, old), words) in pairs.zip(&mut self.states) {
            let look = old.decide(words.as_mut_slice(), now, Demand::probe(0)).decision;
            if look.reset_after() == Micros::ZERO {
                *words = vec![0; new.width()];
                continue;
            }
            words.resize(old.width().max(new.width()), 0);
            new.inherit(old, words.as_mut_slice(), now, self.limit.inherit());
            words.truncate(new.width());
        }
    }

    fn each(&mut self, now: Micros, demand: Demand) -> Vec<Step> {
        let states = self.limit.quotas().iter().zip(&mut self.states);
        states.map(|(quota, words)| quota.decide(words.as_mut_slice(), now, demand)).collect()
    }

    /// All are charged or none.
    fn decide(&mut self, now: Micros, demand: Demand) -> Vec<Step> {
        if self.states.len() > 1 && demand.effect == Effect::Charge {
            let looks = self.each(now, Demand { effect: Effect::Probe, ..demand });
            if !looks.iter().all(|step| step.decision.is_granted()) {
                return looks;
            }
        }
        self.each(now, demand)
    }

    fn take_up_to(&mut self, now: Micros, most: u64) -> Vec<Step> {
        let looks = self.each(now, Demand::probe(1));
        if !looks.iter().all(|step| step.decision.is_allowed()) {
            return looks;
        }
        let least = looks.iter().map(|step| step.decision.remaining().max(1)).min().unwrap_or(1);
        self.decide(now, Demand::now(least.min(most)))
    }

    /// Gives back what was taken from those quotas that `counts` says yes to, told whether it is a slot.
    fn refund(&mut self, now: Micros, taken: &Taken, cost: u64, counts: impl Fn(bool) -> bool) {
        let writer = self.before.clone().unwrap_or_else(|| self.limit.clone());
        let states = writer.quotas().iter().zip(&mut self.states);
        for (((quota, words), receipt), taker) in states.zip(&taken.receipts).zip(taken.place.limit.quotas())
        {
            let is_slot = is_concurrency(quota) && is_concurrency(taker);
            if receipt.cost > 0 && counts(is_slot) {
                quota.refund(words.as_mut_slice(), now, *receipt, cost);
            }
        }
    }

    fn decided(
        &mut self,
        steps: &[Step],
        answer: &Answer,
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
            self.outstanding.push(Taken { place: self.place(), charged: answer.charged(), receipts });
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
