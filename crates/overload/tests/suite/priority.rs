//! Triage: the important go first, shares are kept, and what nobody asks for is used.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use proptest::prelude::*;
use std::{cmp::Reverse, collections::BinaryHeap};
use tidegate_core::{Micros, Percent};
use tidegate_overload::priority::{Arrival, Class, Seat, Shed, Triage};

/// A stream of arrivals that know nothing of each other.
#[derive(Clone, Copy)]
struct Load {
    arrival: Arrival,
    /// How many would be in flight on average if all were let in.
    offered: f64,
    /// When it comes, in milliseconds.
    from: u64,
    to: u64,
}

fn load(arrival: Arrival, offered: f64) -> Load {
    Load { arrival, offered, from: 0, to: LENGTH }
}

/// How long a slot is held on average, and how long a play is, in milliseconds.
const HOLD: f64 = 10.0;
const LENGTH: u64 = 20_000;

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
fn play(triage: &mut Triage, loads: &[Load], seed: u64) -> Vec<(u32, u32)> {
    let mut rng = seed * 2 + 1;
    let mut counts = vec![(0, 0); loads.len()];
    let mut seats: Vec<Option<Seat>> = Vec::new();
    let mut events: BinaryHeap<Reverse<(Micros, usize, Option<usize>)>> = BinaryHeap::new();
    for (index, load) in loads.iter().enumerate() {
        events.push(Reverse((Micros::from_millis(load.from), index, None)));
    }
    while let Some(Reverse((now, index, leaves))) = events.pop() {
        if let Some(seat) = leaves {
            triage.leave(now, seats[seat].take().unwrap());
            continue;
        }
        let load = &loads[index];
        if now >= Micros::from_millis(load.to) {
            continue;
        }
        events.push(Reverse((now.plus(exponential(&mut rng, HOLD / load.offered)), index, None)));
        let is_counted = now >= Micros::from_millis(load.from + 1_000);
        counts[index].0 += u32::from(is_counted);
        if let Ok(seat) = triage.arrive(now, load.arrival) {
            counts[index].1 += u32::from(is_counted);
            events.push(Reverse((now.plus(exponential(&mut rng, HOLD)), index, Some(seats.len()))));
            seats.push(Some(seat));
        }
    }
    counts
}

fn kept((asked, admitted): (u32, u32)) -> f64 {
    f64::from(admitted) / f64::from(asked)
}

fn percent(percent: f64) -> Percent {
    Percent::new(percent).unwrap()
}

fn triage(classes: &[(&str, f64)], limit: u32) -> Triage {
    let classes = classes.iter().map(|(name, share)| Class::new(*name, percent(*share)));
    Triage::new(classes, limit).unwrap()
}

const USER: usize = 0;
const BATCH: usize = 1;

#[test]
fn a_low_class_at_twelve_times_its_share_does_not_hurt_the_high_one() {
    for seed in 1..=5 {
        for (limit, user, batch) in
            [(100, 50.0, 20.0), (100, 20.0, 50.0), (400, 50.0, 50.0), (50, 60.0, 20.0)]
        {
            let mut triage = triage(&[("user", user), ("batch", batch)], limit);
            let of = |share: f64| share / 100.0 * f64::from(limit);
            // A load that fits with its spread, and the flood.
            let loads = [load(Arrival::of(USER), of(user) * 0.8), load(Arrival::of(BATCH), 12.0 * of(batch))];
            let counts = play(&mut triage, &loads, seed);
            assert!(kept(counts[0]) >= 0.994, "{limit} {user} {batch} seed {seed}: {}", kept(counts[0]));
            // And the flood still gets its own share, and more: nothing is left idle.
            let in_flight = f64::from(counts[1].1) / f64::from(counts[1].0) * loads[1].offered;
            assert!(in_flight > of(batch) * 0.9, "{limit} {user} {batch}: {in_flight} of {}", of(batch));
        }
    }
}

