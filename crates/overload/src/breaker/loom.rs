//! Interleavings of threads on a breaker; `scripts/test loom` runs them.

use super::Breaker;
use crate::{BreakerBuilder, BreakerSettings, BreakerState, call_guard::CallGuard};
use loom::{sync::Arc, thread};
use tidegate_core::{Micros, Percent};
use tidegate_limiter::Clock;

fn run_model(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(model);
}

fn settings(calls: u32, probes: u32) -> BreakerBuilder {
    BreakerSettings::builder()
        .count_window(calls)
        .failure_rate(Percent::FULL)
        .half_open_calls(probes)
        .open_duration(Micros::new(1))
}

fn breaker(settings: BreakerBuilder) -> Arc<Breaker> {
    let (clock, manual_clock) = Clock::manual();
    manual_clock.set(Micros::new(10));
    Arc::new(Breaker::with_clock(settings.build().unwrap(), clock))
}

fn spawn_with<T: 'static>(
    breaker: &Arc<Breaker>,
    work: impl FnOnce(&Breaker) -> T + 'static,
) -> thread::JoinHandle<T> {
    let breaker = breaker.clone();
    thread::spawn(move || work(&breaker))
}

/// A breaker whose open time has passed, before the next call.
fn ready_for_probes(probes: u32) -> Arc<Breaker> {
    let (clock, manual_clock) = Clock::manual();
    let breaker = Breaker::with_clock(settings(4, probes).build().unwrap(), clock);
    breaker.open_for(Micros::new(1).to_duration());
    manual_clock.set(Micros::new(1));
    Arc::new(breaker)
}

/// Acquires a slot without recording an outcome.
fn is_admitted(breaker: &Breaker) -> bool {
    breaker.admit().is_ok()
}

#[test]
fn loom_probes_stay_within_limit() {
    for probes in 1..=3 {
        run_model(move || {
            let breaker = ready_for_probes(probes);
            let others = [spawn_with(&breaker, is_admitted), spawn_with(&breaker, is_admitted)];
            let passed = u32::from(is_admitted(&breaker))
                + others.into_iter().map(|other| u32::from(other.join().unwrap())).sum::<u32>();
            assert_eq!(passed, probes);
            assert_eq!(breaker.state(), BreakerState::HalfOpen);
        });
    }
}

/// A released probe slot goes to one other thread.
#[test]
fn loom_ignored_probe_frees_one_slot() {
    run_model(|| {
        let breaker = ready_for_probes(1);
        let other = spawn_with(&breaker, is_admitted);
        let has_released = breaker.try_acquire().map(drop).is_ok();
        let other = other.join().unwrap();
        assert!(has_released || other);
        assert_eq!(is_admitted(&breaker), !other, "the slot is free unless the other thread has it");
    });
}

/// One thread succeeds while another fails and opens the breaker: in no order does the success close it or
/// keep it closed.
#[test]
fn loom_older_success_does_not_close_open_breaker() {
    run_model(|| {
        // A window of one successful call: a success changes nothing, so it takes no lock.
        let breaker = breaker(settings(1, 1));
        breaker.try_acquire().unwrap().succeed();
        let other = spawn_with(&breaker, |breaker| breaker.try_acquire().unwrap().fail());
        if let Ok(permit) = breaker.try_acquire() {
            permit.succeed();
        }
        other.join().unwrap();
        let snapshot = breaker.snapshot();
        assert_eq!((snapshot.state, snapshot.generation), (BreakerState::Open, 1));
    });
}

/// Two failures and a success race: the breaker opens unless the success is recorded between them.
#[test]
fn loom_success_between_failures_keeps_breaker_closed() {
    run_model(|| {
        let breaker = breaker(settings(2, 1));
        (0..2).for_each(|_| breaker.try_acquire().unwrap().succeed());
        let permit = breaker.try_acquire().unwrap();
        let other = spawn_with(&breaker, |breaker| {
            (0..2).for_each(|_| breaker.try_acquire().unwrap().fail());
        });
        permit.succeed();
        other.join().unwrap();
        let snapshot = breaker.snapshot();
        match snapshot.state {
            BreakerState::Open => assert_eq!((snapshot.counts.calls, snapshot.counts.failures), (2, 2)),
            _ => assert_eq!((snapshot.state, snapshot.counts.failures), (BreakerState::Closed, 1)),
        }
    });
}

/// Successes that are counted outside of the lock are not lost to concurrent snapshots or outcomes.
#[test]
fn loom_every_success_is_counted() {
    run_model(|| {
        let breaker = breaker(settings(3, 1));
        (0..2).for_each(|_| breaker.try_acquire().unwrap().succeed());
        breaker.try_acquire().unwrap().fail();
        let others = [
            spawn_with(&breaker, |breaker| breaker.try_acquire().unwrap().succeed()),
            spawn_with(&breaker, |breaker| breaker.try_acquire().unwrap().succeed()),
        ];
        let counts = breaker.snapshot().counts;
        assert_eq!((counts.calls, counts.failures), (3, 1));
        others.into_iter().for_each(|other| other.join().unwrap());
        breaker.try_acquire().unwrap().fail();
        let snapshot = breaker.snapshot().counts;
        assert_eq!((snapshot.calls, snapshot.failures), (3, 1), "two successes follow the first failure");
    });
}

/// A success that was counted in one generation does not count in the next.
#[test]
fn loom_successes_count_in_their_generation() {
    run_model(|| {
        let breaker = breaker(settings(2, 1));
        breaker.try_acquire().unwrap().succeed();
        breaker.try_acquire().unwrap().fail();
        let permit = breaker.try_acquire().unwrap();
        let other = spawn_with(&breaker, |breaker| {
            breaker.set_metrics_only();
            (0..2).for_each(|_| breaker.try_acquire().unwrap().fail());
        });
        permit.succeed();
        other.join().unwrap();
        let snapshot = breaker.snapshot().counts;
        assert_eq!((snapshot.calls, snapshot.failures), (2, 2));
    });
}

/// A probe of one half-open state records its outcome while the breaker is forced open: it decides nothing.
#[test]
fn loom_older_probe_does_not_close_forced_open_breaker() {
    run_model(|| {
        let breaker = ready_for_probes(1);
        let probe = breaker.try_acquire().unwrap();
        let other = spawn_with(&breaker, Breaker::force_open);
        probe.succeed();
        other.join().unwrap();
        assert_eq!(breaker.state(), BreakerState::ForcedOpen);
        assert!(breaker.try_acquire().is_err());
    });
}
