//! Replays recorded calls of Guava's `RateLimiter`, exact to the microsecond and to the last bit of a double.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

use tidegate_core::{Algorithm, AlgorithmKind, CarryOver, Demand, Micros, Outcome, Quota};
use tidegate_testkit::{
    CoreModel, Subject,
    guava::{GuavaKind, GuavaRow, Operation, rows},
};

#[test]
fn recorded_guava_rows_are_reproduced() {
    let rows = rows().unwrap();
    assert_eq!(rows.len(), 24_120);
    let mut limiter: Option<CoreModel> = None;
    for (index, row) in rows.iter().enumerate() {
        let context =
            format!("line {} of {}: {:?} at {}us", index + 2, row.scenario, row.operation, row.at_us);
        replay(&mut limiter, row, &context);
        let limiter = limiter.as_ref().unwrap();
        let (stored, next_free) = guava_state(limiter);
        assert_eq!(stored.to_bits(), row.stored.to_bits(), "{context}: stored {stored}, not {}", row.stored);
        assert_eq!(next_free, Micros::new(row.next_free_us), "{context}: next free");
        assert_eq!(limiter.quota.limit(), (row.max_permits as u64).max(1), "{context}: most stored");
    }
}

/// Replays one recorded call and compares the results.
fn replay(limiter: &mut Option<CoreModel>, row: &GuavaRow, context: &str) {
    let now = Micros::new(row.at_us);
    let max_wait = match &row.operation {
        Operation::Create => {
            let mut new = CoreModel::new(quota(&row.kind, &row.rate));
            new.create(now);
            *limiter = Some(new);
            return;
        }
        Operation::SetRate { rate } => {
            let limiter = limiter.as_mut().unwrap();
            return limiter.change(now, quota(&row.kind, rate), CarryOver::Keep);
        }
        Operation::Reserve => Micros::MAX,
        Operation::TryAcquire { timeout_us } => Micros::new(*timeout_us),
    };
    let decision =
        limiter.as_mut().unwrap().decide(now, Demand::with_max_wait(row.permits, max_wait)).decision;
    assert_eq!(decision.is_granted(), row.granted, "{context}: {decision:?}");
    if row.granted {
        assert_eq!(decision.wait(), Micros::new(row.wait_us), "{context}: wait");
    }
}

fn quota(kind: &GuavaKind, rate: &str) -> Quota {
    let text = match kind {
        GuavaKind::Bursty => format!("{rate}/s smooth"),
        GuavaKind::WarmingUp { warm_up_ms, cold_factor } => {
            format!("{rate}/s warm-up {warm_up_ms}ms cold {cold_factor}")
        }
    };
    text.parse().unwrap()
}

/// Guava's internal variables: the stored permits and the time at which the next call proceeds.
fn guava_state(limiter: &CoreModel) -> (f64, Micros) {
    match limiter.quota.kind() {
        AlgorithmKind::Smooth(smooth) => smooth.inspect(state_words(limiter)),
        AlgorithmKind::WarmUp(warm_up) => warm_up.inspect(state_words(limiter)),
        other => panic!("{other} is not Guava's"),
    }
}

fn state_words(limiter: &CoreModel) -> &[u64] {
    &limiter.entries.as_slice()[0].state
}

/// A step of a script: `acquire`, or sleep.
enum ScriptStep {
    Acquire(u64),
    Sleep(u64),
}
use ScriptStep::{Acquire as A, Sleep as S};

