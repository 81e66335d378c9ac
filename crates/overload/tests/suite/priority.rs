//! Priorities: important requests are admitted first, shares are guaranteed, and unused slots are lent.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

use proptest::prelude::*;
use std::{cmp::Reverse, collections::BinaryHeap};
use tidegate_core::{Micros, Percent};
use tidegate_overload::priority::{
    PriorityClass, PriorityPermit, PriorityRequest, PriorityScheduler, ShedReason,
};

/// A stream of independent arrivals.
#[derive(Clone, Copy)]
struct ArrivalStream {
    request: PriorityRequest,
    /// The average number in flight if all were admitted.
    offered: f64,
    /// When the stream starts and ends, in milliseconds.
    start: u64,
    end: u64,
}

fn stream(request: PriorityRequest, offered: f64) -> ArrivalStream {
    ArrivalStream { request, offered, start: 0, end: RUN_MILLIS }
}

/// The mean time a slot is in use, and the length of a run, in milliseconds.
const MEAN_HOLD_MILLIS: f64 = 10.0;
const RUN_MILLIS: u64 = 20_000;

/// A random number from 0 to 1, by one step of xorshift.
fn random(state: &mut u64) -> f64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) as f64 / (1_u64 << 53) as f64
}

fn exponential(state: &mut u64, mean: f64) -> Micros {
    Micros::new((-(1.0 - random(state)).ln() * mean * 1_000.0) as u64 + 1)
}

/// Runs all streams, and returns for each how many requests arrived and how many were admitted after the
/// first second.
fn run_streams(scheduler: &mut PriorityScheduler, loads: &[ArrivalStream], seed: u64) -> Vec<(u32, u32)> {
    let mut rng = seed * 2 + 1;
    let mut counts = vec![(0, 0); loads.len()];
    let mut permits: Vec<Option<PriorityPermit>> = Vec::new();
    let mut events: BinaryHeap<Reverse<(Micros, usize, Option<usize>)>> = BinaryHeap::new();
    for (index, load) in loads.iter().enumerate() {
        events.push(Reverse((Micros::from_millis(load.start), index, None)));
    }
    while let Some(Reverse((now, index, departure))) = events.pop() {
        if let Some(slot) = departure {
            scheduler.release(now, permits[slot].take().unwrap());
            continue;
        }
        let load = &loads[index];
        if now >= Micros::from_millis(load.end) {
            continue;
        }
        events.push(Reverse((
            now.saturating_add(exponential(&mut rng, MEAN_HOLD_MILLIS / load.offered)),
            index,
            None,
        )));
        let is_counted = now >= Micros::from_millis(load.start + 1_000);
        counts[index].0 += u32::from(is_counted);
        if let Ok(permit) = scheduler.try_acquire(now, load.request) {
            counts[index].1 += u32::from(is_counted);
            events.push(Reverse((
                now.saturating_add(exponential(&mut rng, MEAN_HOLD_MILLIS)),
                index,
                Some(permits.len()),
            )));
            permits.push(Some(permit));
        }
    }
    counts
}

fn admitted_ratio((arrived, admitted): (u32, u32)) -> f64 {
    f64::from(admitted) / f64::from(arrived)
}

fn percent(percent: f64) -> Percent {
    Percent::new(percent).unwrap()
}

fn scheduler(classes: &[(&str, f64)], limit: u32) -> PriorityScheduler {
    let classes = classes.iter().map(|(name, share)| PriorityClass::new(*name, percent(*share)));
    PriorityScheduler::new(classes, limit).unwrap()
}

const USER: usize = 0;
const BATCH: usize = 1;

#[test]
fn overloaded_low_class_does_not_affect_high_class() {
    for seed in 1..=2 {
        for (limit, user, batch) in
            [(100, 50.0, 20.0), (100, 20.0, 50.0), (400, 50.0, 50.0), (50, 60.0, 20.0)]
        {
            let mut scheduler = scheduler(&[("user", user), ("batch", batch)], limit);
            let of = |share: f64| share / 100.0 * f64::from(limit);
            // A load that fits despite its variation, and a flood.
            let loads = [
                stream(PriorityRequest::new(USER), of(user) * 0.8),
                stream(PriorityRequest::new(BATCH), 12.0 * of(batch)),
            ];
            let counts = run_streams(&mut scheduler, &loads, seed);
            assert!(
                admitted_ratio(counts[0]) >= 0.994,
                "{limit} {user} {batch} seed {seed}: {}",
                admitted_ratio(counts[0])
            );
            // The flood still gets its own share and more: no slots stay unused.
            let in_flight = f64::from(counts[1].1) / f64::from(counts[1].0) * loads[1].offered;
            assert!(in_flight > of(batch) * 0.9, "{limit} {user} {batch}: {in_flight} of {}", of(batch));
        }
    }
}

