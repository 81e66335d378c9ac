//! The memory store makes exactly the decisions of the core on plain words, for every algorithm, in one word and in
//! several, for a key and for a direct limiter.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::common::{LimiterTarget, MemorySubject};
use proptest::{prelude::*, test_runner::TestCaseResult};
use tidegate_core::{AlgorithmKind, CarryOver, Decision, Demand, Effect, Micros, Quota, Receipt};
use tidegate_limiter::{Permit, Reservation};
use tidegate_testkit::{CoreModel, Subject, strategy::*};

/// Any operation on a bucket.
#[derive(Clone, Debug)]
enum LimiterOp {
    Check(CallCost),
    CheckBucket(CallCost),
    Peek(CallCost),
    CheckWithOverdraft(CallCost),
    TakeUpTo(CallCost),
    Reserve(CallCost, MaxWait),
    Permit,
    /// Cancels one of the outstanding charges.
    Cancel(usize),
    /// Settles one of the outstanding charges, at this many eighths of the reserved cost.
    Commit(usize, u64),
    Reset,
    /// Changes to one of two quotas.
    Change(bool, CarryOver),
}

fn limiter_ops() -> BoxedStrategy<LimiterOp> {
    prop_oneof![
        6 => costs().prop_map(LimiterOp::Check),
        3 => costs().prop_map(LimiterOp::CheckBucket),
        2 => costs().prop_map(LimiterOp::Peek),
        1 => costs().prop_map(LimiterOp::CheckWithOverdraft),
        2 => costs().prop_map(LimiterOp::TakeUpTo),
        4 => (costs(), max_waits()).prop_map(|(cost, max_wait)| LimiterOp::Reserve(cost, max_wait)),
        2 => Just(LimiterOp::Permit),
        3 => (0_usize..4).prop_map(LimiterOp::Cancel),
        3 => (0_usize..4, 0_u64..=12).prop_map(|(which, eighths)| LimiterOp::Commit(which, eighths)),
        1 => Just(LimiterOp::Reset),
    ]
    .boxed()
}

fn carry_overs() -> impl Strategy<Value = CarryOver> {
    prop_oneof![3 => Just(CarryOver::Keep), 1 => Just(CarryOver::Reset)]
}

fn op_sequence(ops: BoxedStrategy<LimiterOp>) -> impl Strategy<Value = Vec<(CallPause, LimiterOp)>> {
    let pauses = prop_oneof![pauses().boxed(), short_pauses().boxed()];
    proptest::collection::vec((pauses, ops), 1..40)
}

/// A key of the store, and the model of the core.
struct ModelPair {
    memory: MemorySubject,
    target: LimiterTarget,
    model: CoreModel,
    period: Micros,
    outstanding: Vec<OutstandingCharge>,
}

/// A charge in both that can be refunded.
enum OutstandingCharge {
    Tokens(Reservation, Receipt, u64),
    Permit(Permit, Receipt),
}

impl ModelPair {
    fn new(target: LimiterTarget, sample: &Sample) -> Self {
        let mut model = CoreModel::new(sample.quota);
        if target == LimiterTarget::Direct {
            model.create(sample.start);
        }
        let mut memory = MemorySubject::new(target, sample.quota);
        memory.bucket_at(sample.start);
        Self { memory, target, model, period: sample.period, outstanding: Vec::new() }
    }

    fn counts_permits(&self) -> bool {
        matches!(self.model.quota.kind(), AlgorithmKind::Concurrency(_))
    }

    /// The decision of the core; a slot that could not be released is only checked.
    fn model_decide(&mut self, now: Micros, demand: Demand) -> (Decision, Receipt) {
        let result = match self.counts_permits() {
            true => self.model.peek(now, Demand { effect: Effect::Peek, ..demand }),
            false => self.model.decide(now, demand),
        };
        (result.decision, if self.counts_permits() { Receipt::default() } else { result.receipt })
    }

