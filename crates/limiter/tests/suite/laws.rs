//! The memory store decides exactly as the core does on plain words, for every algorithm, in one word and in
//! several, for a key and for a throttle.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::common::{Home, Memory};
use proptest::{prelude::*, test_runner::TestCaseResult};
use tidegate_core::{AlgorithmKind, CarryOver, Decision, Demand, Effect, Micros, Quota, Receipt};
use tidegate_limiter::{Permit, Reservation};
use tidegate_testkit::{Plain, Subject, strategy::*};

/// Anything that can be done with a bucket.
#[derive(Clone, Debug)]
enum Deed {
    Check(Cost),
    CheckSlowly(Cost),
    Peek(Cost),
    OnCredit(Cost),
    TakeUpTo(Cost),
    Reserve(Cost, Patience),
    Permit,
    /// Gives back one of those that are held.
    Cancel(usize),
    /// Settles one of those that are held, at so many eighths of what was reserved.
    Commit(usize, u64),
    Reset,
    /// Goes on under one of two quotas.
    Change(bool, CarryOver),
}

fn deeds() -> BoxedStrategy<Deed> {
    prop_oneof![
        6 => costs().prop_map(Deed::Check),
        3 => costs().prop_map(Deed::CheckSlowly),
        2 => costs().prop_map(Deed::Peek),
        1 => costs().prop_map(Deed::OnCredit),
        2 => costs().prop_map(Deed::TakeUpTo),
        4 => (costs(), patience()).prop_map(|(cost, patience)| Deed::Reserve(cost, patience)),
        2 => Just(Deed::Permit),
        3 => (0_usize..4).prop_map(Deed::Cancel),
        3 => (0_usize..4, 0_u64..=12).prop_map(|(which, eighths)| Deed::Commit(which, eighths)),
        1 => Just(Deed::Reset),
    ]
    .boxed()
}

fn inheritances() -> impl Strategy<Value = CarryOver> {
    prop_oneof![3 => Just(CarryOver::Keep), 1 => Just(CarryOver::Reset)]
}

fn story(deeds: BoxedStrategy<Deed>) -> impl Strategy<Value = Vec<(Pause, Deed)>> {
    let pauses = prop_oneof![pauses().boxed(), short_pauses().boxed()];
    proptest::collection::vec((pauses, deeds), 1..40)
}

/// A key of the store, and the core beside it.
struct Twins {
    memory: Memory,
    home: Home,
    model: Plain,
    period: Micros,
    held: Vec<Held>,
}

/// What both gave out, and what is to be given back.
enum Held {
    Tokens(Reservation, Receipt, u64),
    Permit(Permit, Receipt),
}

impl Twins {
    fn new(home: Home, sample: &Sample) -> Self {
        let mut model = Plain::new(sample.quota);
        if home == Home::Throttle {
            model.create(sample.start);
        }
        let mut memory = Memory::new(home, sample.quota);
        memory.at(sample.start);
        Self { memory, home, model, period: sample.period, held: Vec::new() }
    }

    fn counts_permits(&self) -> bool {
        matches!(self.model.quota.kind(), AlgorithmKind::Concurrency(_))
    }

    /// What the core answers; a slot that nothing would give back is only looked at.
    fn core(&mut self, now: Micros, demand: Demand) -> (Decision, Receipt) {
        let step = match self.counts_permits() {
            true => self.model.would(now, Demand { effect: Effect::Probe, ..demand }),
            false => self.model.decide(now, demand),
        };
        (step.decision, if self.counts_permits() { Receipt::default() } else { step.receipt })
    }

