//! Several quotas, and batches over several limiters: all are charged or none, and the decision names the binding quota.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use proptest::{prelude::*, test_runner::TestCaseResult};
use std::time::Duration;
use tidegate_core::{CarryOver, Decision, Demand, Effect, Micros, Outcome, Quota, Receipt, Retry};
use tidegate_limiter::{BlockingLimiter, Capacity, Check, Clock, Limiter, LimiterBuilder, ManualClock};
use tidegate_testkit::{CoreModel, Subject, strategy::*};

fn small_builder() -> (LimiterBuilder, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    (Limiter::builder().clock(clock).capacity(Capacity::Keys(8)), manual_clock)
}

fn quotas(texts: &[&str]) -> Vec<Quota> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// The decisions of the core on several quotas: all are probed, and charged only if all grant.
struct ModelQuotas(Vec<CoreModel>);

impl ModelQuotas {
    fn decide(&mut self, now: Micros, demand: Demand) -> Vec<Decision> {
        let peeked: Vec<_> = self.0.iter().map(|one| one.peek(now, demand).decision).collect();
        let charges = peeked.iter().all(Decision::is_granted) && demand.effect == Effect::Charge;
        if !charges {
            let peek = Demand { effect: Effect::Peek, ..demand };
            return self.0.iter().map(|one| one.peek(now, peek).decision).collect();
        }
        self.0.iter_mut().map(|one| one.decide(now, demand).decision).collect()
    }

    /// The receipts of a charge, if all grant it.
    fn charge(&mut self, now: Micros, demand: Demand) -> Option<Vec<Receipt>> {
        let grants = |one: &CoreModel| one.peek(now, demand).decision.is_granted();
        let all_grant = self.0.iter().all(grants);
        all_grant.then(|| self.0.iter_mut().map(|one| one.decide(now, demand).receipt).collect())
    }
}

/// Orders decisions: the denial with the longest wait, the longest delay, the lowest remaining count.
fn severity(decision: &Decision) -> (u8, Micros, u64) {
    let scarcity = u64::MAX - decision.remaining();
    match decision.outcome() {
        Outcome::Allow => (0, Micros::ZERO, scarcity),
        Outcome::Delay(wait) => (1, wait, scarcity),
        Outcome::Deny(Retry::After(wait)) => (2, wait, scarcity),
        Outcome::Deny(Retry::WhenReleased) => (3, Micros::ZERO, scarcity),
        Outcome::Deny(Retry::Never) => (4, Micros::ZERO, scarcity),
    }
}

fn most_restrictive(decisions: &[Decision]) -> (usize, Decision) {
    let first_most_severe = decisions.iter().enumerate().rev().max_by_key(|(_, one)| severity(one));
    first_most_severe.map(|(index, one)| (index, *one)).unwrap()
}

fn rate_samples() -> impl Strategy<Value = Sample> {
    let all = every_algorithm().into_iter().filter(|(name, _)| *name != "concurrency");
    proptest::strategy::Union::new(all.map(|(_, samples)| samples))
}

#[test]
fn quotas_are_charged_all_or_none() {
    let cases = (proptest::collection::vec(rate_samples(), 2..4), waiting_call_steps(), 0_usize..3);
    let law = |(samples, steps, lead): (Vec<Sample>, Vec<CallStep>, usize)| -> TestCaseResult {
        let sample = samples[lead % samples.len()];
        let (builder, manual_clock) = small_builder();
        manual_clock.set(sample.start);
        let quotas: Vec<Quota> = samples.iter().map(|sample| sample.quota).collect();
        let limiter = builder.build_all(&quotas).unwrap();
        let mut model = ModelQuotas(quotas.iter().map(|quota| CoreModel::new(*quota)).collect());
        let mut call_clock = CallClock::new(&sample);
        let mut decisions = Vec::new();
        for step in steps {
            call_clock.advance(step.pause);
            manual_clock.set(call_clock.now);
            let demand = step.demand(&sample);
            let tokens = limiter.blocking().key("k").reserve(demand.cost, demand.max_wait.into());
            let (index, expected) = most_restrictive(&model.decide(call_clock.now, demand));
            prop_assert_eq!(*tokens.decision(), expected, "{:?} at {}", demand, call_clock.now);
            prop_assert_eq!(tokens.decision().quota(), index);
            decisions.push(tokens.keep());
            let peeked = model.decide(call_clock.now, Demand::peek(0));
            prop_assert_eq!(limiter.blocking().key("k").peek(0), most_restrictive(&peeked).1);
            call_clock.record(&expected);
        }
        Ok(())
    };
    runner().run(&cases, law).unwrap_or_else(|error| panic!("{error}"));
}