#[test]
fn unused_share_is_borrowed() {
    let mut scheduler = scheduler(&[("user", 60.0), ("batch", 10.0)], 100);
    let counts = run_streams(&mut scheduler, &[stream(PriorityRequest::new(BATCH), 300.0)], 1);
    let in_flight = admitted_ratio(counts[0]) * 300.0;
    assert!(in_flight > 98.0, "{in_flight} of 100 slots used");
}

#[test]
fn returning_class_regains_its_share() {
    let mut scheduler = scheduler(&[("user", 60.0), ("batch", 10.0)], 100);
    let late = ArrivalStream { start: 10_000, ..stream(PriorityRequest::new(USER), 40.0) };
    let counts = run_streams(&mut scheduler, &[late, stream(PriorityRequest::new(BATCH), 300.0)], 1);
    assert!(admitted_ratio(counts[0]) >= 0.994, "{}", admitted_ratio(counts[0]));
}

#[test]
fn low_class_keeps_share_during_high_class_flood() {
    let mut scheduler = scheduler(&[("user", 50.0), ("batch", 20.0)], 100);
    let loads = [stream(PriorityRequest::new(USER), 1_000.0), stream(PriorityRequest::new(BATCH), 10.0)];
    let counts = run_streams(&mut scheduler, &loads, 1);
    assert!(admitted_ratio(counts[1]) >= 0.98, "{}", admitted_ratio(counts[1]));
    assert!(admitted_ratio(counts[0]) * 1_000.0 > 70.0);
}

#[test]
fn lower_levels_are_shed_first() {
    let mut scheduler = scheduler(&[("user", 100.0)], 100);
    let loads = [
        stream(PriorityRequest::new(USER).level(9), 60.0),
        stream(PriorityRequest::new(USER).level(1), 140.0),
    ];
    let counts = run_streams(&mut scheduler, &loads, 1);
    assert!(admitted_ratio(counts[0]) > 0.99, "{}", admitted_ratio(counts[0]));
    let in_flight = admitted_ratio(counts[0]) * 60.0 + admitted_ratio(counts[1]) * 140.0;
    assert!(in_flight > 90.0, "{in_flight} of 100 slots used");
}

#[test]
fn heavy_users_are_shed_before_light_users() {
    let mut scheduler = scheduler(&[("user", 100.0)], 100);
    let mut loads = vec![stream(PriorityRequest::new(USER).user(1), 150.0)];
    // Fifty users of one each.
    loads.extend((2..52).map(|user| stream(PriorityRequest::new(USER).user(user), 1.0)));
    let counts = run_streams(&mut scheduler, &loads, 1);
    let light = counts[1..].iter().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
    assert!(admitted_ratio(light) > 0.97, "{}", admitted_ratio(light));
    assert!(
        admitted_ratio(counts[0]) * 150.0 > 35.0,
        "the heavy user gets the remaining slots: {}",
        admitted_ratio(counts[0])
    );
}

#[test]
fn nothing_is_shed_without_pressure() {
    let mut scheduler = scheduler(&[("user", 40.0), ("batch", 40.0)], 100);
    let loads = [
        stream(PriorityRequest::new(USER).level(1), 20.0),
        stream(PriorityRequest::new(BATCH).level(0).user(7), 20.0),
    ];
    let counts = run_streams(&mut scheduler, &loads, 1);
    assert_eq!((admitted_ratio(counts[0]), admitted_ratio(counts[1])), (1.0, 1.0));
}

const YEAR: Micros = Micros::from_secs(365 * 24 * 3_600);

/// Users filled the first second of the year, and all of them have left.
fn scheduler_after_busy_second() -> PriorityScheduler {
    let mut scheduler = scheduler(&[("user", 50.0), ("batch", 0.0)], 100);
    for millis in 0..1_000 {
        let now = YEAR.saturating_add(Micros::from_millis(millis));
        let permits: Vec<_> =
            (0..40).map(|_| scheduler.try_acquire(now, PriorityRequest::new(USER)).unwrap()).collect();
        permits
            .into_iter()
            .for_each(|permit| scheduler.release(now.saturating_add(Micros::from_millis(10)), permit));
    }
    scheduler
}

#[test]
fn reserved_slots_expire_after_idle_time() {
    let admitted = |after: u64| {
        let (mut scheduler, now) =
            (scheduler_after_busy_second(), YEAR.saturating_add(Micros::from_secs(after)));
        (0..100).filter(|_| scheduler.try_acquire(now, PriorityRequest::new(BATCH)).is_ok()).count()
    };
    assert!(admitted(1) < 50, "the recent demand is still reserved");
    assert!(admitted(3_600) >= 99, "all but one reserved slot");
}

