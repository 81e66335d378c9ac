//! Property 8: quotas change, and several quotas may count the same key at a time.
//!
//! Quotas that share a state admit together at most the largest burst plus the fastest rate among them. Quotas
//! that share no state have a bound each. No retry time is longer than the smallest burst at the slowest rate
//! gives.

use super::admissions::{AdmittedCall, check_windows, run_calls};
use super::{is_concurrency, is_smooth_rate};
use proptest::{prelude::*, test_runner::TestCaseResult};
use tidegate_core::{CarryOver, Demand, Micros, Outcome, Quota, Retry, StateEntries};
use tidegate_testkit::{
    CoreModel, Subject,
    bound::{can_be_truncated, check_restored, largest_bound, max_retry, sum_of_bounds, sum_of_group_bounds},
    strategy::*,
};

/// One call in a fleet: the index of the quota, and the step.
type NodeCall = (prop::sample::Index, CallStep);

fn node_calls() -> impl Strategy<Value = Vec<NodeCall>> {
    let caller = (any::<prop::sample::Index>(), pauses(), costs());
    let node_call =
        caller.prop_map(|(which, pause, cost)| (which, CallStep { pause, cost, max_wait: MaxWait::None }));
    prop::collection::vec(node_call, 1..60)
}

fn demand(samples: &[Sample], sample: &Sample, caller: &CallStep) -> Demand {
    let demand = caller.demand(sample);
    match samples.iter().any(|it| is_smooth_rate(&it.quota)) {
        true => Demand { cost: demand.cost.min(1), ..demand },
        false => demand,
    }
}

/// The most that a fleet admits in any window of a length.
type BoundFn = fn(&[Sample], Micros) -> u64;

/// Checks what nodes admit at most that count the same key alternately, each with its own quota. The first node
/// uses the first of `carry_overs`, and so on; they are repeated.
fn check_fleet(
    samples: &[Sample],
    carry_overs: &[CarryOver],
    calls: &[NodeCall],
    most: BoundFn,
) -> TestCaseResult {
    let (mut key, mut clock) = (StateEntries::new(), CallClock::new(&samples[0]));
    let mut admissions = Vec::new();
    // Each quota as if it had admitted all calls itself.
    let mut alone: Vec<_> = samples.iter().map(|sample| CoreModel::new(sample.quota)).collect();
    for (which, caller) in calls {
        clock.advance(caller.pause);
        let node = which.index(samples.len());
        let (sample, carry_over) = (&samples[node], carry_overs[node % carry_overs.len()]);
        let demand = demand(samples, sample, caller);
        let before = key.clone();
        let result = key.decide(&[sample.quota], carry_over, clock.now, demand).remove(0);
        clock.record(&result.decision);
        match result.decision.outcome() {
            Outcome::Allow => {
                admissions.push(AdmittedCall { at: clock.now, cost: demand.cost });
                for key in &mut alone {
                    key.decide(clock.now, Demand::forced(demand.cost));
                }
            }
            Outcome::Delay(_) => prop_assert!(false, "a delay without a maximum wait"),
            Outcome::Deny(retry) => {
                prop_assert_eq!(&key, &before, "a denial writes nothing");
                if let Retry::After(wait) = retry {
                    check_retry(&key, (sample, carry_over), clock.now, demand, wait)?;
                    let longest = max_retry(samples, &alone, clock.now);
                    prop_assert!(wait <= longest, "a wait of {}, at most {}", wait, longest);
                }
            }
        }
    }
    check_windows(admissions, |length| most(samples, length))
}

/// A retry succeeds after exactly the retry time of a denial, and not one microsecond earlier.
fn check_retry(
    key: &StateEntries,
    (sample, carry_over): (&Sample, CarryOver),
    now: Micros,
    demand: Demand,
    wait: Micros,
) -> TestCaseResult {
    if now.saturating_add(wait).get() > 1 << 52 {
        return Ok(()); // beyond the range of time
    }
    let allows = |wait: Micros| {
        let results = key.clone().decide(&[sample.quota], carry_over, now.saturating_add(wait), demand);
        results[0].decision.is_allowed()
    };
    prop_assert!(allows(wait), "still denied after {}", wait);
    prop_assert!(!allows(wait.saturating_sub(Micros::new(1))), "allowed before {}", wait);
    Ok(())
}

#[test]
fn rolling_change_admits_at_most_the_largest_bound() {
    let inputs = (same_algorithm_fleets(), node_calls());
    assert_holds(&inputs, |(samples, calls)| {
        check_fleet(&samples, &[CarryOver::Keep], &calls, sum_of_group_bounds)
    });
}

