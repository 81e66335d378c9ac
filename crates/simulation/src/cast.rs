//! Who stands before the backend: every guard by name, one line each.
//!
//! The models of peers hear of every call here. Their libraries often gather calls into windows first, so that they
//! react later, and more calmly, than here.

use crate::{
    guard::{AdaptiveGuard, BreakerGuard, FixedGuard, Guard, NoGuard, Pass, Side, ThrottleGuard},
    scene::Scene,
};
use tidegate_core::{Micros, SettingError};
use tidegate_overload::{
    BreakerSettings, ClientThrottleSettings, Report,
    adaptive::{Aimd, Anchored, Bounds, Gradient2, Vegas},
};

/// A guard that can be called by name, anew for each scene.
#[derive(Clone, Copy, Debug)]
pub struct Actor {
    /// What it is called.
    pub name: &'static str,
    /// What it does, in one line.
    pub about: &'static str,
    build: Build,
}

/// Builds a guard for a scene.
type Build = fn(&Scene) -> Result<Box<dyn Guard>, SettingError>;

/// The latency that is promised, to those who ask for one.
const TARGET: Micros = Micros::from_millis(20);

/// How far back those in the client look, and how long a breaker stays open: a scene has no time for minutes.
const SECOND: Micros = Micros::from_secs(1);
const FIFTH: Micros = Micros::from_millis(200);

const CAST: &[Actor] = &[
    Actor::new("none", "lets everything through", |_| Ok(Box::new(NoGuard))),
    Actor::new(
        "fixed",
        "40 in flight: the backend's workers and a quarter more, which nobody knows in practice",
        |scene| {
            let workers = scene.backend.workers;
            Ok(Box::new(FixedGuard::new(workers.saturating_add(workers / 4))))
        },
    ),
    Actor::new(
        "breaker",
        "in the client: open for 200ms when half of the last 200ms' calls fail or time out",
        |_| {
            let settings = BreakerSettings::builder().over_time(FIFTH).open_for(FIFTH).backoff(1.0, FIFTH);
            Ok(Box::new(BreakerGuard::new(settings.build()?)))
        },
    ),
    Actor::new(
        "throttle",
        "in the client, as in Google's SRE book: no more than twice what is answered",
        |_| {
            let settings = ClientThrottleSettings::builder().over_time(SECOND);
            Ok(Box::new(ThrottleGuard::new(settings.build()?)))
        },
    ),
    Actor::new("aimd", "one more in flight, a tenth less after a call of over 20ms", |_| {
        adaptive(Aimd::new(Bounds::default()).timeout(TARGET)?)
    }),
    Actor::new("vegas", "as many in flight as keep the queue short, judged by the best latency seen", |_| {
        adaptive(Vegas::new(Bounds::default()))
    }),
    Actor::new("gradient2", "as many in flight as latency allows, beside its own long average", |_| {
        adaptive(Gradient2::new(Bounds::default()))
    }),
    Actor::new(
        "anchored",
        "the default: a gradient with a latency target of 20ms that checks throughput",
        |_| adaptive(Anchored::new(TARGET)?.bounds(Bounds::default())),
    ),
];

/// Every guard there is, the absence of one first.
pub fn cast() -> &'static [Actor] {
    CAST
}

impl Actor {
    const fn new(name: &'static str, about: &'static str, build: Build) -> Self {
        Self { name, about, build }
    }

    /// A guard for `scene` that has seen nothing yet.
    pub fn enter(&self, scene: &Scene) -> Result<Box<dyn Guard>, SettingError> {
        (self.build)(scene)
    }
}

impl Guard for Box<dyn Guard> {
    fn admit(&mut self, now: Micros, roll: f64) -> Option<Pass> {
        (**self).admit(now, roll)
    }

    fn end(&mut self, pass: Pass, now: Micros, report: Report) {
        (**self).end(pass, now, report);
    }

    fn side(&self) -> Side {
        (**self).side()
    }

    fn limit(&self) -> Option<u32> {
        (**self).limit()
    }
}

fn adaptive(
    controller: impl tidegate_overload::adaptive::Controller + 'static,
) -> Result<Box<dyn Guard>, SettingError> {
    Ok(Box::new(AdaptiveGuard::new(controller)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn everyone_has_a_name_of_their_own_and_can_enter_every_scene() {
        let names: HashSet<_> = cast().iter().map(|actor| actor.name).collect();
        assert_eq!(names.len(), cast().len());
        for scene in Scene::all() {
            for actor in cast() {
                let guard = actor.enter(&scene);
                assert!(guard.is_ok(), "{} in {}", actor.name, scene.name);
                // The one that tells its number.
                assert!(actor.name != "fixed" || guard.is_ok_and(|guard| guard.limit() == Some(40)));
            }
        }
    }

    /// A guard in a box is the guard: its limit and its side are its own.
    #[test]
    fn a_box_changes_nothing() {
        let scene = Scene::healthy().seconds(1);
        let boxed: Box<dyn Guard> = Box::new(FixedGuard::new(40));
        assert_eq!((boxed.limit(), boxed.side()), (Some(40), Side::Server));
        assert_eq!(scene.play(boxed), scene.play(FixedGuard::new(40)));
    }
}
