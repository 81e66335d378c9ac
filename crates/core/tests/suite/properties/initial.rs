//! Token buckets with initial tokens: a new key has them, and is refilled from its first check on.

use super::admissions::{check_windows, run_calls};
use proptest::prelude::*;
use tidegate_core::{AlgorithmKind, Demand, Micros, Outcome, Quota, Rate, Retry, algorithm::TokenBucket};
use tidegate_testkit::{CoreModel, Subject, strategy::*};

/// How long a full bucket is stored.
const RETENTION: Micros = Micros::from_secs(3_600);

fn parse(text: &str) -> Quota {
    text.parse().unwrap()
}

/// Buckets that start with less than their burst.
fn samples() -> impl Strategy<Value = Sample> {
    let bursts = prop_oneof![1_u64..=5, 1_u64..=1_000];
    let starts = prop_oneof![Just(0), 1_700_000_000_000_000_u64..=1_800_000_000_000_000];
    (rates(), bursts, 0_u64..=1_000, starts).prop_filter_map("not exact", |(rate, burst, initial, start)| {
        let bucket = TokenBucket::with_initial(rate, burst, initial % burst).ok()?;
        let quota = AlgorithmKind::TokenBucket(bucket).into();
        Some(Sample { quota, period: rate.period(), start: Micros::new(start) })
    })
}

fn check<S: Strategy>(inputs: S, property: impl Fn(Sample, S::Value) -> Result<(), TestCaseError>) {
    let result = runner().run(&(samples(), inputs), |(sample, input)| property(sample, input));
    assert!(result.is_ok(), "{}", result.unwrap_err());
}

fn initial(sample: &Sample) -> u64 {
    let AlgorithmKind::TokenBucket(bucket) = sample.quota.kind() else { panic!("not a bucket") };
    bucket.initial()
}

#[test]
fn at_most_the_initial_tokens_are_admitted_before_the_first_refill() {
    check(proptest::collection::vec(1_u64..=5, 1..60), |sample, costs| {
        let mut key = CoreModel::new(sample.quota);
        let (mut admitted, mut denied) = (0, None);
        for cost in costs {
            let decision = key.decide(sample.start, Demand::new(cost)).decision;
            admitted += if decision.is_allowed() { cost } else { 0 };
            prop_assert_eq!(decision.remaining(), initial(&sample) - admitted);
            denied = denied.or(decision.retry_after());
        }
        prop_assert!(admitted <= initial(&sample));
        // Nothing before the first refill, however often the clients ask.
        if key.peek(sample.start, Demand::peek(0)).decision.remaining() == 0 && denied.is_some() {
            let wait = key.decide(sample.start, Demand::new(1)).decision.retry_after().unwrap();
            let then = sample.start.saturating_add(wait);
            let before = then.saturating_sub(Micros::new(1));
            prop_assert!(!key.decide(before, Demand::new(1)).decision.is_allowed());
            prop_assert!(key.decide(then, Demand::new(1)).decision.is_allowed());
        }
        Ok(())
    });
}

#[test]
fn first_denied_check_starts_the_refill() {
    for (text, retry) in
        [("6/min initial 0", 10), ("6/min burst 1 initial 0", 10), ("1/h burst 5 initial 0", 3_600)]
    {
        let mut key = CoreModel::new(parse(text));
        let (start, retry) = (Micros::from_secs(1_000_000), Micros::from_secs(retry));
        // A peek does not start it.
        key.decide(start.saturating_sub(Micros::from_secs(5_000)), Demand::peek(1));
        let first = key.decide(start, Demand::new(1)).decision;
        assert_eq!(first.outcome(), Outcome::Deny(Retry::After(retry)), "{text}");
        let half = start.saturating_add(Micros::new(retry.get() / 2));
        assert_eq!(key.decide(half, Demand::new(1)).decision.wait(), Micros::new(retry.get() / 2), "{text}");
        assert!(key.decide(start.saturating_add(retry), Demand::new(1)).decision.is_allowed(), "{text}");
    }
}

#[test]
fn initial_tokens_equal_to_the_burst_change_nothing() {
    let inputs = (rates(), 1_u64..=1_000).prop_filter_map("not exact", |(rate, burst): (Rate, u64)| {
        Some((rate.token_bucket(burst).ok()?, rate.token_bucket_with_initial(burst, burst).ok()?))
    });
    let equal = |(plain, full): (Quota, Quota)| {
        prop_assert_eq!(plain, full);
        prop_assert_eq!(plain.to_string(), full.to_string());
        prop_assert_eq!(plain.retention(), Micros::ZERO);
        Ok(())
    };
    assert_eq!(runner().run(&inputs, equal), Ok(()));
}

#[test]
fn admissions_stay_within_the_bound_and_within_a_full_bucket() {
    check(waiting_call_steps(), |sample, calls| {
        let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        let admissions = run_calls(&mut key, &sample, &mut clock, &calls);
        check_windows(admissions, |length| sample.quota.bound().max_in_window(length))?;
        // Never more than the same bucket without initial tokens has left.
        let rate = sample.quota.rate().unwrap();
        let (mut key, mut full) =
            (CoreModel::new(sample.quota), CoreModel::new(rate.token_bucket(sample.quota.limit()).unwrap()));
        let mut clock = CallClock::new(&sample);
        for call in &calls {
            clock.advance(call.pause);
            let result = key.decide(clock.now, call.demand(&sample));
            if result.decision.is_granted() {
                prop_assert!(full.decide(clock.now, call.demand(&sample)).decision.is_granted());
            }
            clock.record(&result.decision);
        }
        Ok(())
    });
}

