//! The rates equal those of a list of all calls: of the last calls, or of those in the last buckets.

use proptest::{collection::vec, prelude::*};
use tidegate_core::{Micros, Percent};
use tidegate_overload::{BreakerSettings, BreakerState, CallCounts, CallOutcome, breaker::BreakerMachine};
use tidegate_testkit::strategy::runner_with_cases;

#[derive(Clone, Copy, Debug)]
struct TimedCall {
    after: u64,
    failed: bool,
    slow: bool,
}

#[derive(Clone, Copy, Debug)]
enum ModelWindow {
    Calls(u32),
    Time(u64, u32),
}

const SLOW: u64 = 100;

fn calls() -> impl Strategy<Value = Vec<TimedCall>> {
    let pauses = prop_oneof![4 => 0_u64..30, 2 => 0_u64..400, 1 => 0_u64..100_000];
    let call = (pauses, prop::bool::weighted(0.3), prop::bool::weighted(0.3));
    vec(call.prop_map(|(after, failed, slow)| TimedCall { after, failed, slow }), 1..300)
}

fn sizes() -> impl Strategy<Value = ModelWindow> {
    prop_oneof![
        prop_oneof![1_u32..8, 1_u32..200].prop_map(ModelWindow::Calls),
        (1_u64..2_000, 1_u32..40)
            .prop_map(|(time, buckets)| ModelWindow::Time(time.max(buckets.into()), buckets)),
    ]
}

/// The counts of the calls in the window at `now`; `past` has all calls with their times.
fn count_calls(size: ModelWindow, past: &[(u64, TimedCall)], now: u64) -> CallCounts {
    let in_window: Vec<_> = match size {
        ModelWindow::Calls(calls) => past.iter().rev().take(calls as usize).collect(),
        ModelWindow::Time(time, buckets) => {
            let bucket = time.div_ceil(buckets.into());
            past.iter().filter(|(at, _)| now / bucket - at / bucket < buckets.into()).collect()
        }
    };
    CallCounts {
        calls: in_window.len() as u64,
        failures: in_window.iter().filter(|(_, call)| call.failed).count() as u64,
        slow: in_window.iter().filter(|(_, call)| call.slow).count() as u64,
    }
}

#[test]
fn counts_match_reference_list() {
    let settings = (sizes(), 1_u64..30, 1_u64..=100, 1_u64..=100, 0_u64..10_000);
    let property = |((size, min_calls, failure, slow, start), calls): (
        (ModelWindow, u64, u64, u64, u64),
        Vec<TimedCall>,
    )| {
        let (failure, slow) = (Percent::from_ratio(failure, 100), Percent::from_ratio(slow, 100));
        let builder = BreakerSettings::builder();
        let builder = match size {
            ModelWindow::Calls(calls) => builder.count_window(calls),
            ModelWindow::Time(time, buckets) => builder.bucketed_window(Micros::new(time), buckets),
        };
        let builder = builder.min_calls(min_calls).failure_rate(failure).slow_calls(slow, Micros::new(SLOW));
        let mut breaker = BreakerMachine::new(builder.build().unwrap());
        let needed = match size {
            ModelWindow::Calls(calls) => min_calls.min(calls.into()),
            ModelWindow::Time(..) => min_calls,
        };

        let (mut past, mut now) = (Vec::new(), start);
        for call in calls {
            now += call.after;
            let at = Micros::new(now);
            let snapshot = breaker.snapshot(at);
            let counts = count_calls(size, &past, now);
            prop_assert_eq!(snapshot.counts, counts, "before a call at {}", now);

            let generation = breaker.try_acquire(at, 0.5).unwrap();
            let report = if call.failed { CallOutcome::Failure } else { CallOutcome::Success };
            let took = Micros::new(if call.slow { SLOW + 1 } else { SLOW });
            breaker.record(generation, report, took, at, 0.5);
            past.push((now, call));

            let counts = count_calls(size, &past, now);
            let reaches = |part: u64, share: Percent| {
                u128::from(part) * 1_000_000 >= u128::from(share.millionths()) * u128::from(counts.calls)
            };
            let enough = counts.calls >= needed;
            let opens = enough && (reaches(counts.failures, failure) || reaches(counts.slow, slow));
            let snapshot = breaker.snapshot(at);
            prop_assert_eq!(snapshot.counts, counts);
            prop_assert_eq!(
                snapshot.failure_rate,
                enough.then(|| Percent::from_ratio(counts.failures, counts.calls))
            );
            prop_assert_eq!(
                snapshot.slow_rate,
                enough.then(|| Percent::from_ratio(counts.slow, counts.calls))
            );
            prop_assert_eq!(snapshot.state == BreakerState::Open, opens, "after a call at {}", now);
            if opens {
                break;
            }
        }
        Ok(())
    };
    runner_with_cases(2_000)
        .run(&(settings, calls()), property)
        .unwrap_or_else(|failure| panic!("{failure}"));
}