    /// Applies an operation to both, and returns both decisions.
    fn apply(&mut self, now: Micros, op: &LimiterOp) -> Option<(Decision, Decision)> {
        let limit = self.model.quota.limit();
        let bucket = self.memory.bucket_at(now);
        match *op {
            LimiterOp::Check(cost) => {
                let cost = cost.resolve(limit);
                Some((self.memory.check(now, cost), self.model_decide(now, Demand::new(cost)).0))
            }
            LimiterOp::CheckBucket(cost) => {
                let cost = cost.resolve(limit);
                Some((bucket.check(cost), self.model_decide(now, Demand::new(cost)).0))
            }
            LimiterOp::Peek(cost) => {
                let cost = cost.resolve(limit);
                Some((bucket.peek(cost), self.model.peek(now, Demand::peek(cost)).decision))
            }
            LimiterOp::CheckWithOverdraft(cost) => {
                let cost = cost.resolve(limit);
                Some((
                    bucket.check_with_overdraft(cost),
                    self.model_decide(now, Demand::new(cost).with_overdraft()).0,
                ))
            }
            LimiterOp::TakeUpTo(cost) => Some(self.take_up_to(now, cost.resolve(limit))),
            LimiterOp::Reserve(cost, max_wait) => {
                let demand = Demand::with_max_wait(cost.resolve(limit), self.max_wait(max_wait));
                let tokens = bucket.reserve(demand.cost, demand.max_wait.into());
                let (expected, receipt) = self.model_decide(now, demand);
                let decision = *tokens.decision();
                if decision.is_granted() {
                    self.outstanding.push(OutstandingCharge::Tokens(tokens, receipt, demand.cost));
                }
                Some((decision, expected))
            }
            LimiterOp::Permit => {
                let permit = bucket.permit();
                let result = self.model.decide(now, Demand::new(1));
                let decision = *permit.decision();
                if decision.is_granted() {
                    self.outstanding.push(OutstandingCharge::Permit(permit, result.receipt));
                }
                Some((decision, result.decision))
            }
            LimiterOp::Cancel(which) => self.settle(now, which, 0),
            LimiterOp::Commit(which, eighths) => self.settle(now, which, eighths),
            LimiterOp::Reset => self.reset(now),
            LimiterOp::Change(..) => None,
        }
    }

    fn max_wait(&self, max_wait: MaxWait) -> Micros {
        match max_wait {
            MaxWait::None => Micros::ZERO,
            MaxWait::HalfPeriods(count) => Micros::new(self.period.get() * count / 2),
            MaxWait::Unlimited => Micros::MAX,
        }
    }

    /// Takes all available tokens: they are granted, and one more would not be.
    fn take_up_to(&mut self, now: Micros, max: u64) -> (Decision, Decision) {
        let (taken, decision) = self.memory.bucket_at(now).take_up_to(max);
        let one = self.model.peek(now, Demand::peek(1)).decision;
        assert!(taken <= max);
        if taken == 0 {
            assert!(max == 0 || !one.is_granted(), "tokens were available: {one:?}");
            return (decision, one);
        }
        let more = self.model.peek(now, Demand::peek(taken + 1)).decision;
        match self.model.quota.kind() {
            // A shaper without debt grants any cost: the stored tokens, and one as debt.
            AlgorithmKind::Smooth(_) | AlgorithmKind::WarmUp(_) => {
                assert_eq!(taken, one.remaining().clamp(1, max));
            }
            _ => assert!(taken == max || !more.is_granted(), "more tokens were available: {more:?}"),
        }
        (decision, self.model_decide(now, Demand::new(taken)).0)
    }

    fn settle(&mut self, now: Micros, which: usize, eighths: u64) -> Option<(Decision, Decision)> {
        if which >= self.outstanding.len() {
            return None;
        }
        match self.outstanding.swap_remove(which) {
            OutstandingCharge::Permit(permit, receipt) => {
                drop(permit);
                self.model.refund(now, receipt, receipt.cost);
            }
            OutstandingCharge::Tokens(tokens, receipt, reserved) => {
                let cost = u64::try_from(u128::from(reserved) * u128::from(eighths) / 8).unwrap();
                if cost == 0 {
                    tokens.cancel();
                } else {
                    tokens.commit(cost);
                }
                if cost < reserved {
                    self.model.refund(now, receipt, reserved - cost);
                } else if cost > reserved {
                    self.model_decide(now, Demand::forced(cost - reserved));
                }
            }
        }
        self.apply(now, &LimiterOp::Peek(CallCost::Zero))
    }

    /// Resets everything except permits in flight. Earlier reservations are not refunded afterwards.
    fn reset(&mut self, now: Micros) -> Option<(Decision, Decision)> {
        self.memory.bucket_at(now).reset().unwrap();
        if !self.counts_permits() {
            self.keep_all();
            self.model = CoreModel::new(self.model.quota);
            if self.target == LimiterTarget::Direct {
                self.model.create(now);
            }
        }
        self.apply(now, &LimiterOp::Peek(CallCost::Zero))
    }

    fn keep_all(&mut self) {
        for charge in self.outstanding.drain(..) {
            match charge {
                OutstandingCharge::Tokens(tokens, ..) => drop(tokens.keep()),
                OutstandingCharge::Permit(permit, _) => std::mem::forget(permit),
            }
        }
    }
}

