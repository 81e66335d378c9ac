//! The store conformance kit: properties that hold for every store of keys.
//!
//! A store is tested as a [`Subject`] for a new key per case. It must make the same decisions as the core, and the other
//! properties must hold independently of the core.

use crate::{
    CoreModel, Subject,
    strategy::{
        CallClock, CallStep, Sample, costs, every_algorithm, leases, pauses, runner_with_cases,
        waiting_call_steps,
    },
};
use proptest::{prelude::*, test_runner::TestCaseResult};
use tidegate_core::{AlgorithmKind, Decision, Demand, Effect, Micros, Outcome, Quota, Receipt};

/// The lifetime of permits in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermitLifetime {
    /// A permit lives until it is released.
    UntilReleased,
    /// A permit expires, because its holder may have died.
    Leased,
}

/// Checks every property with `cases` random call sequences per algorithm.
///
/// # Panics
///
/// Panics if a property fails, with the shortest failing sequence.
pub fn check<S: Subject>(cases: u32, permits: PermitLifetime, new: impl Fn(Quota) -> S) {
    let cases = ConformanceRuns { count: cases, permits };
    cases.check_property("decisions match the core", waiting_call_steps(), |sample, steps| {
        check_matches_core(&sample, &steps, new(sample.quota))
    });
    cases.check_property("no window exceeds the bound", waiting_call_steps(), |sample, steps| {
        check_bound(&sample, &steps, new(sample.quota))
    });
    let later = (waiting_call_steps(), pauses(), costs());
    cases.check_property(
        "a retry succeeds at its time and not before",
        later,
        |sample, (steps, pause, cost)| {
            let mut key = new(sample.quota);
            let mut clock = replay(&mut key, &sample, &steps);
            clock.advance(pause);
            check_retry(&mut key, clock.now, cost.resolve(sample.quota.limit()))
        },
    );
    cases.check_property("a denial changes nothing", waiting_call_steps(), |sample, steps| {
        check_denial(&sample, &steps, new(sample.quota))
    });
    cases.check_property(
        "a refund adds no tokens",
        (waiting_call_steps(), costs()),
        |sample, (steps, cost)| {
            let mut key = new(sample.quota);
            let clock = replay(&mut key, &sample, &steps);
            check_refund(&mut key, clock.now, cost.resolve(sample.quota.limit()))
        },
    );
    cases.check_property(
        "a key that has reset equals a new one",
        (waiting_call_steps(), costs()),
        |sample, (steps, cost)| {
            let (mut key, fresh) = (new(sample.quota), new(sample.quota));
            let clock = replay(&mut key, &sample, &steps);
            check_reset(&sample, key, fresh, clock.now, cost.resolve(sample.quota.limit()))
        },
    );
}

/// The settings of a run.
#[derive(Clone, Copy)]
struct ConformanceRuns {
    count: u32,
    permits: PermitLifetime,
}

impl ConformanceRuns {
    #[allow(clippy::panic, reason = "tests fail by panicking")]
    fn check_property<V: Strategy>(
        self,
        property: &str,
        cases: V,
        check: impl Fn(Sample, V::Value) -> TestCaseResult,
    ) {
        for (name, samples) in every_algorithm() {
            let samples = match (name, self.permits) {
                ("concurrency", PermitLifetime::Leased) => leases().boxed(),
                // Each unit of cost is a permit object, so large limits are too slow.
                ("concurrency", PermitLifetime::UntilReleased) => {
                    samples.prop_filter("few", is_small).boxed()
                }
                _ => samples,
            };
            let result =
                runner_with_cases(self.count).run(&(samples, &cases), |(sample, steps)| check(sample, steps));
            if let Err(failure) = result {
                panic!("{name}: property \"{property}\" failed: {failure}");
            }
        }
    }
}

/// Runs a call sequence and returns the clock at its end.
fn replay(key: &mut impl Subject, sample: &Sample, steps: &[CallStep]) -> CallClock {
    let mut clock = CallClock::new(sample);
    for caller in steps {
        clock.advance(caller.pause);
        clock.record(&key.decide(clock.now, caller.demand(sample)).decision);
    }
    clock
}

fn check_matches_core(sample: &Sample, steps: &[CallStep], mut key: impl Subject) -> TestCaseResult {
    let (mut model, mut clock) = (CoreModel::new(sample.quota), CallClock::new(sample));
    let mut receipts: Option<(Receipt, Receipt)> = None;
    for (index, caller) in steps.iter().enumerate() {
        clock.advance(caller.pause);
        let demand = caller.demand(sample);
        // Every third call refunds half of the previous charge.
        if let (2, Some((ours, theirs))) = (index % 3, receipts.take()) {
            let half = theirs.cost.div_ceil(2);
            key.refund(clock.now, ours, half);
            model.refund(clock.now, theirs, half);
        }
        let (ours, theirs) = (key.decide(clock.now, demand), model.decide(clock.now, demand));
        prop_assert_eq!(ours.decision, theirs.decision, "{:?} at {}", demand, clock.now);
        receipts = (theirs.receipt.cost > 0).then_some((ours.receipt, theirs.receipt));
        clock.record(&theirs.decision);
    }
    Ok(())
}

