//! An almost full table: keys with a cell keep it, wherever it is, and a full table is reported.

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

/// Many keys found their preferred cells taken and were placed in later ones. When the earlier cells expire, such a key is
/// still found, and does not get a second burst.
#[test]
fn relocated_key_is_found() {
    for quota in QUOTAS {
        let (builder, manual_clock) = builder(1_000);
        let limiter = builder.overflow(Overflow::Deny).build(quota).unwrap();
        manual_clock.set(Micros::from_secs(1));
        // Nine of ten cells are taken: every other key is inserted first, and expires first.
        let (early, late): (Vec<u64>, Vec<u64>) = (0..1_400).partition(|key| key % 2 == 0);
        let takes_all = |key: &&u64| limiter.check_cost(*key, 5).is_allowed();
        assert!(early.iter().filter(takes_all).count() >= 690);
        manual_clock.advance(Duration::from_secs(30));
        let late: Vec<_> = late.iter().filter(takes_all).collect();
        assert!(late.len() >= 600, "{quota}: only {} found a cell", late.len());
        manual_clock.advance(Duration::from_secs(31));
        // First the early keys have expired, then others have their cells.
        for new_keys in [0..0, 2_000..2_600_u64] {
            let (total, placed) =
                (new_keys.clone().count(), new_keys.filter(|key| limiter.check(key).is_allowed()).count());
            assert!(placed * 10 >= total * 9, "{quota}: {placed} of {total} found a cell");
            let second_bursts: Vec<_> =
                late.iter().filter(|key| limiter.check_cost(**key, 5).is_granted()).collect();
            assert!(second_bursts.is_empty(), "{quota}: {} keys got a second burst", second_bursts.len());
        }
    }
}

/// Eight keys fill the cells of the smallest table.
fn fill(limiter: &Limiter) {
    for key in 0..8_u64 {
        assert!(limiter.check(&key).is_allowed());
    }
}

/// Every quota change converts the shared cells, like any other cell.
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
        let expected = model.peek(now, Demand::peek(1)).decision;
        assert_eq!(limiter.blocking().key("late").peek(1), expected, "{chain:?}");
        assert!(limiter.stats().unwrap().overflowed > 0);
    }
}

/// All or none: a key without a cell is denied, and none of the others is charged.
#[test]
fn full_table_charges_no_limiter() {
    for quota in QUOTAS {
        let (full, _manual_clock) = builder(1);
        let full = full.overflow(Overflow::Deny).build(quota).unwrap();
        fill(&full);
        let (empty, _manual_clock) = builder(1);
        let empty = empty.build(quota).unwrap();
        let decide = |key: &str| {
            let decisions =
                BlockingLimiter::decide_all(&[empty.prepare("k"), full.prepare(key), empty.prepare("l")]);
            decisions.iter().map(Decision::is_allowed).collect::<Vec<_>>()
        };
        assert!(!decide("late")[1]);
        assert_eq!(["k", "l"].map(|key| empty.blocking().key(key).peek(0).remaining()), [5, 5], "{quota}");
        let keys = BlockingLimiter::decide_all(&[empty.prepare("k"), full.prepare(&0_u64)]);
        assert!(keys.iter().all(Decision::is_allowed), "{quota}: a key with a cell is counted");
    }
}

/// A key with a used total is never replaced, even if the limiter is declared to replace keys: it would get all of it again.
#[test]
fn full_table_keeps_totals_and_denies_new_keys() {
    for overflow in [Overflow::Replace, Overflow::Share, Overflow::Deny] {
        let (builder, manual_clock) = builder(1);
        let limiter = builder.overflow(overflow).build("2 total").unwrap();
        fill(&limiter);
        manual_clock.advance(Duration::from_secs(1 << 32));
        for key in 100..200_u64 {
            assert!(!limiter.check(&key).is_allowed(), "{overflow:?}");
        }
        assert!(limiter.stats().unwrap().overflowed >= 100);
        for key in 0..8_u64 {
            assert_eq!([limiter.check(&key), limiter.check(&key)].map(|it| it.is_allowed()), [true, false]);
        }
    }
}

/// A total that another quota has replaced is stored for thirty days. Its keys then make room, and until then a total that
/// returns finds what is used.
#[test]
fn replaced_total_leaves_the_table_after_thirty_days() {
    let day = Duration::from_secs(86_400);
    for (days, makes_room) in [(29, false), (31, true)] {
        let (builder, manual_clock) = builder(1);
        let total = builder.clone().build("2 total").unwrap();
        fill(&total);
        let rate = builder.overflow(Overflow::Deny).predecessor(&total).build("5/min").unwrap();
        rate.take_over(&total);
        manual_clock.advance(day * days);
        let admitted = (100..200_u64).filter(|key| rate.check(key).is_allowed()).count();
        assert_eq!(admitted > 0, makes_room, "after {days} days");
    }
}

