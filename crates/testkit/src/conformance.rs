//! The store conformance kit: what must hold wherever a key's state lives.
//!
//! A store is a [`Subject`] for a key that it has never seen, made anew for each story. It must answer as the core
//! does, and the laws must hold for it by themselves: they know nothing of how it counts.

use crate::{
    Plain, Subject,
    strategy::{Moment, Move, Sample, costs, every_algorithm, leases, patient_moves, pauses, runner_of},
};
use proptest::{prelude::*, test_runner::TestCaseResult};
use tidegate_core::{AlgorithmKind, Decision, Demand, Effect, Micros, Outcome, Quota, Receipt};

/// How a store counts permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permits {
    /// They are held until they are given back.
    Held,
    /// They expire: whoever holds them may be gone.
    Leased,
}

/// Tells `stories` random stories of every algorithm to a store, and holds each law against it.
///
/// # Panics
///
/// When a law is broken, with the shortest story that breaks it.
pub fn check<S: Subject>(stories: u32, permits: Permits, new: impl Fn(Quota) -> S) {
    let stories = Stories { count: stories, permits };
    stories.hold("it answers as the core does", patient_moves(), |sample, story| {
        as_the_core(&sample, &story, new(sample.quota))
    });
    stories.hold("no window holds more than the bound", patient_moves(), |sample, story| {
        within_the_bound(&sample, &story, new(sample.quota))
    });
    let late = (patient_moves(), pauses(), costs());
    stories.hold("a retry is honest", late, |sample, (story, pause, cost)| {
        let mut key = new(sample.quota);
        let mut moment = told(&mut key, &sample, &story);
        moment.pass(pause);
        honest_retry(&mut key, moment.now, cost.under(sample.quota.limit()))
    });
    stories.hold("a denial changes nothing", patient_moves(), |sample, story| {
        unchanged_by_denial(&sample, &story, new(sample.quota))
    });
    stories.hold("a refund creates nothing", (patient_moves(), costs()), |sample, (story, cost)| {
        let mut key = new(sample.quota);
        let moment = told(&mut key, &sample, &story);
        refunded(&mut key, moment.now, cost.under(sample.quota.limit()))
    });
    stories.hold(
        "what is forgotten is as good as new",
        (patient_moves(), costs()),
        |sample, (story, cost)| {
            let (mut key, fresh) = (new(sample.quota), new(sample.quota));
            let moment = told(&mut key, &sample, &story);
            forgotten(&sample, key, fresh, moment.now, cost.under(sample.quota.limit()))
        },
    );
}

/// What to tell.
#[derive(Clone, Copy)]
struct Stories {
    count: u32,
    permits: Permits,
}

impl Stories {
    #[allow(clippy::panic, reason = "this is how a test fails")]
    fn hold<V: Strategy>(self, law: &str, stories: V, check: impl Fn(Sample, V::Value) -> TestCaseResult) {
        for (name, samples) in every_algorithm() {
            let samples = match (name, self.permits) {
                ("concurrency", Permits::Leased) => leases().boxed(),
                // Each of them is a thing that a caller holds.
                ("concurrency", Permits::Held) => samples.prop_filter("few", is_few).boxed(),
                _ => samples,
            };
            let told =
                runner_of(self.count).run(&(samples, &stories), |(sample, story)| check(sample, story));
            if let Err(broken) = told {
                panic!("{name}: not so that {law}: {broken}");
            }
        }
    }
}

/// Tells a story; where it ends.
fn told(key: &mut impl Subject, sample: &Sample, story: &[Move]) -> Moment {
    let mut moment = Moment::start_of(sample);
    for caller in story {
        moment.pass(caller.pause);
        moment.hear(&key.decide(moment.now, caller.demand(sample)).decision);
    }
    moment
}

fn as_the_core(sample: &Sample, story: &[Move], mut key: impl Subject) -> TestCaseResult {
    let (mut model, mut moment) = (Plain::new(sample.quota), Moment::start_of(sample));
    let mut held: Option<(Receipt, Receipt)> = None;
    for (index, caller) in story.iter().enumerate() {
        moment.pass(caller.pause);
        let demand = caller.demand(sample);
        // Every third caller gives back half of what the one before took.
        if let (2, Some((ours, theirs))) = (index % 3, held.take()) {
            let half = theirs.cost.div_ceil(2);
            key.refund(moment.now, ours, half);
            model.refund(moment.now, theirs, half);
        }
        let (ours, theirs) = (key.decide(moment.now, demand), model.decide(moment.now, demand));
        prop_assert_eq!(ours.decision, theirs.decision, "{:?} at {}", demand, moment.now);
        held = (theirs.receipt.cost > 0).then_some((ours.receipt, theirs.receipt));
        moment.hear(&theirs.decision);
    }
    Ok(())
}

