//! Property 2: admissions in any window never exceed the stated bound.

use super::admissions::{check_windows, has_closed_interval_bound, run_calls};
use tidegate_core::{Demand, Micros, Quota};
use tidegate_testkit::{CoreModel, Subject, strategy::*};

#[test]
fn admissions_stay_within_bound() {
    check_property(call_steps(), |sample, calls| {
        let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        let admissions = run_calls(&mut key, &sample, &mut clock, &calls);
        let bound = sample.quota.bound();
        match has_closed_interval_bound(&sample.quota) {
            true => {
                check_windows(admissions, |length| bound.max_in_window(length.saturating_sub(Micros::new(1))))
            }
            false => check_windows(admissions, |length| bound.max_in_window(length)),
        }
    });
}

#[test]
fn delayed_admissions_stay_within_bound() {
    check_property(waiting_call_steps(), |sample, calls| {
        let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        let admissions = run_calls(&mut key, &sample, &mut clock, &calls);
        check_windows(admissions, |length| sample.quota.bound().max_in_window(length))
    });
}

/// The bounds are reached, so they are tight. Not for windows from the first hit, which admit one less, nor for
/// the shapers, whose bound includes the truncation of debts to microseconds.
#[test]
fn bounds_are_tight() {
    let second = Micros::from_secs(1);
    // Check one token at each of these times, and count the admissions in each second.
    let at_once = |at: u64, count: usize| vec![at; count];
    let every_10ms = |from: u64| (from..from + 1_000_000).step_by(10_000).collect::<Vec<_>>();
    let late_burst = || [at_once(999_999, 10), every_10ms(1_000_000)].concat();
    for (quota, mut times) in [
        ("10/s burst 5", [at_once(0, 5), every_10ms(0)].concat()),
        ("10/s leaky-bucket queue 9 delay 4", [at_once(0, 5), every_10ms(0)].concat()),
        ("10/s fixed-window", [at_once(999_999, 10), at_once(1_000_000, 10)].concat()),
        ("10/s sliding-window", late_burst()),
        ("10/s sliding-strict 10", late_burst()),
        ("10/s sliding-log", late_burst()),
    ] {
        let quota: Quota = quota.parse().unwrap();
        let mut key = CoreModel::new(quota);
        times.sort_unstable();
        let is_allowed = |at: &u64| key.decide(Micros::new(*at), Demand::new(1)).decision.is_allowed();
        let admitted: Vec<u64> = times.into_iter().filter(is_allowed).collect();
        let in_second =
            |from: &u64| admitted.iter().filter(|at| (*from..from + second.get()).contains(at)).count();
        let most = admitted.iter().map(in_second).max().unwrap() as u64;
        // The last token of a token bucket is available at the very end of the second.
        let open_end = if has_closed_interval_bound(&quota) { 1 } else { 0 };
        assert_eq!(most + open_end, quota.bound().max_in_window(second), "{quota}");
    }
}

/// The resolution of the clock is added to the window.
#[test]
fn clock_resolution_widens_the_bound() {
    let (second, tick) = (Micros::from_secs(1), Micros::from_millis(4));
    for (quota, exact, blurred) in [
        ("1000/s burst 10", 1_010, 1_014),
        ("1000/s leaky-bucket queue 99 delay 9", 1_010, 1_014),
        ("10/s fixed-window", 20, 30),
        ("10/s sliding-window", 19, 29),
        ("10/s sliding-log", 10, 20),
        ("7 at once", 7, 7),
    ] {
        let bound = quota.parse::<Quota>().unwrap().bound();
        assert_eq!(bound.max_in_window(second), exact, "{quota}");
        assert_eq!(bound.with_clock_resolution(tick).max_in_window(second), blurred, "{quota}");
        assert_eq!(bound.max_in_window(second.saturating_add(tick)), blurred, "{quota}");
        let text = bound.with_clock_resolution(tick).to_string();
        assert!(text.ends_with(", with a clock resolution of 4ms"), "{text}");
        assert!(!bound.to_string().contains("clock"), "{bound}");
    }
}
