//! Sheds requests at random; the fewer are accepted, the more are shed.

use crate::{
    call_outcome::CallOutcome,
    rejection::Rejection,
    rolling::{RollingWindow, check_window},
};
use tidegate_core::{Micros, Percent, SettingError};

/// The settings of a [`ClientThrottleState`].
///
/// ```
/// use tidegate_overload::ClientThrottleSettings;
/// use tidegate_core::Micros;
///
/// let settings = ClientThrottleSettings::builder()
///     .window(Micros::from_secs(60))
///     .multiplier(1.5)
///     .max_shed("80%".parse()?)
///     .build()?;
/// assert!(ClientThrottleSettings::builder().multiplier(0.9).build().is_err());
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ClientThrottleSettings {
    window: Micros,
    buckets: u32,
    multiplier: f64,
    min_requests: u64,
    max_shed: Percent,
}

/// The maximum of the multiplier.
const MAX_MULTIPLIER: f64 = 1_000.0;

impl ClientThrottleSettings {
    /// Creates a builder with the defaults: admits twice the requests accepted in the last two minutes,
    /// starts at 20 requests, and sheds at most 90 %.
    pub fn builder() -> ClientThrottleBuilder {
        ClientThrottleBuilder {
            settings: Self {
                window: Micros::from_secs(120),
                buckets: 24,
                multiplier: 2.0,
                min_requests: 20,
                max_shed: Percent::from_ratio(9, 10),
            },
        }
    }
}

/// Builds the settings of a [`ClientThrottleState`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientThrottleBuilder {
    settings: ClientThrottleSettings,
}

impl ClientThrottleBuilder {
    /// Sets the window of requests; two minutes by default.
    pub fn window(self, window: impl Into<Micros>) -> Self {
        let window = window.into();
        Self { settings: ClientThrottleSettings { window, ..self.settings } }
    }

    /// Sets the number of buckets of the window; 24 by default.
    pub fn buckets(self, buckets: u32) -> Self {
        Self { settings: ClientThrottleSettings { buckets, ..self.settings } }
    }

    /// Sets `K`, the number of requests that may be sent for each accepted one; 2 by default. A higher value
    /// sheds later and detects a recovery sooner.
    pub fn multiplier(self, multiplier: f64) -> Self {
        Self { settings: ClientThrottleSettings { multiplier, ..self.settings } }
    }

    /// Sets the number of requests below which nothing is shed; 20 by default.
    pub fn min_requests(self, requests: u64) -> Self {
        Self { settings: ClientThrottleSettings { min_requests: requests, ..self.settings } }
    }

    /// Sets the maximum share that is shed; 90 % by default. The remaining requests detect a recovery of the
    /// backend.
    pub fn max_shed(self, max: Percent) -> Self {
        Self { settings: ClientThrottleSettings { max_shed: max, ..self.settings } }
    }

    /// Returns the settings, or the first error in them.
    pub fn build(self) -> Result<ClientThrottleSettings, SettingError> {
        let settings = self.settings;
        check_window(settings.window, settings.buckets)?;
        SettingError::require_in_range("a multiplier", settings.multiplier, 1.0, MAX_MULTIPLIER)?;
        match settings.max_shed {
            Percent::ZERO => {
                Err(SettingError::new("a maximum shed share of 0%", "give a percentage above zero"))
            }
            _ => Ok(settings),
        }
    }
}

/// Sheds requests at random; the fewer are accepted, the more are shed.
#[derive(Clone, Debug)]
pub struct ClientThrottleState {
    settings: ClientThrottleSettings,
    /// Requests, and accepted ones.
    rolling: RollingWindow<2>,
}

impl ClientThrottleState {
    /// Creates a throttle with an empty window, which sheds nothing.
    pub fn new(settings: ClientThrottleSettings) -> Self {
        let rolling = RollingWindow::from_checked(settings.window, settings.buckets);
        Self { settings, rolling }
    }

    /// Requests admission; `random`, from 0 to 1, is the random input. The caller must record the outcome of an
    /// admitted request exactly once.
    pub fn try_acquire(&mut self, now: Micros, random: f64) -> Result<(), Rejection> {
        let probability = self.shed_probability(now);
        self.rolling.add(now, [1, 0]);
        if random < probability { Err(Rejection::Throttled) } else { Ok(()) }
    }