fn within_the_bound(sample: &Sample, story: &[Move], mut key: impl Subject) -> TestCaseResult {
    // What is in flight comes and goes by itself where it is leased: that is no window.
    if matches!(sample.quota.kind(), AlgorithmKind::Concurrency(it) if it.lease().is_some()) {
        return Ok(());
    }
    let mut moment = Moment::start_of(sample);
    let mut admitted: Vec<(Micros, u64)> = Vec::new();
    for caller in story {
        moment.pass(caller.pause);
        let demand = caller.demand(sample);
        // The bound of a shaper is about single calls.
        let demand =
            if is_shaper(&sample.quota) { Demand { cost: demand.cost.min(1), ..demand } } else { demand };
        let decision = key.decide(moment.now, demand).decision;
        moment.hear(&decision);
        if decision.is_granted() {
            let wait = if decision.is_allowed() { Micros::ZERO } else { decision.wait() };
            admitted.push((moment.now.plus(wait), demand.cost));
        }
    }
    admitted.sort_unstable();
    if admitted.last().is_some_and(|(at, _)| *at == Micros::MAX) {
        return Ok(()); // all who wait for the end of time go then
    }
    for (index, (first, _)) in admitted.iter().enumerate() {
        let mut total = 0;
        for (last, cost) in &admitted[index..] {
            total += cost;
            let most = sample.quota.bound().max_in_window(last.since(*first).plus(Micros::new(1)));
            prop_assert!(total <= most, "{} of at most {} from {} to {}", total, most, first, last);
        }
    }
    Ok(())
}

fn honest_retry(key: &mut impl Subject, now: Micros, cost: u64) -> TestCaseResult {
    let demand = Demand::new(cost);
    let probe = Demand { effect: Effect::Probe, ..demand };
    let Some(wait) = key.decide(now, probe).decision.retry_after() else { return Ok(()) };
    let then = now.plus(wait);
    if then < Micros::MAX {
        let early = key.decide(then.since(Micros::new(1)), probe).decision;
        prop_assert!(!early.is_granted(), "already before {}", wait);
        prop_assert!(key.decide(then, demand).decision.is_allowed(), "not after {}", wait);
    }
    Ok(())
}

fn unchanged_by_denial(sample: &Sample, story: &[Move], mut key: impl Subject) -> TestCaseResult {
    let mut moment = Moment::start_of(sample);
    for caller in story {
        moment.pass(caller.pause);
        let before = key.decide(moment.now, Demand::probe(0)).decision;
        let decision = key.decide(moment.now, caller.demand(sample)).decision;
        if !decision.is_granted() {
            prop_assert_eq!(key.decide(moment.now, Demand::probe(0)).decision, before);
        }
        moment.hear(&decision);
    }
    Ok(())
}

fn refunded(key: &mut impl Subject, now: Micros, cost: u64) -> TestCaseResult {
    let left = |key: &mut dyn Subject| key.decide(now, Demand::probe(0)).decision.remaining();
    let before = left(key);
    let taken = key.decide(now, Demand::new(cost));
    if taken.receipt.cost > 0 {
        key.refund(now, taken.receipt, cost);
        prop_assert!(left(key) <= before, "{} from {}", left(key), before);
        key.refund(now, taken.receipt, 0);
        prop_assert!(left(key) <= before, "giving back nothing gave {}", left(key));
    }
    Ok(())
}

fn forgotten(
    sample: &Sample,
    mut key: impl Subject,
    mut fresh: impl Subject,
    now: Micros,
    cost: u64,
) -> TestCaseResult {
    // What is in flight is forgotten only when it is given back.
    if matches!(sample.quota.kind(), AlgorithmKind::Concurrency(_)) {
        return Ok(());
    }
    let reset = key.decide(now, Demand::probe(0)).decision.reset_after();
    let then = now.plus(reset);
    if reset < Micros::new(1 << 51) && then < Micros::MAX {
        let answers: [Decision; 2] =
            [key.decide(then, Demand::new(cost)).decision, fresh.decide(then, Demand::new(cost)).decision];
        prop_assert_eq!(answers[0], answers[1], "{} after {}", cost, reset);
        prop_assert!(!matches!(answers[0].outcome(), Outcome::Delay(_)));
    }
    Ok(())
}

fn is_few(sample: &Sample) -> bool {
    sample.quota.limit() <= 1_000
}

fn is_shaper(quota: &Quota) -> bool {
    matches!(quota.kind(), AlgorithmKind::Smooth(_) | AlgorithmKind::WarmUp(_))
}
