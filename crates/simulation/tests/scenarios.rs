//! What controllers do to goodput, scene by scene.

#![allow(clippy::unwrap_used, reason = "this is how a test fails")]

use tidegate_core::Micros;
use tidegate_overload::adaptive::{Bounds, Gradient2, LatencyTarget};
use tidegate_simulation::{
    AdaptiveGuard, FixedGuard, NoGuard, Scenario, SimulatedGuard, SimulationResult, Surge, guard_presets,
};

/// The default controller, for calls that should take at most twenty milliseconds.
fn default_guard() -> AdaptiveGuard {
    AdaptiveGuard::new(LatencyTarget::new(Micros::from_millis(20)).unwrap())
}

fn rejected_after(result: &SimulationResult, start: Micros) -> u32 {
    let first = start.get() / result.bin_length.get();
    result.bins.iter().skip(first as usize).map(|bin| bin.rejected).sum()
}

#[test]
fn same_scenario_gives_same_result() {
    let scene = Scenario::retry_storm().with_seconds(1);
    assert_eq!(scene.run(default_guard()), scene.run(default_guard()));
    let other = Scenario { seed: 8, ..scene.clone() };
    assert_ne!(scene.run(NoGuard).bins, other.run(NoGuard).bins);
}

#[test]
fn simulation_counts_are_consistent() {
    for scene in Scenario::all() {
        let scene = scene.with_seconds(2);
        for story in [scene.run(NoGuard), scene.run(FixedGuard::new(40)), scene.run(default_guard())] {
            let sum = |count: fn(&tidegate_simulation::SimulationBin) -> u32| -> u32 {
                story.bins.iter().map(count).sum()
            };
            assert!(sum(|bin| bin.succeeded) <= sum(|bin| bin.requests), "{}", scene.name);
            assert!(sum(|bin| bin.requests) <= sum(|bin| bin.attempts), "{}", scene.name);
            assert!(
                sum(|bin| bin.rejected) + sum(|bin| bin.succeeded) <= sum(|bin| bin.attempts),
                "{}",
                scene.name
            );
            assert!(story.goodput(Micros::ZERO, scene.length) < 1.02, "{}", scene.name);
        }
    }
}

#[test]
fn default_guard_keeps_goodput_in_a_surge() {
    for surge in [Surge::Slight, Surge::TenTimes] {
        let scene = Scenario::surge(surge);
        let (without, with) = (scene.run(NoGuard), scene.run(default_guard()));
        assert!(without.goodput_during_change() < 0.1, "{}", without.goodput_during_change());
        assert!(with.goodput_during_change() > 0.9, "{}", with.goodput_during_change());
        assert!(with.recovery_rate() > 0.99 && without.recovery_rate() < 0.5);
        assert!(with.settling_time().unwrap() <= Micros::from_millis(250), "{:?}", with.settling_time());
    }
}

#[test]
fn default_guard_adapts_to_a_slow_backend() {
    let scene = Scenario::slow_backend();
    // A fifth is all that there is.
    assert!(scene.run(default_guard()).goodput_during_change() > 0.18);
    assert!(scene.run(NoGuard).goodput_during_change() < 0.05);
}

#[test]
fn default_guard_ends_a_retry_storm() {
    let scene = Scenario::retry_storm();
    assert!(scene.run(default_guard()).recovery_rate() > 0.98);
    assert!(scene.run(NoGuard).recovery_rate() < 0.05, "what keeps it down is its own retries");
}

#[test]
fn default_guard_rejects_nothing_when_healthy() {
    let scene = Scenario::healthy().with_seconds(20);
    assert_eq!(rejected_after(&scene.run(default_guard()), Micros::from_secs(2)), 0);
}

/// The limit is found from either side, and whatever the load was when it began.
#[test]
fn default_guard_converges_from_any_initial_limit() {
    for initial in [1, 5, 100, 1_000] {
        let bounds = Bounds::new(1, initial, 1_000).unwrap();
        let controller = LatencyTarget::new(Micros::from_millis(20)).unwrap().bounds(bounds);
        let scene = Scenario { change_start: Micros::ZERO, ..Scenario::surge(Surge::TenTimes) };
        let story = scene.run(AdaptiveGuard::new(controller));
        let late = story.goodput(Micros::from_millis(1_500), scene.change_end);
        assert!(late > 0.9, "{initial}: {late}");
        assert!(story.latency(Micros::from_millis(1_500), scene.change_end) < Micros::from_millis(3));
    }
}

/// The published defect, in the loop: with Gradient2 a backlog becomes what it compares with.
#[test]
fn gradient2_limit_drifts_and_default_does_not() {
    let scene = Scenario::surge(Surge::Slight);
    let last = |story: &SimulationResult| story.bins.iter().rev().find_map(|bin| bin.limit).unwrap();
    let gradient = AdaptiveGuard::new(Gradient2::new(Bounds::default()));
    assert!(last(&scene.run(gradient)) > 500);
    let ours = default_guard();
    assert!(ours.limit() == Some(20) && last(&scene.run(ours)) < 100);
}

/// A breaker and a throttle spare a backend that fails; what they refuse is not worth asking for.
#[test]
fn error_based_guards_protect_a_failing_backend() {
    let scene = Scenario::failing_backend();
    let admitted_attempts = |name: &str| {
        let actor = guard_presets().iter().find(|actor| actor.name == name).unwrap();
        let story = scene.run(actor.build_guard(&scene).unwrap());
        let changed =
            (scene.change_start.get()..scene.change_end.get()).step_by(story.bin_length.get() as usize);
        let bins = changed.map(|at| story.bins[(at / story.bin_length.get()) as usize]);
        bins.map(|bin| f64::from(bin.attempts - bin.rejected)).sum::<f64>()
    };
    let all = admitted_attempts("none");
    assert!(admitted_attempts("breaker") < all / 10.0);
    assert!(admitted_attempts("throttle") < all / 2.0);
}
