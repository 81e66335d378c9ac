//! The settings of a retrier, validated when they are built.

use super::{RetryBudget, latencies::RecentLatencies, retrier::Retrier};
use std::{fmt, str::FromStr, sync::Arc, time::Duration};
use tidegate_core::{Micros, Percent, SettingError};
use tidegate_limiter::Clock;

/// Builds a [`Retrier`].
#[derive(Clone, Debug)]
#[must_use]
pub struct RetryBuilder {
    pub(super) max: u32,
    pub(super) backoff: Micros,
    pub(super) max_backoff: Micros,
    pub(super) time_limit: Option<Micros>,
    pub(super) attempt_time_limit: Option<Micros>,
    hedge_after: Option<HedgeDelay>,
    budget: BudgetSource,
    min_per_second: Option<u32>,
    pub(super) clock: Clock,
}

#[derive(Clone, Debug)]
enum BudgetSource {
    Own(Percent),
    Shared(Arc<RetryBudget>),
}

/// The default of [`RetryBuilder::min_per_second`].
const DEFAULT_MIN_PER_SECOND: u32 = 10;
/// The maximum number of retries of one call.
const MAX_RETRIES: u32 = 100;

/// The time after which a second attempt starts while the first is still running.
///
/// ```
/// use std::time::Duration;
/// use tidegate_overload::HedgeDelay;
///
/// assert_eq!("p95".parse(), Ok(HedgeDelay::Percentile("95%".parse()?)));
/// assert_eq!("100ms".parse(), Ok(HedgeDelay::from(Duration::from_millis(100))));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HedgeDelay {
    /// This time.
    Fixed(Micros),
    /// This percentile of the latencies of the last 10 seconds. With fewer than 20 calls in that time there is no second
    /// attempt.
    Percentile(Percent),
}

impl From<Duration> for HedgeDelay {
    fn from(delay: Duration) -> Self {
        Self::Fixed(delay.into())
    }
}

impl FromStr for HedgeDelay {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let percentile = text.strip_prefix('p').map(|percent| format!("{percent}%").parse());
        let parsed = match percentile {
            Some(percentile) => percentile.ok().map(Self::Percentile),
            None => text.parse().ok().map(Self::Fixed),
        };
        parsed.ok_or_else(|| {
            SettingError::new(
                format!("invalid delay `{text}`"),
                "give a time or a percentile, as in `100ms` or `p95`",
            )
        })
    }
}

impl fmt::Display for HedgeDelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(delay) => delay.fmt(f),
            Self::Percentile(percentile) => write!(f, "p{}", percentile.to_string().trim_end_matches('%')),
        }
    }
}

impl RetryBuilder {
    pub(super) fn new() -> Self {
        Self {
            max: 2,
            backoff: Micros::from_millis(50),
            max_backoff: Micros::from_secs(5),
            time_limit: None,
            attempt_time_limit: None,
            hedge_after: None,
            budget: BudgetSource::Own(Percent::from_ratio(1, 5)),
            min_per_second: None,
            clock: Clock::default(),
        }
    }

    /// Sets the maximum number of retries of one call, hedges included; 2 by default. With 0, only the time limits apply.
    pub fn max(self, retries: u32) -> Self {
        Self { max: retries, ..self }
    }

    /// Sets the backoff before the first retry, which doubles for each further one; 50 ms by default. The wait is a random
    /// part of it.
    pub fn backoff(self, backoff: impl Into<Micros>) -> Self {
        Self { backoff: backoff.into(), ..self }
    }

    /// Sets the maximum backoff; 5 s by default. Without a time limit, a result that requests a longer wait is not retried.
    pub fn max_backoff(self, backoff: impl Into<Micros>) -> Self {
        Self { max_backoff: backoff.into(), ..self }
    }

    /// Sets the time limit of all attempts and waits together; no limit by default. Attempts that are running then are
    /// failures for the breakers and adaptive limits inside.
    pub fn time_limit(self, limit: impl Into<Micros>) -> Self {
        Self { time_limit: Some(limit.into()), ..self }
    }