/// Guava's own tests: name, limiter, script, and the waits of each `acquire`.
fn guava_scripts() -> Vec<(&'static str, &'static str, Vec<ScriptStep>, Vec<u64>)> {
    let warming = |waits: &'static [u64]| [vec![0], waits.to_vec()].concat();
    let cold_start = warming(&[1_375_000, 1_125_000, 875_000, 625_000, 500_000, 500_000, 500_000]);
    let colder_start = warming(&[1_752_500, 1_257_500, 762_500, 300_227, 200_000, 200_000, 200_000]);
    let warm_start = |interval: u64| [vec![0], vec![interval; 7]].concat();
    let ones = |count: usize| std::iter::repeat_with(|| A(1)).take(count);

    let eight_thrice = |first: [u64; 2], second: [u64; 2]| {
        let mut script: Vec<_> = ones(8).collect();
        script.extend(first.map(S));
        script.extend(ones(8));
        script.extend(second.map(S));
        script.extend(ones(8));
        script
    };
    vec![
        ("simple", "5/s smooth", ones(3).collect(), vec![0, 200_000, 200_000]),
        ("simpleWithWait", "5/s smooth", vec![A(1), S(200), A(1), A(1)], vec![0, 0, 200_000]),
        ("earliestInPast", "5/s smooth", vec![A(1), S(400), A(1), A(1), A(1)], vec![0, 0, 0, 200_000]),
        (
            "oneSecondBurst",
            "5/s smooth",
            vec![S(1_000), S(1_000), A(1), A(1), A(3), A(1), A(1)],
            vec![0, 0, 0, 0, 200_000],
        ),
        (
            "warmUp",
            "2/s warm-up 4s cold 3",
            eight_thrice([500, 4_000], [500, 2_000]),
            [cold_start.clone(), cold_start, warm_start(500_000)].concat(),
        ),
        (
            "warmUpCold10",
            "5/s warm-up 4s cold 10",
            eight_thrice([200, 4_000], [200, 1_000]),
            [colder_start.clone(), colder_start, warm_start(200_000)].concat(),
        ),
        (
            "warmUpCold1",
            "5/s warm-up 4s cold 1",
            ones(8).chain([S(340)]).chain(ones(8)).collect(),
            [warm_start(200_000), warm_start(200_000)].concat(),
        ),
        (
            "weights",
            "1/s smooth",
            [1, 1, 2, 4, 8, 1].map(A).into(),
            vec![0, 1_000_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000],
        ),
    ]
}

/// A caller sleeps for its wait before the next call.
#[test]
fn guava_test_scripts_have_equal_waits() {
    for (name, quota, script, waits) in guava_scripts() {
        let mut limiter = CoreModel::new(quota.parse().unwrap());
        limiter.create(Micros::ZERO);
        let mut now = Micros::ZERO;
        let mut waited = Vec::new();
        for act in script {
            match act {
                S(millis) => now = now.saturating_add(Micros::from_millis(millis)),
                A(permits) => {
                    let wait =
                        limiter.decide(now, Demand::with_max_wait(permits, Micros::MAX)).decision.wait();
                    waited.push(wait.get());
                    now = now.saturating_add(wait);
                }
            }
        }
        assert_eq!(waited, waits, "{name}");
    }
}

#[test]
fn guava_try_acquire_results_match() {
    // Time before the try, its timeout, and whether it succeeds; in milliseconds.
    let no_wait = [(0, 0, true), (0, 0, false), (0, 0, false), (100, 0, false)];
    let some_wait = [(0, 0, true), (0, 200, true), (0, 100, false), (100, 100, true)];
    for (name, tries) in [("tryNoWait", no_wait), ("someWait", some_wait)] {
        let mut limiter = CoreModel::new("5/s smooth".parse().unwrap());
        limiter.create(Micros::ZERO);
        let mut now = Micros::ZERO;
        for (step, (pause, timeout, succeeds)) in tries.into_iter().enumerate() {
            now = now.saturating_add(Micros::from_millis(pause));
            let demand = Demand::with_max_wait(1, Micros::from_millis(timeout));
            let decision = limiter.decide(now, demand).decision;
            assert_eq!(decision.is_granted(), succeeds, "{name}, try {step}");
            if let Outcome::Delay(wait) = decision.outcome() {
                now = now.saturating_add(wait);
            }
        }
    }
}

/// An unused key starts with all permits stored; a new limiter starts with none.
#[test]
fn new_key_starts_with_max_permits() {
    let quota: Quota = "5/s smooth".parse().unwrap();
    let AlgorithmKind::Smooth(smooth) = quota.kind() else { panic!("{quota} is smooth") };
    assert_eq!(smooth.inspect([0; 2].as_slice()), (5.0, Micros::ZERO));
    let mut state = [0; 2];
    smooth.create(state.as_mut_slice(), Micros::from_secs(9));
    assert_eq!(smooth.inspect(state.as_slice()), (0.0, Micros::from_secs(9)));
}
