//! Law 8: quotas change, and several of them may count the same key at a time.
//!
//! Quotas that share a state admit together no more than the largest burst and, on top, the fastest rate among them. Those
//! that share none have a bound each. No denial is longer than the smallest burst at the slowest rate would give.

use super::admissions::{Admission, check, play};
use super::{is_concurrency, is_shaper};
use proptest::{prelude::*, strategy::Union, test_runner::TestCaseResult};
use tidegate_core::{CarryOver, Demand, Entries, Kind, LARGEST_EXACT, Micros, Outcome, Quota, Rate, Retry};
use tidegate_testkit::{Plain, Subject, strategy::*};

/// The largest burst and, on top, the fastest rate, over one microsecond more: waits are whole microseconds under each quota. The
/// counts of windows mean the same under each, so there it is the largest bound.
fn largest(samples: &[Sample], length: Micros) -> u64 {
    let instant = Micros::new(1);
    let bounds = |length: Micros| samples.iter().map(move |it| it.quota.bound().in_any(length)).max();
    let is_envelope = samples.iter().any(|it| is_level(&it.quota) || is_shaper(&it.quota));
    if !is_envelope {
        return bounds(length).unwrap_or(0);
    }
    let rate = |it: &Sample| {
        let long = Micros::new(it.period.get() * 1_000);
        let growth = it.quota.bound().in_any(long.plus(instant)) - it.quota.bound().in_any(instant);
        let share = u128::from(growth) * u128::from(length.plus(instant).get());
        u64::try_from(share.div_ceil(u128::from(long.get()))).unwrap_or(u64::MAX)
    };
    let rate = samples.iter().map(rate).max();
    bounds(instant).unwrap_or(0).saturating_add(rate.unwrap_or(0))
}

/// The bounds of all that share no state, added up.
fn sum_of_largest(samples: &[Sample], length: Micros) -> u64 {
    let mut rest = samples.to_vec();
    let mut sum: u64 = 0;
    while let Some(first) = rest.first().copied() {
        let (shared, others): (Vec<_>, Vec<_>) =
            rest.into_iter().partition(|other| first.quota.shares_state(&other.quota));
        sum = sum.saturating_add(largest(&shared, length));
        rest = others;
    }
    sum
}

fn is_level(quota: &Quota) -> bool {
    matches!(quota.kind(), Kind::TokenBucket(_) | Kind::LeakyBucket(_))
}

/// One call in a fleet: by which quota, and when.
type Turn = (prop::sample::Index, Move);

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let caller = (any::<prop::sample::Index>(), pauses(), costs());
    let turn =
        caller.prop_map(|(which, pause, cost)| (which, Move { pause, cost, patience: Patience::None }));
    prop::collection::vec(turn, 1..60)
}

/// Fleets whose nodes have quotas of one algorithm.
fn alike() -> impl Strategy<Value = Vec<Sample>> {
    Union::new(every_algorithm().into_iter().map(|(_, samples)| {
        // Often of one period, so that windows are shared.
        let samples = (prop::collection::vec(samples, 2..5), any::<bool>());
        samples.prop_map(|(samples, is_one_period)| match is_one_period {
            true => of_one_period(samples),
            false => samples,
        })
    }))
}

fn of_one_period(samples: Vec<Sample>) -> Vec<Sample> {
    let period = samples[0].period;
    let like_first = |sample: &Sample| {
        let first = samples[0].quota.to_string();
        let (_, rest) = first.split_once(['/', ' '])?;
        let separator = if first.contains('/') { "/" } else { " " };
        let quota: Quota = format!("{}{separator}{rest}", sample.quota.limit().min(100_000)).parse().ok()?;
        Some(Sample { quota, period, start: samples[0].start })
    };
    let alike: Vec<_> = samples.iter().filter_map(like_first).collect();
    if alike.len() > 1 { alike } else { samples }
}

/// Fleets whose nodes have any quotas.
fn unlike() -> impl Strategy<Value = Vec<Sample>> {
    prop::collection::vec(any_sample(), 2..5)
        .prop_filter("permits count something else", |all| !all.iter().any(|it| is_concurrency(&it.quota)))
}

fn demand(samples: &[Sample], sample: &Sample, caller: &Move) -> Demand {
    let demand = caller.demand(sample);
    match samples.iter().any(|it| is_shaper(&it.quota)) {
        true => Demand { cost: demand.cost.min(1), ..demand },
        false => demand,
    }
}

