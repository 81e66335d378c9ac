//! Feature flags, disabled manually, by load or by schedule, that recover in order.

mod feature_set;

pub use feature_set::{FeatureConfig, FeatureOffCause, FeatureOverride, FeatureSet};

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

/// Named features, each enabled or disabled. Clones share state.
///
/// ```
/// use std::time::Duration;
/// use tidegate_overload::{LoadLevel, FeatureConfig, Features};
///
/// // The most important first.
/// let features = Features::new(
///     [FeatureConfig::disabled_at("search", LoadLevel::Critical), FeatureConfig::disabled_at("similar", LoadLevel::Busy)],
///     Duration::from_secs(10),
/// )?;
/// let similar = features.feature("similar")?; // look it up once; `is_on` is one atomic load
/// assert!(similar.is_on());
/// features.turn_off("similar")?;
/// assert!(!similar.is_on());
/// features.clear_override("similar")?;
/// assert!(similar.is_on());
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone, Default)]
pub struct Features {
    inner: Arc<FeaturesInner>,
}

/// One feature of [`Features`], for the request path.
#[derive(Clone, Debug)]
pub struct Feature {
    name: Arc<str>,
    is_on: Arc<AtomicBool>,
}

impl Feature {
    /// Whether it is enabled: one atomic load.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The state of a feature, for operators.
#[derive(Clone, Debug)]
pub struct FeatureStatus {
    /// The feature.
    pub feature: Feature,
    /// Its override.
    pub manual_override: FeatureOverride,
    /// Why it is off; `None` if it is enabled.
    pub off_cause: Option<FeatureOffCause>,
}

#[derive(Default)]
struct FeaturesInner {
    set: Mutex<FeatureSet>,
    /// In the order of the set.
    features: Box<[Feature]>,
}

impl Features {
    /// Creates the features, the most important first, all enabled, and the minimum time between two
    /// recoveries.
    pub fn new(
        configs: impl IntoIterator<Item = FeatureConfig>,
        recovery_interval: Duration,
    ) -> Result<Self, SettingError> {
        let set = FeatureSet::new(configs, Micros::from(recovery_interval))?;
        let features = set
            .iter()
            .map(|(name, ..)| Feature { name: name.into(), is_on: Arc::new(AtomicBool::new(true)) });
        let features = features.collect();
        Ok(Self { inner: Arc::new(FeaturesInner { set: Mutex::new(set), features }) })
    }

    /// Like [`new`](Self::new), with the overrides and the states of the features of the same name.
    pub fn restore(
        configs: impl IntoIterator<Item = FeatureConfig>,
        recovery_interval: Duration,
        before: &Self,
    ) -> Result<Self, SettingError> {
        let features = Self::new(configs, recovery_interval)?;
        features.inner.update(|set| set.restore(&lock(&before.inner.set)));
        Ok(features)
    }

    /// Follows the load that `monitor` measures, while both exist.
    pub fn follow(&self, monitor: &LoadMonitor) {
        monitor.subscribe(&self.inner);
    }

    /// Updates the features to a level of load, for use without a monitor.
    pub fn observe(&self, now: Micros, level: LoadLevel) {
        self.inner.update(|set| set.observe(now, level));
    }

    /// Returns a feature, to be checked on each request.
    pub fn feature(&self, name: &str) -> Result<Feature, SettingError> {
        self.status(name).map(|status| status.feature)
    }

    /// Sets or clears the override of a feature.
    pub fn set_override(&self, name: &str, manual_override: FeatureOverride) -> Result<(), SettingError> {
        self.inner.update(|set| set.set(name, manual_override))
    }

    /// Enables a feature, whatever the load.
    pub fn turn_on(&self, name: &str) -> Result<(), SettingError> {
        self.set_override(name, FeatureOverride::On)
    }

    /// Disables a feature, whatever the load.
    pub fn turn_off(&self, name: &str) -> Result<(), SettingError> {
        self.set_override(name, FeatureOverride::Off)
    }

    /// Clears the override, so that the feature follows the load again.
    pub fn clear_override(&self, name: &str) -> Result<(), SettingError> {
        self.set_override(name, FeatureOverride::Automatic)
    }

    /// Each feature in order.
    pub fn list(&self) -> Vec<FeatureStatus> {
        let set = lock(&self.inner.set);
        let status = |(feature, (_, manual_override, off_cause)): (&Feature, _)| FeatureStatus {
            feature: feature.clone(),
            manual_override,
            off_cause,
        };
        self.inner.features.iter().zip(set.iter()).map(status).collect()
    }

    /// The state of one feature.
    pub fn status(&self, name: &str) -> Result<FeatureStatus, SettingError> {
        let index = lock(&self.inner.set).position(name)?;
        // Every index has a feature.
        self.list().into_iter().nth(index).ok_or_else(|| {
            SettingError::new(format!("unknown feature `{name}`"), "add it to the configured features")
        })
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.inner.features.iter().map(|it| (it.name(), it.is_on()))).finish()
    }
}

impl FeaturesInner {
    fn update<T>(&self, change: impl FnOnce(&mut FeatureSet) -> T) -> T {
        let mut set = lock(&self.set);
        let result = change(&mut set);
        // Published under the lock, so that an older change never overwrites a newer one.
        for (feature, (_, _, off_cause)) in self.features.iter().zip(set.iter()) {
            feature.is_on.store(off_cause.is_none(), Ordering::Relaxed);
        }
        result
    }
}

impl LoadObserver for FeaturesInner {
    fn on_load(&self, now: Micros, load: LoadReading) {
        self.update(|set| set.observe(now, load.level));
    }
}
