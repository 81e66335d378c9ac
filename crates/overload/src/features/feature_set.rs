//! Features that go off under load and come back in order.
//!
//! ```text
//!   level    normal   busy        critical        normal
//!   search   on ───────────────────off──────────────on ────────────── most important: back first
//!   similar  on ───────off───────────────────────────────on ───────── then the next, a pause later
//!   ads      on ───────off────────────────────────────────────on ──── least important: back last
//! ```
//!
//! They go off at once, all that the level asks for. They come back one at a time, so that each can show what it
//! costs before the next. What is set by hand stays as it was set, whatever the load.

use crate::load::LoadLevel;
use tidegate_core::{Micros, SettingError, suggest};

/// A feature that can be turned off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureConfig {
    name: String,
    disable_level: Option<LoadLevel>,
}

impl FeatureConfig {
    /// A feature that goes off when the load reaches `level`.
    pub fn disabled_at(name: impl Into<String>, level: LoadLevel) -> Self {
        Self { name: name.into(), disable_level: Some(level) }
    }

    /// A feature that only a hand turns off.
    pub fn manual(name: impl Into<String>) -> Self {
        Self { name: name.into(), disable_level: None }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// What a hand says of a feature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FeatureOverride {
    /// On, whatever the load.
    On,
    /// Off, whatever the load.
    Off,
    /// As the load says.
    #[default]
    Automatic,
}

/// Which features are on.
///
/// ```
/// use tidegate_overload::{FeatureOverride, LoadLevel, FeatureConfig, FeatureSet};
/// use tidegate_core::Micros;
///
/// let features = [FeatureConfig::disabled_at("search", LoadLevel::Critical), FeatureConfig::disabled_at("ads", LoadLevel::Busy)];
/// let mut switches = FeatureSet::new(features, Micros::from_secs(10))?;
/// switches.observe(Micros::ZERO, LoadLevel::Busy);
/// assert!(switches.is_on("search")? && !switches.is_on("ads")?);
/// switches.set("ads", FeatureOverride::On)?;
/// assert!(switches.is_on("ads")?);
/// assert_eq!(switches.is_on("add").unwrap_err().to_string(), "no feature `add`; did you mean `ads`?");
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone, Debug)]
pub struct FeatureSet {
    features: Vec<FeatureEntry>,
    recovery_interval: Micros,
    last_change: Option<Micros>,
}

#[derive(Clone, Debug)]
struct FeatureEntry {
    config: FeatureConfig,
    manual_override: FeatureOverride,
    load_state: FeatureState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FeatureState {
    On,
    Off,
}

impl FeatureSet {
    /// Features from the most important to the least, and the least time between two that come back.
    pub fn new(
        switches: impl IntoIterator<Item = FeatureConfig>,
        pause: Micros,
    ) -> Result<Self, SettingError> {
        let on = |switch| FeatureEntry {
            config: switch,
            manual_override: FeatureOverride::Automatic,
            load_state: FeatureState::On,
        };
        let features: Vec<_> = switches.into_iter().map(on).collect();
        for (place, FeatureEntry { config: switch, .. }) in features.iter().enumerate() {
            if switch.name.is_empty() {
                return Err(SettingError::new("a feature without a name", "give it one"));
            }
            if features.iter().take(place).any(|other| other.config.name == switch.name) {
                return Err(SettingError::new(
                    format!("two features `{}`", switch.name),
                    "give each a name of its own",
                ));
            }
            if switch.disable_level == Some(LoadLevel::Relaxed) {
                return Err(SettingError::new(
                    format!("`{}` would be off under any load", switch.name),
                    "let it go off at normal or above, or by hand",
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
                    format!("`{first}` goes off at {first_level}, before the less important `{second}`"),
                    "list the most important first, and let it go off last",
                ));
            }
        }
        Ok(Self { features, recovery_interval: pause, last_change: None })
    }

    /// Takes in the level of load at `now`. What must go off does; one that may come back does, if the last change was
    /// long enough ago.
    pub fn observe(&mut self, now: Micros, level: LoadLevel) {
        for feature in &mut self.features {
            if feature.load_state == FeatureState::On && feature.should_disable(level) {
                feature.load_state = FeatureState::Off;
                self.last_change = Some(now);
            }
        }
        // A clock that steps back begins the pause anew.
        self.last_change = self.last_change.map(|changed| changed.min(now));
        if self.last_change.is_some_and(|changed| now.since(changed) < self.recovery_interval) {
            return;
        }
        let back = |feature: &&mut FeatureEntry| {
            feature.load_state == FeatureState::Off && !feature.should_disable(level)
        };
        if let Some(feature) = self.features.iter_mut().find(back) {
            feature.load_state = FeatureState::On;
            self.last_change = Some(now);
        }
    }

    /// Turns a feature on or off by hand, or leaves it to the load again.
    pub fn set(&mut self, name: &str, lever: FeatureOverride) -> Result<(), SettingError> {
        let place = self.position(name)?;
        if let Some(feature) = self.features.get_mut(place) {
            feature.manual_override = lever;
        }
        Ok(())
    }

    /// Whether a feature is on.
    pub fn is_on(&self, name: &str) -> Result<bool, SettingError> {
        let place = self.position(name)?;
        Ok(self.features.get(place).is_some_and(FeatureEntry::is_on))
    }

