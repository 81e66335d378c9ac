//! Adaptive limits: reference vectors of the controllers, and invariants of the default.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use proptest::prelude::*;
use tidegate_core::Micros;
use tidegate_overload::{
    CallOutcome,
    adaptive::{Aimd, Bounds, CallSample, Controller, Decrease, Gradient2, LatencyTarget, Vegas},
};

/// A call of `latency` that starts at time zero, with `in_flight` calls in flight.
fn sample(latency: Micros, in_flight: u32) -> CallSample {
    CallSample { start: Micros::ZERO, end: latency, in_flight, outcome: CallOutcome::Success }
}

fn sample_millis(latency: u64, in_flight: u32) -> CallSample {
    sample(Micros::from_millis(latency), in_flight)
}

fn failed_sample(latency: u64, in_flight: u32) -> CallSample {
    CallSample { outcome: CallOutcome::Failure, ..sample_millis(latency, in_flight) }
}

/// Feeds a controller and returns the limit after each call.
fn record_all(controller: &mut dyn Controller, calls: impl IntoIterator<Item = CallSample>) -> Vec<u32> {
    calls.into_iter().map(|call| controller.record(call)).collect()
}

// Netflix/concurrency-limits, AIMDLimit: computed from the formula.
#[test]
fn aimd_increases_by_one_and_decreases_by_a_tenth() {
    let mut aimd = Aimd::new(Bounds::new(20, 20, 200).unwrap());
    assert_eq!(
        record_all(&mut aimd, [sample_millis(1, 10), sample_millis(1, 10), sample_millis(1, 9)]),
        [21, 21, 21]
    );
    assert_eq!(record_all(&mut aimd, (0..4).map(|_| sample_millis(1, 100))), [22, 23, 24, 25]);
    assert_eq!(
        record_all(&mut aimd, [failed_sample(1, 1), sample_millis(5_001, 1), failed_sample(1, 1)]),
        [22, 20, 20]
    );
    let mut high = Aimd::new(Bounds::new(1, 200, 200).unwrap());
    assert_eq!(
        record_all(&mut high, [sample_millis(1, 200), sample_millis(5_000, 1), failed_sample(1, 1)]),
        [200, 200, 180]
    );
}

// Netflix/concurrency-limits, VegasLimitTest.
#[test]
fn vegas_keeps_queue_between_alpha_and_beta() {
    let bounds = Bounds::new(1, 10, 20).unwrap();
    for (second, then) in
        [(sample_millis(10, 11), 16), (sample_millis(50, 11), 9), (sample_millis(14, 14), 10)]
    {
        assert_eq!(record_all(&mut Vegas::new(bounds), [sample_millis(10, 10), second]), [10, then]);
    }
    let large = Bounds::new(1, 10_000, 20_000).unwrap();
    assert_eq!(
        record_all(&mut Vegas::new(large), [sample_millis(10_000, 5_000), sample_millis(10_000, 6_000)]),
        [10_000, 10_024]
    );
    assert_eq!(
        record_all(
            &mut Vegas::new(bounds),
            [sample_millis(10, 10), failed_sample(10, 10), sample_millis(20, 1)]
        ),
        [10, 9, 9]
    );
}

#[test]
fn vegas_smooths_decrease() {
    let bounds = Bounds::new(1, 100, 200).unwrap();
    let trace = || [sample_millis(10, 100), sample_millis(20, 100), sample_millis(20, 100)];
    let mut sharp = Vegas::new(bounds).decrease(Decrease::Halve);
    assert_eq!(record_all(&mut sharp, trace()), [100, 50, 25]);
    let mut smooth = Vegas::new(bounds).decrease(Decrease::Halve).smoothing(0.5).unwrap();
    assert_eq!(record_all(&mut smooth, trace()), [100, 75, 56]);
}