#[test]
fn what_an_idle_class_leaves_is_used_by_others() {
    let mut triage = triage(&[("user", 60.0), ("batch", 10.0)], 100);
    let counts = play(&mut triage, &[load(Arrival::of(BATCH), 300.0)], 1);
    let in_flight = kept(counts[0]) * 300.0;
    assert!(in_flight > 98.0, "{in_flight} of 100 slots used");
}

#[test]
fn a_class_that_comes_back_gets_its_share_again() {
    let mut triage = triage(&[("user", 60.0), ("batch", 10.0)], 100);
    let late = Load { from: 10_000, ..load(Arrival::of(USER), 40.0) };
    let counts = play(&mut triage, &[late, load(Arrival::of(BATCH), 300.0)], 1);
    assert!(kept(counts[0]) >= 0.994, "{}", kept(counts[0]));
}

#[test]
fn the_share_of_a_low_class_is_kept_when_the_high_one_floods() {
    let mut triage = triage(&[("user", 50.0), ("batch", 20.0)], 100);
    let loads = [load(Arrival::of(USER), 1_000.0), load(Arrival::of(BATCH), 10.0)];
    let counts = play(&mut triage, &loads, 1);
    assert!(kept(counts[1]) >= 0.98, "{}", kept(counts[1]));
    assert!(kept(counts[0]) * 1_000.0 > 70.0);
}

#[test]
fn inside_a_class_the_less_important_go_first() {
    let mut triage = triage(&[("user", 100.0)], 100);
    let loads = [load(Arrival::of(USER).level(9), 60.0), load(Arrival::of(USER).level(1), 140.0)];
    let counts = play(&mut triage, &loads, 1);
    assert!(kept(counts[0]) > 0.99, "{}", kept(counts[0]));
    let in_flight = kept(counts[0]) * 60.0 + kept(counts[1]) * 140.0;
    assert!(in_flight > 90.0, "{in_flight} of 100 slots used");
}

#[test]
fn inside_a_level_heavy_users_lose_before_light_ones() {
    let mut triage = triage(&[("user", 100.0)], 100);
    let mut loads = vec![load(Arrival::of(USER).user(1), 150.0)];
    // Fifty users of one each.
    loads.extend((2..52).map(|user| load(Arrival::of(USER).user(user), 1.0)));
    let counts = play(&mut triage, &loads, 1);
    let light = counts[1..].iter().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
    assert!(kept(light) > 0.97, "{}", kept(light));
    assert!(kept(counts[0]) * 150.0 > 35.0, "and the heavy one gets what they leave: {}", kept(counts[0]));
}

#[test]
fn without_pressure_nobody_is_turned_away() {
    let mut triage = triage(&[("user", 40.0), ("batch", 40.0)], 100);
    let loads = [load(Arrival::of(USER).level(1), 20.0), load(Arrival::of(BATCH).level(0).user(7), 20.0)];
    let counts = play(&mut triage, &loads, 1);
    assert_eq!((kept(counts[0]), kept(counts[1])), (1.0, 1.0));
}

const YEAR: Micros = Micros::from_secs(365 * 24 * 3_600);

/// Users came for the first second of a new year, and all of them have left.
fn after_a_busy_second() -> Triage {
    let mut triage = triage(&[("user", 50.0), ("batch", 0.0)], 100);
    for millis in 0..1_000 {
        let now = YEAR.plus(Micros::from_millis(millis));
        let seats: Vec<_> = (0..40).map(|_| triage.arrive(now, Arrival::of(USER)).unwrap()).collect();
        seats.into_iter().for_each(|seat| triage.leave(now.plus(Micros::from_millis(10)), seat));
    }
    triage
}

#[test]
fn after_a_long_silence_nothing_is_kept_for_those_who_were_there_before() {
    let admitted = |after: u64| {
        let (mut triage, now) = (after_a_busy_second(), YEAR.plus(Micros::from_secs(after)));
        (0..100).filter(|_| triage.arrive(now, Arrival::of(BATCH)).is_ok()).count()
    };
    assert!(admitted(1) < 50, "they were there just now");
    assert!(admitted(3_600) >= 99, "all but one, for whom somebody may come back");
}

