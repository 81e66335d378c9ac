//! Several quotas, tiers, and questions to several limiters: all are charged or none, and the answer names who bound.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use proptest::{prelude::*, test_runner::TestCaseResult};
use std::time::Duration;
use tidegate_core::{Decision, Demand, Effect, Inherit, Micros, Outcome, Quota, Retry};
use tidegate_engine::{Ask, Capacity, Clock, ClockHand, Limiter, LimiterBuilder, decide_all};
use tidegate_testkit::{Plain, Subject, strategy::*};

fn small() -> (LimiterBuilder, ClockHand) {
    let (clock, hand) = Clock::manual();
    (Limiter::builder().clock(clock).capacity(Capacity::Keys(8)), hand)
}

fn quotas(texts: &[&str]) -> Vec<Quota> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// What the core says of several quotas: all are looked at, and charged only if all grant.
struct Together(Vec<Plain>);

impl Together {
    fn decide(&mut self, now: Micros, demand: Demand) -> Vec<Decision> {
        let looks: Vec<_> = self.0.iter().map(|one| one.would(now, demand).decision).collect();
        let charges = looks.iter().all(Decision::is_granted) && demand.effect == Effect::Charge;
        if !charges {
            let probe = Demand { effect: Effect::Probe, ..demand };
            return self.0.iter().map(|one| one.would(now, probe).decision).collect();
        }
        self.0.iter_mut().map(|one| one.decide(now, demand).decision).collect()
    }
}

/// The one that binds most: the denial that lasts longest, the longest delay, the least that remains.
fn binds(decision: &Decision) -> (u8, Micros, u64) {
    let scarcity = u64::MAX - decision.remaining();
    match decision.outcome() {
        Outcome::Allow => (0, Micros::ZERO, scarcity),
        Outcome::Delay(wait) => (1, wait, scarcity),
        Outcome::Deny(Retry::After(wait)) => (2, wait, scarcity),
        Outcome::Deny(Retry::WhenReleased) => (3, Micros::ZERO, scarcity),
        Outcome::Deny(Retry::Never) => (4, Micros::ZERO, scarcity),
    }
}

fn heeded(decisions: &[Decision]) -> (usize, Decision) {
    let first_of_the_worst = decisions.iter().enumerate().rev().max_by_key(|(_, one)| binds(one));
    first_of_the_worst.map(|(index, one)| (index, *one)).unwrap()
}

fn rate_samples() -> impl Strategy<Value = Sample> {
    let all = every_algorithm().into_iter().filter(|(name, _)| *name != "concurrency");
    proptest::strategy::Union::new(all.map(|(_, samples)| samples))
}

#[test]
fn several_quotas_are_charged_together_or_not_at_all() {
    let stories = (proptest::collection::vec(rate_samples(), 2..4), patient_moves(), 0_usize..3);
    let law = |(samples, story, lead): (Vec<Sample>, Vec<Move>, usize)| -> TestCaseResult {
        let sample = samples[lead % samples.len()];
        let (builder, hand) = small();
        hand.set(sample.start);
        let all: Vec<Quota> = samples.iter().map(|sample| sample.quota).collect();
        let limiter = builder.build_all(&all).unwrap();
        let mut model = Together(all.iter().map(|quota| Plain::new(*quota)).collect());
        let mut moment = Moment::start_of(&sample);
        let mut held = Vec::new();
        for caller in story {
            moment.pass(caller.pause);
            hand.set(moment.now);
            let demand = caller.demand(&sample);
            let tokens = limiter.key("k").reserve(demand.cost, demand.patience.into());
            let (place, expected) = heeded(&model.decide(moment.now, demand));
            prop_assert_eq!(*tokens.decision(), expected, "{:?} at {}", demand, moment.now);
            prop_assert_eq!(tokens.decision().quota(), place);
            held.push(tokens.keep());
            let looks = model.decide(moment.now, Demand::probe(0));
            prop_assert_eq!(limiter.key("k").peek(0), heeded(&looks).1);
            moment.hear(&expected);
        }
        Ok(())
    };
    runner().run(&stories, law).unwrap_or_else(|broken| panic!("{broken}"));
}

