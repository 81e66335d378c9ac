//! Retries, time limits and hedges, in paused time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use proptest::prelude::*;
use std::{
    cell::{Cell, RefCell},
    future::pending,
    sync::Arc,
    time::Duration,
};
use tidegate_core::Micros;
use tidegate_limiter::{Clock, DirectLimiter};
use tidegate_overload::{
    AdaptiveLimit, Breaker, BreakerSettings, CallError, CallGuard as _, HedgeDelay, Retrier, RetryAction,
    RetryBudget, RetryBuilder, RetryCounts, adaptive::LatencyTarget, fallback::attempt_async,
    retry::limit_time,
};
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Runs a test in paused time, which advances when everything waits.
fn run<F: Future>(test: impl FnOnce(Clock) -> F) -> F::Output {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async { test(Clock::tokio()).await })
}

fn builder(clock: &Clock) -> RetryBuilder {
    Retrier::builder().clock(clock.clone()).backoff(millis(10)).max_backoff(millis(100))
}

#[test]
fn failed_attempts_are_retried_up_to_maximum() {
    let table = [(0, 0, 1, true), (0, 1, 1, false), (2, 1, 2, true), (2, 2, 3, true), (2, 3, 3, false)];
    for (max, failures, attempts, is_ok) in table {
        run(async |clock| {
            let retrier = builder(&clock).max(max).build().unwrap();
            let made = RefCell::new(Vec::new());
            let result = retrier
                .call(|attempt| {
                    made.borrow_mut().push(attempt);
                    async move { if attempt <= failures { Err(attempt) } else { Ok(()) } }
                })
                .await;
            assert_eq!(made.into_inner(), (1..=attempts).collect::<Vec<_>>(), "{max} {failures}");
            let expected = if is_ok { Ok(()) } else { Err(CallError::Failed(attempts)) };
            assert_eq!(result, expected, "the last result");
            assert_eq!(retrier.counts().retries, u64::from(attempts - 1));
        });
    }
}

#[test]
fn only_classified_results_are_retried() {
    run(async |clock| {
        let retrier = builder(&clock).build().unwrap();
        let classify = |result: &Result<u32, &str>| match result {
            Ok(503) | Err("connect") => RetryAction::Retry,
            Ok(_) | Err(_) => RetryAction::Finish,
        };
        for (result, attempts) in [(Ok(200), 1), (Ok(503), 3), (Err("connect"), 3), (Err("invalid"), 1)] {
            let made = Cell::new(0);
            let call = |attempt| {
                made.set(attempt);
                async move { result }
            };
            assert_eq!(retrier.call_classified(classify, call).await, result.map_err(CallError::Failed));
            assert_eq!(made.get(), attempts, "{result:?}");
        }
    });
}

proptest! {
    #[test]
    fn waits_are_within_backoff(backoff in 0_u64..50, max_backoff in 50_u64..500, max in 1_u32..8) {
        run(async |clock| {
            let retrier = builder(&clock).max(max).backoff(millis(backoff)).max_backoff(millis(max_backoff));
            let retrier = retrier.build().unwrap();
            let times = RefCell::new(Vec::new());
            let _error = retrier
                .call(|_| {
                    times.borrow_mut().push(clock.now());
                    async { Err::<(), ()>(()) }
                })
                .await;
            let times = times.into_inner();
            assert_eq!(times.len(), max as usize + 1);
            for (retry, pair) in times.windows(2).enumerate() {
                // The timer of tokio rounds up to milliseconds.
                let bound = (backoff << retry).min(max_backoff) + 1;
                let wait = pair[1].saturating_sub(pair[0]);
                assert!(wait <= Micros::from_millis(bound), "{wait} before retry {retry}, at most {bound} ms");
            }
        });
    }
}

#[test]
fn waits_are_spread_over_backoff() {
    run(async |clock| {
        let retrier =
            builder(&clock).max(1).backoff(millis(100)).budget("100%".parse().unwrap()).build().unwrap();
        let mut waits = Vec::new();
        for _ in 0..200 {
            let start = clock.now();
            let _error = retrier.call(async |_| Err::<(), ()>(())).await;
            waits.push(clock.now().saturating_sub(start).get() / 1_000);
        }
        let count = |range: std::ops::Range<u64>| waits.iter().filter(|wait| range.contains(wait)).count();
        assert!(count(0..33) > 20 && count(33..66) > 20 && count(66..102) > 20, "{waits:?}");
    });
}

