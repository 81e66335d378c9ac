//! A table that is as good as full: whoever has a cell keeps it, wherever it lies, and whoever has none is told.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use std::time::Duration;
use tidegate_core::{CarryOver, Decision, Demand, Micros, Quota};
use tidegate_engine::{Capacity, Clock, ClockHand, Limiter, LimiterBuilder, Overflow, decide_all};
use tidegate_testkit::{Plain, Subject};

fn builder(keys: u64) -> (LimiterBuilder, ClockHand) {
    let (clock, hand) = Clock::manual();
    (Limiter::builder().clock(clock).capacity(Capacity::Keys(keys)), hand)
}

/// Quotas of one word and of several.
const BOTH: [&str; 2] = ["5/min", "5/min sliding-log"];

/// Many keys found the cells that they like best taken, and went further. When those are spent, a key is still
/// found where it went, and does not start anew.
#[test]
fn a_key_is_found_where_it_went() {
    for quota in BOTH {
        let (builder, hand) = builder(1_000);
        let limiter = builder.overflow(Overflow::Deny).build(quota).unwrap();
        hand.set(Micros::from_secs(1));
        // Nine of ten cells are taken: every other key goes first, and is forgotten first.
        let (early, late): (Vec<u64>, Vec<u64>) = (0..1_400).partition(|key| key % 2 == 0);
        let takes_all = |key: &&u64| limiter.check_cost(*key, 5).is_allowed();
        assert!(early.iter().filter(takes_all).count() >= 690);
        hand.advance(Duration::from_secs(30));
        let late: Vec<_> = late.iter().filter(takes_all).collect();
        assert!(late.len() >= 600, "{quota}: only {} found room", late.len());
        hand.advance(Duration::from_secs(31));
        // At first the early ones are spent, then others have their cells.
        for newcomers in [0..0, 2_000..2_600_u64] {
            let (many, found_room) =
                (newcomers.clone().count(), newcomers.filter(|key| limiter.check(key).is_allowed()).count());
            assert!(found_room * 10 >= many * 9, "{quota}: {found_room} of {many} found room");
            let again: Vec<_> = late.iter().filter(|key| limiter.check_cost(**key, 5).is_granted()).collect();
            assert!(again.is_empty(), "{quota}: {} keys got a second burst", again.len());
        }
    }
}

/// Eight keys take the cells of the smallest table.
fn fill(limiter: &Limiter) {
    for key in 0..8_u64 {
        assert!(limiter.check(&key).is_allowed());
    }
}

/// What keys without room share is carried over by every change, as a cell of one's own is.
#[test]
fn a_change_reaches_those_without_room() {
    let chains: [&[&str]; 2] =
        [&["5/min", "7/s", "9/h burst 30"], &["9/min sliding-log", "8/min sliding-log", "7/min sliding-log"]];
    for chain in chains {
        let (builder, hand) = builder(1);
        hand.set(Micros::from_secs(1));
        let now = Micros::from_secs(1);
        let limiter = builder.build(chain[0]).unwrap();
        fill(&limiter);
        let mut model = Plain::new(chain[0].parse().unwrap());
        model.decide(now, Demand::now(3));
        assert!(limiter.check_cost("late", 3).is_allowed());
        for quota in &chain[1..] {
            limiter.change(*quota, CarryOver::Keep).unwrap();
            model.change(now, quota.parse().unwrap(), CarryOver::Keep);
        }
        let expected = model.would(now, Demand::probe(1)).decision;
        assert_eq!(limiter.key("late").peek(1), expected, "{chain:?}");
        assert!(limiter.stats().overflowed > 0);
    }
}

/// All or none: one that cannot be counted is denied, and charges none of the others.
#[test]
fn without_room_none_is_charged() {
    for quota in BOTH {
        let (crowded, _hand) = builder(1);
        let crowded = crowded.overflow(Overflow::Deny).build(quota).unwrap();
        fill(&crowded);
        let (roomy, _hand) = builder(1);
        let roomy = roomy.build(quota).unwrap();
        let ask = |key: &str| {
            let answers = decide_all(&[roomy.ask("k"), crowded.ask(key), roomy.ask("l")]);
            answers.iter().map(Decision::is_allowed).collect::<Vec<_>>()
        };
        assert!(!ask("late")[1]);
        assert_eq!(["k", "l"].map(|key| roomy.key(key).peek(0).remaining()), [5, 5], "{quota}");
        let keys = decide_all(&[roomy.ask("k"), crowded.ask(&0_u64)]);
        assert!(keys.iter().all(Decision::is_allowed), "{quota}: who has a cell is counted");
    }
}

/// However it is asked, and however often it has to be looked for, a key without room is counted once.
#[test]
fn each_question_without_room_is_counted_once() {
    for (quota, overflow) in BOTH.iter().flat_map(|it| [(it, Overflow::Share), (it, Overflow::Deny)]) {
        let (builder, _hand) = builder(1);
        let limiter = builder.overflow(overflow).build(*quota).unwrap();
        fill(&limiter);
        let deeds: [&dyn Fn(); 3] = [
            &|| drop(decide_all(&[limiter.ask("late"), limiter.ask(&0_u64)])),
            &|| limiter.key("late").reserve(1, Duration::ZERO).cancel(),
            &|| assert!(!limiter.check_cost("late", 6).is_granted()),
        ];
        for (before, deed) in (0..).zip(deeds) {
            assert_eq!(limiter.stats().overflowed, before, "{quota} {overflow:?}");
            deed();
        }
        assert_eq!(limiter.stats().overflowed, 3, "{quota} {overflow:?}");
    }
}

/// The answer without room is that of the scarcest quota.
#[test]
fn without_room_the_least_limit_is_told() {
    let quotas: Vec<Quota> = ["7/s", "5/min", "6/h"].iter().map(|text| text.parse().unwrap()).collect();
    let (builder, _hand) = builder(1);
    let limiter = builder.overflow(Overflow::Deny).build_all(&quotas).unwrap();
    fill(&limiter);
    let late = limiter.check("late");
    assert_eq!((late.limit(), late.remaining(), late.retry_after()), (5, 0, Some(Micros::from_secs(1))));
}