#[test]
fn the_answer_names_the_quota_that_bound() {
    let (builder, hand) = small();
    let limiter = builder.build_all(&quotas(&["3/s", "5/min", "4 at once"])).unwrap();
    let alice = limiter.key("alice");
    assert_eq!((alice.check(3).quota(), alice.peek(0).remaining()), (0, 0));
    assert_eq!(alice.check(1).quota(), 0);
    hand.advance(Duration::from_secs(1));
    assert_eq!(alice.check(3).outcome(), Outcome::Deny(Retry::After(Micros::from_secs(11))));
    assert_eq!(alice.check(3).quota(), 1);
    assert_eq!(alice.check(5).outcome(), Outcome::Deny(Retry::Never));
    assert_eq!(alice.peek(0).remaining(), 2, "the denied ones charged nothing");
}

#[test]
fn a_permit_beside_a_rate_gives_back_its_slot_only() {
    let (builder, _hand) = small();
    let limiter = builder.build_all(&quotas(&["5/min", "2 at once"])).unwrap();
    let job = limiter.key("job");
    for left in (0..5).rev() {
        let permit = job.permit();
        assert!(permit.decision().is_allowed(), "{left} should be left");
        drop(permit);
    }
    let sixth = job.permit();
    assert_eq!((sixth.decision().is_granted(), sixth.decision().quota()), (false, 0));
}

/// When, for how much, under which tier, and whether the key is forgotten before.
type Caller = (Pause, Cost, usize, u8);

/// A key that changes its tier keeps what it used, as the core's additive inheritance has it.
#[test]
fn tiers_share_a_history() {
    let tier = || prop_oneof![3 => 0_usize..2, 1 => 0_usize..3];
    let stories = |samples: BoxedStrategy<Sample>| {
        let caller = (pauses(), costs(), tier(), 0_u8..8);
        (proptest::collection::vec(samples, 2..4), proptest::collection::vec(caller, 1..30))
    };
    for (name, samples) in every_algorithm() {
        let law = |(samples, story): (Vec<Sample>, Vec<Caller>)| -> TestCaseResult {
            let (builder, hand) = small();
            let mut moment = Moment::start_of(&samples[0]);
            hand.set(moment.now);
            let all: Vec<Quota> = samples.iter().map(|sample| sample.quota).collect();
            let limiter = builder.build_tiers(&all).unwrap();
            let mut written: Option<Plain> = None;
            for (pause, cost, tier, deed) in story {
                let tier = tier % all.len();
                moment.pass(pause);
                hand.set(moment.now);
                let bucket = limiter.key("k").tier(tier).unwrap();
                if deed == 0 {
                    bucket.reset();
                    written = written.filter(|_| name == "concurrency");
                }
                let mut model = written.clone().unwrap_or_else(|| Plain::new(all[tier]));
                if model.quota != all[tier] {
                    model.change(moment.now, all[tier], Inherit::Additive);
                }
                let demand = match name {
                    "concurrency" => Demand::probe(cost.under(all[tier].limit())),
                    _ => Demand::now(cost.under(all[tier].limit())),
                };
                let (decision, step) = (bucket.check(demand.cost), model.decide(moment.now, demand));
                prop_assert_eq!(decision, step.decision, "{} at {}", demand.cost, moment.now);
                prop_assert_eq!(decision.quota(), tier);
                if step.receipt.cost > 0 {
                    written = Some(model);
                }
                moment.hear(&decision);
            }
            Ok(())
        };
        let ran = runner().run(&stories(samples), law);
        ran.unwrap_or_else(|broken| panic!("{name}: {broken}"));
    }
}

#[test]
fn permits_of_different_tiers_all_come_back() {
    let (builder, _hand) = small();
    let limiter = builder.build_tiers(&quotas(&["2 at once", "5 at once"])).unwrap();
    let tier = |tier| limiter.key("k").tier(tier).unwrap();
    let (free, pro) = (tier(0).permit(), tier(1).permit());
    assert!(free.decision().is_allowed() && pro.decision().is_allowed());
    drop(free);
    assert_eq!(tier(1).peek(0).remaining(), 4);
    drop(pro);
    assert_eq!(tier(0).peek(0).remaining(), 2);
}

