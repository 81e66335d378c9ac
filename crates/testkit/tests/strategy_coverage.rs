//! Random calls reach every outcome often enough: a property test without denials would prove nothing.

use proptest::prelude::*;
use std::cell::RefCell;
use tidegate_core::{Outcome, Retry};
use tidegate_testkit::{CoreModel, Subject, strategy::*};

/// A minimum share of the calls of each algorithm has each outcome.
#[test]
fn random_calls_reach_all_outcomes() {
    for (name, samples) in every_algorithm() {
        for (inputs, wait_mode) in
            [(call_steps().boxed(), WaitMode::None), (crowded_call_steps().boxed(), WaitMode::Some)]
        {
            let counts = RefCell::new(OutcomeCounts::default());
            let result = runner().run(&(samples.clone(), inputs), |(sample, steps)| {
                counts.borrow_mut().count_outcomes(&sample, &steps);
                Ok(())
            });
            assert!(result.is_ok());
            let OutcomeCounts { total, allowed, delayed, denied, oversized, exact_waits } =
                counts.into_inner();
            if total < 1_000 {
                continue; // `PROPTEST_CASES` is too small for statistics
            }
            assert!(allowed * 8 > total, "{name}: {allowed} of {total} allowed");
            assert!(denied * 16 > total, "{name}: {denied} of {total} denied");
            assert!(oversized * 50 > total, "{name}: {oversized} of {total} over the limit");
            let has_waits = !matches!(name, "concurrency" | "total");
            assert!(!has_waits || exact_waits * 50 > total, "{name}: {exact_waits} of {total} exact waits");
            let some_wait = has_waits && wait_mode == WaitMode::Some;
            assert_eq!(delayed * 16 > total, some_wait, "{name}: {delayed} of {total} delayed");
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum WaitMode {
    None,
    Some,
}

#[derive(Default)]
struct OutcomeCounts {
    total: u64,
    allowed: u64,
    delayed: u64,
    denied: u64,
    oversized: u64,
    exact_waits: u64,
}

impl OutcomeCounts {
    fn count_outcomes(&mut self, sample: &Sample, steps: &[CallStep]) {
        let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(sample));
        for caller in steps {
            let before = clock.now;
            clock.advance(caller.pause);
            let is_exact = matches!(caller.pause, CallPause::LastWait | CallPause::JustUnderLastWait);
            self.exact_waits += u64::from(is_exact && clock.now > before);
            let demand = caller.demand(sample);
            let decision = key.decide(clock.now, demand).decision;
            clock.record(&decision);
            self.total += 1;
            self.oversized += u64::from(demand.cost > sample.quota.limit());
            match decision.outcome() {
                Outcome::Allow => self.allowed += 1,
                Outcome::Delay(_) => self.delayed += 1,
                Outcome::Deny(Retry::Never) if demand.cost > sample.quota.limit() => {}
                Outcome::Deny(_) => self.denied += 1,
            }
        }
    }
}
