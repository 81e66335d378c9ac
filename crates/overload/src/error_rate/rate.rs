//! Whether many requests come, and too many of them fail.

use crate::{
    call_outcome::CallOutcome,
    rolling::{RollingWindow, check_window},
};
use tidegate_core::{Micros, Percent, SettingError};

/// Settings of an [`ErrorRate`].
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
    /// Settings to change: more than 100 requests in 10 seconds, of which more than half fail.
    pub fn builder() -> ErrorRateBuilder {
        ErrorRateBuilder {
            settings: Self {
                window: Micros::from_secs(10),
                buckets: 20,
                request_threshold: 100,
                error_threshold: Percent::from_ratio(1, 2),
            },
        }
    }
}

/// Collects the settings of an [`ErrorRate`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ErrorRateBuilder {
    settings: ErrorRateSettings,
}

impl ErrorRateBuilder {
    /// How long requests are remembered; 10 seconds unless told otherwise.
    pub fn window(self, window: impl Into<Micros>) -> Self {
        let window = window.into();
        Self { settings: ErrorRateSettings { window, ..self.settings } }
    }

    /// In how many steps they are forgotten; 20 unless told otherwise.
    pub fn buckets(self, buckets: u32) -> Self {
        Self { settings: ErrorRateSettings { buckets, ..self.settings } }
    }

    /// So many requests say nothing yet, but more do; 100 unless told otherwise.
    pub fn request_threshold(self, requests: u64) -> Self {
        Self { settings: ErrorRateSettings { request_threshold: requests, ..self.settings } }
    }

    /// This share of errors is fine, but more is not; 50 % unless told otherwise.
    pub fn error_threshold(self, errors: Percent) -> Self {
        Self { settings: ErrorRateSettings { error_threshold: errors, ..self.settings } }
    }

    /// The settings, or the first thing that is wrong with them.
    pub fn build(self) -> Result<ErrorRateSettings, SettingError> {
        let settings = self.settings;
        check_window(settings.window, settings.buckets)?;
        match settings.error_threshold {
            Percent::FULL => Err(SettingError::new(
                format!("a rate of errors over {}", settings.error_threshold),
                "give a share below 100%, for no rate is over that",
            )),
            _ => Ok(settings),
        }
    }
}

/// Tells whether many requests come and too many of them fail.
#[derive(Clone, Debug)]
pub struct ErrorRate {
    settings: ErrorRateSettings,
    /// Requests that came, that were answered, and that failed.
    rolling: RollingWindow<3>,
}

impl ErrorRate {
    /// One that knows nothing yet.
    pub fn new(settings: ErrorRateSettings) -> Self {
        let rolling = RollingWindow::from_checked(settings.window, settings.buckets);
        Self { settings, rolling }
    }

    /// Counts a request, whether it is let through or not.
    pub fn record_request(&mut self, now: Micros) {
        self.rolling.add(now, [1, 0, 0]);
    }

    /// Tells how a request ended.
    pub fn record(&mut self, report: CallOutcome, now: Micros) {
        match report {
            CallOutcome::Success => self.rolling.add(now, [0, 1, 0]),
            CallOutcome::Failure => self.rolling.add(now, [0, 1, 1]),
            CallOutcome::Ignored => {}
        }
    }

    /// Whether both the requests and their errors are over what was set. The rate is that of answered requests, so
    /// that those which were refused do not make it look better.
    pub fn is_exceeded(&self, now: Micros) -> bool {
        let [requests, answered, failed] = self.rolling.totals(now);
        // More than a share failed if less than the rest of it went well.
        let went_well = answered - failed.min(answered);
        requests > self.settings.request_threshold
            && answered > 0
            && !self.settings.error_threshold.complement().is_reached_by(went_well, answered)
    }

    /// Requests that came, that were answered, and that failed.
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
        for (good, bad, over) in
            [(0, 10, false), (0, 11, true), (6, 6, false), (6, 7, true), (7, 6, false), (11, 0, false)]
        {
            let mut rate = ErrorRate::new(settings.clone().build().unwrap());
            for request in 0..good + bad {
                rate.record_request(NOW);
                rate.record(if request < good { CallOutcome::Success } else { CallOutcome::Failure }, NOW);
            }
            assert_eq!(rate.is_exceeded(NOW), over, "{good} good, {bad} bad");
            assert!(!rate.is_exceeded(NOW.plus(Micros::from_secs(10))), "forgotten");
        }
    }

    #[test]
    fn refused_requests_do_not_dilute_error_rate() {
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
            "any error at all"
        );
    }
}
