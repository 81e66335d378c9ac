//! Several quotas, and questions to several limiters: all are charged or none, and the answer names who bound.

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

/// What the core says of several quotas: all are looked at, and charged only if all grant.
struct ModelQuotas(Vec<CoreModel>);

impl ModelQuotas {
    fn decide(&mut self, now: Micros, demand: Demand) -> Vec<Decision> {
        let looks: Vec<_> = self.0.iter().map(|one| one.peek(now, demand).decision).collect();
        let charges = looks.iter().all(Decision::is_granted) && demand.effect == Effect::Charge;
        if !charges {
            let probe = Demand { effect: Effect::Probe, ..demand };
            return self.0.iter().map(|one| one.peek(now, probe).decision).collect();
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

/// The one that binds most: the denial that lasts longest, the longest delay, the least that remains.
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
    let first_of_the_worst = decisions.iter().enumerate().rev().max_by_key(|(_, one)| severity(one));
    first_of_the_worst.map(|(index, one)| (index, *one)).unwrap()
}

fn rate_samples() -> impl Strategy<Value = Sample> {
    let all = every_algorithm().into_iter().filter(|(name, _)| *name != "concurrency");
    proptest::strategy::Union::new(all.map(|(_, samples)| samples))
}

#[test]
fn quotas_are_charged_all_or_none() {
    let stories = (proptest::collection::vec(rate_samples(), 2..4), waiting_call_steps(), 0_usize..3);
    let law = |(samples, story, lead): (Vec<Sample>, Vec<CallStep>, usize)| -> TestCaseResult {
        let sample = samples[lead % samples.len()];
        let (builder, manual_clock) = small_builder();
        manual_clock.set(sample.start);
        let all: Vec<Quota> = samples.iter().map(|sample| sample.quota).collect();
        let limiter = builder.build_all(&all).unwrap();
        let mut model = ModelQuotas(all.iter().map(|quota| CoreModel::new(*quota)).collect());
        let mut moment = CallClock::new(&sample);
        let mut held = Vec::new();
        for caller in story {
            moment.advance(caller.pause);
            manual_clock.set(moment.now);
            let demand = caller.demand(&sample);
            let tokens = limiter.blocking().key("k").reserve(demand.cost, demand.max_wait.into());
            let (place, expected) = most_restrictive(&model.decide(moment.now, demand));
            prop_assert_eq!(*tokens.decision(), expected, "{:?} at {}", demand, moment.now);
            prop_assert_eq!(tokens.decision().quota(), place);
            held.push(tokens.keep());
            let looks = model.decide(moment.now, Demand::probe(0));
            prop_assert_eq!(limiter.blocking().key("k").peek(0), most_restrictive(&looks).1);
            moment.record(&expected);
        }
        Ok(())
    };
    runner().run(&stories, law).unwrap_or_else(|broken| panic!("{broken}"));
}

/// Law 3 for several: waiting exactly as told is let through by all of them, a microsecond less is not.
#[test]
fn retry_after_covers_all_quotas() {
    let stories = (proptest::collection::vec(rate_samples(), 2..4), waiting_call_steps(), pauses(), costs());
    let law =
        |(samples, story, pause, cost): (Vec<Sample>, Vec<CallStep>, CallPause, CallCost)| -> TestCaseResult {
            let sample = samples[0];
            let (builder, manual_clock) = small_builder();
            manual_clock.set(sample.start);
            let all: Vec<Quota> = samples.iter().map(|sample| sample.quota).collect();
            let limiter = builder.build_all(&all).unwrap();
            let mut moment = CallClock::new(&sample);
            for caller in story {
                moment.advance(caller.pause);
                manual_clock.set(moment.now);
                let demand = caller.demand(&sample);
                moment
                    .record(&limiter.blocking().key("k").reserve(demand.cost, demand.max_wait.into()).keep());
            }
            moment.advance(pause);
            manual_clock.set(moment.now);
            let cost = cost.resolve(sample.quota.limit());
            let Some(wait) = limiter.check_cost("k", cost).retry_after() else { return Ok(()) };
            let then = moment.now.plus(wait);
            prop_assert!(wait > Micros::ZERO);
            if then == Micros::MAX {
                return Ok(()); // not in our time
            }
            manual_clock.set(then.since(Micros::new(1)));
            prop_assert!(!limiter.blocking().key("k").peek(cost).is_granted(), "already before {}", wait);
            manual_clock.set(then);
            prop_assert!(limiter.check_cost("k", cost).is_allowed(), "not after {}", wait);
            Ok(())
        };
    runner().run(&stories, law).unwrap_or_else(|broken| panic!("{broken}"));
}

/// Quotas, who came before, what was reserved and how many eighths of it are settled, who came in between.
type RefundCase = (Vec<Sample>, Vec<CallStep>, (CallCost, MaxWait, u64), Vec<CallStep>);

/// What is given back is given back under every quota, and what is settled is settled under every quota.
#[test]
fn refund_reaches_every_quota() {
    let reserved = (costs(), max_waits(), 0_u64..=12);
    let stories =
        (proptest::collection::vec(rate_samples(), 2..4), few_call_steps(), reserved, few_call_steps());
    let law = |(samples, before, (cost, patience, eighths), between): RefundCase| -> TestCaseResult {
        let sample = samples[0];
        let (builder, manual_clock) = small_builder();
        manual_clock.set(sample.start);
        let all: Vec<Quota> = samples.iter().map(|sample| sample.quota).collect();
        let limiter = builder.build_all(&all).unwrap();
        let mut model = ModelQuotas(all.iter().map(|quota| CoreModel::new(*quota)).collect());
        let mut moment = CallClock::new(&sample);
        let mut run_moves = |model: &mut ModelQuotas, story: &[CallStep]| {
            for caller in story {
                moment.advance(caller.pause);
                manual_clock.set(moment.now);
                let demand = caller.demand(&sample);
                moment
                    .record(&limiter.blocking().key("k").reserve(demand.cost, demand.max_wait.into()).keep());
                model.decide(moment.now, demand);
            }
            moment.now
        };
        let now = run_moves(&mut model, &before);
        let demand = CallStep { pause: CallPause::None, cost, max_wait: patience }.demand(&sample);
        let tokens = limiter.blocking().key("k").reserve(demand.cost, demand.max_wait.into());
        let receipts = model.charge(now, demand);
        prop_assert_eq!(tokens.decision().is_granted(), receipts.is_some());
        let now = run_moves(&mut model, &between);
        let real = u64::try_from(u128::from(demand.cost) * u128::from(eighths) / 8).unwrap();
        tokens.commit(real);
        for (one, receipt) in model.0.iter_mut().zip(receipts.unwrap_or_default()) {
            match demand.cost.checked_sub(real) {
                Some(rest) => one.refund(now, receipt, rest),
                None => drop(one.decide(now, Demand::forced(real - demand.cost))),
            }
        }
        let looks = model.decide(now, Demand::probe(1));
        prop_assert_eq!(limiter.blocking().key("k").peek(1), most_restrictive(&looks).1);
        Ok(())
    };
    runner().run(&stories, law).unwrap_or_else(|broken| panic!("{broken}"));
}

/// Bucket4j's two bandwidths: what is available is the least of both, and the delay is the longest.
#[test]
fn batch_waits_for_slower_limiter() {
    let (clock, manual_clock) = Clock::manual();
    let build = |quota: &str| Limiter::builder().clock(clock.clone()).build(quota).unwrap();
    let (slow, fast) = (build("10 per 100us"), build("5 per 10us"));
    let ask = |slow_cost, fast_cost| {
        BlockingLimiter::decide_all(&[slow.prepare("k").cost(slow_cost), fast.prepare("k").cost(fast_cost)])
    };
    // One is left of ten, and two of five.
    assert_eq!(ask(9, 3).iter().map(Decision::remaining).collect::<Vec<_>>(), [1, 2]);
    let waits: Vec<_> = ask(3, 3).iter().map(|decision| decision.wait().get()).collect();
    assert_eq!(waits, [20, 2]);
    manual_clock.advance(Duration::from_micros(19));
    assert!(
        !ask(3, 3)[0].is_granted() && fast.blocking().key("k").peek(5).is_allowed(),
        "nothing was charged"
    );
    manual_clock.advance(Duration::from_micros(1));
    assert!(ask(3, 3).iter().all(Decision::is_allowed));

    // The same under one key, where both are charged alike: full again when the slower one is.
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
    assert_eq!(alice.peek(0).remaining(), 2, "the denied ones charged nothing");
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

/// Something that is done to a limiter.
type LimiterAction = fn(&Limiter);

/// A key is kept until the slowest of its quotas has forgotten it, whatever was done to it last.
#[test]
fn slowest_quota_keeps_key_alive() {
    let actions: [(&str, LimiterAction); 3] = [
        ("a charge", |_| {}),
        ("a refund", |limiter| drop(limiter.blocking().key("k").reserve(1, Duration::ZERO))),
        ("a change", |limiter| limiter.change_all(&limiter.quotas(), CarryOver::Keep).unwrap()),
    ];
    for texts in [["10/s", "9/h fixed-window"], ["9/h fixed-window", "10/s"]] {
        for (what, deed) in actions {
            let (clock, manual_clock) = Clock::manual();
            let builder = Limiter::builder().clock(clock).capacity(Capacity::Keys(1));
            let limiter = builder.build_all(&quotas(&texts)).unwrap();
            assert!(limiter.check_cost("k", 8).is_allowed());
            deed(&limiter);
            // Far more new keys than cells: only what says nothing any more is theirs.
            manual_clock.advance(Duration::from_secs(60));
            for key in 0..100_u64 {
                limiter.check(&key);
            }
            assert_eq!(limiter.blocking().key("k").peek(0).remaining(), 1, "{what} under {texts:?}");
        }
    }
}

/// Which limiter, which key, how much.
type BatchCheck = (usize, u64, u64);

/// Random questions over three limiters: one word, several words, several quotas; keys and limiters may repeat.
#[test]
fn batch_checks_are_charged_all_or_none() {
    let ask = (0_usize..3, 0_u64..3, 0_u64..4);
    let story =
        proptest::collection::vec((0_u64..400, proptest::collection::vec(ask, 1..6), any::<bool>()), 1..30);
    let law = |story: Vec<(u64, Vec<BatchCheck>, bool)>| -> TestCaseResult {
        let (clock, manual_clock) = Clock::manual();
        let build = |texts: &[&str]| {
            let builder = Limiter::builder().clock(clock.clone()).capacity(Capacity::Keys(8));
            builder.build_all(&quotas(texts)).unwrap()
        };
        let declared: [&[&str]; 3] = [&["10/s burst 7"], &["6/s sliding-log"], &["9/s", "5/s fixed-window"]];
        let limiters = declared.map(build);
        let fresh = |texts: &[&str]| ModelQuotas(quotas(texts).into_iter().map(CoreModel::new).collect());
        let mut models: Vec<Vec<ModelQuotas>> =
            declared.iter().map(|texts| (0..3).map(|_| fresh(texts)).collect()).collect();
        let mut now = Micros::ZERO;
        for (pause, questions, alone) in story {
            now = now.plus(Micros::from_millis(pause));
            manual_clock.set(now);
            let questions = if alone { &questions[..1] } else { &questions[..] };
            let asks: Vec<Check> = questions
                .iter()
                .map(|(which, key, cost)| limiters[*which].prepare(key).cost(*cost))
                .collect();
            let answers = BlockingLimiter::decide_all(&asks);

            // Costs of the same key add up; all look before any charges.
            let total = |which, key| {
                let same = questions.iter().filter(|ask| (ask.0, ask.1) == (which, key));
                same.map(|ask| ask.2).sum::<u64>()
            };
            let mut distinct: Vec<_> = questions.iter().map(|ask| (ask.0, ask.1)).collect();
            distinct.sort_unstable();
            distinct.dedup();
            let mut look = |(which, key): (usize, u64), effect| {
                let demand = Demand { effect, ..Demand::new(total(which, key)) };
                most_restrictive(&models[which][key as usize].decide(now, demand)).1
            };
            let mut expected: Vec<_> = distinct.iter().map(|ask| look(*ask, Effect::Probe)).collect();
            if expected.iter().all(Decision::is_granted) {
                expected = distinct.iter().map(|ask| look(*ask, Effect::Charge)).collect();
            }
            for ((which, key, _), answer) in questions.iter().zip(&answers) {
                let place = distinct.iter().position(|ask| ask == &(*which, *key)).unwrap();
                prop_assert_eq!(*answer, expected[place], "{:?} at {}", questions, now);
            }
            if alone {
                // What was asked of one is seen by its bucket.
                let (which, key, cost) = questions[0];
                prop_assert_eq!(
                    limiters[which].blocking().key(&key).peek(cost),
                    look((which, key), Effect::Probe)
                );
            }
        }
        Ok(())
    };
    runner().run(&story, law).unwrap_or_else(|broken| panic!("{broken}"));
}

/// Decided by a clock that is a little behind, a key answers as at the latest moment it has seen. (One word cannot
/// hold that moment: there the clock is read after the word.)
#[test]
fn clock_behind_leaves_decisions_unchanged() {
    let in_one_word =
        |sample: &Sample| ["token-bucket", "leaky-bucket"].contains(&sample.quota.kind().name());
    let samples = rate_samples().prop_filter("needs several words", move |sample| !in_one_word(sample));
    let law = |(sample, cost): (Sample, CallCost)| -> TestCaseResult {
        let ((behind, early), (ahead, late)) = (Clock::manual(), Clock::manual());
        early.set(sample.start);
        late.set(sample.start.plus(Micros::new(1)));
        let build = |clock: &Clock, quota| {
            Limiter::builder().clock(clock.clone()).capacity(Capacity::Keys(8)).build(quota).unwrap()
        };
        let other = build(&behind, "10/s".parse::<Quota>().unwrap());
        let (batched, alone) = (build(&ahead, sample.quota), build(&ahead, sample.quota));
        let cost = cost.resolve(sample.quota.limit());
        prop_assert_eq!(batched.check_cost("k", cost), alone.check_cost("k", cost));
        let together = BlockingLimiter::decide_all(&[other.prepare("any"), batched.prepare("k").cost(cost)]);
        prop_assert_eq!(together[1], alone.check_cost("k", cost), "{} at {}", sample.quota, cost);
        Ok(())
    };
    runner().run(&(samples, costs()), law).unwrap_or_else(|broken| panic!("{broken}"));
}

#[test]
fn empty_batch_has_no_decisions() {
    assert!(BlockingLimiter::decide_all(&[]).is_empty());
}