    /// Sets the time limit of each attempt; no limit by default. An attempt that exceeds it is cancelled and retried. It is a
    /// failure for the breakers and adaptive limits inside.
    pub fn attempt_time_limit(self, limit: impl Into<Micros>) -> Self {
        Self { attempt_time_limit: Some(limit.into()), ..self }
    }

    /// Starts a second attempt while the first is still running after this delay; never by default. The first good result is
    /// used, and the other attempt is cancelled.
    pub fn hedge_after(self, delay: impl Into<HedgeDelay>) -> Self {
        Self { hedge_after: Some(delay.into()), ..self }
    }

    /// Sets the budget: retries and hedges as a share of all calls; 20 % by default. It replaces a shared budget.
    pub fn budget(self, share: Percent) -> Self {
        Self { budget: BudgetSource::Own(share), ..self }
    }

    /// Sets the number of retries per second that the budget always admits; 10 by default. A shared budget has its own.
    pub fn min_per_second(self, retries: u32) -> Self {
        Self { min_per_second: Some(retries), ..self }
    }

    /// Uses a budget together with other retriers. It replaces a budget of its own.
    pub fn shared_budget(self, budget: Arc<RetryBudget>) -> Self {
        Self { budget: BudgetSource::Shared(budget), ..self }
    }

    /// Sets the clock; the system clock by default.
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Returns the retrier, or the first error in the settings.
    pub fn build(self) -> Result<Retrier, SettingError> {
        if self.max > MAX_RETRIES {
            let problem = format!("{} retries of one call", self.max);
            return Err(SettingError::new(problem, format!("give a number from 0 to {MAX_RETRIES}")));
        }
        if self.max_backoff < self.backoff {
            let problem =
                format!("a maximum backoff of {} below the backoff of {}", self.max_backoff, self.backoff);
            return Err(SettingError::new(problem, "give a longer maximum, or a shorter backoff"));
        }
        SettingError::require_finite("a maximum backoff", self.max_backoff)?;
        let fixed = match self.hedge_after {
            Some(HedgeDelay::Fixed(delay)) => Some(delay),
            _ => None,
        };
        let times = [
            ("a time limit", self.time_limit),
            ("a time limit of an attempt", self.attempt_time_limit),
            ("a hedge delay", fixed),
        ];
        for (name, time) in times {
            time.map_or(Ok(()), |time| SettingError::require_finite(name, time))?;
        }
        if let Some(HedgeDelay::Percentile(percentile)) = self.hedge_after
            && (percentile == Percent::ZERO || percentile == Percent::FULL)
        {
            let problem = format!("a hedge delay at the percentile {percentile}");
            return Err(SettingError::new(problem, "give a percentile between 0 and 100, as in `p95`"));
        }
        if self.hedge_after.is_some() && self.max == 0 {
            let fix = "allow at least one retry, which a hedge counts as, or remove the hedge delay";
            return Err(SettingError::new("a hedge delay without retries", fix));
        }
        let budget = match (&self.budget, self.min_per_second) {
            (BudgetSource::Own(share), min) => {
                let min = min.unwrap_or(DEFAULT_MIN_PER_SECOND);
                Arc::new(RetryBudget::new(*share).min_per_second(min, self.clock.clone())?)
            }
            (BudgetSource::Shared(budget), None) => budget.clone(),
            (BudgetSource::Shared(_), Some(_)) => {
                let problem = "a minimum of retries per second with a shared budget";
                return Err(SettingError::new(problem, "set it with `RetryBudget::min_per_second`"));
            }
        };
        let latencies = match self.hedge_after {
            Some(HedgeDelay::Percentile(percentile)) => Some(RecentLatencies::new(percentile)),
            Some(HedgeDelay::Fixed(_)) | None => None,
        };
        Ok(Retrier::from_parts(self, budget, fixed, latencies))
    }
}
