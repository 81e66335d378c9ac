//! A closed circuit breaker with one successful call, compared with its peers.

use recloser::Recloser;
use std::{
    convert::Infallible,
    future::{Ready, ready},
    hint::black_box,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tidegate_bench::{BenchResult, interleaved::compare, suite::Measurement};
use tidegate_overload::{Breaker, BreakerSettings, CallGuard};
use tower::{Layer, Service, service_fn};
use tower_resilience_circuitbreaker::CircuitBreakerLayer;

/// The window size of all breakers, in calls.
const WINDOW_CALLS: u32 = 100;

/// Asynchronous calls; both breakers measure the latency of a call, because tower-resilience always does.
pub(crate) fn compare_with_tower_resilience() -> BenchResult<Measurement> {
    let slow = BreakerSettings::builder()
        .count_window(WINDOW_CALLS)
        .slow_calls("50%".parse()?, Duration::from_secs(1));
    let breaker = Breaker::new(slow.build()?);
    let plain = Breaker::new(BreakerSettings::builder().count_window(WINDOW_CALLS).build()?);
    let layer = CircuitBreakerLayer::builder().sliding_window_size(WINDOW_CALLS as usize).build()?;
    let mut service = layer.layer(service_fn(|(): ()| succeed()));
    let mut theirs = || {
        let _ = black_box(&mut service).poll_ready(&mut Context::from_waker(Waker::noop()));
        assert!(is_ready_ok(service.call(())));
    };
    let without_time = compare(
        ("closed breaker", || assert!(is_ready_ok(black_box(&plain).call_async(succeed)))),
        ("tower-resilience", &mut theirs),
    );
    let measured = compare(
        ("closed breaker that times calls", || assert!(is_ready_ok(black_box(&breaker).call_async(succeed)))),
        ("tower-resilience", theirs),
    );
    let figures = format!("{}; {:.3} without timing", measured.figures, without_time.value);
    Ok(Measurement { figures, ..measured })
}

/// Synchronous calls; recloser does not measure latency.
pub(crate) fn compare_with_recloser() -> BenchResult<Measurement> {
    let breaker = Breaker::new(BreakerSettings::builder().count_window(WINDOW_CALLS).build()?);
    let recloser = Recloser::custom().closed_len(WINDOW_CALLS as usize).build();
    let call = || -> std::result::Result<(), Infallible> { black_box(Ok(())) };
    Ok(compare(
        ("closed breaker", || assert!(black_box(&breaker).call(call).is_ok())),
        ("recloser", || assert!(black_box(&recloser).call(call).is_ok())),
    ))
}

fn succeed() -> Ready<std::result::Result<(), Infallible>> {
    ready(Ok(()))
}

/// Polls a call that completes at once.
fn is_ready_ok<T, E>(call: impl Future<Output = std::result::Result<T, E>>) -> bool {
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result.is_ok(),
        Poll::Pending => false,
    }
}