#[test]
fn budget_bounds_retries_of_failing_calls() {
    // (share, per second, calls, most attempts): ten saved retries, the share of the calls, and the minimum.
    for (share, per_second, most) in
        [("10%", 0, 1_110), ("10%", 5, 1_115), ("0%", 0, 1_010), ("100%", 0, 2_010)]
    {
        run(async |clock| {
            let retrier = builder(&clock).max(3).backoff(Micros::ZERO).budget(share.parse().unwrap());
            let retrier = retrier.min_per_second(per_second).build().unwrap();
            let attempts = Cell::new(0);
            for _ in 0..1_000 {
                let _error = retrier
                    .call(|_| {
                        attempts.set(attempts.get() + 1);
                        async { Err::<(), ()>(()) }
                    })
                    .await;
            }
            assert!((most - 10..=most).contains(&attempts.get()), "{share} {per_second}: {}", attempts.get());
            let RetryCounts { retries, budget_exhausted, .. } = retrier.counts();
            assert_eq!(retries + 1_000, attempts.get());
            assert!(share == "100%" || budget_exhausted > 800, "{budget_exhausted}");
        });
    }
}

#[test]
fn budget_admits_minimum_per_second() {
    let (clock, manual_clock) = Clock::manual();
    let budget = RetryBudget::new("0%".parse().unwrap()).min_per_second(2, clock).unwrap();
    let taken = || (0..100).filter(|_| budget.try_take()).count();
    assert_eq!(taken(), 12);
    manual_clock.advance(SECOND);
    assert_eq!(taken(), 2);
}

#[test]
fn retriers_share_budget() {
    run(async |clock| {
        let budget = Arc::new(RetryBudget::new("0%".parse().unwrap()));
        let retrier = || builder(&clock).max(10).shared_budget(budget.clone()).build().unwrap();
        let (first, second) = (retrier(), retrier());
        let _error = first.call(async |_| Err::<(), ()>(())).await;
        let _error = second.call(async |_| Err::<(), ()>(())).await;
        assert_eq!((first.counts().retries, second.counts().retries), (10, 0));
        assert_eq!(second.counts().budget_exhausted, 1);
    });
}

#[test]
fn own_budget_after_shared_one_has_default_minimum() {
    let (clock, _manual_clock) = Clock::manual();
    let shared = Arc::new(RetryBudget::new("20%".parse().unwrap()));
    let retrier = builder(&clock).shared_budget(shared.clone()).budget("0%".parse().unwrap());
    let retrier = retrier.build().unwrap();
    assert!(!Arc::ptr_eq(retrier.budget(), &shared));
    // Ten that are saved up, and ten of the first second.
    assert_eq!((0..100).filter(|_| retrier.budget().try_take()).count(), 20);
}

#[test]
fn requested_wait_is_honoured_within_time_limit() {
    // (requested wait, time limit, attempts)
    let table = [(2_000, Some(5_000), 2), (6_000, Some(5_000), 1), (90, None, 2), (2_000, None, 1)];
    for (wait, limit, attempts) in table {
        run(async |clock| {
            let mut retrier = builder(&clock);
            if let Some(limit) = limit {
                retrier = retrier.time_limit(millis(limit));
            }
            let retrier = retrier.build().unwrap();
            let (start, made) = (clock.now(), Cell::new(0));
            let classify = |result: &Result<(), ()>| match result {
                Ok(()) => RetryAction::Finish,
                Err(()) => RetryAction::retry_after(millis(wait)),
            };
            let call = |attempt| {
                made.set(attempt);
                async move { if attempt == 1 { Err(()) } else { Ok(()) } }
            };
            let result = retrier.call_classified(classify, call).await;
            let waited = clock.now().saturating_sub(start);
            assert_eq!((made.get(), result.is_ok()), (attempts, attempts == 2), "{wait} {limit:?}");
            match attempts {
                1 => assert_eq!(waited, Micros::ZERO, "a call that cannot succeed is not delayed"),
                _ => assert!(waited >= Micros::from_millis(wait), "{waited}"),
            }
        });
    }
}

