//! A limiter in memory that is replaced repeatedly, with random quotas and table sizes.
//!
//! The invariants of a quota change hold: admissions stay within the largest bound, denials last no longer than those of the
//! slowest quota and write nothing, and a change that is reverted at once restores the state. The model is [`StateEntries`].

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use proptest::{prelude::*, sample::Index, test_runner::TestCaseResult};
use tidegate_core::{CarryOver, Decision, Demand, Micros, Outcome, Quota, Retry, StateEntries};
use tidegate_limiter::{Capacity, Clock, Limiter, ManualClock};
use tidegate_testkit::{
    CoreModel, Subject,
    bound::{
        AdmittedCall, can_be_truncated, check_restored, check_windows, is_smooth_rate, max_retry,
        sum_of_group_bounds,
    },
    strategy::*,
};

const KEYS: [&str; 3] = ["a", "b", "c"];

#[derive(Clone, Debug)]
enum ReplaceOp {
    Check(Index, CallCost),
    /// Replaces the limiter by one with another quota and table size.
    Replace(Index, Index),
    /// Replaces the limiter and back, without time in between.
    ReplaceAndBack(Index, Index),
}

fn replace_ops() -> impl Strategy<Value = Vec<(CallPause, ReplaceOp)>> {
    let any = any::<Index>;
    let op = prop_oneof![
        8 => (any(), costs()).prop_map(|(key, cost)| ReplaceOp::Check(key, cost)),
        2 => (any(), any()).prop_map(|(quota, size)| ReplaceOp::Replace(quota, size)),
        1 => (any(), any()).prop_map(|(quota, size)| ReplaceOp::ReplaceAndBack(quota, size)),
    ];
    let pauses = prop_oneof![pauses().boxed(), short_pauses().boxed()];
    prop::collection::vec((pauses, op), 1..80)
}

/// Tables of one group of cells, of several, and of a size in bytes.
const CAPACITIES: [Capacity; 4] =
    [Capacity::Keys(1), Capacity::Keys(4), Capacity::Keys(1_000), Capacity::Bytes(64 << 10)];

/// The model of one key.
struct KeyModel {
    entries: StateEntries,
    /// Each quota as if it alone had admitted everything.
    single_quotas: Vec<CoreModel>,
    admissions: Vec<AdmittedCall>,
}

struct ReplacementModel {
    samples: Vec<Sample>,
    /// The current one.
    sample: Sample,
    limiter: Limiter,
    clock: Clock,
    manual_clock: ManualClock,
    keys: [KeyModel; KEYS.len()],
}

impl ReplacementModel {
    fn new(samples: Vec<Sample>) -> Self {
        let (clock, manual_clock) = Clock::manual();
        manual_clock.set(samples[0].start);
        let limiter = Limiter::builder().clock(clock.clone()).capacity(CAPACITIES[1]).build(samples[0].quota);
        let keys = KEYS.map(|_| KeyModel {
            entries: StateEntries::new(),
            single_quotas: samples.iter().map(|sample| CoreModel::new(sample.quota)).collect(),
            admissions: Vec::new(),
        });
        Self { sample: samples[0], samples, limiter: limiter.unwrap(), clock, manual_clock, keys }
    }

    /// Replaces the limiter; `false` if the usage exceeds what the new quota can count and was truncated.
    fn replace(&mut self, now: Micros, sample: Sample, size: Capacity) -> bool {
        let builder = Limiter::builder().clock(self.clock.clone()).capacity(size).predecessor(&self.limiter);
        let next = builder.build(sample.quota).unwrap();
        next.take_over(&self.limiter);
        (self.limiter, self.sample) = (next, sample);
        self.keys.iter_mut().for_each(|key| key.entries.change_quotas(&[sample.quota], CarryOver::Keep, now));
        let mut entries = self.keys.iter().flat_map(|key| key.entries.as_slice());
        !entries.any(|entry| can_be_truncated(&entry.writer, entry.state.iter().copied()))
    }

    fn check(&mut self, now: Micros, key: usize, cost: CallCost) -> Result<Decision, TestCaseError> {
        let cost = cost.resolve(self.sample.quota.limit());
        // The bound of a shaper applies to calls of cost one.
        let cost =
            if self.samples.iter().any(|sample| is_smooth_rate(&sample.quota)) { cost.min(1) } else { cost };
        let before = self.peek(key);
        let decision = self.limiter.check_cost(KEYS[key], cost);
        let model = &mut self.keys[key];
        let quotas: [Quota; 1] = [self.sample.quota];
        let expected =
            model.entries.decide(&quotas, CarryOver::Keep, now, Demand::new(cost)).remove(0).decision;
        // A full key is not imported, but Guava's arithmetic loses a digit of it when its rate changes.
        if !is_smooth_rate(&self.sample.quota) {
            prop_assert_eq!(decision, expected, "`{}` of {} at {}", KEYS[key], cost, now);
        }
        match decision.outcome() {
            Outcome::Allow => {
                model.admissions.push(AdmittedCall { at: now, cost });
                for single in &mut model.single_quotas {
                    single.decide(now, Demand::forced(cost));
                }
            }
            Outcome::Delay(_) => prop_assert!(false, "a check does not wait"),
            Outcome::Deny(retry) => {
                if let Retry::After(wait) = retry {
                    let longest = max_retry(&self.samples, &model.single_quotas, now);
                    prop_assert!(wait <= longest, "a wait of {}, at most {}", wait, longest);
                }
                prop_assert_eq!(self.peek(key), before, "a denial writes nothing");
            }
        }
        Ok(decision)
    }