    /// Does a deed to both, and returns both answers.
    fn both(&mut self, now: Micros, deed: &Deed) -> Option<(Decision, Decision)> {
        let limit = self.model.quota.limit();
        let bucket = self.memory.at(now);
        match *deed {
            Deed::Check(cost) => {
                let cost = cost.under(limit);
                Some((self.memory.check(now, cost), self.core(now, Demand::new(cost)).0))
            }
            Deed::CheckSlowly(cost) => {
                let cost = cost.under(limit);
                Some((bucket.check(cost), self.core(now, Demand::new(cost)).0))
            }
            Deed::Peek(cost) => {
                let cost = cost.under(limit);
                Some((bucket.peek(cost), self.model.would(now, Demand::probe(cost)).decision))
            }
            Deed::OnCredit(cost) => {
                let cost = cost.under(limit);
                Some((bucket.check_on_credit(cost), self.core(now, Demand::new(cost).with_overdraft()).0))
            }
            Deed::TakeUpTo(cost) => Some(self.take_up_to(now, cost.under(limit))),
            Deed::Reserve(cost, patience) => {
                let demand = Demand::with_max_wait(cost.under(limit), self.patience(patience));
                let tokens = bucket.reserve(demand.cost, demand.max_wait.into());
                let (expected, receipt) = self.core(now, demand);
                let decision = *tokens.decision();
                if decision.is_granted() {
                    self.held.push(Held::Tokens(tokens, receipt, demand.cost));
                }
                Some((decision, expected))
            }
            Deed::Permit => {
                let permit = bucket.permit();
                let step = self.model.decide(now, Demand::new(1));
                let decision = *permit.decision();
                if decision.is_granted() {
                    self.held.push(Held::Permit(permit, step.receipt));
                }
                Some((decision, step.decision))
            }
            Deed::Cancel(which) => self.settle(now, which, 0),
            Deed::Commit(which, eighths) => self.settle(now, which, eighths),
            Deed::Reset => self.reset(now),
            Deed::Change(..) => None,
        }
    }

    fn patience(&self, patience: Patience) -> Micros {
        match patience {
            Patience::None => Micros::ZERO,
            Patience::Halves(count) => Micros::new(self.period.get() * count / 2),
            Patience::Endless => Micros::MAX,
        }
    }

    /// As much as there is: it is granted, and one more would not have been.
    fn take_up_to(&mut self, now: Micros, most: u64) -> (Decision, Decision) {
        let (taken, decision) = self.memory.at(now).take_up_to(most);
        let one = self.model.would(now, Demand::probe(1)).decision;
        assert!(taken <= most);
        if taken == 0 {
            assert!(most == 0 || !one.is_granted(), "there was something: {one:?}");
            return (decision, one);
        }
        let more = self.model.would(now, Demand::probe(taken + 1)).decision;
        match self.model.quota.kind() {
            // A shaper grants any cost while nobody is in debt: there is what is stored, and one on debt.
            AlgorithmKind::Smooth(_) | AlgorithmKind::WarmUp(_) => {
                assert_eq!(taken, one.remaining().clamp(1, most))
            }
            _ => assert!(taken == most || !more.is_granted(), "there was more: {more:?}"),
        }
        (decision, self.core(now, Demand::new(taken)).0)
    }

    fn settle(&mut self, now: Micros, which: usize, eighths: u64) -> Option<(Decision, Decision)> {
        if which >= self.held.len() {
            return None;
        }
        match self.held.swap_remove(which) {
            Held::Permit(permit, receipt) => {
                drop(permit);
                self.model.refund(now, receipt, receipt.cost);
            }
            Held::Tokens(tokens, receipt, reserved) => {
                let cost = u64::try_from(u128::from(reserved) * u128::from(eighths) / 8).unwrap();
                if cost == 0 {
                    tokens.cancel();
                } else {
                    tokens.commit(cost);
                }
                if cost < reserved {
                    self.model.refund(now, receipt, reserved - cost);
                } else if cost > reserved {
                    self.core(now, Demand::forced(cost - reserved));
                }
            }
        }
        self.both(now, &Deed::Peek(Cost::Nothing))
    }

