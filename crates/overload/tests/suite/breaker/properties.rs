//! On random stories of questions, reports, silence, hands and a clock that jumps: never more probes than there are
//! places, late results decide nothing, and there is always a way out.

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
    /// Reports one of the calls that are under way, counted from the oldest.
    Record(usize, CallOutcome, u64),
    /// One of them is never heard of again.
    Leak(usize),
    Advance(u64),
    StepBack(u64),
    /// To this moment.
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
                .probes(PROBES)
                .probe_deadline(Micros::new(2_000))
                .open_for(Micros::new(500))
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

/// A breaker, and who is under way.
struct BreakerModel {
    breaker: BreakerMachine,
    now: Micros,
    in_flight: Vec<Generation>,
    roll_count: u64,
}

impl BreakerModel {
    fn new(settings: BreakerBuilder) -> Self {
        let breaker = BreakerMachine::new(settings.build().unwrap());
        Self { breaker, now: Micros::from_secs(1), in_flight: Vec::new(), roll_count: 0 }
    }

    /// Some number from 0 to 1, another each time.
    fn roll(&mut self) -> f64 {
        self.roll_count += 1;
        (self.roll_count * 37 % 101) as f64 / 100.0
    }

    fn try_acquire(&mut self) -> Result<Generation, Rejection> {
        let roll = self.roll();
        self.breaker.try_acquire(self.now, roll)
    }

    fn remove_in_flight(&mut self, which: usize) -> Option<Generation> {
        (!self.in_flight.is_empty()).then(|| self.in_flight.remove(which % self.in_flight.len()))
    }

