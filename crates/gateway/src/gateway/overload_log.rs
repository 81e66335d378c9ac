//! Logs changes of the load level and of features.

use crate::events;
use std::collections::HashSet;
use tidegate_overload::{FeatureOffCause, LoadLevel, LoadMonitor};
use tidegate_policy::compile::PolicyGate;

/// Logs each change of the load level and of a feature once.
#[derive(Default)]
pub(super) struct OverloadLog {
    level: LoadLevel,
    /// The features that are off.
    off: HashSet<String>,
}

impl OverloadLog {
    /// Logs what has changed.
    pub(super) fn log(&mut self, gate: &PolicyGate) {
        let load = gate.load().map(LoadMonitor::load);
        let level = load.map(|load| load.level).unwrap_or_default();
        // A policy that does not follow the load has no level.
        if let Some(load) = load.filter(|load| load.level != self.level) {
            events::LoadLevelChanged { level, share: load.share }.emit();
        }
        self.level = level;
        let mut off = HashSet::new();
        for status in gate.features().list() {
            let feature = status.feature.name();
            match status.off_cause {
                None if self.off.contains(feature) => events::FeatureEnabled { feature }.emit(),
                None => {}
                Some(cause) => {
                    if !self.off.contains(feature) {
                        let level = (cause == FeatureOffCause::Load).then_some(level);
                        events::FeatureDisabled { feature, cause, level }.emit();
                    }
                    off.insert(feature.to_owned());
                }
            }
        }
        self.off = off;
    }

    /// Records the state of a feature that an operator set, which has its own event.
    pub(super) fn record(&mut self, feature: &str, off_cause: Option<FeatureOffCause>) {
        match off_cause {
            None => drop(self.off.remove(feature)),
            Some(_) => drop(self.off.insert(feature.to_owned())),
        }
    }
}