#[test]
fn tokens_of_a_tier_that_was_left_do_not_come_back() {
    let (builder, _hand) = small();
    let limiter = builder.build_tiers(&quotas(&["10/min", "20/min"])).unwrap();
    let tier = |tier| limiter.key("k").tier(tier).unwrap();
    let tokens = tier(0).reserve(4, Duration::ZERO);
    assert_eq!(tier(1).check(1).remaining(), 15);
    drop(tokens);
    assert_eq!(tier(1).peek(0).remaining(), 15);
}

/// Which limiter, which key, how much.
type Question = (usize, u64, u64);

/// Random questions over three limiters: one word, several words, several quotas; keys and limiters may repeat.
#[test]
fn questions_to_several_limiters_are_charged_together_or_not_at_all() {
    let ask = (0_usize..3, 0_u64..3, 0_u64..4);
    let story =
        proptest::collection::vec((0_u64..400, proptest::collection::vec(ask, 1..6), any::<bool>()), 1..30);
    let law = |story: Vec<(u64, Vec<Question>, bool)>| -> TestCaseResult {
        let (clock, hand) = Clock::manual();
        let build = |texts: &[&str]| {
            let builder = Limiter::builder().clock(clock.clone()).capacity(Capacity::Keys(8));
            builder.build_all(&quotas(texts)).unwrap()
        };
        let declared: [&[&str]; 3] = [&["10/s burst 7"], &["6/s sliding-log"], &["9/s", "5/s fixed-window"]];
        let limiters = declared.map(build);
        let fresh = |texts: &[&str]| Together(quotas(texts).into_iter().map(Plain::new).collect());
        let mut models: Vec<Vec<Together>> =
            declared.iter().map(|texts| (0..3).map(|_| fresh(texts)).collect()).collect();
        let mut now = Micros::ZERO;
        for (pause, questions, alone) in story {
            now = now.plus(Micros::from_millis(pause));
            hand.set(now);
            let questions = if alone { &questions[..1] } else { &questions[..] };
            let asks: Vec<Ask<'_>> =
                questions.iter().map(|(which, key, cost)| limiters[*which].ask(key).cost(*cost)).collect();
            let answers = decide_all(&asks);

            // Costs of the same key add up; all look before any charges.
            let total = |which, key| {
                let same = questions.iter().filter(|ask| (ask.0, ask.1) == (which, key));
                same.map(|ask| ask.2).sum::<u64>()
            };
            let mut distinct: Vec<_> = questions.iter().map(|ask| (ask.0, ask.1)).collect();
            distinct.sort_unstable();
            distinct.dedup();
            let mut look = |(which, key): (usize, u64), effect| {
                let demand = Demand { effect, ..Demand::now(total(which, key)) };
                heeded(&models[which][key as usize].decide(now, demand)).1
            };
            let mut said: Vec<_> = distinct.iter().map(|ask| look(*ask, Effect::Probe)).collect();
            if said.iter().all(Decision::is_granted) {
                said = distinct.iter().map(|ask| look(*ask, Effect::Charge)).collect();
            }
            for ((which, key, _), answer) in questions.iter().zip(&answers) {
                let place = distinct.iter().position(|ask| ask == &(*which, *key)).unwrap();
                prop_assert_eq!(*answer, said[place], "{:?} at {}", questions, now);
            }
            if alone {
                // What was asked of one is seen by its bucket.
                let (which, key, cost) = questions[0];
                prop_assert_eq!(limiters[which].key(&key).peek(cost), look((which, key), Effect::Probe));
            }
        }
        Ok(())
    };
    runner().run(&story, law).unwrap_or_else(|broken| panic!("{broken}"));
}

#[test]
fn no_question_has_no_answer() {
    assert!(decide_all(&[]).is_empty());
}
