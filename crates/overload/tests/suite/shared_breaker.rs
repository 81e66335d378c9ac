//! A shared breaker: permits that are recorded, dropped, cancelled or lost in a panic, and many threads.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Barrier,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};
use tidegate_core::Percent;
use tidegate_limiter::{Clock, ManualClock};
use tidegate_overload::{
    Breaker, BreakerBuilder, BreakerSettings, BreakerState, CallCounts, CallError, CallGuard, CallOutcome,
    Rejection,
};

const SECOND: Duration = Duration::from_secs(1);

/// Opens for a second when both of two calls failed; then one probe.
fn settings() -> BreakerBuilder {
    BreakerSettings::builder()
        .count_window(2)
        .failure_rate(Percent::FULL)
        .half_open_calls(1)
        .open_duration(SECOND)
}

fn breaker(settings: BreakerBuilder) -> (Arc<Breaker>, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    (Arc::new(Breaker::with_clock(settings.build().unwrap(), clock)), manual_clock)
}

/// A breaker whose next call is a probe.
fn half_open_breaker(settings: BreakerBuilder) -> (Arc<Breaker>, ManualClock) {
    let (breaker, manual_clock) = breaker(settings);
    breaker.open_for(SECOND);
    manual_clock.advance(SECOND);
    (breaker, manual_clock)
}

fn failure_counts(breaker: &Breaker) -> (u64, u64) {
    let CallCounts { calls, failures, .. } = breaker.snapshot().counts;
    (calls, failures)
}

#[test]
fn permit_records_every_outcome() {
    let (breaker, _manual_clock) = breaker(settings().count_window(10));
    breaker.try_acquire().unwrap().succeed();
    breaker.try_acquire().unwrap().fail();
    breaker.try_acquire().unwrap().ignore();
    breaker.try_acquire_owned().unwrap().record(CallOutcome::Failure);
    assert_eq!(failure_counts(&breaker), (3, 2));
}

/// The clock is read only for an outcome that may open the breaker.
#[test]
fn open_time_starts_when_breaker_opens() {
    let slow = settings().count_window(2).slow_calls(Percent::from_ratio(1, 2), SECOND);
    for settings in [settings(), slow] {
        let (breaker, manual_clock) = breaker(settings);
        manual_clock.advance(SECOND * 1_000);
        breaker.try_acquire().unwrap().fail();
        let permit = breaker.try_acquire().unwrap();
        manual_clock.advance(SECOND * 2);
        permit.fail();
        assert_eq!(breaker.try_acquire().unwrap_err(), Rejection::Open(SECOND.into()));
    }
    let (breaker, manual_clock) =
        breaker(settings().count_window(2).slow_calls(Percent::from_ratio(1, 2), SECOND));
    manual_clock.advance(SECOND * 1_000);
    (0..2).for_each(|_| breaker.try_acquire().unwrap().succeed());
    let permit = breaker.try_acquire().unwrap();
    manual_clock.advance(SECOND * 2);
    permit.succeed();
    assert_eq!(breaker.try_acquire().unwrap_err(), Rejection::Open(SECOND.into()));
}

/// A success of an older generation is not counted outside of the lock either.
#[test]
fn success_of_older_generation_is_not_counted() {
    let (breaker, _manual_clock) = breaker(settings());
    let permit = breaker.try_acquire().unwrap();
    breaker.set_metrics_only();
    (0..2).for_each(|_| breaker.try_acquire().unwrap().fail());
    permit.succeed();
    assert_eq!(failure_counts(&breaker), (2, 2));
}

