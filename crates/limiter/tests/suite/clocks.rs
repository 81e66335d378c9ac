//! Clocks that disagree, and a coarse one: neither admits more.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use proptest::prelude::*;
use tidegate_core::{Micros, Quota};
use tidegate_limiter::{BlockingLimiter, Capacity, Clock, DirectLimiter, Limiter, Overflow};
use tidegate_testkit::strategy::*;

/// Law 6 for the memory store. A batch is decided on the clock of the first limiter, which may be behind the others: it
/// then grants nothing that the later clock would deny, and its charges persist.
#[test]
fn clock_behind_grants_no_more() {
    check_property((call_steps(), 1_u64..=24, costs()), |sample, (steps, twelfths, cost)| {
        let (clock, manual_clock) = Clock::manual();
        manual_clock.set(sample.start);
        let limiter = Limiter::builder().clock(clock).capacity(Capacity::Keys(1)).overflow(Overflow::Share);
        let limiter = limiter.build(sample.quota).unwrap();
        let mut calls = CallClock::new(&sample);
        for step in &steps {
            calls.advance(step.pause);
            manual_clock.set(calls.now);
            calls.record(&limiter.check_cost("k", step.demand(&sample).cost));
        }
        let cost = cost.resolve(sample.quota.limit());
        let current = limiter.blocking().key("k").peek(cost);

        let (clock_behind, manual_behind) = Clock::manual();
        manual_behind.set(calls.now.saturating_sub(Micros::new(sample.period.get() * twelfths / 12)));
        let behind = Limiter::builder().clock(clock_behind).build("1/s").unwrap();
        let checks = [behind.prepare("any").cost(0), limiter.prepare("k").cost(cost)];
        let decision = BlockingLimiter::decide_all(&checks)[1];
        prop_assert!(current.is_allowed() || !decision.is_allowed(), "{:?}, now {:?}", decision, current);

        // Its cell is not reassigned too early: new keys take only expired cells.
        let after = limiter.blocking().key("k").peek(1);
        prop_assert!(after.remaining() <= current.remaining(), "{:?}, then {:?}", current, after);
        if after.reset_after() > Micros::ZERO {
            for key in 0..60 {
                limiter.check(&key);
            }
            prop_assert_eq!(limiter.blocking().key("k").peek(1), after);
        }
        Ok(())
    });
}

/// The coarse system clock, with keys and without. Within a day no token returns that would disturb the count.
#[test]
fn coarse_clock_counts_exactly_and_widens_bound() {
    let (exact, coarse) = (Clock::system(), Clock::coarse());
    assert!(coarse.resolution() >= exact.resolution());
    let before = coarse.now();
    assert!(coarse.now() >= before);
    for quota in ["5/d", "5/w fixed-window from-first-hit", "5/d sliding-log"] {
        let limiter = Limiter::builder().clock(coarse.clone()).build(quota).unwrap();
        let direct = DirectLimiter::builder().clock(coarse.clone()).build(quota).unwrap();
        let bound = quota.parse::<Quota>().unwrap().bound();
        // Without a coarse clock of the operating system it is the exact one.
        let widened = match coarse.resolution() == exact.resolution() {
            true => bound,
            false => bound.with_clock_resolution(coarse.resolution()),
        };
        assert_eq!((limiter.bounds()[0].normal, direct.bound()), (widened, widened), "{quota}");
        assert_eq!(DirectLimiter::new(quota).unwrap().bound(), bound, "{quota}");
        assert_eq!(Limiter::new(quota).unwrap().bounds()[0].normal, bound, "{quota}");
        assert_eq!((0..9).filter(|_| limiter.check("k").is_allowed()).count(), 5, "{quota}");
        assert_eq!((0..9).filter(|_| direct.check().is_allowed()).count(), 5, "{quota}");
        assert!(limiter.check("another").is_allowed(), "{quota}");
    }
}