/// Law 3 for several quotas: after exactly the retry time all of them allow, one microsecond earlier they do not.
#[test]
fn retry_after_covers_all_quotas() {
    let cases = (proptest::collection::vec(rate_samples(), 2..4), waiting_call_steps(), pauses(), costs());
    let law =
        |(samples, steps, pause, cost): (Vec<Sample>, Vec<CallStep>, CallPause, CallCost)| -> TestCaseResult {
            let sample = samples[0];
            let (builder, manual_clock) = small_builder();
            manual_clock.set(sample.start);
            let quotas: Vec<Quota> = samples.iter().map(|sample| sample.quota).collect();
            let limiter = builder.build_all(&quotas).unwrap();
            let mut call_clock = CallClock::new(&sample);
            for step in steps {
                call_clock.advance(step.pause);
                manual_clock.set(call_clock.now);
                let demand = step.demand(&sample);
                call_clock
                    .record(&limiter.blocking().key("k").reserve(demand.cost, demand.max_wait.into()).keep());
            }
            call_clock.advance(pause);
            manual_clock.set(call_clock.now);
            let cost = cost.resolve(sample.quota.limit());
            let Some(wait) = limiter.check_cost("k", cost).retry_after() else { return Ok(()) };
            let retry_at = call_clock.now.saturating_add(wait);
            prop_assert!(wait > Micros::ZERO);
            if retry_at == Micros::MAX {
                return Ok(()); // beyond the clock's range
            }
            manual_clock.set(retry_at.saturating_sub(Micros::new(1)));
            prop_assert!(!limiter.blocking().key("k").peek(cost).is_granted(), "granted before {}", wait);
            manual_clock.set(retry_at);
            prop_assert!(limiter.check_cost("k", cost).is_allowed(), "denied after {}", wait);
            Ok(())
        };
    runner().run(&cases, law).unwrap_or_else(|error| panic!("{error}"));
}

/// The quotas, the earlier calls, the reservation with the eighths of it that are committed, the calls in between.
type RefundCase = (Vec<Sample>, Vec<CallStep>, (CallCost, MaxWait, u64), Vec<CallStep>);

/// A refund or a commit applies to every quota.
#[test]
fn refund_reaches_every_quota() {
    let reserved = (costs(), max_waits(), 0_u64..=12);
    let cases =
        (proptest::collection::vec(rate_samples(), 2..4), few_call_steps(), reserved, few_call_steps());
    let law = |(samples, before, (cost, max_wait, eighths), between): RefundCase| -> TestCaseResult {
        let sample = samples[0];
        let (builder, manual_clock) = small_builder();
        manual_clock.set(sample.start);
        let quotas: Vec<Quota> = samples.iter().map(|sample| sample.quota).collect();
        let limiter = builder.build_all(&quotas).unwrap();
        let mut model = ModelQuotas(quotas.iter().map(|quota| CoreModel::new(*quota)).collect());
        let mut call_clock = CallClock::new(&sample);
        let mut run_steps = |model: &mut ModelQuotas, steps: &[CallStep]| {
            for step in steps {
                call_clock.advance(step.pause);
                manual_clock.set(call_clock.now);
                let demand = step.demand(&sample);
                call_clock
                    .record(&limiter.blocking().key("k").reserve(demand.cost, demand.max_wait.into()).keep());
                model.decide(call_clock.now, demand);
            }
            call_clock.now
        };
        let now = run_steps(&mut model, &before);
        let demand = CallStep { pause: CallPause::None, cost, max_wait }.demand(&sample);
        let tokens = limiter.blocking().key("k").reserve(demand.cost, demand.max_wait.into());
        let receipts = model.charge(now, demand);
        prop_assert_eq!(tokens.decision().is_granted(), receipts.is_some());
        let now = run_steps(&mut model, &between);
        let actual = u64::try_from(u128::from(demand.cost) * u128::from(eighths) / 8).unwrap();
        tokens.commit(actual);
        for (one, receipt) in model.0.iter_mut().zip(receipts.unwrap_or_default()) {
            match demand.cost.checked_sub(actual) {
                Some(surplus) => one.refund(now, receipt, surplus),
                None => drop(one.decide(now, Demand::forced(actual - demand.cost))),
            }
        }
        let peeked = model.decide(now, Demand::peek(1));
        prop_assert_eq!(limiter.blocking().key("k").peek(1), most_restrictive(&peeked).1);
        Ok(())
    };
    runner().run(&cases, law).unwrap_or_else(|error| panic!("{error}"));
}

