//! Feature flags that are disabled under load or by schedule, and recover in order.
//!
//! ```text
//!   level    normal   busy        critical        normal
//!   search   on ───────────────────off──────────────on ────────────── most important: recovers first
//!   similar  on ───────off───────────────────────────────on ───────── next, one recovery interval later
//!   ads      on ───────off────────────────────────────────────on ──── least important: recovers last
//! ```
//!
//! A level disables all its features at once. They recover one at a time, so that the cost of each shows before the next.
//! A manual override applies whatever the load.

use crate::load::{LoadLevel, TimeWindows};
use std::{fmt, str::FromStr};
use tidegate_core::{Micros, SettingError, suggest};

/// The configuration of a feature that can be disabled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureConfig {
    name: String,
    disable_level: Option<LoadLevel>,
    off_during: Option<TimeWindows>,
}

impl FeatureConfig {
    /// Creates a feature that is disabled when the load reaches `level`.
    pub fn disabled_at(name: impl Into<String>, level: LoadLevel) -> Self {
        Self { disable_level: Some(level), ..Self::manual(name) }
    }

    /// Creates a feature that is disabled only manually.
    pub fn manual(name: impl Into<String>) -> Self {
        Self { name: name.into(), disable_level: None, off_during: None }
    }

    /// Also disables the feature at these times.
    #[must_use]
    pub fn off_during(self, windows: TimeWindows) -> Self {
        Self { off_during: Some(windows), ..self }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The manual override of a feature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FeatureOverride {
    /// On, whatever the load.
    On,
    /// Off, whatever the load.
    Off,
    /// Follows the load and the schedule.
    #[default]
    Automatic,
}

impl FeatureOverride {
    /// The name: `on`, `off` or `automatic`.
    pub fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Automatic => "automatic",
        }
    }
}

impl fmt::Display for FeatureOverride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FeatureOverride {
    type Err = SettingError;

    /// Parses `on`, `off`, or `auto`, which is short for `automatic`.
    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text {
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            "auto" | "automatic" => Ok(Self::Automatic),
            _ => Err(SettingError::new("unknown state of a feature", "use one of on, off, auto")),
        }
    }
}

/// The reason why a feature is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FeatureOffCause {
    /// The load, now or until the feature recovers.
    Load,
    /// The time of day.
    Schedule,
    /// A manual override.
    Operator,
}

impl FeatureOffCause {
    /// The name: `load`, `schedule` or `operator`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Schedule => "schedule",
            Self::Operator => "operator",
        }
    }
}

/// The state of all features.
///
/// ```
/// use tidegate_overload::{FeatureOverride, LoadLevel, FeatureConfig, FeatureSet};
/// use tidegate_core::Micros;
///
/// let features = [FeatureConfig::disabled_at("search", LoadLevel::Critical), FeatureConfig::disabled_at("ads", LoadLevel::Busy)];
/// let mut set = FeatureSet::new(features, Micros::from_secs(10))?;
/// set.observe(Micros::ZERO, LoadLevel::Busy);
/// assert!(set.is_on("search")? && !set.is_on("ads")?);
/// set.set("ads", FeatureOverride::On)?;
/// assert!(set.is_on("ads")?);
/// assert_eq!(set.is_on("add").unwrap_err().to_string(), "unknown feature `add`; did you mean `ads`?");
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct FeatureSet {
    features: Vec<FeatureEntry>,
    recovery_interval: Micros,
    last_change: Option<Micros>,
}

#[derive(Clone, Debug)]
struct FeatureEntry {
    config: FeatureConfig,
    manual_override: FeatureOverride,
    /// Why it is off without an override; `None` if it is on.
    off_cause: Option<FeatureOffCause>,
}

