//! The settings of a breaker, validated when they are built.

use super::window::CallCounts;
use crate::rolling::check_window;
use tidegate_core::{Micros, Percent, SettingError};

/// When a breaker opens, for how long, and when it closes again.
///
/// ```
/// use tidegate_overload::BreakerSettings;
/// use tidegate_core::Micros;
///
/// let settings = BreakerSettings::builder()
///     .time_window(Micros::from_secs(10))
///     .min_calls(20)
///     .failure_rate("50%".parse()?)
///     .slow_calls("80%".parse()?, Micros::from_secs(2))
///     .open_duration(Micros::from_secs(5))
///     .backoff(1.5, Micros::from_secs(60))
///     .half_open_calls(3)
///     .build()?;
/// assert!(BreakerSettings::builder().half_open_calls(0).build().is_err());
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct BreakerSettings {
    pub(super) window: WindowSize,
    pub(super) min_calls: u64,
    pub(super) failure_rate: Percent,
    pub(super) slow: Option<SlowCallLimit>,
    pub(super) half_open_calls: u32,
    pub(super) deadline: Micros,
    open_time: OpenTime,
}

/// The window of the rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum WindowSize {
    Calls(u32),
    Time { window: Micros, buckets: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SlowCallLimit {
    rate: Percent,
    threshold: Micros,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct OpenTime {
    initial: Micros,
    factor: f64,
    max: Option<Micros>,
    jitter: Percent,
}

/// The maximum number of calls in a window; each takes two bits.
const MAX_WINDOW_CALLS: u32 = 1 << 20;
/// The maximum backoff factor of the open time.
const MAX_BACKOFF_FACTOR: f64 = 1_000.0;
/// The default number of buckets of a time window.
const DEFAULT_BUCKETS: u32 = 20;

impl BreakerSettings {
    /// The default window, in calls.
    pub const DEFAULT_WINDOW_CALLS: u32 = 100;
    /// The default number of calls before the breaker can open.
    pub const DEFAULT_MIN_CALLS: u64 = 100;
    /// The default share of failed calls at which the breaker opens.
    pub const DEFAULT_FAILURE_RATE: Percent = Percent::from_millionths(500_000);
    /// The default number of probes of a half-open breaker.
    pub const DEFAULT_HALF_OPEN_CALLS: u32 = 10;
    /// The default time that a half-open breaker waits for its probes.
    pub const DEFAULT_HALF_OPEN_TIMEOUT: Micros = Micros::from_secs(60);
    /// The default time that a breaker stays open.
    pub const DEFAULT_OPEN_DURATION: Micros = Micros::from_secs(60);
    /// The default share by which the open time varies.
    pub const DEFAULT_JITTER: Percent = Percent::ZERO;

    /// Creates a builder with the defaults: opens for a minute when half of the last 100 calls failed, and
    /// closes when less than half of 10 probes failed.
    pub fn builder() -> BreakerBuilder {
        BreakerBuilder {
            settings: Self {
                window: WindowSize::Calls(Self::DEFAULT_WINDOW_CALLS),
                min_calls: Self::DEFAULT_MIN_CALLS,
                failure_rate: Self::DEFAULT_FAILURE_RATE,
                slow: None,
                half_open_calls: Self::DEFAULT_HALF_OPEN_CALLS,
                deadline: Self::DEFAULT_HALF_OPEN_TIMEOUT,
                open_time: OpenTime {
                    initial: Self::DEFAULT_OPEN_DURATION,
                    factor: 1.0,
                    max: None,
                    jitter: Self::DEFAULT_JITTER,
                },
            },
        }
    }

    /// Whether the duration of calls matters.
    #[inline]
    pub fn is_timed(&self) -> bool {
        self.slow.is_some()
    }

    /// Whether a call of this duration is slow: longer than the threshold.
    #[inline]
    pub fn is_slow(&self, took: Micros) -> bool {
        self.slow.is_some_and(|slow| took > slow.threshold)
    }

    /// Whether the open time has jitter, so that a random number is needed.
    pub fn is_jittered(&self) -> bool {
        self.open_time.jitter > Percent::ZERO
    }

    /// The number of results that decide a half-open breaker.
    pub(super) fn quorum(&self) -> u64 {
        self.min_calls.min(self.half_open_calls.into())
    }

    /// Whether one of the rates is at its threshold or above.
    pub(super) fn is_threshold_reached(&self, counts: CallCounts) -> bool {
        self.failure_rate.is_reached_by(counts.failures, counts.calls)
            || self.slow.is_some_and(|slow| slow.rate.is_reached_by(counts.slow, counts.calls))
    }

    /// The next open time before jitter: the initial one, or the previous one multiplied by the backoff
    /// factor.
    pub(super) fn next_open_time(&self, before: Option<f64>) -> f64 {
        let OpenTime { initial, factor, max, .. } = self.open_time;
        let max = max.unwrap_or(Micros::MAX).get() as f64;
        before.map_or(initial.get() as f64, |before| (before * factor).min(max))
    }

    /// Applies jitter to an open time, evenly to both sides, by a random number from 0 to 1.
    pub(super) fn apply_jitter(&self, open_time: f64, random: f64) -> Micros {
        // NaN becomes the middle.
        let random = if random.is_nan() { 0.5 } else { random.clamp(0.0, 1.0) };
        let spread = open_time * (1.0 + self.open_time.jitter.as_f64() * (2.0 * random - 1.0));
        // `as` saturates.
        Micros::new((spread as u64).max(1))
    }
}

/// Builds the settings of a breaker.
#[derive(Clone, Debug)]
#[must_use]
pub struct BreakerBuilder {
    settings: BreakerSettings,
}

impl BreakerBuilder {
    /// Computes rates over this number of most recent calls; 100 by default.
    pub fn count_window(self, calls: u32) -> Self {
        self.set_window(WindowSize::Calls(calls))
    }

    /// Computes rates over this time, in 20 buckets.
    pub fn time_window(self, window: impl Into<Micros>) -> Self {
        self.bucketed_window(window, DEFAULT_BUCKETS)
    }

    /// Computes rates over this time, in this number of buckets.
    pub fn bucketed_window(self, window: impl Into<Micros>, buckets: u32) -> Self {
        self.set_window(WindowSize::Time { window: window.into(), buckets })
    }

    /// Sets the number of calls before rates are evaluated; 100 by default. A window of fewer calls needs no
    /// more than its size.
    pub fn min_calls(self, calls: u64) -> Self {
        Self { settings: BreakerSettings { min_calls: calls, ..self.settings } }
    }

    /// Opens when the failure rate reaches this threshold; 50 % by default.
    pub fn failure_rate(self, rate: Percent) -> Self {
        Self { settings: BreakerSettings { failure_rate: rate, ..self.settings } }
    }

    /// Also opens when the rate of calls that took longer than this reaches this threshold. Only then are
    /// calls timed.
    pub fn slow_calls(self, rate: Percent, threshold: impl Into<Micros>) -> Self {
        let slow = SlowCallLimit { rate, threshold: threshold.into() };
        Self { settings: BreakerSettings { slow: Some(slow), ..self.settings } }
    }

    /// Sets the number of probes that a half-open breaker admits; 10 by default.
    pub fn half_open_calls(self, probes: u32) -> Self {
        Self { settings: BreakerSettings { half_open_calls: probes, ..self.settings } }
    }

    /// Sets how long a half-open breaker waits for its probes; a minute by default. Then it evaluates the
    /// results so far, with missing ones as failures.
    pub fn half_open_timeout(self, deadline: impl Into<Micros>) -> Self {
        Self { settings: BreakerSettings { deadline: deadline.into(), ..self.settings } }
    }

    /// Sets how long the breaker stays open before it admits probes; a minute by default.
    pub fn open_duration(self, time: impl Into<Micros>) -> Self {
        let time = time.into();
        self.update_open_time(|open| OpenTime { initial: time, ..open })
    }

    /// Multiplies the open time by `factor` each time that probes failed, up to `max`. Closing resets it to
    /// the initial open time.
    pub fn backoff(self, factor: f64, max: impl Into<Micros>) -> Self {
        let max = Some(max.into());
        self.update_open_time(|open| OpenTime { factor, max, ..open })
    }

    /// Adds jitter to each open time, evenly by up to this share to both sides, so that instances do not
    /// probe at the same time.
    pub fn jitter(self, jitter: Percent) -> Self {
        self.update_open_time(|open| OpenTime { jitter, ..open })
    }

    /// Returns the settings, or the first error in them.
    pub fn build(self) -> Result<BreakerSettings, SettingError> {
        let mut settings = self.settings;
        match settings.window {
            WindowSize::Calls(calls) => {
                SettingError::require_in_range("a window of calls", calls, 1, MAX_WINDOW_CALLS)?;
                settings.min_calls = settings.min_calls.min(calls.into());
            }
            WindowSize::Time { window, buckets } => check_window(window, buckets)?,
        }
        SettingError::require_nonzero("a minimum number of calls", settings.min_calls)?;
        reject_zero_rate("a failure rate", settings.failure_rate)?;
        if let Some(slow) = settings.slow {
            reject_zero_rate("a slow call rate", slow.rate)?;
            SettingError::require_finite("a slow call threshold", slow.threshold)?;
        }
        SettingError::require_nonzero("a number of probes", settings.half_open_calls.into())?;
        SettingError::require_finite("a probe deadline", settings.deadline)?;
        settings.open_time.check()?;
        Ok(settings)
    }

    fn set_window(self, window: WindowSize) -> Self {
        Self { settings: BreakerSettings { window, ..self.settings } }
    }

    fn update_open_time(self, change: impl FnOnce(OpenTime) -> OpenTime) -> Self {
        let open = change(self.settings.open_time);
        Self { settings: BreakerSettings { open_time: open, ..self.settings } }
    }
}

impl OpenTime {
    fn check(&self) -> Result<(), SettingError> {
        SettingError::require_finite("an open time", self.initial)?;
        SettingError::require_in_range("a backoff factor", self.factor, 1.0, MAX_BACKOFF_FACTOR)?;
        let Some(max) = self.max else { return Ok(()) };
        SettingError::require_finite("a maximum open time", max)?;
        if max < self.initial {
            return Err(SettingError::new(
                format!("a maximum open time of {max} is below the initial {}", self.initial),
                "give a maximum of at least the initial open time",
            ));
        }
        Ok(())
    }
}

/// Rejects a threshold of 0 %, which is always reached. A `Percent` cannot exceed 100 %.
fn reject_zero_rate(what: &str, share: Percent) -> Result<(), SettingError> {
    match share {
        Percent::ZERO => {
            Err(SettingError::new(format!("{what} of 0%"), "give a percentage above zero, as in `50%`"))
        }
        _ => Ok(()),
    }
}