/// The reservation of an idle class expires, even if the clock was set back by a year.
#[test]
fn clock_step_back_does_not_stop_decay() {
    let mut scheduler = scheduler_after_busy_second();
    let times = (0..10_000).step_by(10).map(Micros::from_millis);
    assert_eq!(
        times.filter(|now| scheduler.try_acquire(*now, PriorityRequest::new(BATCH)).is_ok()).count(),
        100
    );
}

/// A class with a single slot does not reserve it for rare requests.
#[test]
fn low_class_uses_idle_slot() {
    let mut scheduler = scheduler(&[("user", 100.0)], 1);
    let mut admitted = 0;
    for millis in 0..100_000_u64 {
        let now = Micros::from_millis(millis);
        let level = if millis % 200 == 0 { 9 } else { 0 };
        // Two at once, so that one of them is shed.
        let results =
            [level, 0].map(|level| scheduler.try_acquire(now, PriorityRequest::new(USER).level(level)));
        admitted += u32::from(results[1].is_ok() || (level == 0 && results[0].is_ok()));
        results
            .into_iter()
            .flatten()
            .for_each(|permit| scheduler.release(now.saturating_add(Micros::new(500)), permit));
    }
    assert!(admitted > 90_000, "{admitted} of 200000, two at a time");
}

/// The slot is reserved for requests that would use all of it.
#[test]
fn single_slot_goes_to_high_class() {
    let mut scheduler = scheduler(&[("user", 100.0)], 1);
    let loads =
        [stream(PriorityRequest::new(USER).level(9), 0.8), stream(PriorityRequest::new(USER).level(0), 10.0)];
    let counts = run_streams(&mut scheduler, &loads, 1);
    // One slot serves five ninths of an offered load of 0.8; without priority beside ten times as many
    // requests it would be one twelfth.
    assert!(admitted_ratio(counts[0]) > 0.5, "{}", admitted_ratio(counts[0]));
}

#[test]
fn rejects_invalid_classes() {
    let class = |name: &str, share| PriorityClass::new(name, percent(share));
    assert!(PriorityScheduler::new([], 1).is_err());
    assert!(PriorityScheduler::new([class("a", 1.0)], 0).is_err());
    let much = PriorityScheduler::new([class("a", 60.0), class("b", 60.0)], 1).unwrap_err();
    assert_eq!(much.to_string(), "shares add up to 120%; give shares of at most 100% in total");
    assert!(PriorityScheduler::new([class("a", 1.0), class("a", 1.0)], 1).is_err());
    let mut scheduler = scheduler(&[("user", 100.0)], 1);
    assert_eq!(scheduler.try_acquire(Micros::ZERO, PriorityRequest::new(1)), Err(ShedReason::UnknownClass));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// For any steps in any order and any time: the limit is never exceeded, and a class below its share gets
    /// any free slot if the request has the highest rank.
    #[test]
    fn slots_are_conserved_and_shares_guaranteed(
        steps in prop::collection::vec((0..3_u8, 0..3_usize, any::<u8>(), any::<u8>(), 0..5_000_000_u64), 1..300),
        limit in 1..20_u32,
    ) {
        let mut scheduler = scheduler(&[("a", 50.0), ("b", 30.0), ("c", 0.0)], limit);
        let mut permits: Vec<PriorityPermit> = Vec::new();
        let mut max = limit;
        for (step, class, level, user, at) in steps {
            let now = Micros::new(at);
            let request = PriorityRequest::new(class).level(level).user(u64::from(user));
            match step {
                0 => {
                    let share = [50, 30, 0][class] * scheduler.limit() / 100;
                    let is_due = (permits.len() as u32) < scheduler.limit() && scheduler.in_flight_of(class) < share;
                    let result = scheduler.try_acquire(now, PriorityRequest { level: 255, user: None, ..request });
                    prop_assert!(result.is_ok() || !is_due, "{:?} under its share", result);
                    permits.extend(result);
                    max = max.max(scheduler.limit());
                }
                1 => permits.extend(scheduler.try_acquire(now, request)),
                _ if permits.is_empty() => scheduler.resize(u32::from(level) % 20),
                _ => scheduler.release(now, permits.swap_remove(usize::from(user) % permits.len())),
            }
            let in_flight: u32 = (0..3).map(|class| scheduler.in_flight_of(class)).sum();
            prop_assert_eq!(in_flight as usize, permits.len());
            prop_assert!(in_flight <= max.max(20));
        }
    }
}