#[test]
fn call_rejected_by_limiter_is_retried_after_its_retry_time() {
    run(async |clock| {
        let limiter = DirectLimiter::builder().clock(clock.clone()).build("1/s").unwrap();
        let retrier = builder(&clock).max(1).time_limit(5 * SECOND).build().unwrap();
        for second in 0..3 {
            let call = retrier.call_guarded(|_| attempt_async(limiter.check(), async || Ok::<_, ()>(7)));
            assert_eq!(call.await, Ok(7), "second {second}");
        }
        assert_eq!(retrier.counts().retries, 2, "one for each rejection");
        let rejected = Err::<(), _>(CallError::<()>::FeatureDisabled);
        assert_eq!(RetryAction::from_call_result(&rejected), RetryAction::Finish);
    });
}

/// Sets a flag when it is dropped.
struct OnDrop<'a>(&'a Cell<u32>);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

#[test]
fn time_limit_cancels_all_attempts() {
    run(async |clock| {
        let retrier =
            builder(&clock).max(9).attempt_time_limit(millis(300)).time_limit(SECOND).build().unwrap();
        let (start, dropped, made) = (clock.now(), Cell::new(0), Cell::new(0));
        let result = retrier
            .call(|attempt| {
                made.set(attempt);
                let guard = OnDrop(&dropped);
                async {
                    let _guard = guard;
                    pending::<Result<(), &str>>().await
                }
            })
            .await;
        assert_eq!(result, Err(CallError::TimeLimitExceeded(Micros::from_secs(1))));
        assert_eq!(result.unwrap_err().to_string(), "time limit of 1s exceeded");
        assert_eq!(clock.now().saturating_sub(start), Micros::from_secs(1));
        assert!((3..=4).contains(&made.get()), "{}", made.get());
        assert_eq!(dropped.get(), made.get());
        assert_eq!(retrier.counts().time_limit_exceeded, u64::from(made.get()));
    });
}

#[test]
fn attempt_over_its_time_limit_is_retried() {
    run(async |clock| {
        let retrier = builder(&clock).max(1).attempt_time_limit(millis(300)).build().unwrap();
        let slow_once = |attempt| async move {
            sleep(if attempt == 1 { SECOND } else { millis(200) }).await;
            Ok::<_, ()>(attempt)
        };
        assert_eq!(retrier.call(slow_once).await, Ok(2));
        let slow = async |_| {
            sleep(SECOND).await;
            Ok::<_, ()>(())
        };
        assert_eq!(retrier.call(slow).await, Err(CallError::TimeLimitExceeded(Micros::from_millis(300))));
    });
}

#[test]
fn call_that_must_not_be_repeated_has_time_limits_only() {
    run(async |clock| {
        let retrier = builder(&clock).time_limit(SECOND).attempt_time_limit(millis(300)).build().unwrap();
        assert_eq!(retrier.attempt_once::<_, ()>(async { Err::<(), _>(5) }).await, Ok(Err(5)));
        let slow = retrier.attempt_once::<_, ()>(sleep(SECOND)).await;
        assert_eq!(slow, Err(CallError::TimeLimitExceeded(Micros::from_millis(300))));
        let limit = Micros::from_millis(20);
        assert_eq!(limit_time::<_, ()>(limit, &clock, async { 1 }).await, Ok(1));
        assert!(limit_time::<_, ()>(limit, &clock, sleep(SECOND)).await.is_err());
    });
}

/// A breaker that opens after two failures.
fn breaker(clock: &Clock) -> Breaker {
    let settings = BreakerSettings::builder().count_window(2).min_calls(2).build().unwrap();
    Breaker::with_clock(settings, clock.clone())
}

#[test]
fn attempt_cancelled_by_time_limit_is_failure_of_its_guard() {
    run(async |clock| {
        let hang = async |_| pending::<Result<(), ()>>().await;
        let attempts = builder(&clock).max(1).attempt_time_limit(millis(300)).build().unwrap();
        let hedged = builder(&clock).time_limit(SECOND).hedge_after(millis(300)).build().unwrap();
        let whole_call = builder(&clock).time_limit(SECOND).build().unwrap();
        for (retrier, calls) in [(attempts, 1), (hedged, 1), (whole_call, 2)] {
            let limit = AdaptiveLimit::new(LatencyTarget::new(Micros::from_secs(1)).unwrap()).unwrap();
            let breaker = breaker(&clock);
            for _ in 0..calls {
                let guarded = |attempt| breaker.call_async(move || hang(attempt));
                let result = retrier.call(|attempt| limit.call_async(move || guarded(attempt))).await;
                assert!(matches!(result, Err(CallError::TimeLimitExceeded(_))), "{result:?}");
            }
            assert_eq!(limit.in_flight(), 0);
            assert!(breaker.try_acquire().is_err(), "two attempts hung");
        }
        let (once, other) = (breaker(&clock), breaker(&clock));
        for _ in 0..2 {
            let call = once.call_async(|| hang(1));
            assert!(limit_time::<_, ()>(Micros::from_millis(300), &clock, call).await.is_err());
            drop(other.try_acquire());
        }
        assert!(once.try_acquire().is_err());
        assert!(other.try_acquire().is_ok(), "dropped after the time limit, not by it");
    });
}

