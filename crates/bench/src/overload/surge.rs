//! Goodput in the closed-loop simulation.

use tidegate_bench::{Result, suite::Measured, turns::median};
use tidegate_core::Micros;
use tidegate_overload::adaptive::Anchored;
use tidegate_simulation::{AdaptiveGuard, NoGuard, Scenario, Surge};

/// Seeds that are played; a value is their median.
const SEEDS: u64 = 9;

pub(crate) fn goodput() -> Result<Measured> {
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for seed in 1..=SEEDS {
        let scene = Scenario { seed, ..Scenario::surge(Surge::TenTimes) };
        without.push(scene.run(NoGuard).goodput_during_change());
        let controller = Anchored::new(Micros::from_millis(20))?;
        with.push(scene.run(AdaptiveGuard::new(controller)).goodput_during_change());
    }
    let (without, with) = (median(&without), median(&with));
    let figures =
        format!("{:.1} % of capacity without, {:.1} % with; {SEEDS} seeds", without * 100.0, with * 100.0);
    Ok(Measured { value: without / with, figures })
}
