//! The effect of guards on goodput, by scenario.

#![allow(clippy::unwrap_used, reason = "this is how a test fails")]

use tidegate_core::Micros;
use tidegate_overload::adaptive::{Bounds, Gradient2, LatencyTarget};
use tidegate_simulation::{
    AdaptiveGuard, FixedGuard, NoGuard, Scenario, SimulatedGuard, SimulationResult, Surge, guard_presets,
};

/// The default controller with a latency target of 20 ms.
fn default_guard() -> AdaptiveGuard {
    AdaptiveGuard::new(LatencyTarget::new(Micros::from_millis(20)).unwrap())
}

fn rejected_after(result: &SimulationResult, start: Micros) -> u32 {
    let first = start.get() / result.bin_length.get();
    result.bins.iter().skip(first as usize).map(|bin| bin.rejected).sum()
}

#[test]
fn same_scenario_gives_same_result() {
    let scenario = Scenario::retry_storm().with_seconds(1);
    assert_eq!(scenario.run(default_guard()), scenario.run(default_guard()));
    let other = Scenario { seed: 8, ..scenario.clone() };
    assert_ne!(scenario.run(NoGuard).bins, other.run(NoGuard).bins);
}

#[test]
fn simulation_counts_are_consistent() {
    for scenario in Scenario::all() {
        let scenario = scenario.with_seconds(2);
        for result in
            [scenario.run(NoGuard), scenario.run(FixedGuard::new(40)), scenario.run(default_guard())]
        {
            let sum = |count: fn(&tidegate_simulation::SimulationBin) -> u32| -> u32 {
                result.bins.iter().map(count).sum()
            };
            assert!(sum(|bin| bin.succeeded) <= sum(|bin| bin.requests), "{}", scenario.name);
            assert!(sum(|bin| bin.requests) <= sum(|bin| bin.attempts), "{}", scenario.name);
            assert!(
                sum(|bin| bin.rejected) + sum(|bin| bin.succeeded) <= sum(|bin| bin.attempts),
                "{}",
                scenario.name
            );
            assert!(result.goodput(Micros::ZERO, scenario.length) < 1.02, "{}", scenario.name);
        }
    }
}

#[test]
fn default_guard_keeps_goodput_in_a_surge() {
    for surge in [Surge::Slight, Surge::TenTimes] {
        let scenario = Scenario::surge(surge);
        let (without, with) = (scenario.run(NoGuard), scenario.run(default_guard()));
        assert!(without.goodput_during_change() < 0.1, "{}", without.goodput_during_change());
        assert!(with.goodput_during_change() > 0.9, "{}", with.goodput_during_change());
        assert!(with.recovery_rate() > 0.99 && without.recovery_rate() < 0.5);
        assert!(with.settling_time().unwrap() <= Micros::from_millis(250), "{:?}", with.settling_time());
    }
}

#[test]
fn default_guard_adapts_to_a_slow_backend() {
    let scenario = Scenario::slow_backend();
    // The capacity is a fifth.
    assert!(scenario.run(default_guard()).goodput_during_change() > 0.18);
    assert!(scenario.run(NoGuard).goodput_during_change() < 0.05);
}

#[test]
fn default_guard_ends_a_retry_storm() {
    let scenario = Scenario::retry_storm();
    assert!(scenario.run(default_guard()).recovery_rate() > 0.98);
    assert!(scenario.run(NoGuard).recovery_rate() < 0.05, "its own retries prevent the recovery");
}

#[test]
fn default_guard_rejects_nothing_when_healthy() {
    let scenario = Scenario::healthy().with_seconds(20);
    assert_eq!(rejected_after(&scenario.run(default_guard()), Micros::from_secs(2)), 0);
}

/// The limit converges from below and from above.
#[test]
fn default_guard_converges_from_any_initial_limit() {
    for initial in [1, 5, 100, 1_000] {
        let bounds = Bounds::new(1, initial, 1_000).unwrap();
        let controller = LatencyTarget::new(Micros::from_millis(20)).unwrap().bounds(bounds);
        let scenario = Scenario { change_start: Micros::ZERO, ..Scenario::surge(Surge::TenTimes) };
        let result = scenario.run(AdaptiveGuard::new(controller));
        let late = result.goodput(Micros::from_millis(1_500), scenario.change_end);
        assert!(late > 0.9, "{initial}: {late}");
        assert!(result.latency(Micros::from_millis(1_500), scenario.change_end) < Micros::from_millis(3));
    }
}

/// A known defect of Gradient2: a backlog becomes its reference latency.
#[test]
fn gradient2_limit_drifts_and_default_does_not() {
    let scenario = Scenario::surge(Surge::Slight);
    let last = |result: &SimulationResult| result.bins.iter().rev().find_map(|bin| bin.limit).unwrap();
    let gradient = AdaptiveGuard::new(Gradient2::new(Bounds::default()));
    assert!(last(&scenario.run(gradient)) > 500);
    let ours = default_guard();
    assert!(ours.limit() == Some(20) && last(&scenario.run(ours)) < 100);
}

/// A breaker and a throttle protect a failing backend; the calls that they reject would fail.
#[test]
fn error_based_guards_protect_a_failing_backend() {
    let scenario = Scenario::failing_backend();
    let admitted_attempts = |name: &str| {
        let preset = guard_presets().iter().find(|preset| preset.name == name).unwrap();
        let result = scenario.run(preset.build_guard(&scenario).unwrap());
        let changed = (scenario.change_start.get()..scenario.change_end.get())
            .step_by(result.bin_length.get() as usize);
        let bins = changed.map(|at| result.bins[(at / result.bin_length.get()) as usize]);
        bins.map(|bin| f64::from(bin.attempts - bin.rejected)).sum::<f64>()
    };
    let all = admitted_attempts("none");
    assert!(admitted_attempts("breaker") < all / 10.0);
    assert!(admitted_attempts("throttle") < all / 2.0);
}