impl FeatureSet {
    /// Creates the set from the features, the most important first, and the minimum time between two
    /// recoveries.
    pub fn new(
        configs: impl IntoIterator<Item = FeatureConfig>,
        recovery_interval: Micros,
    ) -> Result<Self, SettingError> {
        let on =
            |config| FeatureEntry { config, manual_override: FeatureOverride::Automatic, off_cause: None };
        let features: Vec<_> = configs.into_iter().map(on).collect();
        for (index, FeatureEntry { config, .. }) in features.iter().enumerate() {
            if config.name.is_empty() {
                return Err(SettingError::new("feature name is empty", "give the feature a name"));
            }
            if features.iter().take(index).any(|other| other.config.name == config.name) {
                return Err(SettingError::new(
                    format!("duplicate feature `{}`", config.name),
                    "give each feature a unique name",
                ));
            }
            if config.disable_level == Some(LoadLevel::Relaxed) {
                return Err(SettingError::new(
                    format!("`{}` would be disabled at every load level", config.name),
                    "disable it at normal or above, or manually",
                ));
            }
        }
        let by_load: Vec<_> =
            features.iter().filter_map(|it| Some((it.config.name(), it.config.disable_level?))).collect();
        for pair in by_load.windows(2) {
            if let [(first, first_level), (second, second_level)] = pair
                && first_level < second_level
            {
                return Err(SettingError::new(
                    format!("`{first}` is disabled at {first_level}, before the less important `{second}`"),
                    "list the most important feature first, with the highest level",
                ));
            }
        }
        Ok(Self { features, recovery_interval, last_change: None })
    }

    /// Updates the features to the level of load at `now`. Disables all features of that level; enables at
    /// most one, if the last change is at least the recovery interval ago.
    pub fn observe(&mut self, now: Micros, level: LoadLevel) {
        for feature in &mut self.features {
            if feature.off_cause.is_none()
                && let Some(cause) = feature.disable_cause(now, level)
            {
                feature.off_cause = Some(cause);
                self.last_change = Some(now);
            }
        }
        // A clock that steps back restarts the interval.
        self.last_change = self.last_change.map(|changed| changed.min(now));
        if self.last_change.is_some_and(|changed| now.saturating_sub(changed) < self.recovery_interval) {
            return;
        }
        let back = |feature: &&mut FeatureEntry| {
            feature.off_cause.is_some() && feature.disable_cause(now, level).is_none()
        };
        if let Some(feature) = self.features.iter_mut().find(back) {
            feature.off_cause = None;
            self.last_change = Some(now);
        }
    }

    /// Takes over the overrides and the states of the features of the same name.
    pub fn restore(&mut self, before: &Self) {
        for feature in &mut self.features {
            if let Some(known) = before.features.iter().find(|known| known.config.name == feature.config.name)
            {
                feature.manual_override = known.manual_override;
                feature.off_cause = known.off_cause;
            }
        }
        self.last_change = before.last_change;
    }

    /// Sets or clears the manual override of a feature.
    pub fn set(&mut self, name: &str, manual_override: FeatureOverride) -> Result<(), SettingError> {
        let index = self.position(name)?;
        if let Some(feature) = self.features.get_mut(index) {
            feature.manual_override = manual_override;
        }
        Ok(())
    }

    /// Whether a feature is enabled.
    pub fn is_on(&self, name: &str) -> Result<bool, SettingError> {
        let index = self.position(name)?;
        Ok(self.features.get(index).is_some_and(FeatureEntry::is_on))
    }

    /// Each feature in order, with its override and why it is off; `None` if it is enabled.
    pub fn iter(&self) -> impl Iterator<Item = (&str, FeatureOverride, Option<FeatureOffCause>)> {
        let features = self.features.iter();
        features.map(|feature| (feature.config.name(), feature.manual_override, feature.off_cause()))
    }

    /// The index of a feature.
    pub fn position(&self, name: &str) -> Result<usize, SettingError> {
        let index = self.features.iter().position(|feature| feature.config.name == name);
        index.ok_or_else(|| {
            let names = self.features.iter().map(|feature| feature.config.name());
            SettingError::new(format!("unknown feature `{name}`"), hint(name, names))
        })
    }
}

impl FeatureEntry {
    /// Why the feature must be off at this time and load; `None` if it may be on.
    fn disable_cause(&self, now: Micros, level: LoadLevel) -> Option<FeatureOffCause> {
        if self.config.disable_level.is_some_and(|off_at| level >= off_at) {
            return Some(FeatureOffCause::Load);
        }
        let is_off_now = self.config.off_during.as_ref().is_some_and(|windows| windows.contains(now));
        is_off_now.then_some(FeatureOffCause::Schedule)
    }

