//! Requests are shed by chance, the more of them the fewer are accepted.

use crate::{
    call_outcome::CallOutcome,
    rejection::Rejection,
    rolling::{RollingWindow, check_window},
};
use tidegate_core::{Micros, Percent, SettingError};

/// Settings of a [`ClientThrottleState`].
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

/// How many requests a backend may be sent for each that it accepts, at most.
const MAX_MULTIPLIER: f64 = 1_000.0;

impl ClientThrottleSettings {
    /// Settings to change: twice what was accepted in the last two minutes, from 20 requests on, and at most 90 %
    /// are shed.
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

/// Collects the settings of a [`ClientThrottleState`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientThrottleBuilder {
    settings: ClientThrottleSettings,
}

impl ClientThrottleBuilder {
    /// How long requests are remembered; two minutes unless told otherwise.
    pub fn window(self, window: impl Into<Micros>) -> Self {
        let window = window.into();
        Self { settings: ClientThrottleSettings { window, ..self.settings } }
    }

    /// In how many steps they are forgotten; 24 unless told otherwise.
    pub fn buckets(self, buckets: u32) -> Self {
        Self { settings: ClientThrottleSettings { buckets, ..self.settings } }
    }

    /// `K`: how many requests may be sent for each that is accepted; 2 unless told otherwise. The higher, the later
    /// it sheds, and the sooner it sees a recovery.
    pub fn multiplier(self, multiplier: f64) -> Self {
        Self { settings: ClientThrottleSettings { multiplier, ..self.settings } }
    }

    /// Nothing is shed before so many requests; 20 unless told otherwise.
    pub fn min_requests(self, requests: u64) -> Self {
        Self { settings: ClientThrottleSettings { min_requests: requests, ..self.settings } }
    }

    /// The largest share that is shed; 90 % unless told otherwise. The rest finds out when the backend recovers.
    pub fn max_shed(self, most: Percent) -> Self {
        Self { settings: ClientThrottleSettings { max_shed: most, ..self.settings } }
    }

    /// The settings, or the first thing that is wrong with them.
    pub fn build(self) -> Result<ClientThrottleSettings, SettingError> {
        let settings = self.settings;
        check_window(settings.window, settings.buckets)?;
        SettingError::require_in_range("a multiplier", settings.multiplier, 1.0, MAX_MULTIPLIER)?;
        match settings.max_shed {
            Percent::ZERO => {
                Err(SettingError::new("a throttle that sheds 0% at most", "give a share above zero"))
            }
            _ => Ok(settings),
        }
    }
}

/// Sheds requests by chance, the more of them the fewer are accepted.
#[derive(Clone, Debug)]
pub struct ClientThrottleState {
    settings: ClientThrottleSettings,
    /// Requests, and those that were accepted.
    rolling: RollingWindow<2>,
}

impl ClientThrottleState {
    /// A throttle that knows nothing yet, and so sheds nothing.
    pub fn new(settings: ClientThrottleSettings) -> Self {
        let rolling = RollingWindow::from_checked(settings.window, settings.buckets);
        Self { settings, rolling }
    }

    /// Asks to make a request; the roll, from 0 to 1, is chance. Whoever passes reports exactly once how it ended.
    pub fn try_acquire(&mut self, now: Micros, roll: f64) -> Result<(), Rejection> {
        let chance = self.shed_probability(now);
        self.rolling.add(now, [1, 0]);
        if roll < chance { Err(Rejection::Shed) } else { Ok(()) }
    }

    /// Tells how the request that passed at `then` ended. One that tells nothing counts as if it had not been made.
    pub fn record(&mut self, then: Micros, report: CallOutcome, now: Micros) {
        match report {
            CallOutcome::Success => self.rolling.add(now, [0, 1]),
            CallOutcome::Failure => {}
            CallOutcome::Ignored => self.rolling.subtract(then, [1, 0]),
        }
    }

    /// How likely it is that a request at `now` is shed: from 0 to 1.
    pub fn shed_probability(&self, now: Micros) -> f64 {
        let [requests, accepts] = self.rolling.totals(now);
        if requests < self.settings.min_requests {
            return 0.0;
        }
        let (requests, accepts) = (requests as f64, accepts as f64);
        let chance = (requests - self.settings.multiplier * accepts) / (requests + 1.0);
        chance.clamp(0.0, self.settings.max_shed.as_f64())
    }

    /// Requests, with those that were shed, and how many of them were accepted.
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
            // A roll of one is never below a chance: all pass.
            throttle.try_acquire(NOW, 1.0).unwrap();
            let report = if request < accepts { CallOutcome::Success } else { CallOutcome::Failure };
            throttle.record(NOW, report, NOW);
        }
        throttle
    }

    /// The vectors of failsafe-go, whose threshold of successes is 1/K.
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
            let chance = with_history(throttle(settings.clone()), requests, accepts).shed_probability(NOW);
            let expected = least - 1e-9..=most + 1e-9;
            assert!(expected.contains(&chance), "{requests} requests, {accepts} accepted: {chance}");
        }
    }

    #[test]
    fn sheds_when_roll_is_below_probability() {
        let throttle = with_history(throttle(ClientThrottleSettings::builder().min_requests(0)), 99, 0);
        assert_eq!(throttle.shed_probability(NOW), 0.9, "99 in 100, but the most is 90 %");
        for (roll, shed) in [(0.0, true), (0.899, true), (0.9, false), (1.0, false), (f64::NAN, false)] {
            assert_eq!(throttle.clone().try_acquire(NOW, roll).is_err(), shed, "{roll}");
        }
    }

    #[test]
    fn shed_requests_count_and_ignored_ones_do_not() {
        let mut throttle = with_history(throttle(ClientThrottleSettings::builder()), 100, 40);
        let before = throttle.shed_probability(NOW);
        assert_eq!(throttle.try_acquire(NOW, 0.0), Err(Rejection::Shed));
        assert!(throttle.shed_probability(NOW) > before);
        assert_eq!(throttle.counts(NOW), [101, 40]);
        throttle.try_acquire(NOW, 1.0).unwrap();
        throttle.record(NOW, CallOutcome::Ignored, NOW.plus(Micros::from_secs(50)));
        assert_eq!(throttle.counts(NOW), [101, 40]);
        assert_eq!(
            throttle.shed_probability(NOW.plus(Micros::from_secs(120))),
            0.0,
            "two minutes later all is forgotten"
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