    /// Records the outcome of the request that was admitted at `then`. An ignored one is removed from the
    /// count.
    pub fn record(&mut self, then: Micros, report: CallOutcome, now: Micros) {
        match report {
            CallOutcome::Success => self.rolling.add(now, [0, 1]),
            CallOutcome::Failure => {}
            CallOutcome::Ignored => self.rolling.subtract(then, [1, 0]),
        }
    }

    /// The probability, from 0 to 1, that a request at `now` is shed.
    pub fn shed_probability(&self, now: Micros) -> f64 {
        let [requests, accepts] = self.rolling.totals(now);
        if requests < self.settings.min_requests {
            return 0.0;
        }
        let (requests, accepts) = (requests as f64, accepts as f64);
        let probability = (requests - self.settings.multiplier * accepts) / (requests + 1.0);
        probability.clamp(0.0, self.settings.max_shed.as_f64())
    }

    /// Requests, shed ones included, and accepted ones.
    pub fn counts(&self, now: Micros) -> [u64; 2] {
        self.rolling.totals(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Micros = Micros::from_secs(1_000);

    fn throttle(builder: ClientThrottleBuilder) -> ClientThrottleState {
        ClientThrottleState::new(builder.build().unwrap())
    }

    fn with_history(mut throttle: ClientThrottleState, requests: u64, accepts: u64) -> ClientThrottleState {
        for request in 0..requests {
            // A random number of one is never below the probability: all are admitted.
            throttle.try_acquire(NOW, 1.0).unwrap();
            let report = if request < accepts { CallOutcome::Success } else { CallOutcome::Failure };
            throttle.record(NOW, report, NOW);
        }
        throttle
    }

    /// The test vectors of failsafe-go, whose success threshold is 1/K.
    #[test]
    fn shed_probability_matches_failsafe_go() {
        let settings = ClientThrottleSettings::builder()
            .multiplier(1.0 / 0.9)
            .max_shed(Percent::from_ratio(8, 10))
            .min_requests(100);
        for (requests, accepts, least, most) in [
            (0, 0, 0.0, 0.0),
            (120, 90, 20.0 / 121.0, 20.0 / 121.0),
            (200, 50, 0.7, 0.8),
            (1_000, 10, 0.8, 0.8),
            (99, 0, 0.0, 0.0),
            (100, 100, 0.0, 0.0),
        ] {
            let probability =
                with_history(throttle(settings.clone()), requests, accepts).shed_probability(NOW);
            let expected = least - 1e-9..=most + 1e-9;
            assert!(
                expected.contains(&probability),
                "{requests} requests, {accepts} accepted: {probability}"
            );
        }
    }

    #[test]
    fn sheds_when_roll_is_below_probability() {
        let throttle = with_history(throttle(ClientThrottleSettings::builder().min_requests(0)), 99, 0);
        assert_eq!(throttle.shed_probability(NOW), 0.9, "99 in 100, capped at 90 %");
        for (random, shed) in [(0.0, true), (0.899, true), (0.9, false), (1.0, false), (f64::NAN, false)] {
            assert_eq!(throttle.clone().try_acquire(NOW, random).is_err(), shed, "{random}");
        }
    }

    #[test]
    fn shed_requests_count_and_ignored_ones_do_not() {
        let mut throttle = with_history(throttle(ClientThrottleSettings::builder()), 100, 40);
        let before = throttle.shed_probability(NOW);
        assert_eq!(throttle.try_acquire(NOW, 0.0), Err(Rejection::Throttled));
        assert!(throttle.shed_probability(NOW) > before);
        assert_eq!(throttle.counts(NOW), [101, 40]);
        throttle.try_acquire(NOW, 1.0).unwrap();
        throttle.record(NOW, CallOutcome::Ignored, NOW.saturating_add(Micros::from_secs(50)));
        assert_eq!(throttle.counts(NOW), [101, 40]);
        assert_eq!(
            throttle.shed_probability(NOW.saturating_add(Micros::from_secs(120))),
            0.0,
            "the window is over"
        );
    }

    #[test]
    fn rejects_invalid_settings() {
        let client = ClientThrottleSettings::builder;
        for wrong in [
            client().window(Micros::ZERO),
            client().window(Micros::MAX),
            client().buckets(0),
            client().multiplier(0.99),
            client().multiplier(f64::NAN),
            client().multiplier(f64::INFINITY),
            client().max_shed(Percent::ZERO),
        ] {
            assert!(wrong.clone().build().is_err(), "{wrong:?}");
        }
    }
}
