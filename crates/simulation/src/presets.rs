//! The guards by name, one line each.
//!
//! The models of other libraries record every call here. Those libraries often collect calls in windows first, so
//! they react later and more smoothly.

use crate::{
    guard::{
        AdaptiveGuard, BreakerGuard, FixedGuard, GuardSide, NoGuard, SimulatedGuard, SimulatedPermit,
        ThrottleGuard,
    },
    scenario::Scenario,
};
use tidegate_core::{Micros, SettingError};
use tidegate_overload::{
    BreakerSettings, CallOutcome, ClientThrottleSettings,
    adaptive::{Aimd, Bounds, Gradient2, LatencyTarget, Vegas},
};

/// A guard with a name; it builds a new guard for each scenario.
#[derive(Clone, Copy, Debug)]
pub struct GuardPreset {
    /// The name.
    pub name: &'static str,
    /// A description in one line.
    pub description: &'static str,
    build: BuildGuard,
}

/// Builds a guard for a scenario.
type BuildGuard = fn(&Scenario) -> Result<Box<dyn SimulatedGuard>, SettingError>;

/// The latency target of the controllers that need one.
const LATENCY_TARGET: Micros = Micros::from_millis(20);

/// The windows of the client-side guards and the open time of the breaker: a scenario is only seconds long.
const SECOND: Micros = Micros::from_secs(1);
const FIFTH_SECOND: Micros = Micros::from_millis(200);

const PRESETS: &[GuardPreset] = &[
    GuardPreset::new("none", "admits everything", |_| Ok(Box::new(NoGuard))),
    GuardPreset::new(
        "fixed",
        "40 in flight: the number of workers of the backend plus a quarter, which is unknown in practice",
        |scenario| {
            let workers = scenario.backend.workers;
            Ok(Box::new(FixedGuard::new(workers.saturating_add(workers / 4))))
        },
    ),
    GuardPreset::new(
        "breaker",
        "in the client: open for 200ms when half of the last 200ms' calls fail or time out",
        |_| {
            let settings = BreakerSettings::builder()
                .time_window(FIFTH_SECOND)
                .open_duration(FIFTH_SECOND)
                .backoff(1.0, FIFTH_SECOND);
            Ok(Box::new(BreakerGuard::new(settings.build()?)))
        },
    ),
    GuardPreset::new(
        "throttle",
        "in the client, as in Google's SRE book: at most twice the number of successful calls",
        |_| {
            let settings = ClientThrottleSettings::builder().window(SECOND);
            Ok(Box::new(ThrottleGuard::new(settings.build()?)))
        },
    ),
    GuardPreset::new("aimd", "one more in flight, a tenth less after a call of over 20ms", |_| {
        adaptive_guard(Aimd::new(Bounds::default()).timeout(LATENCY_TARGET)?)
    }),
    GuardPreset::new(
        "vegas",
        "a concurrency limit that keeps the queue short, estimated from the best latency",
        |_| adaptive_guard(Vegas::new(Bounds::default())),
    ),
    GuardPreset::new(
        "gradient2",
        "a concurrency limit by the ratio of the latency to its long-term average",
        |_| adaptive_guard(Gradient2::new(Bounds::default())),
    ),
    GuardPreset::new(
        "anchored",
        "the default: a gradient with a latency target of 20ms that checks throughput",
        |_| adaptive_guard(LatencyTarget::new(LATENCY_TARGET)?.bounds(Bounds::default())),
    ),
];

/// All guards; the first one admits everything.
pub fn guard_presets() -> &'static [GuardPreset] {
    PRESETS
}

impl GuardPreset {
    const fn new(name: &'static str, description: &'static str, build: BuildGuard) -> Self {
        Self { name, description, build }
    }

    /// Builds a guard without history for `scenario`.
    pub fn build_guard(&self, scenario: &Scenario) -> Result<Box<dyn SimulatedGuard>, SettingError> {
        (self.build)(scenario)
    }
}

impl SimulatedGuard for Box<dyn SimulatedGuard> {
    fn admit(&mut self, now: Micros, random: f64) -> Option<SimulatedPermit> {
        (**self).admit(now, random)
    }

    fn finish(&mut self, permit: SimulatedPermit, now: Micros, outcome: CallOutcome) {
        (**self).finish(permit, now, outcome);
    }

    fn side(&self) -> GuardSide {
        (**self).side()
    }

    fn limit(&self) -> Option<u32> {
        (**self).limit()
    }
}

fn adaptive_guard(
    controller: impl tidegate_overload::adaptive::Controller + 'static,
) -> Result<Box<dyn SimulatedGuard>, SettingError> {
    Ok(Box::new(AdaptiveGuard::new(controller)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn presets_have_unique_names_and_build_for_every_scenario() {
        let names: HashSet<_> = guard_presets().iter().map(|preset| preset.name).collect();
        assert_eq!(names.len(), guard_presets().len());
        for scenario in Scenario::all() {
            for preset in guard_presets() {
                let guard = preset.build_guard(&scenario);
                assert!(guard.is_ok(), "{} in {}", preset.name, scenario.name);
                // The description contains this number.
                assert!(preset.name != "fixed" || guard.is_ok_and(|guard| guard.limit() == Some(40)));
            }
        }
    }

    /// A boxed guard delegates its limit and its side.
    #[test]
    fn boxed_guard_behaves_like_its_inner_guard() {
        let scenario = Scenario::healthy().with_seconds(1);
        let boxed: Box<dyn SimulatedGuard> = Box::new(FixedGuard::new(40));
        assert_eq!((boxed.limit(), boxed.side()), (Some(40), GuardSide::Server));
        assert_eq!(scenario.run(boxed), scenario.run(FixedGuard::new(40)));
    }
}