/// A key without a cell is counted once per check, independent of the operation and its retries.
#[test]
fn overflow_is_counted_once_per_check() {
    for (quota, overflow) in
        QUOTAS.iter().flat_map(|quota| [(quota, Overflow::Share), (quota, Overflow::Deny)])
    {
        let (builder, _manual_clock) = builder(1);
        let limiter = builder.overflow(overflow).build(*quota).unwrap();
        fill(&limiter);
        let actions: [&dyn Fn(); 3] = [
            &|| drop(BlockingLimiter::decide_all(&[limiter.prepare("late"), limiter.prepare(&0_u64)])),
            &|| drop(limiter.blocking().key("late").reserve(1, Duration::ZERO)),
            &|| assert!(!limiter.check_cost("late", 6).is_granted()),
        ];
        for (before, action) in (0..).zip(actions) {
            assert_eq!(limiter.stats().unwrap().overflowed, before, "{quota} {overflow:?}");
            action();
        }
        assert_eq!(limiter.stats().unwrap().overflowed, 3, "{quota} {overflow:?}");
    }
}

/// The denial of a full table reports the lowest limit.
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

/// F8: a flood of random keys does not lock out new clients, and does not reset a limited key.
#[test]
fn random_key_flood_denies_no_new_client() {
    for quota in ALL_QUOTAS {
        let (builder, manual_clock) = builder(100);
        let limiter = builder.overflow(Overflow::Replace).build(quota).unwrap();
        manual_clock.set(Micros::from_secs(100));
        while limiter.check("abuser").is_allowed() {}
        let flood = limiter.stats().unwrap().capacity * 20;
        let admitted = (0..flood).filter(|key| limiter.check(key).is_allowed()).count() as u64;
        assert!(!limiter.check("abuser").is_allowed(), "{quota}: still limited");
        let stats = limiter.stats().unwrap();
        assert!(stats.used <= stats.capacity, "{quota}: {stats:?}");
        // If one request limits a key, all keys of the table are limited, and none is replaced.
        let is_limited_by_one = !limiter.blocking().key(&(flood - 1)).peek(1).is_allowed();
        if !is_limited_by_one {
            let new =
                (0..50).filter(|client| limiter.check(&format!("client {client}")).is_allowed()).count();
            assert_eq!((admitted, new), (flood, 50), "{quota}");
            assert_eq!((stats.replaced, stats.overflowed), (flood + 1 - stats.used, 0), "{quota}");
        }
    }
}

/// A replaced key gets no refund of its earlier charges.
#[test]
fn replaced_key_refunds_nothing() {
    for quota in QUOTAS {
        let (builder, _manual_clock) = builder(1);
        let limiter = builder.overflow(Overflow::Replace).build(quota).unwrap();
        let before = limiter.blocking().key("early").reserve(3, Duration::ZERO);
        (0..100_u64).for_each(|key| _ = limiter.check_cost(&key, 4));
        assert_eq!(limiter.blocking().key("early").peek(0).remaining(), 5, "{quota}: replaced");
        assert!(limiter.check_cost("early", 5).is_allowed());
        before.cancel();
        assert_eq!(limiter.blocking().key("early").peek(0).remaining(), 0, "{quota}");
    }
}

/// A batch over several full limiters replaces a key in each.
#[test]
fn batch_check_replaces_keys() {
    for quota in QUOTAS {
        let limiters = [1, 1].map(|keys| builder(keys).0.overflow(Overflow::Replace).build(quota).unwrap());
        limiters.iter().for_each(fill);
        for key in 100..200_u64 {
            let checks =
                [limiters[0].prepare(&key), limiters[1].prepare(&key), limiters[0].prepare(&(key + 1_000))];
            assert!(BlockingLimiter::decide_all(&checks).iter().all(Decision::is_allowed), "{quota}");
        }
    }
}

/// A full table is reported at once, and then once a minute.
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
        let permits = |keys: std::ops::Range<u64>| {
            keys.map(|key| limiter.blocking().key(&key).permit()).collect::<Vec<_>>()
        };
        let _old = permits(0..8);
        assert!(notices.lock().unwrap().is_empty(), "{quota}: the table is not full");
        let _new = permits(8..40);
        assert_eq!(notices.lock().unwrap().len(), 1, "{quota}");
        manual_clock.advance(Duration::from_secs(59));
        let _newer = permits(40..80);
        assert_eq!(notices.lock().unwrap().len(), 1, "{quota}");
        manual_clock.advance(Duration::from_secs(1));
        let _newest = permits(80..90);
        let notices = notices.lock().unwrap();
        let last = notices[1];
        assert_eq!((notices.len(), last.capacity), (2, 8), "{quota}");
        assert!(last.replaced + last.overflowed >= 72, "{quota}: {last:?}");
    }
}