fn fleet(samples: &[Sample], turns: &[Turn]) -> TestCaseResult {
    let (mut key, mut moment) = (Entries::new(), Moment::start_of(&samples[0]));
    let mut admissions = Vec::new();
    // Each quota as if it alone had admitted all of this.
    let mut alone: Vec<_> = samples.iter().map(|sample| Plain::new(sample.quota)).collect();
    for (which, caller) in turns {
        moment.pass(caller.pause);
        let sample = which.get(samples);
        let demand = demand(samples, sample, caller);
        let before = key.clone();
        let step = key.decide(&[sample.quota], CarryOver::Keep, moment.now, demand).remove(0);
        moment.hear(&step.decision);
        match step.decision.outcome() {
            Outcome::Allow => {
                admissions.push(Admission { at: moment.now, cost: demand.cost });
                for key in &mut alone {
                    key.decide(moment.now, Demand::forced(demand.cost));
                }
            }
            Outcome::Delay(_) => prop_assert!(false, "nobody has patience"),
            Outcome::Deny(retry) => {
                prop_assert_eq!(&key, &before, "a denial writes nothing");
                if let Retry::After(wait) = retry {
                    is_honest(&key, sample, moment.now, demand, wait)?;
                    is_no_longer_than_the_worst(samples, &alone, moment.now, wait)?;
                }
            }
        }
    }
    check(admissions, |length| sum_of_largest(samples, length))
}

/// Waiting for exactly as long as a denial says admits, and one microsecond less does not.
fn is_honest(key: &Entries, sample: &Sample, now: Micros, demand: Demand, wait: Micros) -> TestCaseResult {
    if now.plus(wait).get() > 1 << 52 {
        return Ok(()); // not in our time
    }
    let allows = |wait: Micros| {
        let steps = key.clone().decide(&[sample.quota], CarryOver::Keep, now.plus(wait), demand);
        steps[0].decision.is_allowed()
    };
    prop_assert!(allows(wait), "still denied after {}", wait);
    prop_assert!(!allows(wait.since(Micros::new(1))), "allowed before {}", wait);
    Ok(())
}

/// The longest of all: whoever needs the most time to forget what was admitted.
fn is_no_longer_than_the_worst(
    samples: &[Sample],
    alone: &[Plain],
    now: Micros,
    wait: Micros,
) -> TestCaseResult {
    let forgets = alone.iter().map(|key| key.would(now, Demand::probe(0)).decision.reset_after()).max();
    // An empty key still waits for one token or window, and units of one quota are rounded up to those of another.
    let one = |it: &Sample| {
        let tokens = it.quota.rate().filter(|_| is_level(&it.quota) || is_shaper(&it.quota));
        let cold = if let Kind::WarmUp(it) = it.quota.kind() { it.cold_factor().ceil() as u64 } else { 1 };
        it.period.get().saturating_mul(2 * cold).div_ceil(tokens.map_or(1, Rate::amount))
    };
    let one = samples.iter().map(one).max().unwrap_or(0).saturating_add(samples.len() as u64);
    let worst = forgets.unwrap_or_default().plus(Micros::new(one));
    prop_assert!(wait <= worst, "a wait of {}, at most {}", wait, worst);
    Ok(())
}

#[test]
fn rolling_change_admits_no_more_than_the_largest_bound_and_locks_nobody_out() {
    let stories = (alike(), turns());
    assert_holds(&stories, |(samples, turns)| fleet(&samples, &turns));
}

#[test]
fn rolling_change_of_algorithm_admits_no_more_than_the_sum() {
    let stories = (unlike(), turns());
    assert_holds(&stories, |(samples, turns)| fleet(&samples, &turns));
}

fn assert_holds<S: Strategy>(stories: &S, law: impl Fn(S::Value) -> TestCaseResult) {
    // As many as every algorithm has in other laws.
    let cases = prop::test_runner::Config::default().cases * 9;
    if let Err(broken) = runner_of(cases).run(stories, law) {
        panic!("{broken}");
    }
}

/// Two quotas in turn, over and over: what was a lockout for years, and no limit at all.
#[test]
fn rolling_change_keeps_its_bound_when_two_quotas_take_turns() {
    for (old, new, most) in [
        ("5/min", "10/min", 10),
        ("120/min", "100/min", 120),
        ("5/min sliding-log", "4/min sliding-log", 5),
        ("100/s sliding-log", "50/s sliding-log", 100),
        ("60/min sliding-strict 6", "5/min sliding-strict 6", 60),
        ("20/min burst 20", "20/min burst 3", 20),
        ("100/min", "100/min sliding-window", 200),
        ("100/min sliding-window", "50/min sliding-window", 100),
    ] {
        let quotas: [Quota; 2] = [old.parse().unwrap(), new.parse().unwrap()];
        let (mut key, now) = (Entries::new(), Micros::from_secs(1_000));
        let mut admitted = 0;
        for turn in 0..600 {
            let step = key.decide(&[quotas[turn % 2]], CarryOver::Keep, now, Demand::now(1)).remove(0);
            admitted += u64::from(step.decision.is_allowed());
            if let Some(wait) = step.decision.retry_after() {
                assert!(wait <= Micros::from_secs(120), "{old} and {new}: retry after {wait}");
            }
        }
        assert_eq!(admitted, most, "{old} and {new}");
    }
}

