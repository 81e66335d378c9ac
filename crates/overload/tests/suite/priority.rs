//! Triage: the important go first, shares are kept, and what nobody asks for is used.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use proptest::prelude::*;
use std::{cmp::Reverse, collections::BinaryHeap};
use tidegate_core::{Micros, Percent};
use tidegate_overload::priority::{
    PriorityClass, PriorityPermit, PriorityRequest, PriorityScheduler, ShedReason,
};

/// A stream of arrivals that know nothing of each other.
#[derive(Clone, Copy)]
struct ArrivalStream {
    request: PriorityRequest,
    /// How many would be in flight on average if all were let in.
    offered: f64,
    /// When it comes, in milliseconds.
    start: u64,
    end: u64,
}

fn stream(arrival: PriorityRequest, offered: f64) -> ArrivalStream {
    ArrivalStream { request: arrival, offered, start: 0, end: RUN_MILLIS }
}

/// How long a slot is held on average, and how long a play is, in milliseconds.
const MEAN_HOLD_MILLIS: f64 = 10.0;
const RUN_MILLIS: u64 = 20_000;

/// A random number from 0 to 1, by a step of xorshift.
fn random(state: &mut u64) -> f64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) as f64 / (1_u64 << 53) as f64
}

fn exponential(state: &mut u64, mean: f64) -> Micros {
    Micros::new((-(1.0 - random(state)).ln() * mean * 1_000.0) as u64 + 1)
}

/// Lets all loads arrive, and says for each how many asked and how many were let in after the first second.
fn run_streams(triage: &mut PriorityScheduler, loads: &[ArrivalStream], seed: u64) -> Vec<(u32, u32)> {
    let mut rng = seed * 2 + 1;
    let mut counts = vec![(0, 0); loads.len()];
    let mut seats: Vec<Option<PriorityPermit>> = Vec::new();
    let mut events: BinaryHeap<Reverse<(Micros, usize, Option<usize>)>> = BinaryHeap::new();
    for (index, load) in loads.iter().enumerate() {
        events.push(Reverse((Micros::from_millis(load.start), index, None)));
    }
    while let Some(Reverse((now, index, leaves))) = events.pop() {
        if let Some(seat) = leaves {
            triage.release(now, seats[seat].take().unwrap());
            continue;
        }
        let load = &loads[index];
        if now >= Micros::from_millis(load.end) {
            continue;
        }
        events.push(Reverse((now.plus(exponential(&mut rng, MEAN_HOLD_MILLIS / load.offered)), index, None)));
        let is_counted = now >= Micros::from_millis(load.start + 1_000);
        counts[index].0 += u32::from(is_counted);
        if let Ok(seat) = triage.try_acquire(now, load.request) {
            counts[index].1 += u32::from(is_counted);
            events.push(Reverse((
                now.plus(exponential(&mut rng, MEAN_HOLD_MILLIS)),
                index,
                Some(seats.len()),
            )));
            seats.push(Some(seat));
        }
    }
    counts
}

fn admitted_ratio((asked, admitted): (u32, u32)) -> f64 {
    f64::from(admitted) / f64::from(asked)
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
    for seed in 1..=5 {
        for (limit, user, batch) in
            [(100, 50.0, 20.0), (100, 20.0, 50.0), (400, 50.0, 50.0), (50, 60.0, 20.0)]
        {
            let mut triage = scheduler(&[("user", user), ("batch", batch)], limit);
            let of = |share: f64| share / 100.0 * f64::from(limit);
            // A load that fits with its spread, and the flood.
            let loads = [
                stream(PriorityRequest::new(USER), of(user) * 0.8),
                stream(PriorityRequest::new(BATCH), 12.0 * of(batch)),
            ];
            let counts = run_streams(&mut triage, &loads, seed);
            assert!(
                admitted_ratio(counts[0]) >= 0.994,
                "{limit} {user} {batch} seed {seed}: {}",
                admitted_ratio(counts[0])
            );
            // And the flood still gets its own share, and more: nothing is left idle.
            let in_flight = f64::from(counts[1].1) / f64::from(counts[1].0) * loads[1].offered;
            assert!(in_flight > of(batch) * 0.9, "{limit} {user} {batch}: {in_flight} of {}", of(batch));
        }
    }
}

