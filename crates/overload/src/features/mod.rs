//! Features that are turned off by hand or by load, and come back in order.

mod feature_set;

pub use feature_set::{FeatureConfig, FeatureOverride, FeatureSet};

use crate::{
    LoadLevel,
    load::{LoadMonitor, LoadObserver, LoadReading},
};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tidegate_core::{Micros, SettingError};
use tidegate_limiter::sync::{Mutex, lock};

/// Named features, each on or off. Clones are the same board.
///
/// ```
/// use std::time::Duration;
/// use tidegate_overload::{LoadLevel, FeatureConfig, Features};
///
/// // The most important first.
/// let board = Features::new(
///     [FeatureConfig::disabled_at("search", LoadLevel::Critical), FeatureConfig::disabled_at("similar", LoadLevel::Busy)],
///     Duration::from_secs(10),
/// )?;
/// let similar = board.feature("similar")?; // once; asking it is one atomic load
/// assert!(similar.is_on());
/// board.turn_off("similar")?;
/// assert!(!similar.is_on());
/// board.clear_override("similar")?;
/// assert!(similar.is_on());
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone)]
pub struct Features {
    inner: Arc<FeaturesInner>,
}

/// One feature of a [`Features`], for the request path.
#[derive(Clone, Debug)]
pub struct Feature {
    name: Arc<str>,
    is_on: Arc<AtomicBool>,
}

impl Feature {
    /// Whether it is on: one atomic load.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }
}

struct FeaturesInner {
    set: Mutex<FeatureSet>,
    /// In the order of the switches.
    features: Box<[Feature]>,
}

impl Features {
    /// Features from the most important to the least, all on, and the least time between two that come back.
    pub fn new(
        switches: impl IntoIterator<Item = FeatureConfig>,
        pause: Duration,
    ) -> Result<Self, SettingError> {
        let switches = FeatureSet::new(switches, Micros::from(pause))?;
        let features = switches
            .iter()
            .map(|(name, _, is_on)| Feature { name: name.into(), is_on: Arc::new(AtomicBool::new(is_on)) });
        let features = features.collect();
        Ok(Self { inner: Arc::new(FeaturesInner { set: Mutex::new(switches), features }) })
    }

    /// Follows the load that `monitor` sees, for as long as both live.
    pub fn follow(&self, monitor: &LoadMonitor) {
        monitor.subscribe(&self.inner);
    }

    /// Takes in a level of load, for those without a monitor.
    pub fn observe(&self, now: Micros, level: LoadLevel) {
        self.inner.update(|switches| switches.observe(now, level));
    }

    /// A feature, to be asked at every request.
    pub fn feature(&self, name: &str) -> Result<Feature, SettingError> {
        let place = lock(&self.inner.set).position(name)?;
        // Every place has a feature.
        let feature = self.inner.features.get(place).cloned();
        feature.ok_or_else(|| SettingError::new(format!("no feature `{name}`"), "give it a switch"))
    }

    /// Turns a feature on, whatever the load.
    pub fn turn_on(&self, name: &str) -> Result<(), SettingError> {
        self.inner.update(|switches| switches.set(name, FeatureOverride::On))
    }

    /// Turns a feature off, whatever the load.
    pub fn turn_off(&self, name: &str) -> Result<(), SettingError> {
        self.inner.update(|switches| switches.set(name, FeatureOverride::Off))
    }

    /// Leaves a feature to the load again.
    pub fn clear_override(&self, name: &str) -> Result<(), SettingError> {
        self.inner.update(|switches| switches.set(name, FeatureOverride::Automatic))
    }

    /// Each feature in order, and what the hand says of it; for operators.
    pub fn list(&self) -> Vec<(Feature, FeatureOverride)> {
        let switches = lock(&self.inner.set);
        let levers = switches.iter().map(|(_, lever, _)| lever);
        self.inner.features.iter().cloned().zip(levers).collect()
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.inner.features.iter().map(|it| (it.name(), it.is_on()))).finish()
    }
}

impl FeaturesInner {
    fn update<T>(&self, change: impl FnOnce(&mut FeatureSet) -> T) -> T {
        let mut switches = lock(&self.set);
        let end = change(&mut switches);
        // Shown before the lock is given back, so that an older change never overwrites a newer one.
        for (feature, (_, _, is_on)) in self.features.iter().zip(switches.iter()) {
            feature.is_on.store(is_on, Ordering::Relaxed);
        }
        end
    }
}

impl LoadObserver for FeaturesInner {
    fn on_load(&self, now: Micros, load: LoadReading) {
        self.update(|switches| switches.observe(now, load.level));
    }
}
