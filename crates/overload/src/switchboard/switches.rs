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
pub struct Switch {
    name: String,
    off_at: Option<LoadLevel>,
}

impl Switch {
    /// A feature that goes off when the load reaches `level`.
    pub fn off_at(name: impl Into<String>, level: LoadLevel) -> Self {
        Self { name: name.into(), off_at: Some(level) }
    }

    /// A feature that only a hand turns off.
    pub fn by_hand(name: impl Into<String>) -> Self {
        Self { name: name.into(), off_at: None }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// What a hand says of a feature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Lever {
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
/// use tidegate_overload::{Lever, LoadLevel, Switch, Switches};
/// use tidegate_core::Micros;
///
/// let features = [Switch::off_at("search", LoadLevel::Critical), Switch::off_at("ads", LoadLevel::Rejected)];
/// let mut switches = Switches::new(features, Micros::from_secs(10))?;
/// switches.observe(Micros::ZERO, LoadLevel::Rejected);
/// assert!(switches.is_on("search")? && !switches.is_on("ads")?);
/// switches.set("ads", Lever::On)?;
/// assert!(switches.is_on("ads")?);
/// assert_eq!(switches.is_on("add").unwrap_err().to_string(), "no feature `add`; did you mean `ads`?");
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Switches {
    features: Vec<Feature>,
    pause: Micros,
    changed: Option<Micros>,
}

#[derive(Clone, Debug)]
struct Feature {
    switch: Switch,
    lever: Lever,
    by_load: Power,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Power {
    On,
    Off,
}

impl Switches {
    /// Features from the most important to the least, and the least time between two that come back.
    pub fn new(switches: impl IntoIterator<Item = Switch>, pause: Micros) -> Result<Self, SettingError> {
        let on = |switch| Feature { switch, lever: Lever::Automatic, by_load: Power::On };
        let features: Vec<_> = switches.into_iter().map(on).collect();
        for (place, Feature { switch, .. }) in features.iter().enumerate() {
            if switch.name.is_empty() {
                return Err(SettingError::new("a feature without a name", "give it one"));
            }
            if features.iter().take(place).any(|other| other.switch.name == switch.name) {
                return Err(SettingError::new(
                    format!("two features `{}`", switch.name),
                    "give each a name of its own",
                ));
            }
            if switch.off_at == Some(LoadLevel::Relaxed) {
                return Err(SettingError::new(
                    format!("`{}` would be off under any load", switch.name),
                    "let it go off at normal or above, or by hand",
                ));
            }
        }
        let by_load: Vec<_> =
            features.iter().filter_map(|it| Some((it.switch.name(), it.switch.off_at?))).collect();
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
        Ok(Self { features, pause, changed: None })
    }

    /// Takes in the level of load at `now`. What must go off does; one that may come back does, if the last change was
    /// long enough ago.
    pub fn observe(&mut self, now: Micros, level: LoadLevel) {
        for feature in &mut self.features {
            if feature.by_load == Power::On && feature.must_be_off(level) {
                feature.by_load = Power::Off;
                self.changed = Some(now);
            }
        }
        // A clock that steps back begins the pause anew.
        self.changed = self.changed.map(|changed| changed.min(now));
        if self.changed.is_some_and(|changed| now.since(changed) < self.pause) {
            return;
        }
        let back = |feature: &&mut Feature| feature.by_load == Power::Off && !feature.must_be_off(level);
        if let Some(feature) = self.features.iter_mut().find(back) {
            feature.by_load = Power::On;
            self.changed = Some(now);
        }
    }

    /// Turns a feature on or off by hand, or leaves it to the load again.
    pub fn set(&mut self, name: &str, lever: Lever) -> Result<(), SettingError> {
        let place = self.place(name)?;
        if let Some(feature) = self.features.get_mut(place) {
            feature.lever = lever;
        }
        Ok(())
    }

    /// Whether a feature is on.
    pub fn is_on(&self, name: &str) -> Result<bool, SettingError> {
        let place = self.place(name)?;
        Ok(self.features.get(place).is_some_and(Feature::is_on))
    }

    /// Each feature in order, what the hand says of it, and whether it is on.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Lever, bool)> {
        self.features.iter().map(|feature| (feature.switch.name(), feature.lever, feature.is_on()))
    }

    /// The place of a feature in the order.
    pub fn place(&self, name: &str) -> Result<usize, SettingError> {
        let place = self.features.iter().position(|feature| feature.switch.name == name);
        place.ok_or_else(|| {
            let names = self.features.iter().map(|feature| feature.switch.name());
            SettingError::new(format!("no feature `{name}`"), hint(name, names))
        })
    }
}

impl Feature {
    fn must_be_off(&self, level: LoadLevel) -> bool {
        self.switch.off_at.is_some_and(|off_at| level >= off_at)
    }

    fn is_on(&self) -> bool {
        match self.lever {
            Lever::On => true,
            Lever::Off => false,
            Lever::Automatic => self.by_load == Power::On,
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

    fn shop() -> Switches {
        let features = [
            Switch::by_hand("beta"),
            Switch::off_at("search", LoadLevel::Critical),
            Switch::off_at("similar", LoadLevel::Busy),
            Switch::off_at("ads", LoadLevel::Busy),
        ];
        Switches::new(features, seconds(10)).unwrap()
    }

    fn on(switches: &Switches) -> Vec<&str> {
        switches.iter().filter(|(_, _, is_on)| *is_on).map(|(name, ..)| name).collect()
    }

    #[test]
    fn they_go_off_together_and_come_back_in_order() {
        let mut switches = shop();
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
            assert_eq!(on(&switches), expected, "at {second}s, {level}");
        }
    }

    #[test]
    fn half_way_down_only_some_come_back() {
        let mut switches = shop();
        switches.observe(seconds(0), LoadLevel::Critical);
        for second in [10, 20, 30, 40] {
            switches.observe(seconds(second), LoadLevel::Busy);
        }
        assert_eq!(on(&switches), ["beta", "search"]);
    }

    /// A clock that was ahead by mistake: what went off then must not wait until it is that late again.
    #[test]
    fn a_clock_that_steps_back_begins_the_pause_anew() {
        let mut switches = shop();
        switches.observe(seconds(1_000_000), LoadLevel::Busy);
        switches.observe(seconds(100), LoadLevel::Normal);
        switches.observe(seconds(109), LoadLevel::Normal);
        assert_eq!(on(&switches), ["beta", "search"]);
        switches.observe(seconds(110), LoadLevel::Normal);
        assert_eq!(on(&switches), ["beta", "search", "similar"]);
    }

    #[test]
    fn what_a_hand_says_wins() {
        let mut switches = shop();
        switches.set("ads", Lever::On).unwrap();
        switches.set("search", Lever::Off).unwrap();
        switches.set("beta", Lever::Off).unwrap();
        switches.observe(seconds(0), LoadLevel::Busy);
        assert_eq!(on(&switches), ["ads"]);
        switches.set("ads", Lever::Automatic).unwrap();
        switches.set("search", Lever::Automatic).unwrap();
        assert_eq!(on(&switches), ["search"]); // as the load has it meanwhile
    }

    #[test]
    fn mistakes_are_named() {
        let busy = |name| Switch::off_at(name, LoadLevel::Busy);
        let refuse = |switches: &[Switch]| {
            Switches::new(switches.to_vec(), Micros::ZERO).unwrap_err().problem().to_string()
        };
        assert_eq!(refuse(&[busy("a"), busy("a")]), "two features `a`");
        assert_eq!(refuse(&[busy("")]), "a feature without a name");
        assert!(refuse(&[Switch::off_at("a", LoadLevel::Relaxed)]).contains("under any load"));
        assert_eq!(
            refuse(&[busy("search"), Switch::by_hand("beta"), Switch::off_at("ads", LoadLevel::Critical)]),
            "`search` goes off at busy, before the less important `ads`"
        );
        let unknown = |name: &str| shop().set(name, Lever::Off).unwrap_err().fix().to_string();
        for (name, fix) in [
            ("serach", "did you mean `search`?"),
            ("Search", "did you mean `search`?"),
            ("ad", "did you mean `ads`?"),
            ("payment-by-invoice", "use one of beta, search, similar, ads"),
        ] {
            assert_eq!(unknown(name), fix);
        }
        assert_eq!(unknown(&"x".repeat(1_000_000)), "use one of beta, search, similar, ads");
        assert_eq!(Switches::new([], Micros::ZERO).unwrap().is_on("a").unwrap_err().fix(), "there are none");
    }
}
