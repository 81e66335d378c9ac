//! A limit that follows the load and the time of day.
//!
//! ```text
//!   declared limit × Scaler(load, usage) × Schedule(time)  ──▶  set_limit when the factor changes
//! ```
//!
//! None of this happens on the request path. Changing a [`Limiter`] walks its whole table once, about 100 ns per key, and
//! new keys wait for it; therefore the factor changes in steps, seconds apart.

use super::{LoadMonitor, LoadObserver, LoadReading, LoadSource, smoothed_percent};
use crate::{Ewma, ScalePolicy, Scaler, Schedule, priority::PriorityLimit};
use std::{fmt, sync::Arc};
use tidegate_core::{CarryOver, Micros, Percent, Quota, Ratio};
use tidegate_limiter::{
    BuildError, DirectLimiter, Limiter, Semaphore,
    sync::{Mutex, lock},
};

/// A limiter whose limit can be changed at run time.
pub trait Scalable: Send + Sync + 'static {
    /// The type of its limit.
    type Limit: Clone + PartialEq + Send;

    /// The current limit.
    fn limit(&self) -> Self::Limit;

    /// Multiplies the limit; an error if the result is invalid or could not be applied.
    fn scale(limit: &Self::Limit, factor: Ratio) -> Result<Self::Limit, BuildError>;

    /// Changes the limit. It is called while the state of the [`ScaledLimit`] is locked, so it must not drop that one.
    fn set_limit(&self, limit: &Self::Limit) -> Result<(), BuildError>;

    /// The share of the limit in use; `None` if unknown. Such a limit does not grow above the declared one,
    /// unless [`ScaledLimitBuilder::with_usage_source`] measures the usage.
    fn usage(&self) -> Option<Percent> {
        None
    }
}

/// Keys keep their usage. With a store that instances share, follow a schedule only: by their own load,
/// instances would apply different limits. The usage over all keys is unknown; use a [`super::DenialLoad`].
impl Scalable for Limiter {
    type Limit = Vec<Quota>;

    fn limit(&self) -> Vec<Quota> {
        self.quotas()
    }

    fn scale(limit: &Vec<Quota>, factor: Ratio) -> Result<Vec<Quota>, BuildError> {
        limit.iter().map(|quota| DirectLimiter::scale(quota, factor)).collect()
    }

    fn set_limit(&self, limit: &Vec<Quota>) -> Result<(), BuildError> {
        self.change_all(limit, CarryOver::Keep)
    }
}

impl Scalable for Semaphore {
    type Limit = u32;

    fn limit(&self) -> u32 {
        Self::limit(self)
    }

    fn scale(limit: &u32, factor: Ratio) -> Result<u32, BuildError> {
        let scaled = factor.apply((*limit).into()).clamp(1, u32::MAX.into());
        Ok(u32::try_from(scaled).unwrap_or(u32::MAX))
    }

    fn set_limit(&self, limit: &u32) -> Result<(), BuildError> {
        Ok(self.resize(*limit)?)
    }

    fn usage(&self) -> Option<Percent> {
        Some(Percent::from_ratio(self.in_flight().into(), Self::limit(self).into()))
    }
}

/// For a limit without a controller: a controller overrides the change.
impl Scalable for PriorityLimit {
    type Limit = u32;

    fn limit(&self) -> u32 {
        Self::limit(self)
    }

    fn scale(limit: &u32, factor: Ratio) -> Result<u32, BuildError> {
        Semaphore::scale(limit, factor)
    }

    fn set_limit(&self, limit: &u32) -> Result<(), BuildError> {
        Ok(self.resize(*limit)?)
    }

    fn usage(&self) -> Option<Percent> {
        Some(Percent::from_ratio(self.in_flight().into(), Self::limit(self).into()))
    }
}

impl Scalable for DirectLimiter {
    type Limit = Quota;

    fn limit(&self) -> Quota {
        self.quota()
    }

    fn scale(limit: &Quota, factor: Ratio) -> Result<Quota, BuildError> {
        // Tokens of a larger total would never be repaid, and a denial by a smaller one is final.
        if limit.is_total() && factor != Ratio::ONE {
            return Err(BuildError::unsupported_quota(limit, "a rate, as in `10/s`"));
        }
        let scaled = limit.scale(factor)?;
        // A longer log may need more state than there is room for.
        match scaled.state_len() > limit.state_len() {
            true => Err(BuildError::incompatible_quota(&[*limit], &[scaled])),
            false => Ok(scaled),
        }
    }

    fn set_limit(&self, limit: &Quota) -> Result<(), BuildError> {
        self.change(*limit, CarryOver::Keep)
    }

    fn usage(&self) -> Option<Percent> {
        let decision = self.blocking().peek(0);
        let (limit, left) = (decision.limit(), decision.remaining());
        Some(Percent::from_ratio(limit.saturating_sub(left), limit))
    }
}