fn check_same_decisions(
    target: LimiterTarget,
    sample: Sample,
    ops: Vec<(CallPause, LimiterOp)>,
) -> TestCaseResult {
    let mut pair = ModelPair::new(target, &sample);
    let mut calls = CallClock::new(&sample);
    for (pause, op) in ops {
        calls.advance(pause);
        if let Some((decision, expected)) = pair.apply(calls.now, &op) {
            prop_assert_eq!(decision, expected, "{:?} at {}", op, calls.now);
            prop_assert_eq!(decision.wait(), expected.wait());
            calls.record(&expected);
        }
    }
    Ok(())
}

#[test]
fn key_decides_like_core() {
    check_property(op_sequence(limiter_ops()), |sample, ops| {
        check_same_decisions(LimiterTarget::Key, sample, ops)
    });
}

#[test]
fn direct_limiter_decides_like_core() {
    check_property(op_sequence(limiter_ops()), |sample, ops| {
        check_same_decisions(LimiterTarget::Direct, sample, ops)
    });
}

/// Quotas on both sides of the capacity of one word, at the boundary and far from it.
#[test]
fn single_and_multi_word_decide_alike() {
    let edge = [
        "1/s",
        "1237/s burst 3",
        "4095 per 1000001us",
        "4096 per 1000001us",
        "4095000000/s",
        "4096000000/s",
        "10000000007 per 1s burst 5",
        "4095 per 1000001us leaky-bucket queue 9 delay 3",
        "4097 per 1000001us leaky-bucket queue 9 delay 3",
        "4095 per 1us burst 100000",
        "9999 per 1us burst 7",
    ];
    for text in edge {
        let quota: Quota = text.parse().unwrap();
        let start = prop_oneof![Just(0), 0_u64..=1_000_000, Just(1_750_000_000_000_000)];
        let samples = start.prop_map(move |start| Sample {
            quota,
            period: Micros::from_secs(1),
            start: Micros::new(start),
        });
        let law = |(sample, ops): (Sample, Vec<_>)| {
            check_same_decisions(LimiterTarget::Key, sample, ops.clone())?;
            check_same_decisions(LimiterTarget::Direct, sample, ops)
        };
        runner()
            .run(&(samples, op_sequence(limiter_ops())), law)
            .unwrap_or_else(|error| panic!("{text}: {error}"));
    }
}

/// Almost 18 years: after that a word may be full.
const MAX_RUN_TIME: Micros = Micros::new(1 << 49);

/// A change keeps the usage of each key as the core does, and makes outstanding charges final; permits stay in use.
fn check_same_after_changes(
    target: LimiterTarget,
    old: Sample,
    new: Sample,
    ops: Vec<(CallPause, LimiterOp)>,
) -> TestCaseResult {
    let mut pair = ModelPair::new(target, &old);
    let mut calls = CallClock::new(&old);
    // The key must have a cell: a new one has no usage to keep.
    pair.apply(calls.now, &LimiterOp::Peek(CallCost::Zero));
    for (pause, op) in ops {
        calls.advance(pause);
        if calls.now.saturating_sub(old.start) > MAX_RUN_TIME {
            return Ok(());
        }
        if let LimiterOp::Change(back, how) = op {
            let quota = if back { old.quota } else { new.quota };
            if pair.memory.try_change(calls.now, quota, how).is_ok() {
                pair.model.change(calls.now, quota, how);
                if !pair.counts_permits() {
                    // Dropped, not retained: nothing must be refunded.
                    pair.outstanding.clear();
                }
            }
            let decisions = pair.apply(calls.now, &LimiterOp::Peek(CallCost::Exact(1)));
            prop_assert!(
                decisions.is_none_or(|(decision, expected)| decision == expected),
                "{:?}",
                decisions
            );
        } else if let Some((decision, expected)) = pair.apply(calls.now, &op) {
            prop_assert_eq!(decision, expected, "{:?} at {}", op, calls.now);
            calls.record(&expected);
        }
    }
    Ok(())
}

#[test]
fn quota_change_matches_core() {
    let changes = (any::<bool>(), carry_overs()).prop_map(|(back, how)| LimiterOp::Change(back, how));
    let ops = prop_oneof![8 => limiter_ops(), 1 => changes].boxed();
    check_property_pairs(op_sequence(ops), |old, new, ops| {
        check_same_after_changes(LimiterTarget::Key, old, new, ops.clone())?;
        check_same_after_changes(LimiterTarget::Direct, old, new, ops)
    });
}
