//! The attribute compared with a direct call of an equal limiter.

use std::hint::black_box;
use tidegate::{Decision, Limited, Limiter, limit};
use tidegate_bench::{BenchResult, interleaved::compare, suite::Measurement};

pub(crate) const ABOUT: &str =
    "the attribute on an empty function, u64 key, allowed, over a direct call of the limiter";

/// So large that every call is allowed.
const QUOTA: &str = "1000000000/s";

#[limit("1000000000/s", key = key)]
fn limited_call(key: u64) -> std::result::Result<(), Limited> {
    Ok(())
}

/// The same with a direct call. The limiter of the attribute has the same quota, clock and capacity.
fn direct_call(limiter: &Limiter, key: u64) -> std::result::Result<(), Decision> {
    let decision = limiter.check(&key);
    if decision.is_granted() { Ok(()) } else { Err(decision) }
}

/// The same for an async function; only in the figures.
#[limit("1000000000/s", key = key)]
async fn limited_async_call(key: u64) -> std::result::Result<(), Limited> {
    Ok(())
}

pub(crate) fn measure() -> BenchResult<Measurement> {
    let limiter = Limiter::new(QUOTA)?;
    // Only the key is hidden from the compiler, in both: hiding the limiter would add a load to the direct call.
    let direct = || assert!(direct_call(&limiter, black_box(7)).is_ok());
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
