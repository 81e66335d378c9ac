//! Who stands before the backend: every guard by name, one line each.
//!
//! The models of peers hear of every call here. Their libraries often gather calls into windows first, so that they
//! react later, and more calmly, than here.

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

/// A guard that can be called by name, anew for each scene.
#[derive(Clone, Copy, Debug)]
pub struct GuardPreset {
    /// What it is called.
    pub name: &'static str,
    /// What it does, in one line.
    pub description: &'static str,
    build: BuildGuard,
}

/// Builds a guard for a scene.
type BuildGuard = fn(&Scenario) -> Result<Box<dyn SimulatedGuard>, SettingError>;

/// The latency that is promised, to those who ask for one.
const LATENCY_TARGET: Micros = Micros::from_millis(20);

/// How far back those in the client look, and how long a breaker stays open: a scene has no time for minutes.
const SECOND: Micros = Micros::from_secs(1);
const FIFTH_SECOND: Micros = Micros::from_millis(200);

const PRESETS: &[GuardPreset] = &[
    GuardPreset::new("none", "lets everything through", |_| Ok(Box::new(NoGuard))),
    GuardPreset::new(
        "fixed",
        "40 in flight: the backend's workers and a quarter more, which nobody knows in practice",
        |scene| {
            let workers = scene.backend.workers;
            Ok(Box::new(FixedGuard::new(workers.saturating_add(workers / 4))))
        },
    ),
    GuardPreset::new(
        "breaker",
        "in the client: open for 200ms when half of the last 200ms' calls fail or time out",
        |_| {
            let settings = BreakerSettings::builder()
                .time_window(FIFTH_SECOND)
                .open_for(FIFTH_SECOND)
                .backoff(1.0, FIFTH_SECOND);
            Ok(Box::new(BreakerGuard::new(settings.build()?)))
        },
    ),
    GuardPreset::new(
        "throttle",
        "in the client, as in Google's SRE book: no more than twice what is answered",
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
        "as many in flight as keep the queue short, judged by the best latency seen",
        |_| adaptive_guard(Vegas::new(Bounds::default())),
    ),
    GuardPreset::new("gradient2", "as many in flight as latency allows, beside its own long average", |_| {
        adaptive_guard(Gradient2::new(Bounds::default()))
    }),
    GuardPreset::new(
        "anchored",
        "the default: a gradient with a latency target of 20ms that checks throughput",
        |_| adaptive_guard(LatencyTarget::new(LATENCY_TARGET)?.bounds(Bounds::default())),
    ),
];

/// Every guard there is, the absence of one first.
pub fn guard_presets() -> &'static [GuardPreset] {
    PRESETS
}

impl GuardPreset {
    const fn new(name: &'static str, about: &'static str, build: BuildGuard) -> Self {
        Self { name, description: about, build }
    }

    /// A guard for `scene` that has seen nothing yet.
    pub fn build_guard(&self, scene: &Scenario) -> Result<Box<dyn SimulatedGuard>, SettingError> {
        (self.build)(scene)
    }
}

impl SimulatedGuard for Box<dyn SimulatedGuard> {
    fn admit(&mut self, now: Micros, roll: f64) -> Option<SimulatedPermit> {
        (**self).admit(now, roll)
    }

    fn finish(&mut self, pass: SimulatedPermit, now: Micros, report: CallOutcome) {
        (**self).finish(pass, now, report);
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
        let names: HashSet<_> = guard_presets().iter().map(|actor| actor.name).collect();
        assert_eq!(names.len(), guard_presets().len());
        for scene in Scenario::all() {
            for actor in guard_presets() {
                let guard = actor.build_guard(&scene);
                assert!(guard.is_ok(), "{} in {}", actor.name, scene.name);
                // The one that tells its number.
                assert!(actor.name != "fixed" || guard.is_ok_and(|guard| guard.limit() == Some(40)));
            }
        }
    }

    /// A guard in a box is the guard: its limit and its side are its own.
    #[test]
    fn boxed_guard_behaves_like_its_inner_guard() {
        let scene = Scenario::healthy().with_seconds(1);
        let boxed: Box<dyn SimulatedGuard> = Box::new(FixedGuard::new(40));
        assert_eq!((boxed.limit(), boxed.side()), (Some(40), GuardSide::Server));
        assert_eq!(scene.run(boxed), scene.run(FixedGuard::new(40)));
    }
}
