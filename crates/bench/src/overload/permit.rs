//! Permits beside tokio's semaphore.

use std::hint::black_box;
use tidegate_bench::{Result, suite::Measured, turns::compare};
use tidegate_limiter::{Limiter, Slots};
use tokio::sync::Semaphore;

/// One key of a limiter, looked up anew each time; beside it, in the figures, slots without keys.
pub(crate) fn keyed() -> Result<Measured> {
    let limiter = Limiter::new("100 at once")?;
    let slots = Slots::new(100)?;
    let semaphore = Semaphore::new(100);
    let theirs = || {
        let permit = black_box(&semaphore).try_acquire();
        assert!(black_box(&permit).is_ok());
    };
    let unkeyed = compare(
        ("slots", || {
            let slot = black_box(&slots).try_take();
            assert!(black_box(&slot).is_some());
        }),
        ("tokio", theirs),
    );
    let keyed = compare(
        ("permit of a key", || {
            let permit = black_box(&limiter).blocking().key("alice").permit();
            assert!(black_box(&permit).decision().is_allowed());
        }),
        ("tokio", theirs),
    );
    let figures = format!("{}; without keys {:.2} of tokio", keyed.figures, unkeyed.value);
    Ok(Measured { figures, ..keyed })
}