#[test]
fn dropped_permit_is_ignored_and_frees_probe() {
    let (breaker, _manual_clock) = half_open_breaker(settings());
    for _ in 0..5 {
        let probe = breaker.try_acquire().unwrap();
        assert!(matches!(breaker.try_acquire(), Err(Rejection::Probing(_))));
        drop(probe);
    }
    assert_eq!(breaker.snapshot().counts, CallCounts::default());
    breaker.try_acquire_owned().unwrap().succeed();
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn panic_counts_as_failure() {
    let (breaker, _manual_clock) = breaker(settings());
    for calls in 1..=2 {
        let panicked =
            catch_unwind(AssertUnwindSafe(|| breaker.call(|| -> Result<(), ()> { panic!("on purpose") })));
        assert!(panicked.is_err());
        assert_eq!(failure_counts(&breaker), (calls, calls));
    }
    assert_eq!(breaker.state(), BreakerState::Open);
}

#[test]
fn call_distinguishes_rejection_from_error() {
    let (breaker, manual_clock) = breaker(settings());
    let fails = || Err::<(), _>("no response");
    (0..2).for_each(|_| assert_eq!(breaker.call(fails), Err(CallError::Failed("no response"))));
    let Err(CallError::GuardRejected(rejection)) = breaker.call(fails) else { panic!("it is open") };
    assert_eq!(rejection, Rejection::Open(SECOND.into()));
    manual_clock.advance(SECOND);
    assert_eq!(breaker.call(|| Ok::<_, ()>(7)), Ok(7));
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn classifier_decides_failure() {
    let (breaker, _manual_clock) = breaker(settings().count_window(10));
    let classify = |result: &Result<u16, &str>| match result {
        Ok(500..) => CallOutcome::Failure,
        Ok(_) => CallOutcome::Success,
        Err(_) => CallOutcome::Ignored,
    };
    for status in [Ok(200), Ok(503), Err("cancelled")] {
        let result = breaker.call_classified(classify, || status);
        assert_eq!(result, status.map_err(CallError::Failed));
    }
    assert_eq!(failure_counts(&breaker), (2, 1));
}

#[test]
fn slow_call_limit_times_calls() {
    let (breaker, manual_clock) = breaker(settings().slow_calls(Percent::FULL, SECOND));
    for (took, state) in [
        (SECOND, BreakerState::Closed),
        (SECOND, BreakerState::Closed),
        (SECOND * 2, BreakerState::Closed),
        (SECOND * 2, BreakerState::Open),
    ] {
        let permit = breaker.try_acquire().unwrap();
        manual_clock.advance(took);
        permit.succeed();
        assert_eq!(breaker.state(), state);
    }
    assert_eq!(breaker.snapshot().slow_rate, Some(Percent::FULL));
}

/// Through all fast paths: a window full of successes, one with failures, and manual changes in between.
#[test]
fn manual_transition_applies_at_once() {
    let (breaker, manual_clock) = breaker(settings());
    (0..5).for_each(|_| breaker.try_acquire().unwrap().succeed());
    let late = breaker.try_acquire().unwrap();
    breaker.force_open();
    assert_eq!(breaker.try_acquire().unwrap_err(), Rejection::ForcedOpen);
    late.fail();
    manual_clock.advance(SECOND * 1_000);
    assert!(breaker.try_acquire().is_err());
    breaker.disable();
    (0..5).for_each(|_| breaker.try_acquire().unwrap().fail());
    assert_eq!((breaker.state(), failure_counts(&breaker)), (BreakerState::Disabled, (0, 0)));
    breaker.set_metrics_only();
    (0..5).for_each(|_| breaker.try_acquire().unwrap().fail());
    assert_eq!((breaker.state(), failure_counts(&breaker)), (BreakerState::MetricsOnly, (2, 2)));
    breaker.close();
    breaker.try_acquire().unwrap().fail();
    breaker.try_acquire().unwrap().succeed();
    assert_eq!((breaker.state(), failure_counts(&breaker)), (BreakerState::Closed, (2, 1)));
    breaker.open_for(SECOND);
    assert_eq!(breaker.snapshot().rejected, 2);
    assert_eq!(breaker.try_acquire().unwrap_err().retry_after(), Some(SECOND.into()));
}

#[tokio::test]
async fn async_calls_are_recorded_and_cancelled_ones_are_ignored() {
    let (breaker, _manual_clock) = breaker(settings().count_window(10));
    assert_eq!(breaker.call_async(|| async { Ok::<_, ()>(1) }).await, Ok(1));
    assert_eq!(breaker.call_async(|| async { Err::<(), _>(2) }).await, Err(CallError::Failed(2)));
    let all_fine = |_: &Result<(), i32>| CallOutcome::Success;
    assert!(breaker.call_async_classified(all_fine, || async { Err(3) }).await.is_err());
    assert_eq!(failure_counts(&breaker), (3, 1));

    let (breaker, _manual_clock) = half_open_breaker(settings());
    let ours = breaker.clone();
    let task = tokio::spawn(async move { ours.call_async(std::future::pending::<Result<(), ()>>).await });
    tokio::task::yield_now().await;
    assert!(breaker.try_acquire().is_err(), "the task has the only slot");
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert!(breaker.try_acquire().is_ok());
}

#[tokio::test]
async fn owned_permit_in_task_records_panic_as_failure() {
    let (breaker, _manual_clock) = half_open_breaker(settings());
    let probe = breaker.try_acquire_owned().unwrap();
    tokio::spawn(async move { probe.succeed() }).await.unwrap();
    assert_eq!(breaker.state(), BreakerState::Closed);

    let (breaker, _manual_clock) = half_open_breaker(settings());
    let probe = breaker.try_acquire_owned().unwrap();
    let task = tokio::spawn(async move {
        tokio::task::yield_now().await;
        let _probe = probe;
        panic!("on purpose");
    });
    assert!(task.await.is_err());
    assert_eq!(breaker.state(), BreakerState::Open);
}

/// Sixteen threads, two hundred times: exactly the number of probes is admitted.
#[test]
fn concurrent_acquires_stay_within_probe_limit() {
    const THREADS: usize = 16;
    const PROBES: u32 = 3;
    const ROUNDS: usize = 200;
    let (breaker, manual_clock) = half_open_breaker(settings().half_open_calls(PROBES));
    let (start, end) = (Barrier::new(THREADS + 1), Barrier::new(THREADS + 1));
    let (passed, reported) = (AtomicU32::new(0), Barrier::new(THREADS + 1));
    let mut rounds = Vec::new();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    start.wait();
                    let permit = breaker.try_acquire().ok();
                    passed.fetch_add(u32::from(permit.is_some()), Ordering::Relaxed);
                    end.wait();
                    // All fail, so that the next round is another half-open period.
                    if let Some(permit) = permit {
                        permit.fail();
                    }
                    reported.wait();
                }
            });
        }
        // Checked afterwards: a panic here would leave the threads waiting.
        for _ in 0..ROUNDS {
            start.wait();
            end.wait();
            let passed = passed.swap(0, Ordering::Relaxed);
            reported.wait();
            rounds.push((passed, breaker.state()));
            manual_clock.advance(SECOND);
        }
    });
    assert_eq!(rounds, [(PROBES, BreakerState::Open); ROUNDS]);
}