/// A limiter or semaphore whose limit follows the load, the time of day, or both, while this exists. Dropping
/// it restores the declared limit.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_overload::ScalePolicy;
/// use tidegate_core::Percent;
/// use tidegate_overload::load::{LoadMonitor, ScaledLimit};
/// use tidegate_limiter::DirectLimiter;
///
/// let monitor = LoadMonitor::builder().source("queue", |_now| Some(Percent::FULL)).build()?;
/// let throttle = Arc::new(DirectLimiter::new("100/s")?);
/// let scaled = ScaledLimit::builder(throttle.clone()).with_load_policy(ScalePolicy::default()).start(&monitor)?;
/// monitor.sample_once();
/// assert_eq!(throttle.quota().to_string(), "80/s");
/// drop(scaled);
/// assert_eq!(throttle.quota().to_string(), "100/s");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ScaledLimit<T: Scalable> {
    inner: Arc<ScaledInner<T>>,
    /// Keeps the monitor running for as long as the scaling.
    _monitor: LoadMonitor,
}

impl<T: Scalable> ScaledLimit<T> {
    /// Creates a builder that scales `target`.
    pub fn builder(target: Arc<T>) -> ScaledLimitBuilder<T> {
        ScaledLimitBuilder {
            target,
            base_limit: None,
            scale: None,
            schedule: None,
            usage_source: None,
            previous: None,
        }
    }

    /// The factor that the limit was last multiplied by.
    pub fn factor(&self) -> Ratio {
        lock(&self.inner.state).applied_factor
    }

    /// What determines the factor by load; `None` for a limit that follows a schedule only.
    pub fn scaler(&self) -> Option<Scaler> {
        lock(&self.inner.state).scaler
    }

    /// The error of the last change, if it failed: the limit before it still applies.
    pub fn last_error(&self) -> Option<BuildError> {
        lock(&self.inner.state).failure.clone()
    }

    /// Stops to follow and leaves the limit as it is now, for a successor that starts
    /// [with the declared limit](ScaledLimitBuilder::with_base_limit) and [resumes](ScaledLimitBuilder::resume) the result.
    pub fn detach(self) -> Option<Scaler> {
        let mut state = lock(&self.inner.state);
        state.status = ScaleStatus::Stopped;
        state.scaler
    }

    /// Declares another limit, which is scaled from now on. A limit that is changed directly on the target is
    /// overwritten when the factor changes next.
    pub fn set_base_limit(&self, limit: T::Limit) -> Result<(), BuildError> {
        let mut state = lock(&self.inner.state);
        reject_unscalable::<T>(&limit, state.factor_range)?;
        let now = T::scale(&limit, state.applied_factor)?;
        self.inner.target.set_limit(&now)?;
        state.base_limit = limit;
        Ok(())
    }
}

impl<T: Scalable> Drop for ScaledLimit<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.inner.state);
        let status = std::mem::replace(&mut state.status, ScaleStatus::Stopped);
        if status == ScaleStatus::Active && state.applied_factor != Ratio::ONE {
            // The target had this limit before, so it accepts it again; an error could not be reported
            // anyway.
            let _error = self.inner.target.set_limit(&state.base_limit);
        }
    }
}

impl<T: Scalable> fmt::Debug for ScaledLimit<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScaledLimit({})", self.factor())
    }
}

/// The settings of a [`ScaledLimit`].
pub struct ScaledLimitBuilder<T: Scalable> {
    target: Arc<T>,
    base_limit: Option<T::Limit>,
    scale: Option<ScalePolicy>,
    schedule: Option<Schedule>,
    usage_source: Option<Box<dyn LoadSource>>,
    previous: Option<Scaler>,
}

impl<T: Scalable> ScaledLimitBuilder<T> {
    /// Declares the limit that is scaled. By default it is the current limit of the target, which is wrong if the target has a
    /// scaled limit now.
    #[must_use]
    pub fn with_base_limit(self, limit: T::Limit) -> Self {
        Self { base_limit: Some(limit), ..self }
    }

    /// Follows the load.
    #[must_use]
    pub fn with_load_policy(self, scale: ScalePolicy) -> Self {
        Self { scale: Some(scale), ..self }
    }

    /// Follows the time of day on the monitor's clock: corrections of the system's wall clock apply only from
    /// the next start on.
    #[must_use]
    pub fn with_schedule(self, schedule: Schedule) -> Self {
        Self { schedule: Some(schedule), ..self }
    }

    /// Measures the usage of the limit, for targets that cannot.
    #[must_use]
    pub fn with_usage_source(self, used: impl LoadSource + 'static) -> Self {
        Self { usage_source: Some(Box::new(used)), ..self }
    }

    /// Starts with the factor of an earlier limit instead of x1, if this one follows the load.
    #[must_use]
    pub fn resume(self, previous: Option<Scaler>) -> Self {
        Self { previous, ..self }
    }

