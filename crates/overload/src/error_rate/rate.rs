//! Whether many requests come, and too many of them fail.

use crate::{
    report::Report,
    rolling::{Rolling, check_window},
};
use tidegate_core::{Micros, Percent, SettingError};

/// Settings of an [`ErrorRate`].
///
/// ```
/// use tidegate_overload::ErrorRateSettings;
/// use tidegate_core::Micros;
///
/// let settings = ErrorRateSettings::builder()
///     .over_time(Micros::from_secs(10))
///     .requests_over(100)
///     .errors_over("20%".parse()?)
///     .build()?;
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ErrorRateSettings {
    window: Micros,
    buckets: u32,
    requests: u64,
    errors: Percent,
}

impl ErrorRateSettings {
    /// Settings to change: more than 100 requests in 10 seconds, of which more than half fail.
    pub fn builder() -> ErrorRateBuilder {
        ErrorRateBuilder {
            settings: Self {
                window: Micros::from_secs(10),
                buckets: 20,
                requests: 100,
                errors: Percent::from_ratio(1, 2),
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
    pub fn over_time(self, window: impl Into<Micros>) -> Self {
        let window = window.into();
        Self { settings: ErrorRateSettings { window, ..self.settings } }
    }

    /// In how many steps they are forgotten; 20 unless told otherwise.
    pub fn buckets(self, buckets: u32) -> Self {
        Self { settings: ErrorRateSettings { buckets, ..self.settings } }
    }

    /// So many requests say nothing yet, but more do; 100 unless told otherwise.
    pub fn requests_over(self, requests: u64) -> Self {
        Self { settings: ErrorRateSettings { requests, ..self.settings } }
    }

    /// This share of errors is fine, but more is not; 50 % unless told otherwise.
    pub fn errors_over(self, errors: Percent) -> Self {
        Self { settings: ErrorRateSettings { errors, ..self.settings } }
    }

    /// The settings, or the first thing that is wrong with them.
    pub fn build(self) -> Result<ErrorRateSettings, SettingError> {
        let settings = self.settings;
        check_window(settings.window, settings.buckets)?;
        match settings.errors {
            Percent::FULL => Err(SettingError::new(
                format!("a rate of errors over {}", settings.errors),
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
    rolling: Rolling<3>,
}

impl ErrorRate {
    /// One that knows nothing yet.
    pub fn new(settings: ErrorRateSettings) -> Self {
        let rolling = Rolling::of_checked(settings.window, settings.buckets);
        Self { settings, rolling }
    }

    /// Counts a request, whether it is let through or not.
    pub fn note(&mut self, now: Micros) {
        self.rolling.add(now, [1, 0, 0]);
    }

    /// Tells how a request ended.
    pub fn report(&mut self, report: Report, now: Micros) {
        match report {
            Report::Success => self.rolling.add(now, [0, 1, 0]),
            Report::Failure => self.rolling.add(now, [0, 1, 1]),
            Report::Ignored => {}
        }
    }

    /// Whether both the requests and their errors are over what was set. The rate is that of answered requests, so
    /// that those which were refused do not make it look better.
    pub fn is_over(&self, now: Micros) -> bool {
        let [requests, answered, failed] = self.rolling.totals(now);
        // More than a share failed if less than the rest of it went well.
        let went_well = answered - failed.min(answered);
        requests > self.settings.requests
            && answered > 0
            && !self.settings.errors.complement().is_reached_by(went_well, answered)
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
    fn both_thresholds_must_be_passed() {
        let settings = ErrorRateSettings::builder().requests_over(10).errors_over(Percent::from_ratio(1, 2));
        for (good, bad, over) in
            [(0, 10, false), (0, 11, true), (6, 6, false), (6, 7, true), (7, 6, false), (11, 0, false)]
        {
            let mut rate = ErrorRate::new(settings.clone().build().unwrap());
            for request in 0..good + bad {
                rate.note(NOW);
                rate.report(if request < good { Report::Success } else { Report::Failure }, NOW);
            }
            assert_eq!(rate.is_over(NOW), over, "{good} good, {bad} bad");
            assert!(!rate.is_over(NOW.plus(Micros::from_secs(10))), "forgotten");
        }
    }

    #[test]
    fn refused_requests_count_as_such_and_do_not_dilute_errors() {
        let settings = ErrorRateSettings::builder().requests_over(10).errors_over(Percent::from_ratio(1, 2));
        let mut rate = ErrorRate::new(settings.build().unwrap());
        (0..2).for_each(|_| rate.report(Report::Failure, NOW));
        (0..10).for_each(|_| rate.note(NOW));
        assert!(!rate.is_over(NOW));
        rate.note(NOW);
        rate.report(Report::Ignored, NOW);
        assert!(rate.is_over(NOW));
        assert_eq!(rate.counts(NOW), [11, 2, 2]);
    }

    #[test]
    fn refuses_settings_that_make_no_sense() {
        let rate = ErrorRateSettings::builder;
        for wrong in [rate().over_time(Micros::ZERO), rate().buckets(0), rate().errors_over(Percent::FULL)] {
            assert!(wrong.clone().build().is_err(), "{wrong:?}");
        }
        assert!(rate().errors_over(Percent::ZERO).requests_over(0).build().is_ok(), "any error at all");
    }
}
