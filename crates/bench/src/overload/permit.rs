//! Permits compared with tokio's semaphore.

use std::{hint::black_box, sync::Arc};
use tidegate_bench::{BenchResult, interleaved::compare, suite::Measurement};
use tidegate_limiter::{Limiter, Semaphore};
use tokio::sync;

/// Compares a permit of one key, looked up each time, with tokio's owned permit: both can move to another task. The
/// figures also contain tokio's borrowed permit, and a semaphore without keys.
pub(crate) fn measure_keyed() -> BenchResult<Measurement> {
    let limiter = Limiter::new("100 at once")?;
    let slots = Semaphore::new(100)?;
    let semaphore = Arc::new(sync::Semaphore::new(100));
    let owned = || {
        let permit = black_box(&semaphore).clone().try_acquire_owned();
        assert!(black_box(&permit).is_ok());
    };
    let borrowed = || {
        let permit = black_box(&semaphore).try_acquire();
        assert!(black_box(&permit).is_ok());
    };
    let ours = || {
        let permit = black_box(&limiter).blocking().key("alice").permit();
        assert!(black_box(&permit).decision().is_allowed());
    };
    let unkeyed = compare(
        ("slots", || {
            let slot = black_box(&slots).try_acquire();
            assert!(black_box(&slot).is_some());
        }),
        ("tokio", borrowed),
    );
    let beside_borrowed = compare(("permit of a key", ours), ("tokio", borrowed));
    let keyed = compare(("permit of a key", ours), ("tokio", owned));
    let figures = format!(
        "{}; {:.2} of tokio's borrowed permit; without keys {:.2} of it",
        keyed.figures, beside_borrowed.value, unkeyed.value
    );
    Ok(Measurement { figures, ..keyed })
}