    fn peek(&self, key: usize) -> Decision {
        self.limiter.blocking().key(KEYS[key]).peek(1)
    }

    /// Replaces the limiter and reverts that at once; `false` as above.
    fn replace_and_back(
        &mut self,
        now: Micros,
        other: Sample,
        size: Capacity,
    ) -> Result<bool, TestCaseError> {
        let (sample, before) = (self.sample, [0, 1, 2].map(|key| self.peek(key)));
        if !self.replace(now, other, size) || !self.replace(now, sample, CAPACITIES[1]) {
            return Ok(false);
        }
        for (key, before) in before.into_iter().enumerate() {
            check_restored(&sample, &before, &self.peek(key))?;
        }
        Ok(true)
    }
}

/// Almost 18 years: after that a word may be full.
const MAX_RUN_TIME: Micros = Micros::new(1 << 49);

fn check_laws(samples: Vec<Sample>, ops: Vec<(CallPause, ReplaceOp)>) -> TestCaseResult {
    let mut calls = CallClock::new(&samples[0]);
    let mut model = ReplacementModel::new(samples);
    for (pause, op) in ops {
        calls.advance(pause);
        if calls.now.saturating_sub(model.samples[0].start) > MAX_RUN_TIME {
            break;
        }
        model.manual_clock.set(calls.now);
        let is_counted = match op {
            ReplaceOp::Check(key, cost) => {
                let decision = model.check(calls.now, key.index(KEYS.len()), cost)?;
                calls.record(&decision);
                true
            }
            ReplaceOp::Replace(quota, size) => {
                let sample = *quota.get(&model.samples);
                model.replace(calls.now, sample, *size.get(&CAPACITIES))
            }
            ReplaceOp::ReplaceAndBack(quota, size) => {
                let sample = *quota.get(&model.samples);
                model.replace_and_back(calls.now, sample, *size.get(&CAPACITIES))?
            }
        };
        if !is_counted {
            break;
        }
    }
    let samples = model.samples;
    model
        .keys
        .into_iter()
        .try_for_each(|key| check_windows(key.admissions, |length| sum_of_group_bounds(&samples, length)))
}

#[test]
fn replacement_within_one_algorithm_keeps_laws() {
    let fleets = same_algorithm_fleets()
        .prop_filter("permits are released where they were acquired", |samples| {
            samples.iter().all(|sample| sample.quota.rate().is_some())
        });
    run_cases(fleets);
}

#[test]
fn replacement_across_algorithms_keeps_laws() {
    run_cases(mixed_fleets());
}

fn run_cases(samples: impl Strategy<Value = Vec<Sample>>) {
    // The same number of cases per algorithm as in other tests.
    let cases = prop::test_runner::Config::default().cases * 9;
    let law = |(samples, ops): (Vec<Sample>, Vec<(CallPause, ReplaceOp)>)| check_laws(samples, ops);
    runner_with_cases(cases).run(&(samples, replace_ops()), law).unwrap_or_else(|error| panic!("{error}"));
}

/// A smaller table drops the keys with the least usage, not those that are copied last.
#[test]
fn smaller_table_keeps_limited_keys() {
    for (old, new) in
        [("5/h", "5/h"), ("5/h", "4/h"), ("5/h sliding-log", "5/h sliding-log"), ("5/h", "5/h sliding-log")]
    {
        let (clock, _manual_clock) = Clock::manual();
        let builder = || Limiter::builder().clock(clock.clone());
        let first = builder().capacity(Capacity::Keys(1_000)).build(old).unwrap();
        let limited = ["a", "b", "c", "d"];
        limited.iter().for_each(|key| _ = first.check_cost(key, 5));
        (0..600_u64).for_each(|key| _ = first.check(&key));
        let small = builder().capacity(Capacity::Keys(1)).predecessor(&first).build(new).unwrap();
        small.take_over(&first);
        let back = builder().capacity(Capacity::Keys(1)).predecessor(&small).build(old).unwrap();
        back.take_over(&small);
        for key in limited {
            assert!(!back.check(key).is_allowed(), "{old} to {new}: `{key}` was limited");
        }
    }
}