/// Bucket4j's two bandwidths: the available tokens are the minimum of both, and the delay is the maximum.
#[test]
fn batch_waits_for_slower_limiter() {
    let (clock, manual_clock) = Clock::manual();
    let build = |quota: &str| Limiter::builder().clock(clock.clone()).build(quota).unwrap();
    let (slow, fast) = (build("10 per 100us"), build("5 per 10us"));
    let decide = |slow_cost, fast_cost| {
        BlockingLimiter::decide_all(&[slow.prepare("k").cost(slow_cost), fast.prepare("k").cost(fast_cost)])
    };
    // One of ten remains, and two of five.
    assert_eq!(decide(9, 3).iter().map(Decision::remaining).collect::<Vec<_>>(), [1, 2]);
    let waits: Vec<_> = decide(3, 3).iter().map(|decision| decision.wait().get()).collect();
    assert_eq!(waits, [20, 2]);
    manual_clock.advance(Duration::from_micros(19));
    assert!(
        !decide(3, 3)[0].is_granted() && fast.blocking().key("k").peek(5).is_allowed(),
        "nothing was charged"
    );
    manual_clock.advance(Duration::from_micros(1));
    assert!(decide(3, 3).iter().all(Decision::is_allowed));

    // The same under one key, where both are charged equally: full again when the slower one is.
    let (builder, manual_clock) = small_builder();
    let both = builder.build_all(&quotas(&["10 per 100us", "5 per 10us"])).unwrap();
    assert_eq!(both.blocking().key("k").peek(0).remaining(), 5);
    assert!(both.check_cost("k", 5).is_allowed());
    manual_clock.advance(Duration::from_micros(10));
    assert_eq!(both.check_cost("k", 4).outcome(), Outcome::Allow);
    let left = both.blocking().key("k").peek(0);
    assert_eq!((left.remaining(), left.quota()), (1, 1));
    assert_eq!(both.blocking().key("k").peek(2).retry_after(), Some(Micros::new(2)));
    assert_eq!(both.blocking().key("k").peek(3).retry_after(), Some(Micros::new(10)));
}

#[test]
fn decision_names_binding_quota() {
    let (builder, manual_clock) = small_builder();
    let limiter = builder.build_all(&quotas(&["3/s", "5/min", "4 at once"])).unwrap();
    let alice = limiter.blocking().key("alice");
    assert_eq!((alice.check(3).quota(), alice.peek(0).remaining()), (0, 0));
    assert_eq!(alice.check(1).quota(), 0);
    manual_clock.advance(Duration::from_secs(1));
    assert_eq!(alice.check(3).outcome(), Outcome::Deny(Retry::After(Micros::from_secs(11))));
    assert_eq!(alice.check(3).quota(), 1);
    assert_eq!(alice.check(5).outcome(), Outcome::Deny(Retry::Never));
    assert_eq!(alice.peek(0).remaining(), 2, "denied calls are charged nothing");
}

#[test]
fn permit_with_rate_returns_only_its_slot() {
    let (builder, _manual_clock) = small_builder();
    let limiter = builder.build_all(&quotas(&["5/min", "2 at once"])).unwrap();
    let job = limiter.blocking().key("job");
    for left in (0..5).rev() {
        let permit = job.permit();
        assert!(permit.decision().is_allowed(), "{left} should be left");
        drop(permit);
    }
    let sixth = job.permit();
    assert_eq!((sixth.decision().is_granted(), sixth.decision().quota()), (false, 0));
}

/// An operation on a limiter.
type LimiterAction = fn(&Limiter);

/// A key is retained until the slowest of its quotas expires, independent of the last operation.
#[test]
fn slowest_quota_keeps_key_alive() {
    let actions: [(&str, LimiterAction); 3] = [
        ("a charge", |_| {}),
        ("a refund", |limiter| drop(limiter.blocking().key("k").reserve(1, Duration::ZERO))),
        ("a change", |limiter| limiter.change_all(&limiter.quotas(), CarryOver::Keep).unwrap()),
    ];
    for texts in [["10/s", "9/h fixed-window"], ["9/h fixed-window", "10/s"]] {
        for (what, action) in actions {
            let (clock, manual_clock) = Clock::manual();
            let builder = Limiter::builder().clock(clock).capacity(Capacity::Keys(1));
            let limiter = builder.build_all(&quotas(&texts)).unwrap();
            assert!(limiter.check_cost("k", 8).is_allowed());
            action(&limiter);
            // Far more new keys than cells: they take only expired cells.
            manual_clock.advance(Duration::from_secs(60));
            for key in 0..100_u64 {
                limiter.check(&key);
            }
            assert_eq!(limiter.blocking().key("k").peek(0).remaining(), 1, "{what} under {texts:?}");
        }
    }
}

/// The limiter, the key, the cost.
type BatchCheck = (usize, u64, u64);