/// A limiter in memory that is changed over and over.
#[test]
fn changes_in_a_row_admit_no_more_than_the_largest_bound() {
    let stories = (alike(), turns(), prop::collection::vec(any::<bool>(), 60));
    assert_holds(&stories, |(samples, turns, changes)| {
        let (mut key, mut moment) = (Plain::new(samples[0].quota), Moment::start_of(&samples[0]));
        let (mut sample, mut admissions) = (samples[0], Vec::new());
        for ((which, caller), is_change) in turns.iter().zip(changes) {
            moment.pass(caller.pause);
            if is_change {
                sample = *which.get(&samples);
                key.change(moment.now, sample.quota, CarryOver::Keep);
                if key.words().any(|word| word >= LARGEST_EXACT / 2) {
                    return Ok(()); // more is used than the new quota can count, and the rest is forgiven
                }
            }
            let demand = demand(&samples, &sample, caller);
            let decision = key.decide(moment.now, demand).decision;
            moment.hear(&decision);
            if decision.is_allowed() {
                admissions.push(Admission { at: moment.now, cost: demand.cost });
            }
        }
        check(admissions, |length| sum_of_largest(&samples, length))
    });
}

/// In memory, where a change converts states at once. In a store it does not even do that.
#[test]
fn change_that_is_taken_back_restores_the_state() {
    hold((any_sample(), patient_moves()), |sample, (other, story)| {
        if is_concurrency(&sample.quota) || is_concurrency(&other.quota) {
            return Ok(());
        }
        let (mut key, mut moment) = (Plain::new(sample.quota), Moment::start_of(&sample));
        play(&mut key, &sample, &mut moment, &story);
        let before = key.would(moment.now, Demand::now(1)).decision;
        key.change(moment.now, other.quota, CarryOver::Keep);
        if key.words().any(|word| word >= LARGEST_EXACT / 2) {
            return Ok(()); // more is owed than the other quota can count
        }
        key.change(moment.now, sample.quota, CarryOver::Keep);
        let after = key.would(moment.now, Demand::now(1)).decision;
        prop_assert!(after.remaining() <= before.remaining(), "{} then {}", before, after);
        prop_assert!(after.remaining() + 1 >= before.remaining(), "{} then {}", before, after);
        // Rounded by less than a token.
        let one = sample.period.get().div_ceil(sample.quota.rate().map_or(1, Rate::amount)) + 1;
        prop_assert!(after.wait() >= before.wait(), "{} then {}", before, after);
        prop_assert!(after.wait() <= before.wait().plus(Micros::new(one)), "{} then {}", before, after);
        Ok(())
    });
}

/// Time heals every change: no state is left that denies for ever.
#[test]
fn changed_key_recovers() {
    let all = prop_oneof![Just(CarryOver::Keep), Just(CarryOver::Reset)];
    hold((any_sample(), all, patient_moves()), |old, (new, how, story)| {
        let (mut key, mut moment) = (Plain::new(old.quota), Moment::start_of(&old));
        play(&mut key, &old, &mut moment, &story);
        if is_concurrency(&old.quota) && is_concurrency(&new.quota) {
            return Ok(());
        }
        key.change(moment.now, new.quota, how);
        let reset = key.would(moment.now, Demand::probe(0)).decision.reset_after();
        if reset.get() > 1 << 51 {
            return Ok(()); // not in our time
        }
        let then = moment.now.plus(reset);
        prop_assert!(key.would(then, Demand::now(1)).decision.is_allowed(), "still denied after {}", reset);
        Ok(())
    });
}

/// Not for the shapers, whose doubles lose the last digit when they are scaled.
#[test]
fn change_to_the_same_quota_changes_no_remaining() {
    hold((patient_moves(), pauses()), |sample, (story, pause)| {
        if is_shaper(&sample.quota) {
            return Ok(());
        }
        let (mut key, mut moment) = (Plain::new(sample.quota), Moment::start_of(&sample));
        play(&mut key, &sample, &mut moment, &story);
        moment.pass(pause);
        let before = key.would(moment.now, Demand::probe(0)).decision;
        key.change(moment.now, sample.quota, CarryOver::Keep);
        let after = key.would(moment.now, Demand::probe(0)).decision;
        prop_assert_eq!(before.remaining(), after.remaining());
        prop_assert_eq!(before.outcome(), after.outcome());
        Ok(())
    });
}