/// What is kept for a class that went away fades, though the clock was set back by a year.
#[test]
fn time_that_is_set_back_does_not_stop_the_fading() {
    let mut triage = after_a_busy_second();
    let moments = (0..10_000).step_by(10).map(Micros::from_millis);
    assert_eq!(moments.filter(|now| triage.arrive(*now, Arrival::of(BATCH)).is_ok()).count(), 100);
}

/// A class with a single slot: it is not kept for somebody who comes once in a while.
#[test]
fn the_less_important_do_not_starve_beside_an_idle_slot() {
    let mut triage = triage(&[("user", 100.0)], 1);
    let mut admitted = 0;
    for millis in 0..100_000_u64 {
        let now = Micros::from_millis(millis);
        let level = if millis % 200 == 0 { 9 } else { 0 };
        // Two at once, so that one of them is turned away.
        let answers = [level, 0].map(|level| triage.arrive(now, Arrival::of(USER).level(level)));
        admitted += u32::from(answers[1].is_ok() || (level == 0 && answers[0].is_ok()));
        answers.into_iter().flatten().for_each(|seat| triage.leave(now.plus(Micros::new(500)), seat));
    }
    assert!(admitted > 90_000, "{admitted} of 200000, two at a time");
}

/// But it is kept for those who want all of it.
#[test]
fn a_single_slot_goes_to_the_more_important() {
    let mut triage = triage(&[("user", 100.0)], 1);
    let loads = [load(Arrival::of(USER).level(9), 0.8), load(Arrival::of(USER).level(0), 10.0)];
    let counts = play(&mut triage, &loads, 1);
    // One slot serves five in nine of an offer of 0.8; beside ten times as many others it would be one in twelve.
    assert!(kept(counts[0]) > 0.5, "{}", kept(counts[0]));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let class = |name: &str, share| Class::new(name, percent(share));
    assert!(Triage::new([], 1).is_err());
    assert!(Triage::new([class("a", 1.0)], 0).is_err());
    let much = Triage::new([class("a", 60.0), class("b", 60.0)], 1).unwrap_err();
    assert_eq!(much.to_string(), "shares of 120% in all; give shares that are not more than 100% together");
    assert!(Triage::new([class("a", 1.0), class("a", 1.0)], 1).is_err());
    let mut triage = triage(&[("user", 100.0)], 1);
    assert_eq!(triage.arrive(Micros::ZERO, Arrival::of(1)), Err(Shed::UnknownClass));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens, in whatever order, with time going anywhere: never more than the limit is given, and a class
    /// that has less than its share gets any slot that is free, if it is of the highest rank.
    #[test]
    fn slots_are_conserved_and_shares_are_kept(
        steps in prop::collection::vec((0..3_u8, 0..3_usize, any::<u8>(), any::<u8>(), 0..5_000_000_u64), 1..300),
        limit in 1..20_u32,
    ) {
        let mut triage = triage(&[("a", 50.0), ("b", 30.0), ("c", 0.0)], limit);
        let mut seats: Vec<Seat> = Vec::new();
        let mut most = limit;
        for (step, class, level, user, at) in steps {
            let now = Micros::new(at);
            let arrival = Arrival::of(class).level(level).user(u64::from(user));
            match step {
                0 => {
                    let share = [50, 30, 0][class] * triage.limit() / 100;
                    let is_due = (seats.len() as u32) < triage.limit() && triage.in_flight_of(class) < share;
                    let answer = triage.arrive(now, Arrival { level: 255, user: None, ..arrival });
                    prop_assert!(answer.is_ok() || !is_due, "{:?} under its share", answer);
                    seats.extend(answer);
                    most = most.max(triage.limit());
                }
                1 => seats.extend(triage.arrive(now, arrival)),
                _ if seats.is_empty() => triage.resize(u32::from(level) % 20),
                _ => triage.leave(now, seats.swap_remove(usize::from(user) % seats.len())),
            }
            let held: u32 = (0..3).map(|class| triage.in_flight_of(class)).sum();
            prop_assert_eq!(held as usize, seats.len());
            prop_assert!(held <= most.max(20));
        }
    }
}
