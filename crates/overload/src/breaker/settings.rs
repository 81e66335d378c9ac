//! Settings of a breaker, checked when they are built.

use super::window::CallCounts;
use crate::rolling::check_window;
use tidegate_core::{Micros, Percent, SettingError};

/// When a breaker opens, for how long, and what it takes to close it again.
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
///     .open_for(Micros::from_secs(5))
///     .backoff(1.5, Micros::from_secs(60))
///     .probes(3)
///     .build()?;
/// assert!(BreakerSettings::builder().probes(0).build().is_err());
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct BreakerSettings {
    pub(super) window: WindowSize,
    pub(super) min_calls: u64,
    pub(super) failure_rate: Percent,
    pub(super) slow: Option<SlowCallLimit>,
    pub(super) probes: u32,
    pub(super) deadline: Micros,
    open_time: OpenTime,
}

/// What the rates are taken over.
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

/// The last calls that are looked at, at most; a quarter of a byte each.
const MAX_WINDOW_CALLS: u32 = 1 << 20;
/// How much longer a breaker may stay open each time, at most.
const MAX_BACKOFF_FACTOR: f64 = 1_000.0;
/// Buckets of a window of time unless told otherwise.
const DEFAULT_BUCKETS: u32 = 20;

impl BreakerSettings {
    /// Settings to change: opens for a minute when half of the last 100 calls failed, and closes when less than half
    /// of 10 probes did.
    pub fn builder() -> BreakerBuilder {
        BreakerBuilder {
            settings: Self {
                window: WindowSize::Calls(100),
                min_calls: 100,
                failure_rate: Percent::from_ratio(1, 2),
                slow: None,
                probes: 10,
                deadline: Micros::from_secs(60),
                open_time: OpenTime {
                    initial: Micros::from_secs(60),
                    factor: 1.0,
                    max: None,
                    jitter: Percent::ZERO,
                },
            },
        }
    }

    /// Whether it matters how long a call takes.
    #[inline]
    pub fn is_timed(&self) -> bool {
        self.slow.is_some()
    }

    /// Whether a call that took so long is slow: longer than the threshold.
    #[inline]
    pub fn is_slow(&self, took: Micros) -> bool {
        self.slow.is_some_and(|slow| took > slow.threshold)
    }

    /// Whether the open time is spread by chance, so that a roll is needed.
    pub fn is_jittered(&self) -> bool {
        self.open_time.jitter > Percent::ZERO
    }

    /// How many results decide a half-open breaker.
    pub(super) fn quorum(&self) -> u64 {
        self.min_calls.min(self.probes.into())
    }

    /// Whether one of the rates is at its threshold or above.
    pub(super) fn is_threshold_reached(&self, counts: CallCounts) -> bool {
        self.failure_rate.is_reached_by(counts.failures, counts.calls)
            || self.slow.is_some_and(|slow| slow.rate.is_reached_by(counts.slow, counts.calls))
    }

    /// How long to stay open before chance has its say: at first, and each time that probes failed in between.
    pub(super) fn next_open_time(&self, before: Option<f64>) -> f64 {
        let OpenTime { initial: first, factor, max: longest, .. } = self.open_time;
        let longest = longest.unwrap_or(Micros::MAX).get() as f64;
        before.map_or(first.get() as f64, |before| (before * factor).min(longest))
    }

    /// An open time, spread evenly around itself by a roll from 0 to 1.
    pub(super) fn apply_jitter(&self, open_time: f64, roll: f64) -> Micros {
        // A roll that is no number becomes the middle.
        let roll = if roll.is_nan() { 0.5 } else { roll.clamp(0.0, 1.0) };
        let spread = open_time * (1.0 + self.open_time.jitter.as_f64() * (2.0 * roll - 1.0));
        // Rust's casts saturate.
        Micros::new((spread as u64).max(1))
    }
}

/// Collects the settings of a breaker.
#[derive(Clone, Debug)]
#[must_use]
pub struct BreakerBuilder {
    settings: BreakerSettings,
}

impl BreakerBuilder {
    /// Takes rates over the last so many calls; 100 unless told otherwise.
    pub fn count_window(self, calls: u32) -> Self {
        self.set_window(WindowSize::Calls(calls))
    }

    /// Takes rates over the last time, which is forgotten in 20 steps.
    pub fn time_window(self, window: impl Into<Micros>) -> Self {
        self.bucketed_window(window, DEFAULT_BUCKETS)
    }

    /// Takes rates over the last time, which is forgotten in so many steps.
    pub fn bucketed_window(self, window: impl Into<Micros>, buckets: u32) -> Self {
        self.set_window(WindowSize::Time { window: window.into(), buckets })
    }

