//! On random stories of questions, reports, silence, hands and a clock that jumps: never more probes than there are
//! places, late results decide nothing, and there is always a way out.

use proptest::{collection::vec, prelude::*};
use tidegate_core::{Micros, Percent};
use tidegate_overload::{
    BreakerBuilder, BreakerSettings, BreakerState, Rejection, Report,
    breaker::{BreakerMachine, Generation, Leeway},
};
use tidegate_testkit::strategy::runner_with_cases;

#[derive(Clone, Copy, Debug)]
enum Move {
    Ask,
    /// Reports one of the calls that are under way, counted from the oldest.
    Tell(usize, Report, u64),
    /// One of them is never heard of again.
    Forget(usize),
    Ahead(u64),
    Back(u64),
    /// To this moment.
    Jump(u64),
    Hand(u8),
}

const PROBES: u32 = 3;

fn settings() -> impl Strategy<Value = BreakerBuilder> {
    let window = prop_oneof![(1_u32..12).prop_map(Ok), (10_u64..5_000, 1_u32..8).prop_map(Err)];
    let minimum = prop_oneof![1_u64..4, 1_u64..20];
    (window, minimum, 1_u64..=100, prop::option::of(1_u64..=100), 0_u64..=100).prop_map(
        |(window, min_calls, failure, slow, jitter)| {
            let builder = BreakerSettings::builder();
            let builder = match window {
                Ok(calls) => builder.over_calls(calls),
                Err((time, buckets)) => builder.over_buckets(Micros::new(time), buckets),
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

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let report =
        prop_oneof![3 => Just(Report::Success), 4 => Just(Report::Failure), 2 => Just(Report::Ignored)];
    let one = prop_oneof![
        12 => Just(Move::Ask),
        10 => (0_usize..6, report, 0_u64..200).prop_map(|(which, report, took)| Move::Tell(which, report, took)),
        1 => (0_usize..6).prop_map(Move::Forget),
        5 => prop_oneof![0_u64..50, 0_u64..3_000].prop_map(Move::Ahead),
        1 => (0_u64..3_000).prop_map(Move::Back),
        1 => prop_oneof![Just(0), Just(u64::MAX), 0_u64..1_000_000].prop_map(Move::Jump),
        1 => (0_u8..12).prop_map(Move::Hand),
    ];
    vec(one, 1..250)
}

/// A breaker, and who is under way.
struct World {
    breaker: BreakerMachine,
    now: Micros,
    under_way: Vec<Generation>,
    rolls: u64,
}

impl World {
    fn new(settings: BreakerBuilder) -> Self {
        let breaker = BreakerMachine::new(settings.build().unwrap());
        Self { breaker, now: Micros::from_secs(1), under_way: Vec::new(), rolls: 0 }
    }

    /// Some number from 0 to 1, another each time.
    fn roll(&mut self) -> f64 {
        self.rolls += 1;
        (self.rolls * 37 % 101) as f64 / 100.0
    }

    fn ask(&mut self) -> Result<Generation, Rejection> {
        let roll = self.roll();
        self.breaker.try_pass(self.now, roll)
    }

    fn take(&mut self, which: usize) -> Option<Generation> {
        (!self.under_way.is_empty()).then(|| self.under_way.remove(which % self.under_way.len()))
    }

    fn pass_time(&mut self, step: Move) {
        match step {
            Move::Ahead(by) => self.now = self.now.plus(Micros::new(by)),
            Move::Back(by) => self.now = self.now.since(Micros::new(by)),
            Move::Jump(to) => self.now = Micros::new(to),
            _ => {}
        }
    }

    fn hand(&mut self, which: u8) {
        match which {
            0 => self.breaker.force_open(),
            1 => self.breaker.disable(),
            2 => self.breaker.metrics_only(),
            3 => self.breaker.open_for(self.now, Micros::new(700)),
            4 => self.breaker.open_for(self.now, Micros::ZERO),
            _ => self.breaker.close(),
        }
    }
}

fn hold<S: Strategy>(stories: S, law: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    runner_with_cases(3_000).run(&stories, law).unwrap_or_else(|broken| panic!("{broken}"));
}

#[test]
fn never_more_probes_than_places_and_late_results_decide_nothing() {
    hold((settings(), moves()), |(settings, story)| {
        let mut world = World::new(settings);
        // Of the generation at hand: who passed and has not been ignored.
        let (mut generation, mut probes) = (world.breaker.generation(), 0);
        for step in story {
            world.pass_time(step);
            match step {
                Move::Ask => {
                    let pass = world.ask();
                    if world.breaker.generation() != generation {
                        (generation, probes) = (world.breaker.generation(), 0);
                    }
                    if let Ok(pass) = pass {
                        prop_assert_eq!(pass, generation);
                        world.under_way.push(pass);
                        probes += 1;
                    }
                }
                Move::Tell(which, report, took) => {
                    let Some(pass) = world.take(which) else { continue };
                    let before = (world.breaker.snapshot(world.now), format!("{:?}", world.breaker));
                    let roll = world.roll();
                    world.breaker.report(pass, report, Micros::new(took), world.now, roll);
                    if pass != generation {
                        let after = (world.breaker.snapshot(world.now), format!("{:?}", world.breaker));
                        prop_assert_eq!(before, after, "a late result changed something");
                    } else if report == Report::Ignored {
                        probes -= 1;
                    }
                }
                Move::Forget(which) => drop(world.take(which)),
                Move::Hand(which) => world.hand(which),
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
fn there_is_always_a_way_out() {
    hold((settings(), moves()), |(settings, story)| {
        let mut world = World::new(settings);
        for step in story {
            world.pass_time(step);
            match step {
                Move::Ask => {
                    let pass = world.ask();
                    world.under_way.extend(pass.ok());
                }
                Move::Tell(which, report, took) => {
                    let Some(pass) = world.take(which) else { continue };
                    let roll = world.roll();
                    world.breaker.report(pass, report, Micros::new(took), world.now, roll);
                }
                Move::Forget(which) => drop(world.take(which)),
                Move::Hand(which) => world.hand(which),
                _ => {}
            }
        }
        if world.now > Micros::from_secs(1_000_000) {
            world.now = Micros::ZERO; // there must be time left to wait
        }
        for _ in 0..3 {
            let rejection = match world.ask() {
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
            prop_assert!(world.ask().is_err(), "before its time: {}", rejection);
            world.now = then;
        }
        let last = world.ask();
        prop_assert!(last.is_ok(), "{:?}", last);
        Ok(())
    });
}

/// Half-open ends whatever its probes do: fail, succeed, are ignored or never heard of.
#[test]
fn half_open_always_ends() {
    let ends = vec((0_u8..4, 1_u64..300), 1..40);
    hold((settings(), ends), |(settings, ends)| {
        let mut world = World::new(settings);
        world.breaker.open_for(world.now, Micros::new(1));
        world.now = world.now.plus(Micros::new(1));
        let began = world.now;
        let generation = world.ask().unwrap();
        for (end, pause) in ends.into_iter().cycle() {
            if world.breaker.generation() != generation {
                return Ok(());
            }
            prop_assert!(world.now.since(began) < Micros::new(2_000 + 300), "it lasts and lasts");
            let report = [Some(Report::Success), Some(Report::Failure), Some(Report::Ignored), None];
            if let (Ok(pass), Some(report)) = (world.ask(), report[end as usize]) {
                let now = world.now;
                world.breaker.report(pass, report, Micros::ZERO, now, 0.5);
            }
            world.now = world.now.plus(Micros::new(pause));
        }
        Ok(())
    });
}

/// A shell that does not ask or tell where nothing would change, and gives no time where none matters, has the same
/// breaker as one that always does.
#[test]
fn shortcuts_change_nothing() {
    hold((settings(), moves()), |(settings, story)| {
        let (mut full, mut short) = (World::new(settings.clone()), World::new(settings));
        let mut counted = 0;
        for step in story {
            full.pass_time(step);
            short.now = full.now;
            let roll = full.roll();
            let counts = short.breaker.leeway() == Leeway::PassAndCount;
            match step {
                Move::Ask => {
                    let answer = full.breaker.try_pass(full.now, roll);
                    let same = match short.breaker.leeway() {
                        Leeway::None => short.breaker.try_pass(short.now, roll),
                        _ => Ok(short.breaker.generation()),
                    };
                    prop_assert_eq!(answer, same);
                    full.under_way.extend(answer.ok());
                }
                Move::Tell(which, report, took) => {
                    let Some(pass) = full.take(which) else { continue };
                    let took = Micros::new(took);
                    full.breaker.report(pass, report, took, full.now, roll);
                    let slow = short.breaker.settings().is_slow(took);
                    let skips = match short.breaker.leeway() {
                        _ if pass != short.breaker.generation() => true,
                        Leeway::None => false,
                        Leeway::Pass => report == Report::Ignored,
                        Leeway::PassAndCount | Leeway::PassAndSucceed => {
                            report == Report::Ignored || report == Report::Success && !slow
                        }
                        Leeway::Everything => true,
                    };
                    if skips {
                        let is_ours = pass == short.breaker.generation();
                        counted += u64::from(counts && is_ours && report == Report::Success);
                    } else {
                        short.breaker.succeed(std::mem::take(&mut counted));
                        let (now, roll) =
                            if short.breaker.is_timeless() { (Micros::ZERO, 0.0) } else { (short.now, roll) };
                        short.breaker.report(pass, report, took, now, roll);
                    }
                }
                Move::Hand(which) => {
                    full.hand(which);
                    short.breaker.succeed(std::mem::take(&mut counted));
                    short.hand(which);
                }
                _ => {}
            }
            let mut seen = short.breaker.clone();
            seen.succeed(counted);
            prop_assert_eq!(full.breaker.snapshot(full.now), seen.snapshot(full.now));
        }
        Ok(())
    });
}
