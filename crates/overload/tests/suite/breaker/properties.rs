//! Properties over random calls, outcomes, lost calls, manual changes and clock jumps: probes stay within the
//! limit, late results decide nothing, and the breaker can always close.

use proptest::{collection::vec, prelude::*};
use tidegate_core::{Micros, Percent};
use tidegate_overload::{
    BreakerBuilder, BreakerSettings, BreakerState, CallOutcome, Rejection,
    breaker::{BreakerMachine, FastPath, Generation},
};
use tidegate_testkit::strategy::runner_with_cases;

#[derive(Clone, Copy, Debug)]
enum BreakerStep {
    Acquire,
    /// Records the outcome of one of the calls in flight, counted from the oldest.
    Record(usize, CallOutcome, u64),
    /// One of the calls in flight never gets an outcome.
    Leak(usize),
    Advance(u64),
    StepBack(u64),
    /// Sets the clock to this time.
    SetTime(u64),
    Override(u8),
}

const PROBES: u32 = 3;

fn settings() -> impl Strategy<Value = BreakerBuilder> {
    let window = prop_oneof![(1_u32..12).prop_map(Ok), (10_u64..5_000, 1_u32..8).prop_map(Err)];
    let minimum = prop_oneof![1_u64..4, 1_u64..20];
    (window, minimum, 1_u64..=100, prop::option::of(1_u64..=100), 0_u64..=100).prop_map(
        |(window, min_calls, failure, slow, jitter)| {
            let builder = BreakerSettings::builder();
            let builder = match window {
                Ok(calls) => builder.count_window(calls),
                Err((time, buckets)) => builder.bucketed_window(Micros::new(time), buckets),
            };
            let builder = builder
                .min_calls(min_calls)
                .failure_rate(Percent::from_ratio(failure, 100))
                .half_open_calls(PROBES)
                .half_open_timeout(Micros::new(2_000))
                .open_duration(Micros::new(500))
                .backoff(1.5, Micros::new(3_000))
                .jitter(Percent::from_ratio(jitter, 100));
            match slow {
                Some(slow) => builder.slow_calls(Percent::from_ratio(slow, 100), Micros::new(100)),
                None => builder,
            }
        },
    )
}

fn steps() -> impl Strategy<Value = Vec<BreakerStep>> {
    let report = prop_oneof![3 => Just(CallOutcome::Success), 4 => Just(CallOutcome::Failure), 2 => Just(CallOutcome::Ignored)];
    let one = prop_oneof![
        12 => Just(BreakerStep::Acquire),
        10 => (0_usize..6, report, 0_u64..200).prop_map(|(which, report, took)| BreakerStep::Record(which, report, took)),
        1 => (0_usize..6).prop_map(BreakerStep::Leak),
        5 => prop_oneof![0_u64..50, 0_u64..3_000].prop_map(BreakerStep::Advance),
        1 => (0_u64..3_000).prop_map(BreakerStep::StepBack),
        1 => prop_oneof![Just(0), Just(u64::MAX), 0_u64..1_000_000].prop_map(BreakerStep::SetTime),
        1 => (0_u8..12).prop_map(BreakerStep::Override),
    ];
    vec(one, 1..250)
}

/// A breaker and its calls in flight.
struct BreakerModel {
    breaker: BreakerMachine,
    now: Micros,
    in_flight: Vec<Generation>,
    random_count: u64,
}

impl BreakerModel {
    fn new(settings: BreakerBuilder) -> Self {
        let breaker = BreakerMachine::new(settings.build().unwrap());
        Self { breaker, now: Micros::from_secs(1), in_flight: Vec::new(), random_count: 0 }
    }

    /// A number from 0 to 1 that differs from call to call.
    fn next_random(&mut self) -> f64 {
        self.random_count += 1;
        (self.random_count * 37 % 101) as f64 / 100.0
    }

    fn try_acquire(&mut self) -> Result<Generation, Rejection> {
        let random = self.next_random();
        self.breaker.try_acquire(self.now, random)
    }

    fn remove_in_flight(&mut self, which: usize) -> Option<Generation> {
        (!self.in_flight.is_empty()).then(|| self.in_flight.remove(which % self.in_flight.len()))
    }