#[test]
fn gradient2_matches_reference() {
    let mut gradient = Gradient2::new(Bounds::new(20, 20, 200).unwrap());
    let grown = record_all(&mut gradient, (0..12).map(|_| sample_millis(10, 200)));
    assert_eq!(grown, [20, 21, 22, 23, 24, 24, 25, 26, 27, 28, 28, 29]);
    let fallen = record_all(&mut gradient, (0..5).map(|_| sample_millis(100, 200)));
    assert_eq!(fallen, [27, 25, 23, 22, 20]);
}

/// concurrency-limits #137: all calls run into the same timeout.
fn timeouts(report: CallOutcome, limit: impl Fn() -> u32, record: &mut dyn FnMut(CallSample)) {
    let timeout = Micros::from_secs(5);
    // A closed loop: when a call ends, the next one is admitted.
    for round in 0..200_u64 {
        let start = Micros::new(timeout.get() * round);
        for _ in 0..limit() {
            record(CallSample {
                start,
                end: start.saturating_add(timeout),
                in_flight: limit(),
                outcome: report,
            });
        }
    }
}

#[test]
fn constant_timeouts_grow_gradient2_and_shrink_latency_target() {
    let controller = std::cell::RefCell::new(Gradient2::new(Bounds::new(1, 20, 200).unwrap()));
    timeouts(CallOutcome::Failure, || controller.borrow().limit(), &mut |call| {
        controller.borrow_mut().record(call);
    });
    assert_eq!(controller.borrow().limit(), 200, "Gradient2 grows despite the timeouts");

    // Whether the caller records them as failures or not.
    for report in [CallOutcome::Failure, CallOutcome::Success] {
        let controller =
            LatencyTarget::new(Micros::from_secs(1)).unwrap().bounds(Bounds::new(1, 20, 200).unwrap());
        let controller = std::cell::RefCell::new(controller);
        timeouts(report, || controller.borrow().limit(), &mut |call| {
            controller.borrow_mut().record(call);
        });
        assert_eq!(controller.borrow().limit(), 1, "{report:?}");
    }
}

/// A backend that serves one call after the other, a millisecond each, and always has work: all calls in
/// flight but one are a queue. The limit starts where the latency is at the target.
#[test]
fn failed_increase_is_not_retried_at_once() {
    let millisecond = Micros::from_millis(1);
    let mut controller = LatencyTarget::new(Micros::from_millis(20)).unwrap();
    let mut queue: std::collections::VecDeque<CallSample> = Default::default();
    let mut now = Micros::ZERO;
    for _ in 0..20_000 {
        while queue.len() < controller.limit() as usize {
            let in_flight = queue.len() as u32 + 1;
            queue.push_back(CallSample { start: now, end: now, in_flight, outcome: CallOutcome::Success });
        }
        now = now.saturating_add(millisecond);
        let done = queue.pop_front().unwrap();
        controller.record(CallSample { end: now, ..done });
    }
    assert!(controller.limit() <= 8, "{controller:?}");
}

/// Two hundred seconds of calls, every `nth` of which fails, with one slot of the limit free.
fn limit_after_losing_every(nth: u64) -> u32 {
    let mut controller = LatencyTarget::new(Micros::from_millis(100)).unwrap();
    for index in 1..=20_000_u64 {
        let report = if index % nth == 0 { CallOutcome::Failure } else { CallOutcome::Success };
        let start = Micros::from_millis(10 * index);
        let end = start.saturating_add(Micros::from_millis(5));
        controller.record(CallSample { start, end, in_flight: 19, outcome: report });
    }
    controller.limit()
}

#[test]
fn losses_within_tolerance_keep_limit() {
    assert_eq!(limit_after_losing_every(100), 20, "a round of 80 calls has at most one failure");
    assert_eq!(
        limit_after_losing_every(20_000),
        20,
        "one failure does not change the limit, however few the calls"
    );
    assert_eq!(limit_after_losing_every(10), 1);
}