    fn off_cause(&self) -> Option<FeatureOffCause> {
        match self.manual_override {
            FeatureOverride::On => None,
            FeatureOverride::Off => Some(FeatureOffCause::Operator),
            FeatureOverride::Automatic => self.off_cause,
        }
    }

    fn is_on(&self) -> bool {
        self.off_cause().is_none()
    }
}

/// The closest known name, or all of them.
fn hint<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    if let Some(closest) = suggest::closest(name, known.clone()) {
        return format!("did you mean `{closest}`?");
    }
    match known.collect::<Vec<_>>() {
        none if none.is_empty() => "no features are configured".to_string(),
        all => format!("use one of {}", all.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Micros {
        Micros::from_secs(seconds)
    }

    fn shop_features() -> FeatureSet {
        let features = [
            FeatureConfig::manual("beta"),
            FeatureConfig::disabled_at("search", LoadLevel::Critical),
            FeatureConfig::disabled_at("similar", LoadLevel::Busy),
            FeatureConfig::disabled_at("ads", LoadLevel::Busy),
        ];
        FeatureSet::new(features, seconds(10)).unwrap()
    }

    fn enabled_names(set: &FeatureSet) -> Vec<&str> {
        set.iter().filter(|(_, _, off_cause)| off_cause.is_none()).map(|(name, ..)| name).collect()
    }

    #[test]
    fn features_disable_together_and_recover_in_order() {
        let mut set = shop_features();
        for (second, level, expected) in [
            (0, LoadLevel::Normal, &["beta", "search", "similar", "ads"][..]),
            (1, LoadLevel::Busy, &["beta", "search"]),
            (2, LoadLevel::Critical, &["beta"]),
            (3, LoadLevel::Normal, &["beta"]),
            (11, LoadLevel::Normal, &["beta"]),
            (12, LoadLevel::Normal, &["beta", "search"]),
            (13, LoadLevel::Normal, &["beta", "search"]),
            (22, LoadLevel::Relaxed, &["beta", "search", "similar"]),
            (23, LoadLevel::Busy, &["beta", "search"]), // disabled again; the recovery restarts
            (32, LoadLevel::Normal, &["beta", "search"]),
            (33, LoadLevel::Normal, &["beta", "search", "similar"]),
            (1_000, LoadLevel::Normal, &["beta", "search", "similar", "ads"]),
        ] {
            set.observe(seconds(second), level);
            assert_eq!(enabled_names(&set), expected, "at {second}s, {level}");
        }
    }

    #[test]
    fn feature_is_off_during_its_schedule() {
        let windows = "00:10-00:20".parse().unwrap();
        let features =
            [FeatureConfig::manual("reports").off_during(windows), FeatureConfig::manual("search")];
        let mut set = FeatureSet::new(features, seconds(10)).unwrap();
        for (minute, is_on) in [(9, true), (10, false), (19, false), (20, true)] {
            set.observe(seconds(minute * 60), LoadLevel::Relaxed);
            assert_eq!(set.is_on("reports").unwrap(), is_on, "at minute {minute}");
            assert!(set.is_on("search").unwrap());
        }
    }

    #[test]
    fn cause_of_disabled_feature_is_load_schedule_or_operator() {
        let features = [
            FeatureConfig::disabled_at("search", LoadLevel::Critical),
            FeatureConfig::manual("reports").off_during("00:10-00:20".parse().unwrap()),
            FeatureConfig::manual("beta"),
        ];
        let mut set = FeatureSet::new(features, seconds(10)).unwrap();
        let causes = |set: &FeatureSet| set.iter().map(|(.., cause)| cause).collect::<Vec<_>>();
        assert_eq!(causes(&set), [None; 3]);
        set.observe(seconds(600), LoadLevel::Critical);
        set.set("beta", FeatureOverride::Off).unwrap();
        let expected = [FeatureOffCause::Load, FeatureOffCause::Schedule, FeatureOffCause::Operator];
        assert_eq!(causes(&set), expected.map(Some));
        set.set("search", FeatureOverride::On).unwrap();
        set.set("reports", FeatureOverride::Off).unwrap();
        set.set("beta", FeatureOverride::Automatic).unwrap();
        assert_eq!(causes(&set), [None, Some(FeatureOffCause::Operator), None]);
    }

    #[test]
    fn override_display_round_trips() {
        for state in [FeatureOverride::On, FeatureOverride::Off, FeatureOverride::Automatic] {
            assert_eq!(state.to_string().parse(), Ok(state));
        }
        assert_eq!("auto".parse(), Ok(FeatureOverride::Automatic));
        assert!("On".parse::<FeatureOverride>().is_err());
    }

    #[test]
    fn restored_set_keeps_overrides_and_states() {
        let mut before = shop_features();
        before.observe(seconds(1), LoadLevel::Critical);
        before.set("beta", FeatureOverride::Off).unwrap();
        let features = [FeatureConfig::manual("beta"), FeatureConfig::disabled_at("search", LoadLevel::Busy)];
        let mut set = FeatureSet::new(features, seconds(10)).unwrap();
        set.restore(&before);
        assert!(enabled_names(&set).is_empty());
        set.observe(seconds(11), LoadLevel::Normal);
        assert_eq!(enabled_names(&set), ["search"]);
    }

    #[test]
    fn partial_load_drop_recovers_some_features() {
        let mut set = shop_features();
        set.observe(seconds(0), LoadLevel::Critical);
        for second in [10, 20, 30, 40] {
            set.observe(seconds(second), LoadLevel::Busy);
        }
        assert_eq!(enabled_names(&set), ["beta", "search"]);
    }

    /// A clock that was ahead by mistake must not delay recovery until that time.
    #[test]
    fn clock_step_back_restarts_recovery_interval() {
        let mut set = shop_features();
        set.observe(seconds(1_000_000), LoadLevel::Busy);
        set.observe(seconds(100), LoadLevel::Normal);
        set.observe(seconds(109), LoadLevel::Normal);
        assert_eq!(enabled_names(&set), ["beta", "search"]);
        set.observe(seconds(110), LoadLevel::Normal);
        assert_eq!(enabled_names(&set), ["beta", "search", "similar"]);
    }

    #[test]
    fn manual_override_wins_over_load() {
        let mut set = shop_features();
        set.set("ads", FeatureOverride::On).unwrap();
        set.set("search", FeatureOverride::Off).unwrap();
        set.set("beta", FeatureOverride::Off).unwrap();
        set.observe(seconds(0), LoadLevel::Busy);
        assert_eq!(enabled_names(&set), ["ads"]);
        set.set("ads", FeatureOverride::Automatic).unwrap();
        set.set("search", FeatureOverride::Automatic).unwrap();
        assert_eq!(enabled_names(&set), ["search"]); // follows the load again
    }

    #[test]
    fn invalid_features_are_rejected_by_name() {
        let busy = |name| FeatureConfig::disabled_at(name, LoadLevel::Busy);
        let error = |configs: &[FeatureConfig]| {
            FeatureSet::new(configs.to_vec(), Micros::ZERO).unwrap_err().problem().to_string()
        };
        assert_eq!(error(&[busy("a"), busy("a")]), "duplicate feature `a`");
        assert_eq!(error(&[busy("")]), "feature name is empty");
        assert!(error(&[FeatureConfig::disabled_at("a", LoadLevel::Relaxed)]).contains("every load level"));
        assert_eq!(
            error(&[
                busy("search"),
                FeatureConfig::manual("beta"),
                FeatureConfig::disabled_at("ads", LoadLevel::Critical)
            ]),
            "`search` is disabled at busy, before the less important `ads`"
        );
        let unknown =
            |name: &str| shop_features().set(name, FeatureOverride::Off).unwrap_err().fix().to_string();
        for (name, fix) in [
            ("serach", "did you mean `search`?"),
            ("Search", "did you mean `search`?"),
            ("ad", "did you mean `ads`?"),
            ("payment-by-invoice", "use one of beta, search, similar, ads"),
        ] {
            assert_eq!(unknown(name), fix);
        }
        assert_eq!(unknown(&"x".repeat(1_000_000)), "use one of beta, search, similar, ads");
        assert_eq!(
            FeatureSet::new([], Micros::ZERO).unwrap().is_on("a").unwrap_err().fix(),
            "no features are configured"
        );
    }
}