    /// Starts to follow. An error if the limit cannot be multiplied by the minimum or the maximum factor.
    pub fn start(self, monitor: &LoadMonitor) -> Result<ScaledLimit<T>, BuildError> {
        let Self { target, base_limit, scale, schedule, usage_source: used, previous } = self;
        let factors = || schedule.iter().flat_map(Schedule::factors);
        let min =
            factors().min().unwrap_or_default().multiply(scale.map_or(Ratio::ONE, |scale| scale.floor()));
        let max =
            factors().max().unwrap_or_default().multiply(scale.map_or(Ratio::ONE, |scale| scale.ceiling()));
        // Long enough to smooth single readings, short compared with the step interval.
        let usage = Ewma::new(Micros::from_secs(1)).ok();
        let state = ScaleState {
            base_limit: base_limit.unwrap_or_else(|| target.limit()),
            factor_range: (min, max),
            scaler: scale.map(|scale| {
                let scaler = Scaler::new(scale);
                previous.map_or(scaler, |previous| scaler.resume(&previous))
            }),
            schedule,
            usage,
            applied_factor: Ratio::ONE,
            attempted_factor: None,
            failure: None,
            status: ScaleStatus::Active,
        };
        reject_unscalable::<T>(&state.base_limit, state.factor_range)?;
        let inner =
            Arc::new(ScaledInner { target, usage_source: Mutex::new(used), state: Mutex::new(state) });
        let scaled = ScaledLimit { inner, _monitor: monitor.clone() };
        // A schedule and an earlier factor apply from the start, not from the first reading.
        let now = monitor.clock().now();
        scaled.inner.apply(|state| state.last_factor(now));
        monitor.subscribe(&scaled.inner);
        Ok(scaled)
    }
}

impl<T: Scalable> fmt::Debug for ScaledLimitBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scale, schedule, .. } = self;
        f.debug_struct("ScaledLimitBuilder")
            .field("scale", scale)
            .field("schedule", schedule)
            .finish_non_exhaustive()
    }
}

struct ScaledInner<T: Scalable> {
    target: Arc<T>,
    /// Not part of the state, because a source may be slow and may read this limit.
    usage_source: Mutex<Option<Box<dyn LoadSource>>>,
    state: Mutex<ScaleState<T::Limit>>,
}

struct ScaleState<L> {
    base_limit: L,
    factor_range: (Ratio, Ratio),
    scaler: Option<Scaler>,
    schedule: Option<Schedule>,
    usage: Option<Ewma>,
    applied_factor: Ratio,
    /// The factor that was tried last; one that failed is not retried at every reading.
    attempted_factor: Option<Ratio>,
    failure: Option<BuildError>,
    status: ScaleStatus,
}

/// A reading in progress must not change the limit after the drop.
#[derive(PartialEq)]
enum ScaleStatus {
    Active,
    Stopped,
}

impl<L> ScaleState<L> {
    /// The factor for the load and the usage at `now`.
    fn observe(&mut self, now: Micros, load: LoadReading, used: Option<Percent>) -> Ratio {
        if let Some(scaler) = &mut self.scaler {
            if let (Some(usage), Some(used)) = (&mut self.usage, used) {
                usage.observe(now, used.as_f64());
            }
            let used = self.usage.as_ref().and_then(smoothed_percent).unwrap_or(Percent::ZERO);
            scaler.observe(now, load.share, used);
        }
        self.last_factor(now)
    }

    /// The factor for the last observed load, at `now`.
    fn last_factor(&self, now: Micros) -> Ratio {
        let by_time = self.schedule.as_ref().map_or(Ratio::ONE, |schedule| schedule.factor_at(now));
        self.scaler.map_or(by_time, |scaler| scaler.factor().multiply(by_time))
    }
}

/// Rejects a limit that cannot be scaled over the whole range of factors.
fn reject_unscalable<T: Scalable>(limit: &T::Limit, (min, max): (Ratio, Ratio)) -> Result<(), BuildError> {
    T::scale(limit, min).and_then(|_| T::scale(limit, max)).map(drop)
}

impl<T: Scalable> ScaledInner<T> {
    /// Multiplies the limit by this factor, if it is another one.
    fn apply(&self, factor: impl FnOnce(&mut ScaleState<T::Limit>) -> Ratio) {
        let mut state = lock(&self.state);
        if state.status == ScaleStatus::Stopped {
            return;
        }
        let factor = factor(&mut state);
        if Some(factor) == state.attempted_factor {
            return;
        }
        state.attempted_factor = Some(factor);
        let changed =
            T::scale(&state.base_limit, factor).and_then(|limit| match limit == self.target.limit() {
                true => Ok(()),
                false => self.target.set_limit(&limit),
            });
        state.failure = changed.err();
        if state.failure.is_none() {
            state.applied_factor = factor;
        }
    }
}

impl<T: Scalable> LoadObserver for ScaledInner<T> {
    fn on_load(&self, now: Micros, load: LoadReading) {
        let used = match &mut *lock(&self.usage_source) {
            Some(source) => source.read(now),
            None => self.target.usage(),
        };
        self.apply(|state| state.observe(now, load, used));
    }
}
