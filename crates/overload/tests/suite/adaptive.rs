//! Adaptive limits: the vectors of the models, and what the default must never do.

#![allow(clippy::unwrap_used, reason = "this is how a test fails")]

use proptest::prelude::*;
use tidegate_core::Micros;
use tidegate_overload::{
    Report,
    adaptive::{Aimd, Anchored, Bounds, Call, Controller, Decrease, Gradient2, Vegas},
};

/// A call of `latency` that starts at once and had `in_flight` beside it.
fn call(latency: Micros, in_flight: u32) -> Call {
    Call { start: Micros::ZERO, end: latency, in_flight, report: Report::Success }
}

fn millis(latency: u64, in_flight: u32) -> Call {
    call(Micros::from_millis(latency), in_flight)
}

fn lost(latency: u64, in_flight: u32) -> Call {
    Call { report: Report::Failure, ..millis(latency, in_flight) }
}

/// Feeds a controller and returns the limit after each call.
fn limits(controller: &mut dyn Controller, calls: impl IntoIterator<Item = Call>) -> Vec<u32> {
    calls.into_iter().map(|call| controller.record(call)).collect()
}

// Netflix/concurrency-limits, AIMDLimit: the formula, by hand.
#[test]
fn aimd_grows_by_one_and_falls_by_a_tenth() {
    let mut aimd = Aimd::new(Bounds::new(20, 20, 200).unwrap());
    assert_eq!(limits(&mut aimd, [millis(1, 10), millis(1, 10), millis(1, 9)]), [21, 21, 21]);
    assert_eq!(limits(&mut aimd, (0..4).map(|_| millis(1, 100))), [22, 23, 24, 25]);
    assert_eq!(limits(&mut aimd, [lost(1, 1), millis(5_001, 1), lost(1, 1)]), [22, 20, 20]);
    let mut high = Aimd::new(Bounds::new(1, 200, 200).unwrap());
    assert_eq!(limits(&mut high, [millis(1, 200), millis(5_000, 1), lost(1, 1)]), [200, 200, 180]);
}

// Netflix/concurrency-limits, VegasLimitTest.
#[test]
fn vegas_keeps_the_queue_between_its_marks() {
    let bounds = Bounds::new(1, 10, 20).unwrap();
    for (second, then) in [(millis(10, 11), 16), (millis(50, 11), 9), (millis(14, 14), 10)] {
        assert_eq!(limits(&mut Vegas::new(bounds), [millis(10, 10), second]), [10, then]);
    }
    let large = Bounds::new(1, 10_000, 20_000).unwrap();
    assert_eq!(
        limits(&mut Vegas::new(large), [millis(10_000, 5_000), millis(10_000, 6_000)]),
        [10_000, 10_024]
    );
    assert_eq!(limits(&mut Vegas::new(bounds), [millis(10, 10), lost(10, 10), millis(20, 1)]), [10, 9, 9]);
}

#[test]
fn vegas_falls_smoothly_when_told_to() {
    let bounds = Bounds::new(1, 100, 200).unwrap();
    let trace = || [millis(10, 100), millis(20, 100), millis(20, 100)];
    let mut sharp = Vegas::new(bounds).decrease(Decrease::ByHalf);
    assert_eq!(limits(&mut sharp, trace()), [100, 50, 25]);
    let mut smooth = Vegas::new(bounds).decrease(Decrease::ByHalf).smoothing(0.5).unwrap();
    assert_eq!(limits(&mut smooth, trace()), [100, 75, 56]);
}

#[test]
fn gradient2_follows_its_model() {
    let mut gradient = Gradient2::new(Bounds::new(20, 20, 200).unwrap());
    let grown = limits(&mut gradient, (0..12).map(|_| millis(10, 200)));
    assert_eq!(grown, [20, 21, 22, 23, 24, 24, 25, 26, 27, 28, 28, 29]);
    let fallen = limits(&mut gradient, (0..5).map(|_| millis(100, 200)));
    assert_eq!(fallen, [27, 25, 23, 22, 20]);
}