#[test]
fn retry_after_a_charged_check_is_exact() {
    check((waiting_call_steps(), pauses(), costs()), |sample, (calls, pause, cost)| {
        let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        for call in &calls {
            clock.advance(call.pause);
            clock.record(&key.decide(clock.now, call.demand(&sample)).decision);
        }
        clock.advance(pause);
        let demand = Demand::new(cost.resolve(sample.quota.limit()));
        let Some(wait) = key.decide(clock.now, demand).decision.retry_after() else { return Ok(()) };
        let then = clock.now.saturating_add(wait);
        if then < Micros::MAX {
            let before = then.saturating_sub(Micros::new(1));
            prop_assert!(!key.peek(before, demand).decision.is_granted(), "already before {}", wait);
            prop_assert!(key.peek(then, demand).decision.is_allowed(), "not after {}", wait);
        }
        Ok(())
    });
}

/// A key is full until an hour after it filled up, and new from then on: the same as a key that was removed.
#[test]
fn idle_key_is_full_for_an_hour_and_then_new() {
    check((call_steps(), 0_u64..=3_600), |sample, (calls, seconds)| {
        let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        for call in &calls {
            clock.advance(call.pause);
            clock.record(&key.decide(clock.now, call.demand(&sample)).decision);
        }
        if key.decide(clock.now, Demand::new(1)).decision.reset_after() == Micros::ZERO {
            return Ok(());
        }
        let full_at = clock.now.saturating_add(key.peek(clock.now, Demand::peek(0)).decision.reset_after());
        let last = full_at.saturating_add(RETENTION);
        if last.get() > 1 << 52 {
            return Ok(());
        }
        let limit = sample.quota.limit();
        for at in [full_at, full_at.saturating_add(Micros::from_secs(seconds)), last] {
            prop_assert_eq!(key.peek(at, Demand::peek(0)).decision.remaining(), limit, "at {}", at);
        }
        let after = last.saturating_add(Micros::new(1));
        let mut state: Vec<u64> = key.state_words().collect();
        prop_assert_eq!(sample.quota.forgotten_after(state.as_mut_slice(), after), Micros::ZERO);
        prop_assert!(sample.quota.forgotten_after(state.as_mut_slice(), last) > Micros::ZERO);
        let mut new = CoreModel::new(sample.quota);
        prop_assert_eq!(key.decide(after, Demand::new(1)), new.decide(after, Demand::new(1)));
        prop_assert_eq!(key.peek(after, Demand::peek(0)), new.peek(after, Demand::peek(0)));
        Ok(())
    });
}

#[test]
fn refund_restores_at_most_the_charge() {
    check((call_steps(), costs(), pauses()), |sample, (calls, cost, pause)| {
        let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        for call in &calls {
            clock.advance(call.pause);
            clock.record(&key.decide(clock.now, call.demand(&sample)).decision);
        }
        // The same key without the charge, whose refill has started.
        let mut without = key.clone();
        let demand = Demand::new(cost.resolve(sample.quota.limit()));
        without.entries.begin(&[sample.quota], Default::default(), clock.now);
        let result = key.decide(clock.now, demand);
        clock.record(&result.decision);
        clock.advance(pause);
        key.refund(clock.now, result.receipt, demand.cost);
        let [left, right] =
            [&key, &without].map(|key| key.peek(clock.now, Demand::peek(0)).decision.remaining());
        // A charge makes a key last longer, so it can be full when the other one is new.
        prop_assert!(left <= right || right == initial(&sample), "{} above {}", left, right);
        Ok(())
    });
}

/// A change of quota preserves used tokens, and a key that the old quota has forgotten starts with the initial tokens.
#[test]
fn change_of_quota_applies_initial_tokens_to_forgotten_keys_only() {
    let (now, later) = (Micros::from_secs(1_000_000), Micros::from_secs(1_000_010));
    let (plain, starting) = (parse("60/min burst 10"), parse("60/min burst 10 initial 2"));
    let remaining = |key: &CoreModel, at| key.peek(at, Demand::peek(0)).decision.remaining();

    let mut key = CoreModel::new(plain);
    key.decide(now, Demand::new(4));
    key.change(now, starting, Default::default());
    assert_eq!(remaining(&key, now), 6);
    assert_eq!(remaining(&key, later), 10);

    let mut key = CoreModel::new(plain);
    key.decide(now, Demand::new(4));
    key.change(later, starting, Default::default());
    assert_eq!(remaining(&key, later), 2, "the old quota had forgotten it");

    let mut key = CoreModel::new(starting);
    key.decide(now, Demand::new(2));
    key.change(now, plain, Default::default());
    assert_eq!(remaining(&key, now), 0);
    assert_eq!(remaining(&CoreModel::new(plain), now), 10);
}
