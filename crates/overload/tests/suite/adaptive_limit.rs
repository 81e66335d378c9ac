//! An adaptive limit on a manual clock.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};
use tidegate_core::Micros;
use tidegate_limiter::{Clock, Semaphore};
use tidegate_overload::{
    AdaptiveLimit, CallGuard, CallPermit,
    adaptive::{Bounds, LatencyTarget},
};

#[test]
fn adaptive_limit_follows_controller() {
    let (clock, manual_clock) = Clock::manual();
    let controller = LatencyTarget::new(Micros::from_millis(100)).unwrap();
    let bounds = Bounds::new(1, 4, 10).unwrap();
    let limit =
        AdaptiveLimit::with_slots(controller.bounds(bounds), Semaphore::builder().clock(clock)).unwrap();

    // Four at a time, ten milliseconds each: there is capacity for more.
    for _ in 0..8 {
        let permits: Vec<_> = std::iter::from_fn(|| limit.try_acquire().ok()).collect();
        manual_clock.advance(Duration::from_millis(10));
        permits.into_iter().for_each(CallPermit::succeed);
    }
    assert!(limit.limit() > 4, "{limit:?}");

    // All fail, by a panic, a late drop or a failure: the limit falls to the floor.
    for round in 0..60 {
        let permits: Vec<_> = std::iter::from_fn(|| limit.try_acquire().ok()).collect();
        manual_clock.advance(Duration::from_millis(101));
        for permit in permits {
            match round % 3 {
                0 => permit.fail(),
                1 => drop(permit),
                _ => {
                    let panic = catch_unwind(AssertUnwindSafe(|| {
                        let _permit = permit;
                        std::panic::resume_unwind(Box::new("at work"));
                    }));
                    assert!(panic.is_err());
                }
            }
        }
    }
    assert_eq!((limit.limit(), limit.in_flight()), (1, 0));
}