#[test]
fn attempt_cancelled_for_other_reasons_is_ignored_by_its_guard() {
    run(async |clock| {
        let breaker = breaker(&clock);
        let retrier = builder(&clock).max(1).time_limit(SECOND * 9).hedge_after(millis(100)).build().unwrap();
        for _ in 0..9 {
            // The first attempt hangs, and loses against the hedge.
            let slow_first = |attempt| {
                let permit = breaker.try_acquire().unwrap();
                async move {
                    if attempt == 1 {
                        let _permit = permit;
                        return pending::<Result<u32, ()>>().await;
                    }
                    permit.ignore();
                    Ok(attempt)
                }
            };
            assert_eq!(retrier.call(slow_first).await, Ok(2));
            let hang = || pending::<Result<(), ()>>();
            let call = retrier.call(|_| breaker.call_async(hang));
            assert!(tokio::time::timeout(SECOND, call).await.is_err(), "dropped by its caller");
        }
        breaker.try_acquire().unwrap().fail();
        assert!(breaker.try_acquire().is_ok(), "one failure");
    });
}

#[test]
fn dropped_call_drops_its_attempts() {
    run(async |clock| {
        let retrier = builder(&clock).hedge_after(millis(10)).build().unwrap();
        let dropped = Cell::new(0);
        let call = retrier.call(|_| {
            let guard = OnDrop(&dropped);
            async {
                let _guard = guard;
                pending::<Result<(), ()>>().await
            }
        });
        assert!(tokio::time::timeout(SECOND, call).await.is_err());
        assert_eq!((dropped.get(), retrier.counts().hedges), (2, 1));
    });
}

