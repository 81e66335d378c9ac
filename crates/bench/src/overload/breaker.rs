//! A closed breaker and one call that goes well, beside those of others.

use recloser::Recloser;
use std::{
    convert::Infallible,
    future::{Ready, ready},
    hint::black_box,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tidegate_bench::{Result, suite::Measured, turns::compare};
use tidegate_overload::{Breaker, BreakerSettings, Guard};
use tower::{Layer, Service, service_fn};
use tower_resilience_circuitbreaker::CircuitBreakerLayer;

/// Calls in the window of all of them.
const WINDOW: u32 = 100;

/// Asynchronous calls; both measure how long a call takes, because theirs always does.
pub(crate) fn beside_tower_resilience() -> Result<Measured> {
    let slow =
        BreakerSettings::builder().over_calls(WINDOW).slow_calls("50%".parse()?, Duration::from_secs(1));
    let breaker = Breaker::new(slow.build()?);
    let plain = Breaker::new(BreakerSettings::builder().over_calls(WINDOW).build()?);
    let layer = CircuitBreakerLayer::builder().sliding_window_size(WINDOW as usize).build()?;
    let mut service = layer.layer(service_fn(|(): ()| well()));
    let mut theirs = || {
        let _ = black_box(&mut service).poll_ready(&mut Context::from_waker(Waker::noop()));
        assert!(is_well(service.call(())));
    };
    let without_time = compare(
        ("closed breaker", || assert!(is_well(black_box(&plain).call_async(well)))),
        ("tower-resilience", &mut theirs),
    );
    let measured = compare(
        ("closed breaker that times calls", || assert!(is_well(black_box(&breaker).call_async(well)))),
        ("tower-resilience", theirs),
    );
    let figures = format!("{}; {:.3} without timing", measured.figures, without_time.value);
    Ok(Measured { figures, ..measured })
}

/// Plain calls; theirs measures no time.
pub(crate) fn beside_recloser() -> Result<Measured> {
    let breaker = Breaker::new(BreakerSettings::builder().over_calls(WINDOW).build()?);
    let recloser = Recloser::custom().closed_len(WINDOW as usize).build();
    let call = || -> std::result::Result<(), Infallible> { black_box(Ok(())) };
    Ok(compare(
        ("closed breaker", || assert!(black_box(&breaker).call(call).is_ok())),
        ("recloser", || assert!(black_box(&recloser).call(call).is_ok())),
    ))
}

fn well() -> Ready<std::result::Result<(), Infallible>> {
    ready(Ok(()))
}

/// Polls a call that has nothing to wait for.
fn is_well<T, E>(call: impl Future<Output = std::result::Result<T, E>>) -> bool {
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(end) => end.is_ok(),
        Poll::Pending => false,
    }
}