#[test]
fn unused_share_is_borrowed() {
    let mut triage = scheduler(&[("user", 60.0), ("batch", 10.0)], 100);
    let counts = run_streams(&mut triage, &[stream(PriorityRequest::new(BATCH), 300.0)], 1);
    let in_flight = admitted_ratio(counts[0]) * 300.0;
    assert!(in_flight > 98.0, "{in_flight} of 100 slots used");
}

#[test]
fn returning_class_regains_its_share() {
    let mut triage = scheduler(&[("user", 60.0), ("batch", 10.0)], 100);
    let late = ArrivalStream { start: 10_000, ..stream(PriorityRequest::new(USER), 40.0) };
    let counts = run_streams(&mut triage, &[late, stream(PriorityRequest::new(BATCH), 300.0)], 1);
    assert!(admitted_ratio(counts[0]) >= 0.994, "{}", admitted_ratio(counts[0]));
}

#[test]
fn low_class_keeps_share_during_high_class_flood() {
    let mut triage = scheduler(&[("user", 50.0), ("batch", 20.0)], 100);
    let loads = [stream(PriorityRequest::new(USER), 1_000.0), stream(PriorityRequest::new(BATCH), 10.0)];
    let counts = run_streams(&mut triage, &loads, 1);
    assert!(admitted_ratio(counts[1]) >= 0.98, "{}", admitted_ratio(counts[1]));
    assert!(admitted_ratio(counts[0]) * 1_000.0 > 70.0);
}

#[test]
fn lower_levels_are_shed_first() {
    let mut triage = scheduler(&[("user", 100.0)], 100);
    let loads = [
        stream(PriorityRequest::new(USER).level(9), 60.0),
        stream(PriorityRequest::new(USER).level(1), 140.0),
    ];
    let counts = run_streams(&mut triage, &loads, 1);
    assert!(admitted_ratio(counts[0]) > 0.99, "{}", admitted_ratio(counts[0]));
    let in_flight = admitted_ratio(counts[0]) * 60.0 + admitted_ratio(counts[1]) * 140.0;
    assert!(in_flight > 90.0, "{in_flight} of 100 slots used");
}

#[test]
fn heavy_users_are_shed_before_light_users() {
    let mut triage = scheduler(&[("user", 100.0)], 100);
    let mut loads = vec![stream(PriorityRequest::new(USER).user(1), 150.0)];
    // Fifty users of one each.
    loads.extend((2..52).map(|user| stream(PriorityRequest::new(USER).user(user), 1.0)));
    let counts = run_streams(&mut triage, &loads, 1);
    let light = counts[1..].iter().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
    assert!(admitted_ratio(light) > 0.97, "{}", admitted_ratio(light));
    assert!(
        admitted_ratio(counts[0]) * 150.0 > 35.0,
        "and the heavy one gets what they leave: {}",
        admitted_ratio(counts[0])
    );
}

#[test]
fn nothing_is_shed_without_pressure() {
    let mut triage = scheduler(&[("user", 40.0), ("batch", 40.0)], 100);
    let loads = [
        stream(PriorityRequest::new(USER).level(1), 20.0),
        stream(PriorityRequest::new(BATCH).level(0).user(7), 20.0),
    ];
    let counts = run_streams(&mut triage, &loads, 1);
    assert_eq!((admitted_ratio(counts[0]), admitted_ratio(counts[1])), (1.0, 1.0));
}

const YEAR: Micros = Micros::from_secs(365 * 24 * 3_600);

/// Users came for the first second of a new year, and all of them have left.
fn scheduler_after_busy_second() -> PriorityScheduler {
    let mut triage = scheduler(&[("user", 50.0), ("batch", 0.0)], 100);
    for millis in 0..1_000 {
        let now = YEAR.plus(Micros::from_millis(millis));
        let seats: Vec<_> =
            (0..40).map(|_| triage.try_acquire(now, PriorityRequest::new(USER)).unwrap()).collect();
        seats.into_iter().for_each(|seat| triage.release(now.plus(Micros::from_millis(10)), seat));
    }
    triage
}

#[test]
fn reserved_slots_expire_after_idle_time() {
    let admitted = |after: u64| {
        let (mut triage, now) = (scheduler_after_busy_second(), YEAR.plus(Micros::from_secs(after)));
        (0..100).filter(|_| triage.try_acquire(now, PriorityRequest::new(BATCH)).is_ok()).count()
    };
    assert!(admitted(1) < 50, "they were there just now");
    assert!(admitted(3_600) >= 99, "all but one, for whom somebody may come back");
}