    /// There are no rates, and nothing happens, before so many calls ended; 100 unless told otherwise. A window of
    /// fewer calls needs no more than it has.
    pub fn min_calls(self, calls: u64) -> Self {
        Self { settings: BreakerSettings { min_calls: calls, ..self.settings } }
    }

    /// Opens when this share of calls failed, or more; 50 % unless told otherwise.
    pub fn failure_rate(self, rate: Percent) -> Self {
        Self { settings: BreakerSettings { failure_rate: rate, ..self.settings } }
    }

    /// Opens also when this share of calls, or more, took longer than this. Only then are calls timed.
    pub fn slow_calls(self, rate: Percent, longer_than: impl Into<Micros>) -> Self {
        let slow = SlowCallLimit { rate, threshold: longer_than.into() };
        Self { settings: BreakerSettings { slow: Some(slow), ..self.settings } }
    }

    /// How many calls a half-open breaker lets through to see how they end; 10 unless told otherwise.
    pub fn probes(self, probes: u32) -> Self {
        Self { settings: BreakerSettings { probes, ..self.settings } }
    }

    /// How long a half-open breaker waits for its probes; a minute unless told otherwise. Then it judges by those that
    /// ended, and takes those that did not as failed.
    pub fn probe_deadline(self, deadline: impl Into<Micros>) -> Self {
        Self { settings: BreakerSettings { deadline: deadline.into(), ..self.settings } }
    }

    /// How long the breaker stays open before it lets probes through; a minute unless told otherwise.
    pub fn open_for(self, time: impl Into<Micros>) -> Self {
        let time = time.into();
        self.update_open_time(|open| OpenTime { initial: time, ..open })
    }

    /// Stays open longer by `factor` each time that probes failed, up to `longest`. Closing starts from the first
    /// open time again.
    pub fn backoff(self, factor: f64, longest: impl Into<Micros>) -> Self {
        let longest = Some(longest.into());
        self.update_open_time(|open| OpenTime { factor, max: longest, ..open })
    }

    /// Spreads each open time evenly, by up to this share of it to both sides, so that a fleet does not probe all
    /// at once.
    pub fn jitter(self, jitter: Percent) -> Self {
        self.update_open_time(|open| OpenTime { jitter, ..open })
    }

    /// The settings, or the first thing that is wrong with them.
    pub fn build(self) -> Result<BreakerSettings, SettingError> {
        let mut settings = self.settings;
        match settings.window {
            WindowSize::Calls(calls) => {
                SettingError::require_in_range("a window of calls", calls, 1, MAX_WINDOW_CALLS)?;
                settings.min_calls = settings.min_calls.min(calls.into());
            }
            WindowSize::Time { window, buckets } => check_window(window, buckets)?,
        }
        SettingError::require_nonzero("a minimum of calls", settings.min_calls)?;
        refuse_zero_rate("a failure rate", settings.failure_rate)?;
        if let Some(slow) = settings.slow {
            refuse_zero_rate("a rate of slow calls", slow.rate)?;
            SettingError::require_finite("a time for slow calls", slow.threshold)?;
        }
        SettingError::require_nonzero("a number of probes", settings.probes.into())?;
        SettingError::require_finite("a deadline for probes", settings.deadline)?;
        settings.open_time.check()?;
        Ok(settings)
    }

    fn set_window(self, over: WindowSize) -> Self {
        Self { settings: BreakerSettings { window: over, ..self.settings } }
    }

    fn update_open_time(self, change: impl FnOnce(OpenTime) -> OpenTime) -> Self {
        let open = change(self.settings.open_time);
        Self { settings: BreakerSettings { open_time: open, ..self.settings } }
    }
}

impl OpenTime {
    fn check(&self) -> Result<(), SettingError> {
        SettingError::require_finite("an open time", self.initial)?;
        SettingError::require_in_range("a factor of the open time", self.factor, 1.0, MAX_BACKOFF_FACTOR)?;
        let Some(longest) = self.max else { return Ok(()) };
        SettingError::require_finite("a longest open time", longest)?;
        if longest < self.initial {
            return Err(SettingError::new(
                format!("a longest open time of {longest} after a first one of {}", self.initial),
                "let the longest be as long as the first, or longer",
            ));
        }
        Ok(())
    }
}

/// A share cannot be above 100 %, but a threshold of nothing would always be reached.
fn refuse_zero_rate(what: &str, share: Percent) -> Result<(), SettingError> {
    match share {
        Percent::ZERO => {
            Err(SettingError::new(format!("{what} of 0%"), "give a share above zero, as in `50%`"))
        }
        _ => Ok(()),
    }
}
