//! A table that is as good as full: whoever has a cell keeps it, wherever it lies, and whoever has none is told.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tidegate_core::{CarryOver, Decision, Demand, Micros, Quota};
use tidegate_limiter::{BlockingLimiter, Capacity, Clock, Limiter, LimiterBuilder, ManualClock, Overflow};
use tidegate_testkit::{CoreModel, Subject};

fn builder(keys: u64) -> (LimiterBuilder, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    (Limiter::builder().clock(clock).capacity(Capacity::Keys(keys)).overflow(Overflow::Share), manual_clock)
}

/// Quotas of one word and of several.
const QUOTAS: [&str; 2] = ["5/min", "5/min sliding-log"];

/// Many keys found the cells that they like best taken, and went further. When those are spent, a key is still
/// found where it went, and does not start anew.
#[test]
fn relocated_key_is_found() {
    for quota in QUOTAS {
        let (builder, manual_clock) = builder(1_000);
        let limiter = builder.overflow(Overflow::Deny).build(quota).unwrap();
        manual_clock.set(Micros::from_secs(1));
        // Nine of ten cells are taken: every other key goes first, and is forgotten first.
        let (early, late): (Vec<u64>, Vec<u64>) = (0..1_400).partition(|key| key % 2 == 0);
        let takes_all = |key: &&u64| limiter.check_cost(*key, 5).is_allowed();
        assert!(early.iter().filter(takes_all).count() >= 690);
        manual_clock.advance(Duration::from_secs(30));
        let late: Vec<_> = late.iter().filter(takes_all).collect();
        assert!(late.len() >= 600, "{quota}: only {} found room", late.len());
        manual_clock.advance(Duration::from_secs(31));
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
fn quota_change_reaches_shared_cells() {
    let chains: [&[&str]; 2] =
        [&["5/min", "7/s", "9/h burst 30"], &["9/min sliding-log", "8/min sliding-log", "7/min sliding-log"]];
    for chain in chains {
        let (builder, manual_clock) = builder(1);
        manual_clock.set(Micros::from_secs(1));
        let now = Micros::from_secs(1);
        let limiter = builder.build(chain[0]).unwrap();
        fill(&limiter);
        let mut model = CoreModel::new(chain[0].parse().unwrap());
        model.decide(now, Demand::new(3));
        assert!(limiter.check_cost("late", 3).is_allowed());
        for quota in &chain[1..] {
            limiter.change(*quota, CarryOver::Keep).unwrap();
            model.change(now, quota.parse().unwrap(), CarryOver::Keep);
        }
        let expected = model.peek(now, Demand::probe(1)).decision;
        assert_eq!(limiter.blocking().key("late").peek(1), expected, "{chain:?}");
        assert!(limiter.stats().unwrap().overflowed > 0);
    }
}

/// All or none: one that cannot be counted is denied, and charges none of the others.
#[test]
fn full_table_charges_no_limiter() {
    for quota in QUOTAS {
        let (crowded, _manual_clock) = builder(1);
        let crowded = crowded.overflow(Overflow::Deny).build(quota).unwrap();
        fill(&crowded);
        let (roomy, _manual_clock) = builder(1);
        let roomy = roomy.build(quota).unwrap();
        let ask = |key: &str| {
            let answers =
                BlockingLimiter::decide_all(&[roomy.prepare("k"), crowded.prepare(key), roomy.prepare("l")]);
            answers.iter().map(Decision::is_allowed).collect::<Vec<_>>()
        };
        assert!(!ask("late")[1]);
        assert_eq!(["k", "l"].map(|key| roomy.blocking().key(key).peek(0).remaining()), [5, 5], "{quota}");
        let keys = BlockingLimiter::decide_all(&[roomy.prepare("k"), crowded.prepare(&0_u64)]);
        assert!(keys.iter().all(Decision::is_allowed), "{quota}: who has a cell is counted");
    }
}

/// However it is asked, and however often it has to be looked for, a key without room is counted once.
#[test]
fn overflow_is_counted_once_per_check() {
    for (quota, overflow) in QUOTAS.iter().flat_map(|it| [(it, Overflow::Share), (it, Overflow::Deny)]) {
        let (builder, _manual_clock) = builder(1);
        let limiter = builder.overflow(overflow).build(*quota).unwrap();
        fill(&limiter);
        let actions: [&dyn Fn(); 3] = [
            &|| drop(BlockingLimiter::decide_all(&[limiter.prepare("late"), limiter.prepare(&0_u64)])),
            &|| drop(limiter.blocking().key("late").reserve(1, Duration::ZERO)),
            &|| assert!(!limiter.check_cost("late", 6).is_granted()),
        ];
        for (before, deed) in (0..).zip(actions) {
            assert_eq!(limiter.stats().unwrap().overflowed, before, "{quota} {overflow:?}");
            deed();
        }
        assert_eq!(limiter.stats().unwrap().overflowed, 3, "{quota} {overflow:?}");
    }
}

/// The answer without room is that of the scarcest quota.
#[test]
fn full_table_reports_lowest_limit() {
    let quotas: Vec<Quota> = ["7/s", "5/min", "6/h"].iter().map(|text| text.parse().unwrap()).collect();
    let (builder, _manual_clock) = builder(1);
    let limiter = builder.overflow(Overflow::Deny).build_all(&quotas).unwrap();
    fill(&limiter);
    let late = limiter.check("late");
    assert_eq!((late.limit(), late.remaining(), late.retry_after()), (5, 0, Some(Micros::from_secs(1))));
}

/// One of each algorithm.
const ALL_QUOTAS: [&str; 8] = [
    "5/min",
    "5/min leaky-bucket",
    "5/min fixed-window",
    "5/min sliding-window",
    "5/min sliding-strict 6",
    "5/min sliding-log",
    "5/min smooth",
    "5/min warm-up 10s",
];

/// F8: a flood of random keys does not lock out new clients, and gives a limited key nothing.
#[test]
fn random_key_flood_denies_no_new_client() {
    for quota in ALL_QUOTAS {
        let (builder, manual_clock) = builder(100);
        let limiter = builder.overflow(Overflow::Replace).build(quota).unwrap();
        manual_clock.set(Micros::from_secs(100));
        while limiter.check("abuser").is_allowed() {}
        let flood = limiter.stats().unwrap().capacity * 20;
        let admitted = (0..flood).filter(|key| limiter.check(key).is_allowed()).count() as u64;
        assert!(!limiter.check("abuser").is_allowed(), "{quota}: it is limited as before");
        let stats = limiter.stats().unwrap();
        assert!(stats.used <= stats.capacity, "{quota}: {stats:?}");
        // Where one request makes a key wait, all keys of the table are limited, and none gives way.
        let is_limited_by_one = !limiter.blocking().key(&(flood - 1)).peek(1).is_allowed();
        if !is_limited_by_one {
            let new =
                (0..50).filter(|client| limiter.check(&format!("client {client}")).is_allowed()).count();
            assert_eq!((admitted, new), (flood, 50), "{quota}");
            assert_eq!((stats.replaced, stats.overflowed), (flood + 1 - stats.used, 0), "{quota}");
        }
    }
}

/// A key that gave way gets back nothing that it had taken before.
#[test]
fn replaced_key_refunds_nothing() {
    for quota in QUOTAS {
        let (builder, _manual_clock) = builder(1);
        let limiter = builder.overflow(Overflow::Replace).build(quota).unwrap();
        let before = limiter.blocking().key("early").reserve(3, Duration::ZERO);
        (0..100_u64).for_each(|key| _ = limiter.check_cost(&key, 4));
        assert_eq!(limiter.blocking().key("early").peek(0).remaining(), 5, "{quota}: it gave way");
        assert!(limiter.check_cost("early", 5).is_allowed());
        before.cancel();
        assert_eq!(limiter.blocking().key("early").peek(0).remaining(), 0, "{quota}");
    }
}

/// Several limiters at once find room in each, however full they are.
#[test]
fn batch_check_replaces_keys() {
    for quota in QUOTAS {
        let limiters = [1, 1].map(|keys| builder(keys).0.overflow(Overflow::Replace).build(quota).unwrap());
        limiters.iter().for_each(fill);
        for key in 100..200_u64 {
            let asks =
                [limiters[0].prepare(&key), limiters[1].prepare(&key), limiters[0].prepare(&(key + 1_000))];
            assert!(BlockingLimiter::decide_all(&asks).iter().all(Decision::is_allowed), "{quota}");
        }
    }
}

/// A full table is told of at once, and then once a minute.
#[test]
fn full_table_notifies_once_a_minute() {
    for (quota, overflow) in ["5/h", "5/h sliding-log", "1 at once"].into_iter().zip([
        Overflow::Replace,
        Overflow::Share,
        Overflow::Deny,
    ]) {
        let (clock, manual_clock) = Clock::manual();
        let notices = Arc::new(Mutex::new(Vec::new()));
        let recorded = notices.clone();
        let limiter = Limiter::builder().clock(clock).capacity(Capacity::Keys(1)).overflow(overflow);
        let limiter = limiter.on_full(move |size| recorded.lock().unwrap().push(size)).build(quota).unwrap();
        manual_clock.set(Micros::from_secs(7));
        let ask = |keys: std::ops::Range<u64>| {
            keys.map(|key| limiter.blocking().key(&key).permit()).collect::<Vec<_>>()
        };
        let _held = ask(0..8);
        assert!(notices.lock().unwrap().is_empty(), "{quota}: there is room");
        let _new = ask(8..40);
        assert_eq!(notices.lock().unwrap().len(), 1, "{quota}");
        manual_clock.advance(Duration::from_secs(59));
        let _newer = ask(40..80);
        assert_eq!(notices.lock().unwrap().len(), 1, "{quota}");
        manual_clock.advance(Duration::from_secs(1));
        let _newest = ask(80..90);
        let notices = notices.lock().unwrap();
        let last = notices[1];
        assert_eq!((notices.len(), last.capacity), (2, 8), "{quota}");
        assert!(last.replaced + last.overflowed >= 72, "{quota}: {last:?}");
    }
}
