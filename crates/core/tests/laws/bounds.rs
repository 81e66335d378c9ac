//! Law 2: admissions in any window never exceed the stated bound.

use crate::admissions::{check, closed, play};
use tidegate_core::Micros;
use tidegate_testkit::{Plain, strategy::*};

#[test]
fn no_window_holds_more_than_the_bound() {
    hold(moves(), |sample, story| {
        let (mut key, mut moment) = (Plain::new(sample.quota), Moment::start_of(&sample));
        let admissions = play(&mut key, &sample, &mut moment, &story);
        let bound = sample.quota.bound();
        match closed(&sample.quota) {
            true => check(admissions, |length| bound.in_any(length.since(Micros::new(1)))),
            false => check(admissions, |length| bound.in_any(length)),
        }
    });
}

#[test]
fn nor_do_those_who_wait_for_their_turn() {
    hold(patient_moves(), |sample, story| {
        let (mut key, mut moment) = (Plain::new(sample.quota), Moment::start_of(&sample));
        let admissions = play(&mut key, &sample, &mut moment, &story);
        check(admissions, |length| sample.quota.bound().in_any(length))
    });
}

/// The bounds are reached, so none of them is too careful.
#[test]
fn the_bounds_are_tight() {
    use tidegate_core::{Demand, Quota};
    use tidegate_testkit::Subject;

    let second = Micros::from_secs(1);
    // Ask for one at each of these moments; so many pass within a second of the first that does.
    let just_before = |count: usize| vec![999_999; count];
    let every_10ms = || (1_000_000..1_999_999).step_by(10_000);
    for (quota, asks) in [
        ("10/s burst 5", (0..1_000_000).step_by(10_000).chain([0; 5]).collect::<Vec<_>>()),
        ("10/s fixed-window", just_before(10).into_iter().chain([1_000_000; 10]).collect()),
        ("10/s sliding-window", just_before(10).into_iter().chain(every_10ms()).collect()),
        ("10/s sliding-strict 10", just_before(10).into_iter().chain(every_10ms()).collect()),
        ("10/s sliding-log", just_before(10).into_iter().chain(every_10ms()).collect()),
    ] {
        let quota: Quota = quota.parse().unwrap();
        let mut key = Plain::new(quota);
        let mut asks = asks;
        asks.sort_unstable();
        let passed: Vec<_> = asks
            .into_iter()
            .filter(|&at| key.decide(Micros::new(at), Demand::now(1)).decision.is_allowed())
            .collect();
        let passed = passed.iter().filter(|&&at| at < passed[0] + second.get()).count() as u64;
        // The token bucket's last token would come at the very end of the second.
        let open_end = if closed(&quota) { 1 } else { 0 };
        assert_eq!(passed + open_end, quota.bound().in_any(second), "{quota}");
    }
}