#[test]
fn first_good_result_of_hedged_call_is_used() {
    type Attempt = (u64, Result<u32, &'static str>);
    // ([first attempt, second attempt, result], hedges, wins), with a hedge after 100 ms
    let table: [([Attempt; 3], u64, u64); 6] = [
        ([(50, Ok(1)), (10, Ok(2)), (50, Ok(1))], 0, 0),
        ([(500, Ok(1)), (10, Ok(2)), (110, Ok(2))], 1, 1),
        ([(150, Ok(1)), (100, Ok(2)), (150, Ok(1))], 1, 0),
        ([(150, Err("first")), (100, Ok(2)), (200, Ok(2))], 1, 1),
        ([(300, Ok(1)), (100, Err("second")), (300, Ok(1))], 1, 0),
        ([(300, Err("first")), (100, Err("second")), (300, Err("first"))], 1, 0),
    ];
    for ([first, second, (time, expected)], hedges, hedge_wins) in table {
        run(async |clock| {
            let retrier = builder(&clock).max(1).hedge_after(millis(100)).build().unwrap();
            let (start, dropped) = (clock.now(), Cell::new(0));
            let result = retrier
                .call(|attempt| {
                    let ((time, result), guard) =
                        (if attempt == 1 { first } else { second }, OnDrop(&dropped));
                    async move {
                        let _guard = guard;
                        sleep(millis(time)).await;
                        result
                    }
                })
                .await;
            let case = format!("{first:?} {second:?}");
            assert_eq!(result, expected.map_err(CallError::Failed), "{case}");
            assert_eq!(clock.now().saturating_sub(start), Micros::from_millis(time), "{case}");
            let counts = retrier.counts();
            assert_eq!((counts.hedges, counts.hedge_wins, counts.retries), (hedges, hedge_wins, 0), "{case}");
            assert_eq!(u64::from(dropped.get()), hedges + 1, "no attempt is left: {case}");
        });
    }
}

#[test]
fn hedges_are_charged_to_budget() {
    run(async |clock| {
        let retrier = builder(&clock).max(5).hedge_after(millis(100)).budget("10%".parse().unwrap());
        let retrier = retrier.min_per_second(0).build().unwrap();
        for _ in 0..1_000 {
            let slow = async |_| {
                sleep(SECOND).await;
                Ok::<_, ()>(())
            };
            retrier.call(slow).await.unwrap();
        }
        let counts = retrier.counts();
        assert!((100..=110).contains(&counts.hedges), "{counts:?}");
        assert_eq!(counts.hedges + counts.budget_exhausted, 1_000);
    });
}

#[test]
fn hedge_delay_follows_percentile_of_latencies() {
    run(async |clock| {
        let retrier = builder(&clock).max(1).hedge_after(HedgeDelay::Percentile("90%".parse().unwrap()));
        let retrier = retrier.budget("100%".parse().unwrap()).build().unwrap();
        let call = |time| {
            retrier.call(move |attempt| async move {
                sleep(millis(if attempt == 1 { time } else { 1 })).await;
                Ok::<_, ()>(attempt)
            })
        };
        assert_eq!(call(5_000).await, Ok(1), "there is no percentile yet");
        for _ in 0..30 {
            assert_eq!(call(50).await, Ok(1));
        }
        let start = clock.now();
        assert_eq!(call(5_000).await, Ok(2));
        let waited = clock.now().saturating_sub(start).get() / 1_000;
        assert!((50..=54).contains(&waited), "{waited} ms");
    });
}

#[test]
fn hedge_that_lost_does_not_lower_percentile() {
    run(async |clock| {
        let retrier = builder(&clock).max(1).hedge_after(HedgeDelay::Percentile("40%".parse().unwrap()));
        let retrier = retrier.budget("100%".parse().unwrap()).build().unwrap();
        let call = |times: [u64; 2]| {
            retrier.call(move |attempt| async move {
                sleep(millis(times[attempt as usize - 1])).await;
                Ok::<_, ()>(attempt)
            })
        };
        for _ in 0..30 {
            assert_eq!(call([50, 50]).await, Ok(1));
        }
        // More than a window: each hedge is cancelled after some ten milliseconds.
        for _ in 0..300 {
            assert_eq!(call([60, 60]).await, Ok(1));
        }
        assert!(retrier.counts().hedges > 100, "{:?}", retrier.counts());
        let start = clock.now();
        assert_eq!(call([5_000, 1]).await, Ok(2));
        let waited = clock.now().saturating_sub(start).get() / 1_000;
        assert!((60..=64).contains(&waited), "{waited} ms");
    });
}

#[test]
fn rejects_invalid_settings() {
    let retry = Retrier::builder;
    let shared = Arc::new(RetryBudget::new("20%".parse().unwrap()));
    let shared_minimum = "a minimum of retries per second with a shared budget";
    let table: [(RetryBuilder, &str); 10] = [
        (retry().shared_budget(shared.clone()).min_per_second(5), shared_minimum),
        (retry().min_per_second(5).shared_budget(shared), shared_minimum),
        (retry().max(101), "101 retries"),
        (retry().backoff(SECOND).max_backoff(millis(1)), "a maximum backoff of 1ms below the backoff of 1s"),
        (retry().max_backoff(Micros::MAX), "must be finite"),
        (retry().time_limit(Micros::ZERO), "a time limit must not be zero"),
        (retry().attempt_time_limit(Micros::ZERO), "a time limit of an attempt must not be zero"),
        (retry().hedge_after(Duration::ZERO), "a hedge delay must not be zero"),
        (retry().hedge_after(HedgeDelay::Percentile("100%".parse().unwrap())), "percentile 100%"),
        (retry().max(0).hedge_after(SECOND), "a hedge delay without retries"),
    ];
    for (builder, expected) in table {
        let error = builder.build().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    for text in ["p", "p95x", "fast", ""] {
        assert!(text.parse::<HedgeDelay>().is_err(), "{text}");
    }
    let percentiles = (1..100).map(|percentile| format!("p{percentile}"));
    for text in percentiles.chain(["p99.9".to_owned(), "2s".to_owned()]) {
        assert_eq!(text.parse::<HedgeDelay>().unwrap().to_string(), text);
    }
}
