//! Clocks that do not agree, and one that shows time only now and then: nobody gets more for it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use proptest::prelude::*;
use tidegate_core::{Micros, Quota};
use tidegate_limiter::{BlockingLimiter, Capacity, Clock, DirectLimiter, Limiter, Overflow};
use tidegate_testkit::strategy::*;

/// Law 6 for the memory store. Questions that are asked together are asked on the first one's clock, which may be
/// behind that of the others: then it grants nothing that the later one would not, and what it takes stays taken.
#[test]
fn clock_behind_grants_no_more() {
    check_property((call_steps(), 1_u64..=24, costs()), |sample, (story, twelfths, cost)| {
        let (clock, manual_clock) = Clock::manual();
        manual_clock.set(sample.start);
        let limiter = Limiter::builder().clock(clock).capacity(Capacity::Keys(1)).overflow(Overflow::Share);
        let limiter = limiter.build(sample.quota).unwrap();
        let mut moment = CallClock::new(&sample);
        for caller in &story {
            moment.advance(caller.pause);
            manual_clock.set(moment.now);
            moment.record(&limiter.check_cost("k", caller.demand(&sample).cost));
        }
        let cost = cost.resolve(sample.quota.limit());
        let current = limiter.blocking().key("k").peek(cost);

        let (clock_behind, hand_behind) = Clock::manual();
        hand_behind.set(moment.now.since(Micros::new(sample.period.get() * twelfths / 12)));
        let behind = Limiter::builder().clock(clock_behind).build("1/s").unwrap();
        let asks = [behind.prepare("any").cost(0), limiter.prepare("k").cost(cost)];
        let decision = BlockingLimiter::decide_all(&asks)[1];
        prop_assert!(current.is_allowed() || !decision.is_allowed(), "{:?}, now {:?}", decision, current);

        // Its cell is not another's before its time: new keys take only what says nothing any more.
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

/// The machine's coarse clock in a limiter and in a throttle. In a day nothing comes back that would disturb the count.
#[test]
fn coarse_clock_counts_exactly_and_widens_bound() {
    let (exact, coarse) = (Clock::system(), Clock::coarse());
    assert!(coarse.resolution() >= exact.resolution());
    let before = coarse.now();
    assert!(coarse.now() >= before);
    for quota in ["5/d", "5/w fixed-window from-first-hit", "5/d sliding-log"] {
        let limiter = Limiter::builder().clock(coarse.clone()).build(quota).unwrap();
        let throttle = DirectLimiter::builder().clock(coarse.clone()).build(quota).unwrap();
        let bound = quota.parse::<Quota>().unwrap().bound();
        // Where the operating system has no coarse clock it is the exact one.
        let blurred = match coarse.resolution() == exact.resolution() {
            true => bound,
            false => bound.with_clock_resolution(coarse.resolution()),
        };
        assert_eq!((limiter.bounds()[0].normal, throttle.bound()), (blurred, blurred), "{quota}");
        assert_eq!(DirectLimiter::new(quota).unwrap().bound(), bound, "{quota}");
        assert_eq!(Limiter::new(quota).unwrap().bounds()[0].normal, bound, "{quota}");
        assert_eq!((0..9).filter(|_| limiter.check("k").is_allowed()).count(), 5, "{quota}");
        assert_eq!((0..9).filter(|_| throttle.check().is_allowed()).count(), 5, "{quota}");
        assert!(limiter.check("another").is_allowed(), "{quota}");
    }
}