#[test]
fn rolling_change_of_algorithm_admits_no_more_than_the_sum() {
    let inputs = (mixed_fleets(), node_calls());
    assert_holds(&inputs, |(samples, calls)| {
        check_fleet(&samples, &[CarryOver::Keep], &calls, sum_of_group_bounds)
    });
}

/// `reset` in every node: each counts separately, so two nodes that alternate do not reset each other.
#[test]
fn rolling_reset_admits_no_more_than_the_sum_of_the_bounds() {
    let inputs = (prop_oneof![same_algorithm_fleets(), mixed_fleets()], node_calls());
    assert_holds(&inputs, |(samples, calls)| {
        check_fleet(&samples, &[CarryOver::Reset], &calls, sum_of_bounds)
    });
}

/// `reset` in some nodes: a node that keeps takes over the state of one that resets, which then starts with an
/// empty state. It takes over at most what its own quota could have admitted.
#[test]
fn rolling_reset_with_keeping_nodes_stays_within_the_sum_of_bounds() {
    let carry_overs = prop::collection::vec(prop_oneof![Just(CarryOver::Keep), Just(CarryOver::Reset)], 4);
    let inputs = (prop_oneof![same_algorithm_fleets(), mixed_fleets()], carry_overs, node_calls());
    assert_holds(&inputs, |(samples, carry_overs, calls)| {
        check_fleet(&samples, &carry_overs, &calls, sum_of_bounds)
    });
}

/// More quotas than entries in a key: none is evicted while it counts, and they share at most nine states.
#[test]
fn rolling_reset_of_many_quotas_stays_bounded() {
    // Small limits with one period, so that all share a state.
    let limits = prop::collection::btree_set(1_u64..=20, 10..16);
    let many = (any_sample(), limits).prop_map(|(first, limits)| {
        let of_limit = |limit| with_limit(&first, limit);
        limits.into_iter().filter_map(of_limit).collect::<Vec<_>>()
    });
    let many = many.prop_filter("no concurrency limits", |all| {
        all.len() > 9 && !all.iter().any(|it| is_concurrency(&it.quota))
    });
    let carry_overs = prop_oneof![
        3 => Just(vec![CarryOver::Reset]),
        1 => prop::collection::vec(prop_oneof![Just(CarryOver::Keep), Just(CarryOver::Reset)], 16),
    ];
    let caller = (any::<prop::sample::Index>(), short_pauses(), costs());
    let node_call =
        caller.prop_map(|(which, pause, cost)| (which, CallStep { pause, cost, max_wait: MaxWait::None }));
    let calls = prop::collection::vec(node_call, 40..200);
    let property = |(samples, carry_overs, calls): (Vec<Sample>, Vec<CarryOver>, Vec<NodeCall>)| {
        check_fleet(&samples, &carry_overs, &calls, |samples, length| {
            sum_of_bounds(samples, length).min(largest_bound(samples, length).saturating_mul(9))
        })
    };
    runner().run(&(many, carry_overs, calls), property).unwrap_or_else(|broken| panic!("{broken}"));
}

/// Alternates without time in between; an earlier version admitted without limit.
#[test]
fn alternating_resets_admit_each_bound_once() {
    for count in [2, 3, 9, 10, 20] {
        for algorithm in ["", " fixed-window", " sliding-window", " sliding-log", " sliding-strict 6"] {
            let quota = |limit: u64| format!("{limit}/min{algorithm}").parse::<Quota>().unwrap();
            let quotas: Vec<_> = (10..10 + count).map(quota).collect();
            let (mut key, now) = (StateEntries::new(), Micros::from_secs(1_000));
            let mut admitted = 0;
            for index in 0..4_000 {
                let quota = quotas[index % quotas.len()];
                let result = key.decide(&[quota], CarryOver::Reset, now, Demand::new(1)).remove(0);
                admitted += u64::from(result.decision.is_allowed());
            }
            let sum: u64 = quotas.iter().map(Quota::limit).sum();
            let most = if count <= 9 { sum } else { 9 * (9 + count) };
            assert!(admitted <= most, "{count} of {algorithm}: {admitted} of {most}");
            assert!(count > 9 || admitted == most, "{count} of {algorithm}: {admitted} of {most}");
        }
    }
}

fn assert_holds<S: Strategy>(inputs: &S, property: impl Fn(S::Value) -> TestCaseResult) {
    // The same number of cases per algorithm as the other properties.
    let cases = prop::test_runner::Config::default().cases * 9;
    if let Err(broken) = runner_with_cases(cases).run(inputs, property) {
        panic!("{broken}");
    }
}

