//! Compares the result of a step in Redis with the result in memory.

use super::{
    VerifyDifference, VerifyReport,
    compared_key::{ComparedCharge, ComparedKey, VerifyOp},
};
use std::fmt;
use tidegate_core::{ChargeResult, Decision, Demand, Micros, Receipt};
use tidegate_limiter::store::{StoreCharge, StoreDecision, StoreReply};

impl ComparedKey {
    /// Executes the step in memory and compares the result with the reply.
    pub(super) fn compare(
        &mut self,
        now: Micros,
        op: &VerifyOp,
        reply: StoreReply,
        done: &mut VerifyReport,
    ) -> Result<(), Box<VerifyDifference>> {
        match (op, reply) {
            (VerifyOp::Check(cost), StoreReply::Decided(answers)) => {
                self.record_step(format!("at {}us check {cost}", now.get()));
                let mut results = self.decide(now, Demand::new(*cost));
                // The request did not ask for receipts.
                results.iter_mut().for_each(|result| result.receipt = Receipt::default());
                done.checks += 1;
                self.compare_decisions(&results, &answers[0], done)
            }
            (VerifyOp::Decide(demand), StoreReply::Decided(answers)) => {
                self.record_step(format!("at {}us {demand:?}", now.get()));
                let results = self.decide(now, *demand);
                self.compare_decisions(&results, &answers[0], done)
            }
            (VerifyOp::TakeUpTo(most), StoreReply::Decided(answers)) => {
                self.record_step(format!("at {}us up to {most}", now.get()));
                let results = self.take_up_to(now, *most);
                self.compare_decisions(&results, &answers[0], done)
            }
            (VerifyOp::Refund(charge, cost), StoreReply::Done) => {
                self.record_step(format!("at {}us refund {cost} of {:?}", now.get(), charge.redis_charge));
                self.refund(now, charge, *cost, false);
                done.refunds += 1;
                Ok(())
            }
            (VerifyOp::RefundSettled(charge), StoreReply::Done) => {
                self.record_step(format!("at {}us refund settled {:?}", now.get(), charge.redis_charge));
                self.refund(now, charge, u64::MAX, true);
                Ok(())
            }
            (VerifyOp::Reset, StoreReply::Done) => {
                self.record_step(format!("at {}us reset", now.get()));
                self.entries.reset();
                self.settle_charges();
                done.resets += 1;
                Ok(())
            }
            (VerifyOp::Renew(charge), StoreReply::Renewed(redis)) => {
                self.record_step(format!("at {}us renew {:?}", now.get(), charge.memory_receipts));
                let memory = self.entries.renew(now, charge.memory_receipts[0]);
                done.renewals += 1;
                if memory != redis {
                    return Err(self.build_difference(&memory, &redis));
                }
                if let Some(receipt) = memory {
                    let charged = StoreCharge { receipts: vec![receipt], ..charge.redis_charge.clone() };
                    self.open_charges.push(ComparedCharge {
                        redis_charge: charged,
                        memory_receipts: vec![receipt],
                        key_ref: charge.key_ref.clone(),
                    });
                }
                Ok(())
            }
            (_, reply) => Err(self.build_difference(&"a reply of the matching kind", &reply)),
        }
    }

    fn decide(&mut self, now: Micros, demand: Demand) -> Vec<ChargeResult> {
        self.entries.decide(self.limit.quotas(), self.limit.carry_over(), now, demand)
    }

    fn take_up_to(&mut self, now: Micros, most: u64) -> Vec<ChargeResult> {
        self.entries.begin(self.limit.quotas(), self.limit.carry_over(), now);
        let peeked = self.decide(now, Demand::peek(1));
        if !peeked.iter().all(|result| result.decision.is_allowed()) {
            return peeked;
        }
        let least = peeked.iter().map(|result| result.decision.remaining().max(1)).min().unwrap_or(1);
        self.decide(now, Demand::new(least.min(most)))
    }

    fn refund(&mut self, now: Micros, charge: &ComparedCharge, cost: u64, is_settled: bool) {
        self.entries.refund(charge.key_ref.limit.quotas(), now, &charge.memory_receipts, cost, is_settled);
    }

    fn compare_decisions(
        &mut self,
        results: &[ChargeResult],
        answer: &StoreDecision,
        done: &mut VerifyReport,
    ) -> Result<(), Box<VerifyDifference>> {
        for (memory, redis) in results.iter().zip(&answer.results) {
            if memory != redis {
                return Err(self.build_difference(memory, redis));
            }
        }
        done.decisions += 1;
        let decisions: Vec<&Decision> = results.iter().map(|result| &result.decision).collect();
        let granted = decisions.iter().all(|decision| decision.is_granted());
        done.denied += u64::from(!granted);
        done.delayed += u64::from(granted && decisions.iter().any(|decision| !decision.is_allowed()));
        self.last_wait = decisions.iter().map(|decision| decision.wait()).max().unwrap_or_default();
        self.last_reset = decisions.iter().map(|decision| decision.reset_after()).max().unwrap_or_default();
        let receipts: Vec<_> = results.iter().map(|result| result.receipt).collect();
        if receipts.iter().any(|receipt| receipt.cost > 0) {
            self.open_charges.push(ComparedCharge {
                key_ref: self.key_ref(),
                redis_charge: answer.charge(),
                memory_receipts: receipts,
            });
        }
        Ok(())
    }

    fn build_difference(&self, memory: &dyn fmt::Debug, redis: &dyn fmt::Debug) -> Box<VerifyDifference> {
        Box::new(VerifyDifference {
            quotas: self.limit.quotas().to_vec(),
            history: self.history.iter().cloned().collect(),
            memory: format!("{memory:?}"),
            redis: format!("{redis:?}"),
        })
    }
}
