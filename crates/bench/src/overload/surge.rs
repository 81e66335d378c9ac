//! Goodput in the closed-loop simulation.

use tidegate_bench::{BenchResult, interleaved::median, suite::Measurement};
use tidegate_core::Micros;
use tidegate_overload::adaptive::LatencyTarget;
use tidegate_simulation::{AdaptiveGuard, NoGuard, Scenario, Surge};

/// The number of seeds, one per round.
const SEED_COUNT: u64 = 9;

pub(crate) fn measure_goodput() -> BenchResult<Measurement> {
    let (mut without, mut with, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for seed in 1..=SEED_COUNT {
        let scenario = Scenario { seed, ..Scenario::surge(Surge::TenTimes) };
        let unguarded = scenario.run(NoGuard).goodput_during_change();
        let controller = LatencyTarget::new(Micros::from_millis(20))?;
        let guarded = scenario.run(AdaptiveGuard::new(controller)).goodput_during_change();
        ratios.push(unguarded / guarded);
        without.push(unguarded);
        with.push(guarded);
    }
    let (without, with) = (median(&without), median(&with));
    let figures = format!(
        "{:.1} % of capacity without, {:.1} % with; {SEED_COUNT} seeds",
        without * 100.0,
        with * 100.0
    );
    Ok(Measurement::from_rounds(&ratios, figures))
}