/// Alternates two quotas; earlier versions denied for years, or admitted without limit.
#[test]
fn alternating_quotas_stay_within_bound() {
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
        let (mut key, now) = (StateEntries::new(), Micros::from_secs(1_000));
        let mut admitted = 0;
        for index in 0..600 {
            let result = key.decide(&[quotas[index % 2]], CarryOver::Keep, now, Demand::new(1)).remove(0);
            admitted += u64::from(result.decision.is_allowed());
            if let Some(wait) = result.decision.retry_after() {
                assert!(wait <= Micros::from_secs(120), "{old} and {new}: retry after {wait}");
            }
        }
        assert_eq!(admitted, most, "{old} and {new}");
    }
}

/// An in-memory limiter whose quota changes repeatedly.
#[test]
fn repeated_changes_stay_within_the_largest_bound() {
    let inputs = (same_algorithm_fleets(), node_calls(), prop::collection::vec(any::<bool>(), 60));
    assert_holds(&inputs, |(samples, calls, changes)| {
        let (mut key, mut clock) = (CoreModel::new(samples[0].quota), CallClock::new(&samples[0]));
        let (mut sample, mut admissions) = (samples[0], Vec::new());
        for ((which, caller), is_change) in calls.iter().zip(changes) {
            clock.advance(caller.pause);
            if is_change {
                sample = *which.get(&samples);
                key.change(clock.now, sample.quota, CarryOver::Keep);
                if can_be_truncated(&key.quota, key.state_words()) {
                    return Ok(()); // the usage exceeds the range of the new quota and is cut
                }
            }
            let demand = demand(&samples, &sample, caller);
            let decision = key.decide(clock.now, demand).decision;
            clock.record(&decision);
            if decision.is_allowed() {
                admissions.push(AdmittedCall { at: clock.now, cost: demand.cost });
            }
        }
        check_windows(admissions, |length| sum_of_group_bounds(&samples, length))
    });
}

/// For the in-memory limiter, where a change converts states immediately. A store converts nothing until a charge.
#[test]
fn reverted_change_restores_state() {
    check_property((any_sample(), waiting_call_steps()), |sample, (other, calls)| {
        check_reverted_change(sample, other, &calls)
    });
    check_property_pairs(waiting_call_steps(), |sample, other, calls| {
        check_reverted_change(sample, other, &calls)
    });
}

fn check_reverted_change(sample: Sample, other: Sample, calls: &[CallStep]) -> TestCaseResult {
    if is_concurrency(&sample.quota) || is_concurrency(&other.quota) {
        return Ok(());
    }
    let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
    run_calls(&mut key, &sample, &mut clock, calls);
    let before = key.peek(clock.now, Demand::new(1)).decision;
    key.change(clock.now, other.quota, CarryOver::Keep);
    if can_be_truncated(&key.quota, key.state_words()) {
        return Ok(()); // the debt exceeds the range of the other quota
    }
    key.change(clock.now, sample.quota, CarryOver::Keep);
    let after = key.peek(clock.now, Demand::new(1)).decision;
    check_restored(&sample, &before, &after)
}

/// No change leaves a state that denies forever.
#[test]
fn changed_key_recovers() {
    let all = prop_oneof![Just(CarryOver::Keep), Just(CarryOver::Reset)];
    check_property((any_sample(), all, waiting_call_steps()), |old, (new, how, calls)| {
        let (mut key, mut clock) = (CoreModel::new(old.quota), CallClock::new(&old));
        run_calls(&mut key, &old, &mut clock, &calls);
        if is_concurrency(&old.quota) && is_concurrency(&new.quota) {
            return Ok(());
        }
        key.change(clock.now, new.quota, how);
        let reset = key.peek(clock.now, Demand::peek(0)).decision.reset_after();
        if reset.get() > 1 << 51 {
            return Ok(()); // beyond the range of time
        }
        let then = clock.now.saturating_add(reset);
        prop_assert!(key.peek(then, Demand::new(1)).decision.is_allowed(), "still denied after {}", reset);
        Ok(())
    });
}

/// Not for the shapers, whose doubles lose the last digit in a conversion.
#[test]
fn change_to_same_quota_keeps_remaining() {
    check_property((waiting_call_steps(), pauses()), |sample, (calls, pause)| {
        if is_smooth_rate(&sample.quota) {
            return Ok(());
        }
        let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        run_calls(&mut key, &sample, &mut clock, &calls);
        clock.advance(pause);
        let before = key.peek(clock.now, Demand::peek(0)).decision;
        key.change(clock.now, sample.quota, CarryOver::Keep);
        let after = key.peek(clock.now, Demand::peek(0)).decision;
        prop_assert_eq!(before.remaining(), after.remaining());
        prop_assert_eq!(before.outcome(), after.outcome());
        Ok(())
    });
}