    /// Each feature in order, what the hand says of it, and whether it is on.
    pub fn iter(&self) -> impl Iterator<Item = (&str, FeatureOverride, bool)> {
        self.features.iter().map(|feature| (feature.config.name(), feature.manual_override, feature.is_on()))
    }

    /// The place of a feature in the order.
    pub fn position(&self, name: &str) -> Result<usize, SettingError> {
        let place = self.features.iter().position(|feature| feature.config.name == name);
        place.ok_or_else(|| {
            let names = self.features.iter().map(|feature| feature.config.name());
            SettingError::new(format!("no feature `{name}`"), hint(name, names))
        })
    }
}

impl FeatureEntry {
    fn should_disable(&self, level: LoadLevel) -> bool {
        self.config.disable_level.is_some_and(|off_at| level >= off_at)
    }

    fn is_on(&self) -> bool {
        match self.manual_override {
            FeatureOverride::On => true,
            FeatureOverride::Off => false,
            FeatureOverride::Automatic => self.load_state == FeatureState::On,
        }
    }
}

/// The name that was meant, if one is near; else all of them.
fn hint<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    if let Some(meant) = suggest::closest(name, known.clone()) {
        return format!("did you mean `{meant}`?");
    }
    match known.collect::<Vec<_>>() {
        none if none.is_empty() => "there are none".to_string(),
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

    fn enabled_names(switches: &FeatureSet) -> Vec<&str> {
        switches.iter().filter(|(_, _, is_on)| *is_on).map(|(name, ..)| name).collect()
    }

    #[test]
    fn features_disable_together_and_recover_in_order() {
        let mut switches = shop_features();
        for (second, level, expected) in [
            (0, LoadLevel::Normal, &["beta", "search", "similar", "ads"][..]),
            (1, LoadLevel::Busy, &["beta", "search"]),
            (2, LoadLevel::Critical, &["beta"]),
            (3, LoadLevel::Normal, &["beta"]),
            (11, LoadLevel::Normal, &["beta"]),
            (12, LoadLevel::Normal, &["beta", "search"]),
            (13, LoadLevel::Normal, &["beta", "search"]),
            (22, LoadLevel::Relaxed, &["beta", "search", "similar"]),
            (23, LoadLevel::Busy, &["beta", "search"]), // back to where it was, and from the start
            (32, LoadLevel::Normal, &["beta", "search"]),
            (33, LoadLevel::Normal, &["beta", "search", "similar"]),
            (1_000, LoadLevel::Normal, &["beta", "search", "similar", "ads"]),
        ] {
            switches.observe(seconds(second), level);
            assert_eq!(enabled_names(&switches), expected, "at {second}s, {level}");
        }
    }

    #[test]
    fn partial_load_drop_recovers_some_features() {
        let mut switches = shop_features();
        switches.observe(seconds(0), LoadLevel::Critical);
        for second in [10, 20, 30, 40] {
            switches.observe(seconds(second), LoadLevel::Busy);
        }
        assert_eq!(enabled_names(&switches), ["beta", "search"]);
    }

    /// A clock that was ahead by mistake: what went off then must not wait until it is that late again.
    #[test]
    fn clock_step_back_restarts_recovery_interval() {
        let mut switches = shop_features();
        switches.observe(seconds(1_000_000), LoadLevel::Busy);
        switches.observe(seconds(100), LoadLevel::Normal);
        switches.observe(seconds(109), LoadLevel::Normal);
        assert_eq!(enabled_names(&switches), ["beta", "search"]);
        switches.observe(seconds(110), LoadLevel::Normal);
        assert_eq!(enabled_names(&switches), ["beta", "search", "similar"]);
    }

    #[test]
    fn manual_override_wins_over_load() {
        let mut switches = shop_features();
        switches.set("ads", FeatureOverride::On).unwrap();
        switches.set("search", FeatureOverride::Off).unwrap();
        switches.set("beta", FeatureOverride::Off).unwrap();
        switches.observe(seconds(0), LoadLevel::Busy);
        assert_eq!(enabled_names(&switches), ["ads"]);
        switches.set("ads", FeatureOverride::Automatic).unwrap();
        switches.set("search", FeatureOverride::Automatic).unwrap();
        assert_eq!(enabled_names(&switches), ["search"]); // as the load has it meanwhile
    }

    #[test]
    fn invalid_features_are_rejected_by_name() {
        let busy = |name| FeatureConfig::disabled_at(name, LoadLevel::Busy);
        let refuse = |switches: &[FeatureConfig]| {
            FeatureSet::new(switches.to_vec(), Micros::ZERO).unwrap_err().problem().to_string()
        };
        assert_eq!(refuse(&[busy("a"), busy("a")]), "two features `a`");
        assert_eq!(refuse(&[busy("")]), "a feature without a name");
        assert!(refuse(&[FeatureConfig::disabled_at("a", LoadLevel::Relaxed)]).contains("under any load"));
        assert_eq!(
            refuse(&[
                busy("search"),
                FeatureConfig::manual("beta"),
                FeatureConfig::disabled_at("ads", LoadLevel::Critical)
            ]),
            "`search` goes off at busy, before the less important `ads`"
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
            "there are none"
        );
    }
}