    fn apply_time(&mut self, step: BreakerStep) {
        match step {
            BreakerStep::Advance(by) => self.now = self.now.saturating_add(Micros::new(by)),
            BreakerStep::StepBack(by) => self.now = self.now.saturating_sub(Micros::new(by)),
            BreakerStep::SetTime(to) => self.now = Micros::new(to),
            _ => {}
        }
    }

    fn override_state(&mut self, which: u8) {
        match which {
            0 => self.breaker.force_open(),
            1 => self.breaker.disable(),
            2 => self.breaker.set_metrics_only(),
            3 => self.breaker.open_for(self.now, Micros::new(700)),
            4 => self.breaker.open_for(self.now, Micros::ZERO),
            _ => self.breaker.close(),
        }
    }
}

fn check_property<S: Strategy>(inputs: S, property: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    runner_with_cases(3_000).run(&inputs, property).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn probes_stay_within_limit_and_late_results_are_ignored() {
    check_property((settings(), steps()), |(settings, steps)| {
        let mut model = BreakerModel::new(settings);
        // The probes of the current generation that were not ignored.
        let (mut generation, mut probes) = (model.breaker.generation(), 0);
        for step in steps {
            model.apply_time(step);
            match step {
                BreakerStep::Acquire => {
                    let permit = model.try_acquire();
                    if model.breaker.generation() != generation {
                        (generation, probes) = (model.breaker.generation(), 0);
                    }
                    if let Ok(permit) = permit {
                        prop_assert_eq!(permit, generation);
                        model.in_flight.push(permit);
                        probes += 1;
                    }
                }
                BreakerStep::Record(which, report, took) => {
                    let Some(permit) = model.remove_in_flight(which) else { continue };
                    let before = (model.breaker.snapshot(model.now), format!("{:?}", model.breaker));
                    let random = model.next_random();
                    model.breaker.record(permit, report, Micros::new(took), model.now, random);
                    if permit != generation {
                        let after = (model.breaker.snapshot(model.now), format!("{:?}", model.breaker));
                        prop_assert_eq!(before, after, "a late result changed something");
                    } else if report == CallOutcome::Ignored {
                        probes -= 1;
                    }
                }
                BreakerStep::Leak(which) => drop(model.remove_in_flight(which)),
                BreakerStep::Override(which) => model.override_state(which),
                _ => {}
            }
            if model.breaker.generation() != generation {
                (generation, probes) = (model.breaker.generation(), 0);
            }
            match model.breaker.state() {
                BreakerState::HalfOpen => prop_assert!(probes <= PROBES, "{probes} probes"),
                BreakerState::Open | BreakerState::ForcedOpen => prop_assert_eq!(probes, 0),
                _ => {}
            }
        }
        Ok(())
    });
}

/// From any state, a caller that waits as advised is admitted at the third attempt at the latest, even if no
/// call in flight ever gets an outcome.
#[test]
fn breaker_can_always_close() {
    check_property((settings(), steps()), |(settings, steps)| {
        let mut model = BreakerModel::new(settings);
        for step in steps {
            model.apply_time(step);
            match step {
                BreakerStep::Acquire => {
                    let permit = model.try_acquire();
                    model.in_flight.extend(permit.ok());
                }
                BreakerStep::Record(which, report, took) => {
                    let Some(permit) = model.remove_in_flight(which) else { continue };
                    let random = model.next_random();
                    model.breaker.record(permit, report, Micros::new(took), model.now, random);
                }
                BreakerStep::Leak(which) => drop(model.remove_in_flight(which)),
                BreakerStep::Override(which) => model.override_state(which),
                _ => {}
            }
        }
        if model.now > Micros::from_secs(1_000_000) {
            model.now = Micros::ZERO; // leave room for the wait
        }
        for _ in 0..3 {
            let rejection = match model.try_acquire() {
                Ok(_) => return Ok(()),
                Err(Rejection::ForcedOpen) => {
                    prop_assert_eq!(model.breaker.state(), BreakerState::ForcedOpen);
                    return Ok(());
                }
                Err(rejection) => rejection,
            };
            let wait = rejection.retry_after().unwrap();
            prop_assert!(wait > Micros::ZERO && wait <= Micros::new(6_000), "{}", rejection);
            let then = model.now.saturating_add(wait);
            model.now = then.saturating_sub(Micros::new(1));
            prop_assert!(model.try_acquire().is_err(), "admitted too early: {}", rejection);
            model.now = then;
        }
        let last = model.try_acquire();
        prop_assert!(last.is_ok(), "{:?}", last);
        Ok(())
    });
}

/// The half-open state ends whatever its probes do: fail, succeed, are ignored or get no outcome.
#[test]
fn half_open_state_always_ends() {
    let ends = vec((0_u8..4, 1_u64..300), 1..40);
    check_property((settings(), ends), |(settings, ends)| {
        let mut model = BreakerModel::new(settings);
        model.breaker.open_for(model.now, Micros::new(1));
        model.now = model.now.saturating_add(Micros::new(1));
        let began = model.now;
        let generation = model.try_acquire().unwrap();
        for (end, pause) in ends.into_iter().cycle() {
            if model.breaker.generation() != generation {
                return Ok(());
            }
            prop_assert!(
                model.now.saturating_sub(began) < Micros::new(2_000 + 300),
                "still half-open after the deadline"
            );
            let report =
                [Some(CallOutcome::Success), Some(CallOutcome::Failure), Some(CallOutcome::Ignored), None];
            if let (Ok(permit), Some(report)) = (model.try_acquire(), report[end as usize]) {
                let now = model.now;
                model.breaker.record(permit, report, Micros::ZERO, now, 0.5);
            }
            model.now = model.now.saturating_add(Micros::new(pause));
        }
        Ok(())
    });
}

/// Skipping calls and outcomes according to the fast path, and times that do not matter, gives the same
/// breaker as the slow path.
#[test]
fn fast_path_matches_slow_path() {
    check_property((settings(), steps()), |(settings, steps)| {
        let (mut full, mut short) = (BreakerModel::new(settings.clone()), BreakerModel::new(settings));
        let mut counted = 0;
        for step in steps {
            full.apply_time(step);
            short.now = full.now;
            let random = full.next_random();
            let counts = short.breaker.fast_path() == FastPath::CountSuccess;
            match step {
                BreakerStep::Acquire => {
                    let result = full.breaker.try_acquire(full.now, random);
                    let same = match short.breaker.fast_path() {
                        FastPath::None => short.breaker.try_acquire(short.now, random),
                        _ => Ok(short.breaker.generation()),
                    };
                    prop_assert_eq!(result, same);
                    full.in_flight.extend(result.ok());
                }
                BreakerStep::Record(which, report, took) => {
                    let Some(permit) = full.remove_in_flight(which) else { continue };
                    let took = Micros::new(took);
                    full.breaker.record(permit, report, took, full.now, random);
                    let slow = short.breaker.settings().is_slow(took);
                    let skips = match short.breaker.fast_path() {
                        _ if permit != short.breaker.generation() => true,
                        FastPath::None => false,
                        FastPath::Admit => report == CallOutcome::Ignored,
                        FastPath::CountSuccess | FastPath::SkipSuccess => {
                            report == CallOutcome::Ignored || report == CallOutcome::Success && !slow
                        }
                        FastPath::SkipAll => true,
                    };
                    if skips {
                        let is_ours = permit == short.breaker.generation();
                        counted += u64::from(counts && is_ours && report == CallOutcome::Success);
                    } else {
                        short.breaker.record_successes(std::mem::take(&mut counted));
                        let (now, random) = if short.breaker.is_time_independent() {
                            (Micros::ZERO, 0.0)
                        } else {
                            (short.now, random)
                        };
                        short.breaker.record(permit, report, took, now, random);
                    }
                }
                BreakerStep::Override(which) => {
                    full.override_state(which);
                    short.breaker.record_successes(std::mem::take(&mut counted));
                    short.override_state(which);
                }
                _ => {}
            }
            let mut caught_up = short.breaker.clone();
            caught_up.record_successes(counted);
            prop_assert_eq!(full.breaker.snapshot(full.now), caught_up.snapshot(full.now));
        }
        Ok(())
    });
}