/// Slots that are acquired and released never exceed the limit.
#[test]
fn concurrent_probes_stay_within_limit() {
    const PROBES: u32 = 2;
    let (breaker, _manual_clock) = half_open_breaker(settings().half_open_calls(PROBES));
    let (in_flight, passed) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    if let Ok(permit) = breaker.try_acquire() {
                        assert!(in_flight.fetch_add(1, Ordering::SeqCst) < PROBES);
                        passed.fetch_add(1, Ordering::Relaxed);
                        in_flight.fetch_sub(1, Ordering::SeqCst);
                        drop(permit);
                    }
                }
            });
        }
    });
    assert!(passed.into_inner() > PROBES);
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
}

/// No outcome is lost or counted twice, on the fast or the slow path.
#[test]
fn concurrent_outcomes_are_all_counted() {
    for settings in [
        BreakerSettings::builder().count_window(100_000),
        BreakerSettings::builder().time_window(SECOND),
        BreakerSettings::builder().time_window(SECOND).slow_calls(Percent::FULL, SECOND),
    ] {
        let (breaker, _manual_clock) = breaker(settings);
        breaker.set_metrics_only();
        thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    for call in 0..1_000 {
                        let report = [
                            CallOutcome::Success,
                            CallOutcome::Failure,
                            CallOutcome::Ignored,
                            CallOutcome::Success,
                        ][call % 4];
                        breaker.try_acquire().unwrap().record(report);
                    }
                });
            }
        });
        assert_eq!(failure_counts(&breaker), (12_000, 4_000));
    }
}

/// Successes that are counted outside of the lock replace exactly as many failures.
#[test]
fn concurrent_successes_are_all_counted_in_full_window() {
    let (breaker, _manual_clock) = breaker(BreakerSettings::builder().count_window(10_000));
    breaker.set_metrics_only();
    (0..10_000).for_each(|_| breaker.try_acquire().unwrap().fail());
    for expected in [5_200, 400] {
        thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| (0..300).for_each(|_| breaker.try_acquire().unwrap().succeed()));
            }
        });
        assert_eq!(failure_counts(&breaker), (10_000, expected));
    }
    (0..400).for_each(|_| breaker.try_acquire().unwrap().succeed());
    assert_eq!(failure_counts(&breaker), (10_000, 0));
    breaker.try_acquire().unwrap().fail();
    assert_eq!((failure_counts(&breaker), breaker.snapshot().generation), ((10_000, 1), 1));
}