fn check_bound(sample: &Sample, steps: &[CallStep], mut key: impl Subject) -> TestCaseResult {
    // Leased permits expire by time, so they have no window bound.
    if matches!(sample.quota.kind(), AlgorithmKind::Concurrency(it) if it.lease().is_some()) {
        return Ok(());
    }
    let mut clock = CallClock::new(sample);
    let mut admitted: Vec<(Micros, u64)> = Vec::new();
    for caller in steps {
        clock.advance(caller.pause);
        let demand = caller.demand(sample);
        // The bound of a shaper holds for calls of cost one.
        let demand = if is_smooth_rate(&sample.quota) {
            Demand { cost: demand.cost.min(1), ..demand }
        } else {
            demand
        };
        let decision = key.decide(clock.now, demand).decision;
        clock.record(&decision);
        if decision.is_granted() {
            let wait = if decision.is_allowed() { Micros::ZERO } else { decision.wait() };
            admitted.push((clock.now.saturating_add(wait), demand.cost));
        }
    }
    admitted.sort_unstable();
    if admitted.last().is_some_and(|(at, _)| *at == Micros::MAX) {
        return Ok(()); // calls that wait until the largest time are all admitted at that instant
    }
    for (index, (first, _)) in admitted.iter().enumerate() {
        let mut total = 0;
        for (last, cost) in &admitted[index..] {
            total += cost;
            let most = sample
                .quota
                .bound()
                .max_in_window(last.saturating_sub(*first).saturating_add(Micros::new(1)));
            prop_assert!(total <= most, "{} of at most {} from {} to {}", total, most, first, last);
        }
    }
    Ok(())
}

fn check_retry(key: &mut impl Subject, now: Micros, cost: u64) -> TestCaseResult {
    let demand = Demand::new(cost);
    let probe = Demand { effect: Effect::Peek, ..demand };
    let Some(wait) = key.decide(now, probe).decision.retry_after() else { return Ok(()) };
    let then = now.saturating_add(wait);
    if then < Micros::MAX {
        let early = key.decide(then.saturating_sub(Micros::new(1)), probe).decision;
        prop_assert!(!early.is_granted(), "granted before {}", wait);
        prop_assert!(key.decide(then, demand).decision.is_allowed(), "not allowed after {}", wait);
    }
    Ok(())
}

fn check_denial(sample: &Sample, steps: &[CallStep], mut key: impl Subject) -> TestCaseResult {
    let mut clock = CallClock::new(sample);
    for caller in steps {
        clock.advance(caller.pause);
        let before = key.decide(clock.now, Demand::peek(0)).decision;
        let decision = key.decide(clock.now, caller.demand(sample)).decision;
        if !decision.is_granted() {
            prop_assert_eq!(key.decide(clock.now, Demand::peek(0)).decision, before);
        }
        clock.record(&decision);
    }
    Ok(())
}

fn check_refund(key: &mut impl Subject, now: Micros, cost: u64) -> TestCaseResult {
    let left = |key: &mut dyn Subject| key.decide(now, Demand::peek(0)).decision.remaining();
    let before = left(key);
    let step = key.decide(now, Demand::new(cost));
    if step.receipt.cost > 0 {
        key.refund(now, step.receipt, cost);
        prop_assert!(left(key) <= before, "{} from {}", left(key), before);
        key.refund(now, step.receipt, 0);
        prop_assert!(left(key) <= before, "a refund of zero gave {}", left(key));
    }
    Ok(())
}

fn check_reset(
    sample: &Sample,
    mut key: impl Subject,
    mut fresh: impl Subject,
    now: Micros,
    cost: u64,
) -> TestCaseResult {
    // Permits in flight reset only when they are released.
    if matches!(sample.quota.kind(), AlgorithmKind::Concurrency(_)) {
        return Ok(());
    }
    let reset = key.decide(now, Demand::peek(0)).decision.reset_after();
    let then = now.saturating_add(reset);
    if reset < Micros::new(1 << 51) && then < Micros::MAX {
        let answers: [Decision; 2] =
            [key.decide(then, Demand::new(cost)).decision, fresh.decide(then, Demand::new(cost)).decision];
        prop_assert_eq!(answers[0], answers[1], "{} after {}", cost, reset);
        prop_assert!(!matches!(answers[0].outcome(), Outcome::Delay(_)));
    }
    Ok(())
}

fn is_small(sample: &Sample) -> bool {
    sample.quota.limit() <= 1_000
}

fn is_smooth_rate(quota: &Quota) -> bool {
    matches!(quota.kind(), AlgorithmKind::Smooth(_) | AlgorithmKind::WarmUp(_))
}