/// Random batches over three limiters: one word, several words, several quotas; keys and limiters may repeat.
#[test]
fn batch_checks_are_charged_all_or_none() {
    let check = (0_usize..3, 0_u64..3, 0_u64..4);
    let steps =
        proptest::collection::vec((0_u64..400, proptest::collection::vec(check, 1..6), any::<bool>()), 1..30);
    let law = |steps: Vec<(u64, Vec<BatchCheck>, bool)>| -> TestCaseResult {
        let (clock, manual_clock) = Clock::manual();
        let build = |texts: &[&str]| {
            let builder = Limiter::builder().clock(clock.clone()).capacity(Capacity::Keys(8));
            builder.build_all(&quotas(texts)).unwrap()
        };
        let declared: [&[&str]; 3] = [&["10/s burst 7"], &["6/s sliding-log"], &["9/s", "5/s fixed-window"]];
        let limiters = declared.map(build);
        let new_model = |texts: &[&str]| ModelQuotas(quotas(texts).into_iter().map(CoreModel::new).collect());
        let mut models: Vec<Vec<ModelQuotas>> =
            declared.iter().map(|texts| (0..3).map(|_| new_model(texts)).collect()).collect();
        let mut now = Micros::ZERO;
        for (pause, params, alone) in steps {
            now = now.saturating_add(Micros::from_millis(pause));
            manual_clock.set(now);
            let params = if alone { &params[..1] } else { &params[..] };
            let checks: Vec<Check> =
                params.iter().map(|(which, key, cost)| limiters[*which].prepare(key).cost(*cost)).collect();
            let decisions = BlockingLimiter::decide_all(&checks);

            // Costs of the same key add up; all are probed before any is charged.
            let total = |which, key| {
                let same = params.iter().filter(|check| (check.0, check.1) == (which, key));
                same.map(|check| check.2).sum::<u64>()
            };
            let mut distinct: Vec<_> = params.iter().map(|check| (check.0, check.1)).collect();
            distinct.sort_unstable();
            distinct.dedup();
            let mut decide = |(which, key): (usize, u64), effect| {
                let demand = Demand { effect, ..Demand::new(total(which, key)) };
                most_restrictive(&models[which][key as usize].decide(now, demand)).1
            };
            let mut expected: Vec<_> = distinct.iter().map(|check| decide(*check, Effect::Peek)).collect();
            if expected.iter().all(Decision::is_granted) {
                expected = distinct.iter().map(|check| decide(*check, Effect::Charge)).collect();
            }
            for ((which, key, _), decision) in params.iter().zip(&decisions) {
                let index = distinct.iter().position(|check| check == &(*which, *key)).unwrap();
                prop_assert_eq!(*decision, expected[index], "{:?} at {}", params, now);
            }
            if alone {
                // The bucket sees the charge of a single check.
                let (which, key, cost) = params[0];
                prop_assert_eq!(
                    limiters[which].blocking().key(&key).peek(cost),
                    decide((which, key), Effect::Peek)
                );
            }
        }
        Ok(())
    };
    runner().run(&steps, law).unwrap_or_else(|error| panic!("{error}"));
}

/// On a clock that is slightly behind, a key decides at the latest time it knows. (A single word cannot store that time:
/// there the clock is read after the word.)
#[test]
fn clock_behind_leaves_decisions_unchanged() {
    let in_one_word =
        |sample: &Sample| ["token-bucket", "leaky-bucket"].contains(&sample.quota.kind().name());
    let samples = rate_samples().prop_filter("needs several words", move |sample| !in_one_word(sample));
    let law = |(sample, cost): (Sample, CallCost)| -> TestCaseResult {
        let ((behind, early), (ahead, late)) = (Clock::manual(), Clock::manual());
        early.set(sample.start);
        late.set(sample.start.saturating_add(Micros::new(1)));
        let build = |clock: &Clock, quota| {
            Limiter::builder().clock(clock.clone()).capacity(Capacity::Keys(8)).build(quota).unwrap()
        };
        let other = build(&behind, "10/s".parse::<Quota>().unwrap());
        let (batched, alone) = (build(&ahead, sample.quota), build(&ahead, sample.quota));
        let cost = cost.resolve(sample.quota.limit());
        prop_assert_eq!(batched.check_cost("k", cost), alone.check_cost("k", cost));
        let decisions = BlockingLimiter::decide_all(&[other.prepare("any"), batched.prepare("k").cost(cost)]);
        prop_assert_eq!(decisions[1], alone.check_cost("k", cost), "{} at {}", sample.quota, cost);
        Ok(())
    };
    runner().run(&(samples, costs()), law).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn empty_batch_has_no_decisions() {
    assert!(BlockingLimiter::decide_all(&[]).is_empty());
}
