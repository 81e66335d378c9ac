//! Detects a high error rate among many requests.

use crate::{
    call_outcome::CallOutcome,
    rolling::{RollingWindow, check_window},
};
use tidegate_core::{Micros, Percent, SettingError};

/// The settings of an [`ErrorRate`].
///
/// ```
/// use tidegate_overload::ErrorRateSettings;
/// use tidegate_core::Micros;
///
/// let settings = ErrorRateSettings::builder()
///     .window(Micros::from_secs(10))
///     .request_threshold(100)
///     .error_threshold("20%".parse()?)
///     .build()?;
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ErrorRateSettings {
    window: Micros,
    buckets: u32,
    request_threshold: u64,
    error_threshold: Percent,
}

impl ErrorRateSettings {
    /// The default window.
    pub const DEFAULT_WINDOW: Micros = Micros::from_secs(10);
    /// The default number of requests that must be exceeded.
    pub const DEFAULT_REQUEST_THRESHOLD: u64 = 100;
    /// The default share of failed requests that must be exceeded.
    pub const DEFAULT_ERROR_THRESHOLD: Percent = Percent::from_millionths(500_000);

    /// Creates a builder with the defaults: more than 100 requests in 10 seconds, of which more than half
    /// fail.
    pub fn builder() -> ErrorRateBuilder {
        ErrorRateBuilder {
            settings: Self {
                window: Self::DEFAULT_WINDOW,
                buckets: 20,
                request_threshold: Self::DEFAULT_REQUEST_THRESHOLD,
                error_threshold: Self::DEFAULT_ERROR_THRESHOLD,
            },
        }
    }
}

/// Builds the settings of an [`ErrorRate`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ErrorRateBuilder {
    settings: ErrorRateSettings,
}

impl ErrorRateBuilder {
    /// Sets the window of requests; 10 seconds by default.
    pub fn window(self, window: impl Into<Micros>) -> Self {
        let window = window.into();
        Self { settings: ErrorRateSettings { window, ..self.settings } }
    }

    /// Sets the number of buckets of the window; 20 by default.
    pub fn buckets(self, buckets: u32) -> Self {
        Self { settings: ErrorRateSettings { buckets, ..self.settings } }
    }

    /// Sets the number of requests that must be exceeded; 100 by default.
    pub fn request_threshold(self, requests: u64) -> Self {
        Self { settings: ErrorRateSettings { request_threshold: requests, ..self.settings } }
    }

    /// Sets the share of errors that must be exceeded; 50 % by default.
    pub fn error_threshold(self, errors: Percent) -> Self {
        Self { settings: ErrorRateSettings { error_threshold: errors, ..self.settings } }
    }

    /// Returns the settings, or the first error in them.
    pub fn build(self) -> Result<ErrorRateSettings, SettingError> {
        let settings = self.settings;
        check_window(settings.window, settings.buckets)?;
        match settings.error_threshold {
            Percent::FULL => Err(SettingError::new(
                format!("an error threshold of {} cannot be exceeded", settings.error_threshold),
                "give a percentage below 100%",
            )),
            _ => Ok(settings),
        }
    }
}

/// Detects a high error rate among many requests.
#[derive(Clone, Debug)]
pub struct ErrorRate {
    settings: ErrorRateSettings,
    /// Requests, completed ones, and failed ones.
    rolling: RollingWindow<3>,
}

impl ErrorRate {
    /// Creates one with an empty window.
    pub fn new(settings: ErrorRateSettings) -> Self {
        let rolling = RollingWindow::from_checked(settings.window, settings.buckets);
        Self { settings, rolling }
    }

    /// Counts a request, admitted or not.
    pub fn record_request(&mut self, now: Micros) {
        self.rolling.add(now, [1, 0, 0]);
    }

    /// Records the outcome of a request.
    pub fn record(&mut self, report: CallOutcome, now: Micros) {
        match report {
            CallOutcome::Success => self.rolling.add(now, [0, 1, 0]),
            CallOutcome::Failure => self.rolling.add(now, [0, 1, 1]),
            CallOutcome::Ignored => {}
        }
    }

    /// Whether both the requests and their errors exceed the thresholds. The rate is that of completed
    /// requests, so that rejected ones do not lower it.
    pub fn is_exceeded(&self, now: Micros) -> bool {
        let [requests, completed, failed] = self.rolling.totals(now);
        // The error share is exceeded if the successes are below its complement.
        let succeeded = completed - failed.min(completed);
        requests > self.settings.request_threshold
            && completed > 0
            && !self.settings.error_threshold.complement().is_reached_by(succeeded, completed)
    }

    /// Requests, completed ones, and failed ones.
    pub fn counts(&self, now: Micros) -> [u64; 3] {
        self.rolling.totals(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Micros = Micros::from_secs(1_000);

    #[test]
    fn rate_is_exceeded_only_above_both_thresholds() {
        let settings =
            ErrorRateSettings::builder().request_threshold(10).error_threshold(Percent::from_ratio(1, 2));
        for (good, bad, exceeded) in
            [(0, 10, false), (0, 11, true), (6, 6, false), (6, 7, true), (7, 6, false), (11, 0, false)]
        {
            let mut rate = ErrorRate::new(settings.clone().build().unwrap());
            for request in 0..good + bad {
                rate.record_request(NOW);
                rate.record(if request < good { CallOutcome::Success } else { CallOutcome::Failure }, NOW);
            }
            assert_eq!(rate.is_exceeded(NOW), exceeded, "{good} good, {bad} bad");
            assert!(!rate.is_exceeded(NOW.saturating_add(Micros::from_secs(10))), "the window is over");
        }
    }

    #[test]
    fn rejected_requests_do_not_dilute_error_rate() {
        let settings =
            ErrorRateSettings::builder().request_threshold(10).error_threshold(Percent::from_ratio(1, 2));
        let mut rate = ErrorRate::new(settings.build().unwrap());
        (0..2).for_each(|_| rate.record(CallOutcome::Failure, NOW));
        (0..10).for_each(|_| rate.record_request(NOW));
        assert!(!rate.is_exceeded(NOW));
        rate.record_request(NOW);
        rate.record(CallOutcome::Ignored, NOW);
        assert!(rate.is_exceeded(NOW));
        assert_eq!(rate.counts(NOW), [11, 2, 2]);
    }

    #[test]
    fn rejects_invalid_settings() {
        let rate = ErrorRateSettings::builder;
        for wrong in [rate().window(Micros::ZERO), rate().buckets(0), rate().error_threshold(Percent::FULL)] {
            assert!(wrong.clone().build().is_err(), "{wrong:?}");
        }
        assert!(
            rate().error_threshold(Percent::ZERO).request_threshold(0).build().is_ok(),
            "any error exceeds"
        );
    }
}