    fn apply_time(&mut self, step: BreakerStep) {
        match step {
            BreakerStep::Advance(by) => self.now = self.now.plus(Micros::new(by)),
            BreakerStep::StepBack(by) => self.now = self.now.since(Micros::new(by)),
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

fn check_property<S: Strategy>(stories: S, law: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    runner_with_cases(3_000).run(&stories, law).unwrap_or_else(|broken| panic!("{broken}"));
}

#[test]
fn probes_stay_within_limit_and_late_results_are_ignored() {
    check_property((settings(), steps()), |(settings, story)| {
        let mut world = BreakerModel::new(settings);
        // Of the generation at hand: who passed and has not been ignored.
        let (mut generation, mut probes) = (world.breaker.generation(), 0);
        for step in story {
            world.apply_time(step);
            match step {
                BreakerStep::Acquire => {
                    let pass = world.try_acquire();
                    if world.breaker.generation() != generation {
                        (generation, probes) = (world.breaker.generation(), 0);
                    }
                    if let Ok(pass) = pass {
                        prop_assert_eq!(pass, generation);
                        world.in_flight.push(pass);
                        probes += 1;
                    }
                }
                BreakerStep::Record(which, report, took) => {
                    let Some(pass) = world.remove_in_flight(which) else { continue };
                    let before = (world.breaker.snapshot(world.now), format!("{:?}", world.breaker));
                    let roll = world.roll();
                    world.breaker.record(pass, report, Micros::new(took), world.now, roll);
                    if pass != generation {
                        let after = (world.breaker.snapshot(world.now), format!("{:?}", world.breaker));
                        prop_assert_eq!(before, after, "a late result changed something");
                    } else if report == CallOutcome::Ignored {
                        probes -= 1;
                    }
                }
                BreakerStep::Leak(which) => drop(world.remove_in_flight(which)),
                BreakerStep::Override(which) => world.override_state(which),
                _ => {}
            }
            if world.breaker.generation() != generation {
                (generation, probes) = (world.breaker.generation(), 0);
            }
            match world.breaker.state() {
                BreakerState::HalfOpen => prop_assert!(probes <= PROBES, "{probes} probes"),
                BreakerState::Open | BreakerState::ForcedOpen => prop_assert_eq!(probes, 0),
                _ => {}
            }
        }
        Ok(())
    });
}

/// From wherever a story ends, whoever waits as long as told is let through, at the third question at the latest,
/// although nobody who is under way is ever heard of.
#[test]
fn breaker_can_always_close() {
    check_property((settings(), steps()), |(settings, story)| {
        let mut world = BreakerModel::new(settings);
        for step in story {
            world.apply_time(step);
            match step {
                BreakerStep::Acquire => {
                    let pass = world.try_acquire();
                    world.in_flight.extend(pass.ok());
                }
                BreakerStep::Record(which, report, took) => {
                    let Some(pass) = world.remove_in_flight(which) else { continue };
                    let roll = world.roll();
                    world.breaker.record(pass, report, Micros::new(took), world.now, roll);
                }
                BreakerStep::Leak(which) => drop(world.remove_in_flight(which)),
                BreakerStep::Override(which) => world.override_state(which),
                _ => {}
            }
        }
        if world.now > Micros::from_secs(1_000_000) {
            world.now = Micros::ZERO; // there must be time left to wait
        }
        for _ in 0..3 {
            let rejection = match world.try_acquire() {
                Ok(_) => return Ok(()),
                Err(Rejection::ForcedOpen) => {
                    prop_assert_eq!(world.breaker.state(), BreakerState::ForcedOpen);
                    return Ok(());
                }
                Err(rejection) => rejection,
            };
            let wait = rejection.retry_after().unwrap();
            prop_assert!(wait > Micros::ZERO && wait <= Micros::new(6_000), "{}", rejection);
            let then = world.now.plus(wait);
            world.now = then.since(Micros::new(1));
            prop_assert!(world.try_acquire().is_err(), "before its time: {}", rejection);
            world.now = then;
        }
        let last = world.try_acquire();
        prop_assert!(last.is_ok(), "{:?}", last);
        Ok(())
    });
}

/// Half-open ends whatever its probes do: fail, succeed, are ignored or never heard of.
#[test]
fn half_open_state_always_ends() {
    let ends = vec((0_u8..4, 1_u64..300), 1..40);
    check_property((settings(), ends), |(settings, ends)| {
        let mut world = BreakerModel::new(settings);
        world.breaker.open_for(world.now, Micros::new(1));
        world.now = world.now.plus(Micros::new(1));
        let began = world.now;
        let generation = world.try_acquire().unwrap();
        for (end, pause) in ends.into_iter().cycle() {
            if world.breaker.generation() != generation {
                return Ok(());
            }
            prop_assert!(world.now.since(began) < Micros::new(2_000 + 300), "it lasts and lasts");
            let report =
                [Some(CallOutcome::Success), Some(CallOutcome::Failure), Some(CallOutcome::Ignored), None];
            if let (Ok(pass), Some(report)) = (world.try_acquire(), report[end as usize]) {
                let now = world.now;
                world.breaker.record(pass, report, Micros::ZERO, now, 0.5);
            }
            world.now = world.now.plus(Micros::new(pause));
        }
        Ok(())
    });
}

/// A shell that does not ask or tell where nothing would change, and gives no time where none matters, has the same
/// breaker as one that always does.
#[test]
fn fast_path_matches_slow_path() {
    check_property((settings(), steps()), |(settings, story)| {
        let (mut full, mut short) = (BreakerModel::new(settings.clone()), BreakerModel::new(settings));
        let mut counted = 0;
        for step in story {
            full.apply_time(step);
            short.now = full.now;
            let roll = full.roll();
            let counts = short.breaker.fast_path() == FastPath::CountSuccess;
            match step {
                BreakerStep::Acquire => {
                    let answer = full.breaker.try_acquire(full.now, roll);
                    let same = match short.breaker.fast_path() {
                        FastPath::None => short.breaker.try_acquire(short.now, roll),
                        _ => Ok(short.breaker.generation()),
                    };
                    prop_assert_eq!(answer, same);
                    full.in_flight.extend(answer.ok());
                }
                BreakerStep::Record(which, report, took) => {
                    let Some(pass) = full.remove_in_flight(which) else { continue };
                    let took = Micros::new(took);
                    full.breaker.record(pass, report, took, full.now, roll);
                    let slow = short.breaker.settings().is_slow(took);
                    let skips = match short.breaker.fast_path() {
                        _ if pass != short.breaker.generation() => true,
                        FastPath::None => false,
                        FastPath::Admit => report == CallOutcome::Ignored,
                        FastPath::CountSuccess | FastPath::SkipSuccess => {
                            report == CallOutcome::Ignored || report == CallOutcome::Success && !slow
                        }
                        FastPath::SkipAll => true,
                    };
                    if skips {
                        let is_ours = pass == short.breaker.generation();
                        counted += u64::from(counts && is_ours && report == CallOutcome::Success);
                    } else {
                        short.breaker.record_successes(std::mem::take(&mut counted));
                        let (now, roll) = if short.breaker.is_time_independent() {
                            (Micros::ZERO, 0.0)
                        } else {
                            (short.now, roll)
                        };
                        short.breaker.record(pass, report, took, now, roll);
                    }
                }
                BreakerStep::Override(which) => {
                    full.override_state(which);
                    short.breaker.record_successes(std::mem::take(&mut counted));
                    short.override_state(which);
                }
                _ => {}
            }
            let mut seen = short.breaker.clone();
            seen.record_successes(counted);
            prop_assert_eq!(full.breaker.snapshot(full.now), seen.snapshot(full.now));
        }
        Ok(())
    });
}
