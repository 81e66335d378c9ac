//! Every order in which threads can meet at a breaker; `scripts/test loom` runs them.

use super::Breaker;
use crate::{BreakerBuilder, BreakerSettings, BreakerState, guard::Guard};
use loom::{sync::Arc, thread};
use tidegate_core::{Micros, Share};
use tidegate_limiter::Clock;

fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(model);
}

fn settings(calls: u32, probes: u32) -> BreakerBuilder {
    BreakerSettings::builder()
        .over_calls(calls)
        .failure_rate(Share::ALL)
        .probes(probes)
        .open_for(Micros::new(1))
}

fn breaker(settings: BreakerBuilder) -> Arc<Breaker> {
    let (clock, hand) = Clock::manual();
    hand.set(Micros::new(10));
    Arc::new(Breaker::with_clock(settings.build().unwrap(), clock))
}

fn beside<T: 'static>(
    breaker: &Arc<Breaker>,
    work: impl FnOnce(&Breaker) -> T + 'static,
) -> thread::JoinHandle<T> {
    let breaker = breaker.clone();
    thread::spawn(move || work(&breaker))
}

/// A breaker whose open time is over, though nobody has asked yet.
fn ready_for_probes(probes: u32) -> Arc<Breaker> {
    let (clock, hand) = Clock::manual();
    let breaker = Breaker::with_clock(settings(4, probes).build().unwrap(), clock);
    breaker.open_for(Micros::new(1).to_duration());
    hand.set(Micros::new(1));
    Arc::new(breaker)
}

/// Keeps the pass for good.
fn is_let_through(breaker: &Breaker) -> bool {
    breaker.enter().is_ok()
}

#[test]
fn loom_no_more_probes_than_places() {
    for probes in 1..=3 {
        explore(move || {
            let breaker = ready_for_probes(probes);
            let others = [beside(&breaker, is_let_through), beside(&breaker, is_let_through)];
            let passed = u32::from(is_let_through(&breaker))
                + others.into_iter().map(|other| u32::from(other.join().unwrap())).sum::<u32>();
            assert_eq!(passed, probes);
            assert_eq!(breaker.state(), BreakerState::HalfOpen);
        });
    }
}

/// A place that is given back goes to one other.
#[test]
fn loom_an_ignored_probe_gives_one_place_back() {
    explore(|| {
        let breaker = ready_for_probes(1);
        let other = beside(&breaker, is_let_through);
        let gave_back = breaker.try_pass().map(drop).is_ok();
        let other = other.join().unwrap();
        assert!(gave_back || other);
        assert_eq!(is_let_through(&breaker), !other, "one place, and it is free unless the other keeps it");
    });
}

/// One thread succeeds while another fails and opens the breaker: in no order does the success close or keep it.
#[test]
fn loom_a_success_from_before_does_not_matter_to_an_open_breaker() {
    explore(|| {
        // A window of one call that went well: a success changes nothing, so it takes no lock.
        let breaker = breaker(settings(1, 1));
        breaker.try_pass().unwrap().succeed();
        let other = beside(&breaker, |breaker| breaker.try_pass().unwrap().fail());
        if let Ok(pass) = breaker.try_pass() {
            pass.succeed();
        }
        other.join().unwrap();
        let seen = breaker.snapshot();
        assert_eq!((seen.state, seen.generation), (BreakerState::Open, 1));
    });
}

/// Two failures and a success meet: the breaker opens unless the success came between them.
#[test]
fn loom_a_success_counts_where_it_falls() {
    explore(|| {
        let breaker = breaker(settings(2, 1));
        (0..2).for_each(|_| breaker.try_pass().unwrap().succeed());
        let pass = breaker.try_pass().unwrap();
        let other = beside(&breaker, |breaker| {
            (0..2).for_each(|_| breaker.try_pass().unwrap().fail());
        });
        pass.succeed();
        other.join().unwrap();
        let seen = breaker.snapshot();
        match seen.state {
            BreakerState::Open => assert_eq!((seen.counts.calls, seen.counts.failures), (2, 2)),
            _ => assert_eq!((seen.state, seen.counts.failures), (BreakerState::Closed, 1)),
        }
    });
}

/// Successes that are counted beside the lock are not lost, whoever looks or reports meanwhile.
#[test]
fn loom_no_success_is_lost() {
    explore(|| {
        let breaker = breaker(settings(3, 1));
        (0..2).for_each(|_| breaker.try_pass().unwrap().succeed());
        breaker.try_pass().unwrap().fail();
        let others = [
            beside(&breaker, |breaker| breaker.try_pass().unwrap().succeed()),
            beside(&breaker, |breaker| breaker.try_pass().unwrap().succeed()),
        ];
        let meanwhile = breaker.snapshot().counts;
        assert_eq!((meanwhile.calls, meanwhile.failures), (3, 1));
        others.into_iter().for_each(|other| other.join().unwrap());
        breaker.try_pass().unwrap().fail();
        let seen = breaker.snapshot().counts;
        assert_eq!((seen.calls, seen.failures), (3, 1), "two successes came after the first failure");
    });
}

/// A success that was counted in one generation does not count in the next.
#[test]
fn loom_successes_are_counted_in_their_generation() {
    explore(|| {
        let breaker = breaker(settings(2, 1));
        breaker.try_pass().unwrap().succeed();
        breaker.try_pass().unwrap().fail();
        let pass = breaker.try_pass().unwrap();
        let other = beside(&breaker, |breaker| {
            breaker.metrics_only();
            (0..2).for_each(|_| breaker.try_pass().unwrap().fail());
        });
        pass.succeed();
        other.join().unwrap();
        let seen = breaker.snapshot().counts;
        assert_eq!((seen.calls, seen.failures), (2, 2));
    });
}

/// A probe of one half-open stretch reports while a hand opens and ends another: it decides nothing there.
#[test]
fn loom_a_generation_is_respected() {
    explore(|| {
        let breaker = ready_for_probes(1);
        let probe = breaker.try_pass().unwrap();
        let other = beside(&breaker, Breaker::force_open);
        probe.succeed();
        other.join().unwrap();
        assert_eq!(breaker.state(), BreakerState::ForcedOpen);
        assert!(breaker.try_pass().is_err());
    });
}