/// The same with few calls: one per three seconds.
#[test]
fn single_loss_keeps_limit_under_low_traffic() {
    let mut controller = LatencyTarget::new(Micros::from_millis(100)).unwrap();
    for second in (0..3_000).step_by(3) {
        let report = if second % 300 == 0 { CallOutcome::Failure } else { CallOutcome::Success };
        let start = Micros::from_secs(second);
        controller.record(CallSample {
            start,
            end: start.saturating_add(Micros::from_millis(5)),
            in_flight: 1,
            outcome: report,
        });
    }
    assert_eq!(controller.limit(), 20);
}

/// A call that ends in the far future does not exclude later calls.
#[test]
fn clock_jump_does_not_stop_latency_target() {
    let mut controller = LatencyTarget::new(Micros::from_millis(100)).unwrap();
    record_all(
        &mut controller,
        [failed_sample(1, 1), failed_sample(1, 1), CallSample { end: Micros::MAX, ..failed_sample(1, 1) }],
    );
    let after_the_jump = controller.limit();
    assert!(after_the_jump < 20);
    for index in 0..1_000 {
        let start = Micros::from_millis(index);
        controller.record(CallSample {
            start,
            end: start.saturating_add(Micros::from_millis(1)),
            ..failed_sample(1, 1)
        });
    }
    assert_eq!(controller.limit(), 1);
}

#[test]
fn rejects_invalid_settings() {
    for (floor, initial, ceiling) in [(0, 1, 2), (2, 1, 3), (1, 4, 3), (3, 3, 2)] {
        assert!(Bounds::new(floor, initial, ceiling).is_err(), "{floor} {initial} {ceiling}");
    }
    assert!(LatencyTarget::new(Micros::ZERO).is_err() && LatencyTarget::new(Micros::MAX).is_err());
    let controller = LatencyTarget::new(Micros::from_secs(1)).unwrap();
    for tolerance in [0.9, 11.0, f64::NAN, f64::INFINITY, -1.0] {
        assert!(controller.clone().tolerance(tolerance).is_err(), "{tolerance}");
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
        Box::new(Vegas::new(bounds).decrease(Decrease::Halve)),
        Box::new(Gradient2::new(bounds)),
        Box::new(LatencyTarget::new(Micros::from_millis(100)).unwrap().bounds(bounds)),
    ]
}

fn any_micros() -> impl Strategy<Value = Micros> {
    prop_oneof![Just(0), Just(1), 0..2_000_000_u64, any::<u64>()].prop_map(Micros::new)
}

fn any_call() -> impl Strategy<Value = CallSample> {
    let report =
        prop_oneof![Just(CallOutcome::Success), Just(CallOutcome::Failure), Just(CallOutcome::Ignored)];
    (any_micros(), any_micros(), prop_oneof![0..300_u32, any::<u32>()], report)
        .prop_map(|(start, end, in_flight, report)| CallSample { start, end, in_flight, outcome: report })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn limit_stays_within_bounds_for_any_call(
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
    fn ignored_calls_keep_controller_state(calls in prop::collection::vec(any_call(), 1..100)) {
        for mut controller in controllers(Bounds::default()) {
            let before = format!("{controller:?}");
            for call in &calls {
                // A late cancellation counts as a failure for the default controller.
                let end = call.end.min(call.start.saturating_add(Micros::from_millis(100)));
                controller.record(CallSample { outcome: CallOutcome::Ignored, end, ..*call });
            }
            prop_assert_eq!(format!("{:?}", controller), before);
        }
    }

    /// While the limit is not reached and calls are fast, it stays: it is not lowered for measurements.
    #[test]
    fn latency_target_holds_limit_in_healthy_system(
        latencies in prop::collection::vec(1_000..90_000_u64, 1..2_000),
    ) {
        let mut controller = LatencyTarget::new(Micros::from_millis(100)).unwrap();
        let mut now = Micros::ZERO;
        for latency in latencies {
            let start = now;
            now = now.saturating_add(Micros::new(latency / 10));
            let end = start.saturating_add(Micros::new(latency));
            let limit = controller.record(CallSample { start, end, in_flight: 19, outcome: CallOutcome::Success });
            prop_assert_eq!(limit, 20);
        }
    }
}
