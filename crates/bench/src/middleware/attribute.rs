//! The attribute compared with a direct call of an equal limiter.

use std::hint::black_box;
use tidegate::{Limited, Limiter, limit};
use tidegate_bench::{BenchResult, interleaved::compare, suite::Measurement};

pub(crate) const ABOUT: &str =
    "the attribute on an empty function, u64 key, allowed, over a direct call of the limiter";

/// So large that every call is allowed.
const QUOTA: &str = "1000000000/s";

#[limit("1000000000/s", key = key)]
fn limited_call(key: u64) -> std::result::Result<(), Limited> {
    Ok(())
}

/// The same for an async function; only in the figures.
#[limit("1000000000/s", key = key)]
async fn limited_async_call(key: u64) -> std::result::Result<(), Limited> {
    Ok(())
}

pub(crate) fn measure() -> BenchResult<Measurement> {
    let limiter = Limiter::new(QUOTA)?;
    let direct = || {
        let decision = black_box(&limiter).check(&black_box(7_u64));
        assert!(decision.is_allowed());
    };
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let future = compare(
        ("future", || {
            let answer = std::pin::pin!(limited_async_call(black_box(7))).poll(&mut context);
            assert!(answer.map(|answer| answer.is_ok()).is_ready());
        }),
        ("direct", direct),
    );
    let function = compare(("attribute", || assert!(limited_call(black_box(7)).is_ok())), ("direct", direct));
    let figures = format!("{}; an async function {:.2} of direct", function.figures, future.value);
    Ok(Measurement { figures, ..function })
}