    /// Forgets everything but permits in flight. What was reserved before is not given back after.
    fn reset(&mut self, now: Micros) -> Option<(Decision, Decision)> {
        self.memory.at(now).reset().unwrap();
        if !self.counts_permits() {
            self.keep_all();
            self.model = Plain::new(self.model.quota);
            if self.home == Home::Throttle {
                self.model.create(now);
            }
        }
        self.both(now, &Deed::Peek(Cost::Nothing))
    }

    fn keep_all(&mut self) {
        for held in self.held.drain(..) {
            match held {
                Held::Tokens(tokens, ..) => drop(tokens.keep()),
                Held::Permit(permit, _) => std::mem::forget(permit),
            }
        }
    }
}

fn same_decisions(home: Home, sample: Sample, story: Vec<(Pause, Deed)>) -> TestCaseResult {
    let mut twins = Twins::new(home, &sample);
    let mut moment = Moment::start_of(&sample);
    for (pause, deed) in story {
        moment.pass(pause);
        if let Some((decision, expected)) = twins.both(moment.now, &deed) {
            prop_assert_eq!(decision, expected, "{:?} at {}", deed, moment.now);
            prop_assert_eq!(decision.wait(), expected.wait());
            moment.hear(&expected);
        }
    }
    Ok(())
}

#[test]
fn a_key_decides_as_the_core_does() {
    hold(story(deeds()), |sample, story| same_decisions(Home::Key, sample, story));
}

#[test]
fn a_throttle_decides_as_the_core_does() {
    hold(story(deeds()), |sample, story| same_decisions(Home::Throttle, sample, story));
}

/// Quotas on both sides of what one word can count, just at its edge, and far from it.
#[test]
fn one_word_and_several_count_alike() {
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
        let law = |(sample, story): (Sample, Vec<_>)| {
            same_decisions(Home::Key, sample, story.clone())?;
            same_decisions(Home::Throttle, sample, story)
        };
        runner().run(&(samples, story(deeds())), law).unwrap_or_else(|broken| panic!("{text}: {broken}"));
    }
}

/// Almost 18 years: a word may stand still after that.
const LONGEST_RUN: Micros = Micros::new(1 << 49);

/// A change keeps each key's history as the core would, and settles what was outstanding; permits stay held.
fn same_after_changes(home: Home, old: Sample, new: Sample, story: Vec<(Pause, Deed)>) -> TestCaseResult {
    let mut twins = Twins::new(home, &old);
    let mut moment = Moment::start_of(&old);
    // The key must have a cell: one that was never seen has no history to keep.
    twins.both(moment.now, &Deed::Peek(Cost::Nothing));
    for (pause, deed) in story {
        moment.pass(pause);
        if moment.now.since(old.start) > LONGEST_RUN {
            return Ok(());
        }
        if let Deed::Change(back, how) = deed {
            let quota = if back { old.quota } else { new.quota };
            if twins.memory.try_change(moment.now, quota, how).is_ok() {
                twins.model.change(moment.now, quota, how);
                if !twins.counts_permits() {
                    // Dropped, not kept: nothing must come back.
                    twins.held.clear();
                }
            }
            let answers = twins.both(moment.now, &Deed::Peek(Cost::Exactly(1)));
            prop_assert!(answers.is_none_or(|(decision, expected)| decision == expected), "{:?}", answers);
        } else if let Some((decision, expected)) = twins.both(moment.now, &deed) {
            prop_assert_eq!(decision, expected, "{:?} at {}", deed, moment.now);
            moment.hear(&expected);
        }
    }
    Ok(())
}

#[test]
fn a_change_of_quota_is_the_cores() {
    let changes = (any::<bool>(), inheritances()).prop_map(|(back, how)| Deed::Change(back, how));
    let deeds = prop_oneof![8 => deeds(), 1 => changes].boxed();
    hold_pairs(story(deeds), |old, new, story| {
        same_after_changes(Home::Key, old, new, story.clone())?;
        same_after_changes(Home::Throttle, old, new, story)
    });
}