/// concurrency-limits #137: calls that all run into the same timeout.
fn timeouts(report: Report, limit: impl Fn() -> u32, record: &mut dyn FnMut(Call)) {
    let timeout = Micros::from_secs(5);
    // A closed loop: whenever one ends, the next is let in.
    for round in 0..200_u64 {
        let start = Micros::new(timeout.get() * round);
        for _ in 0..limit() {
            record(Call { start, end: start.plus(timeout), in_flight: limit(), report });
        }
    }
}

#[test]
fn constant_timeouts_make_gradient2_grow_and_the_default_shrink() {
    let controller = std::cell::RefCell::new(Gradient2::new(Bounds::new(1, 20, 200).unwrap()));
    timeouts(Report::Failure, || controller.borrow().limit(), &mut |call| {
        controller.borrow_mut().record(call);
    });
    assert_eq!(controller.borrow().limit(), 200, "the defect that the default must not have");

    // Whether the caller calls them failures or not.
    for report in [Report::Failure, Report::Success] {
        let anchored = Anchored::new(Micros::from_secs(1)).unwrap().bounds(Bounds::new(1, 20, 200).unwrap());
        let controller = std::cell::RefCell::new(anchored);
        timeouts(report, || controller.borrow().limit(), &mut |call| {
            controller.borrow_mut().record(call);
        });
        assert_eq!(controller.borrow().limit(), 1, "{report:?}");
    }
}

/// A backend that serves one call after the other, a millisecond each, and is never without work: all that is in flight
/// beside one is a queue. The limit starts where latency is at the target.
#[test]
fn a_step_up_that_ends_in_a_brake_is_not_tried_again_and_again() {
    let millisecond = Micros::from_millis(1);
    let mut anchored = Anchored::new(Micros::from_millis(20)).unwrap();
    let mut queue: std::collections::VecDeque<Call> = Default::default();
    let mut now = Micros::ZERO;
    for _ in 0..20_000 {
        while queue.len() < anchored.limit() as usize {
            let in_flight = queue.len() as u32 + 1;
            queue.push_back(Call { start: now, end: now, in_flight, report: Report::Success });
        }
        now = now.plus(millisecond);
        let done = queue.pop_front().unwrap();
        anchored.record(Call { end: now, ..done });
    }
    assert!(anchored.limit() <= 8, "{anchored:?}");
}

/// Two hundred seconds of calls, of which every `nth` is lost, with one place of the limit left free.
fn lose_every(nth: u64) -> u32 {
    let mut anchored = Anchored::new(Micros::from_millis(100)).unwrap();
    for index in 1..=20_000_u64 {
        let report = if index % nth == 0 { Report::Failure } else { Report::Success };
        let start = Micros::from_millis(10 * index);
        let end = start.plus(Micros::from_millis(5));
        anchored.record(Call { start, end, in_flight: 19, report });
    }
    anchored.limit()
}

#[test]
fn as_few_lost_calls_as_chance_makes_are_no_reason_to_brake() {
    assert_eq!(lose_every(100), 20, "a round of 80 calls has one or none of them");
    assert_eq!(lose_every(20_000), 20, "one call is no reason, however few there are beside it");
    assert_eq!(lose_every(10), 1);
}

/// With few calls, too: one in three seconds.
#[test]
fn one_lost_call_does_not_halve_the_limit_where_calls_are_rare() {
    let mut anchored = Anchored::new(Micros::from_millis(100)).unwrap();
    for second in (0..3_000).step_by(3) {
        let report = if second % 300 == 0 { Report::Failure } else { Report::Success };
        let start = Micros::from_secs(second);
        anchored.record(Call { start, end: start.plus(Micros::from_millis(5)), in_flight: 1, report });
    }
    assert_eq!(anchored.limit(), 20);
}

/// One call with an end in a far future is not the last that counts.
#[test]
fn time_that_jumps_and_comes_back_does_not_stop_the_default() {
    let mut anchored = Anchored::new(Micros::from_millis(100)).unwrap();
    limits(&mut anchored, [lost(1, 1), lost(1, 1), Call { end: Micros::MAX, ..lost(1, 1) }]);
    let after_the_jump = anchored.limit();
    assert!(after_the_jump < 20);
    for index in 0..1_000 {
        let start = Micros::from_millis(index);
        anchored.record(Call { start, end: start.plus(Micros::from_millis(1)), ..lost(1, 1) });
    }
    assert_eq!(anchored.limit(), 1);
}