/// What is kept for a class that went away fades, though the clock was set back by a year.
#[test]
fn clock_step_back_does_not_stop_decay() {
    let mut triage = scheduler_after_busy_second();
    let moments = (0..10_000).step_by(10).map(Micros::from_millis);
    assert_eq!(
        moments.filter(|now| triage.try_acquire(*now, PriorityRequest::new(BATCH)).is_ok()).count(),
        100
    );
}

/// A class with a single slot: it is not kept for somebody who comes once in a while.
#[test]
fn low_class_uses_idle_slot() {
    let mut triage = scheduler(&[("user", 100.0)], 1);
    let mut admitted = 0;
    for millis in 0..100_000_u64 {
        let now = Micros::from_millis(millis);
        let level = if millis % 200 == 0 { 9 } else { 0 };
        // Two at once, so that one of them is turned away.
        let answers =
            [level, 0].map(|level| triage.try_acquire(now, PriorityRequest::new(USER).level(level)));
        admitted += u32::from(answers[1].is_ok() || (level == 0 && answers[0].is_ok()));
        answers.into_iter().flatten().for_each(|seat| triage.release(now.plus(Micros::new(500)), seat));
    }
    assert!(admitted > 90_000, "{admitted} of 200000, two at a time");
}

/// But it is kept for those who want all of it.
#[test]
fn single_slot_goes_to_high_class() {
    let mut triage = scheduler(&[("user", 100.0)], 1);
    let loads =
        [stream(PriorityRequest::new(USER).level(9), 0.8), stream(PriorityRequest::new(USER).level(0), 10.0)];
    let counts = run_streams(&mut triage, &loads, 1);
    // One slot serves five in nine of an offer of 0.8; beside ten times as many others it would be one in twelve.
    assert!(admitted_ratio(counts[0]) > 0.5, "{}", admitted_ratio(counts[0]));
}

#[test]
fn rejects_invalid_classes() {
    let class = |name: &str, share| PriorityClass::new(name, percent(share));
    assert!(PriorityScheduler::new([], 1).is_err());
    assert!(PriorityScheduler::new([class("a", 1.0)], 0).is_err());
    let much = PriorityScheduler::new([class("a", 60.0), class("b", 60.0)], 1).unwrap_err();
    assert_eq!(much.to_string(), "shares of 120% in all; give shares that are not more than 100% together");
    assert!(PriorityScheduler::new([class("a", 1.0), class("a", 1.0)], 1).is_err());
    let mut triage = scheduler(&[("user", 100.0)], 1);
    assert_eq!(triage.try_acquire(Micros::ZERO, PriorityRequest::new(1)), Err(ShedReason::UnknownClass));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens, in whatever order, with time going anywhere: never more than the limit is given, and a class
    /// that has less than its share gets any slot that is free, if it is of the highest rank.
    #[test]
    fn slots_are_conserved_and_shares_guaranteed(
        steps in prop::collection::vec((0..3_u8, 0..3_usize, any::<u8>(), any::<u8>(), 0..5_000_000_u64), 1..300),
        limit in 1..20_u32,
    ) {
        let mut triage = scheduler(&[("a", 50.0), ("b", 30.0), ("c", 0.0)], limit);
        let mut seats: Vec<PriorityPermit> = Vec::new();
        let mut most = limit;
        for (step, class, level, user, at) in steps {
            let now = Micros::new(at);
            let arrival = PriorityRequest::new(class).level(level).user(u64::from(user));
            match step {
                0 => {
                    let share = [50, 30, 0][class] * triage.limit() / 100;
                    let is_due = (seats.len() as u32) < triage.limit() && triage.in_flight_of(class) < share;
                    let answer = triage.try_acquire(now, PriorityRequest { level: 255, user: None, ..arrival });
                    prop_assert!(answer.is_ok() || !is_due, "{:?} under its share", answer);
                    seats.extend(answer);
                    most = most.max(triage.limit());
                }
                1 => seats.extend(triage.try_acquire(now, arrival)),
                _ if seats.is_empty() => triage.resize(u32::from(level) % 20),
                _ => triage.release(now, seats.swap_remove(usize::from(user) % seats.len())),
            }
            let held: u32 = (0..3).map(|class| triage.in_flight_of(class)).sum();
            prop_assert_eq!(held as usize, seats.len());
            prop_assert!(held <= most.max(20));
        }
    }
}