#[test]
fn absurd_settings_are_refused() {
    for (floor, initial, ceiling) in [(0, 1, 2), (2, 1, 3), (1, 4, 3), (3, 3, 2)] {
        assert!(Bounds::new(floor, initial, ceiling).is_err(), "{floor} {initial} {ceiling}");
    }
    assert!(Anchored::new(Micros::ZERO).is_err() && Anchored::new(Micros::MAX).is_err());
    let anchored = Anchored::new(Micros::from_secs(1)).unwrap();
    for tolerance in [0.9, 11.0, f64::NAN, f64::INFINITY, -1.0] {
        assert!(anchored.clone().tolerance(tolerance).is_err(), "{tolerance}");
    }
    let aimd = Aimd::new(Bounds::default());
    assert!(aimd.clone().backoff(1.0).is_err() && aimd.clone().backoff(f64::NAN).is_err());
    assert!(aimd.timeout(Micros::ZERO).is_err());
    assert!(Vegas::new(Bounds::default()).smoothing(0.0).is_err());
}

fn controllers(bounds: Bounds) -> Vec<Box<dyn Controller>> {
    vec![
        Box::new(Aimd::new(bounds)),
        Box::new(Vegas::new(bounds)),
        Box::new(Vegas::new(bounds).decrease(Decrease::ByHalf)),
        Box::new(Gradient2::new(bounds)),
        Box::new(Anchored::new(Micros::from_millis(100)).unwrap().bounds(bounds)),
    ]
}

fn any_micros() -> impl Strategy<Value = Micros> {
    prop_oneof![Just(0), Just(1), 0..2_000_000_u64, any::<u64>()].prop_map(Micros::new)
}

fn any_call() -> impl Strategy<Value = Call> {
    let report = prop_oneof![Just(Report::Success), Just(Report::Failure), Just(Report::Ignored)];
    (any_micros(), any_micros(), prop_oneof![0..300_u32, any::<u32>()], report)
        .prop_map(|(start, end, in_flight, report)| Call { start, end, in_flight, report })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_call_however_absurd_moves_a_limit_past_its_ends(
        calls in prop::collection::vec(any_call(), 1..400),
        floor in 1..50_u32,
        above in 0..50_u32,
        more in 0..1_000_u32,
    ) {
        let bounds = Bounds::new(floor, floor + above, floor + above + more).unwrap();
        for mut controller in controllers(bounds) {
            for call in &calls {
                let limit = controller.record(*call);
                prop_assert!((bounds.floor()..=bounds.ceiling()).contains(&limit), "{controller:?}");
                prop_assert_eq!(limit, controller.limit());
            }
        }
    }

    #[test]
    fn ignored_calls_change_nothing(calls in prop::collection::vec(any_call(), 1..100)) {
        for mut controller in controllers(Bounds::default()) {
            let before = format!("{controller:?}");
            for call in &calls {
                // One that was given up late is lost in the eyes of the default.
                let end = call.end.min(call.start.plus(Micros::from_millis(100)));
                controller.record(Call { report: Report::Ignored, end, ..*call });
            }
            prop_assert_eq!(format!("{:?}", controller), before);
        }
    }

    /// As long as the limit is not reached and calls are fast, it stays: nothing is lowered to measure something.
    #[test]
    fn the_default_never_probes_in_a_healthy_system(
        latencies in prop::collection::vec(1_000..90_000_u64, 1..2_000),
    ) {
        let mut anchored = Anchored::new(Micros::from_millis(100)).unwrap();
        let mut now = Micros::ZERO;
        for latency in latencies {
            let start = now;
            now = now.plus(Micros::new(latency / 10));
            let end = start.plus(Micros::new(latency));
            let limit = anchored.record(Call { start, end, in_flight: 19, report: Report::Success });
            prop_assert_eq!(limit, 20);
        }
    }
}
