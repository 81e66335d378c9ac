//! The most that a quota admits in a time window.

use crate::{
    math::mul_div_floor,
    quota::{Rate, RateUnit},
    units::Micros,
};
use core::fmt;

/// The most that a quota admits in any window, in the worst case.
///
/// ```
/// use tidegate_core::{Micros, Quota};
///
/// let minute = Micros::from_secs(60);
/// assert_eq!(Quota::per_minute(100).token_bucket(20)?.bound().max_in_window(minute), 120);
/// assert_eq!(Quota::per_minute(100).fixed_window()?.bound().max_in_window(minute), 200);
/// assert_eq!(Quota::per_minute(100).sliding_window()?.bound().max_in_window(minute), 199);
/// assert_eq!(Quota::per_minute(100).sliding_strict(60)?.bound().max_in_window(minute), 100);
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    shape: BoundShape,
    clock_resolution: Micros,
    prefetch: Micros,
    /// The shortest window, if it is shorter than the period.
    shortest_window: Option<Micros>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BoundShape {
    BurstAndRate { burst: u64, rate: Rate },
    Windows { rate: Rate, extra_windows: u64, fewer_tokens: u64 },
    Debt { stored: u64, rate: Rate, early_us: u64 },
    Concurrency { limit: u64 },
    Total { limit: u64, unit: RateUnit },
}

impl Bound {
    pub(crate) fn burst_and_rate(burst: u64, rate: Rate) -> Self {
        Self::new(BoundShape::BurstAndRate { burst, rate })
    }

    /// `rate.amount()` in each window that an interval can touch: `extra_windows` more than its length, minus
    /// `fewer_tokens`.
    pub(crate) fn windows(rate: Rate, extra_windows: u64, fewer_tokens: u64) -> Self {
        Self::new(BoundShape::Windows { rate, extra_windows, fewer_tokens })
    }

    /// Permits at `rate` plus `stored` ones, where rounding shortens the debt of each call by `early_us` microseconds.
    pub(crate) fn debt(stored: u64, rate: Rate, early_us: u64) -> Self {
        Self::new(BoundShape::Debt { stored, rate, early_us })
    }

    pub(crate) fn concurrency(limit: u64) -> Self {
        Self::new(BoundShape::Concurrency { limit })
    }

    pub(crate) fn total(limit: u64, unit: RateUnit) -> Self {
        Self::new(BoundShape::Total { limit, unit })
    }

    fn new(shape: BoundShape) -> Self {
        Self { shape, clock_resolution: Micros::ZERO, prefetch: Micros::ZERO, shortest_window: None }
    }

    /// The bound if windows are not all as long as the period of the rate, and the shortest has this length.
    pub(crate) fn with_shortest_window(self, shortest: Micros) -> Self {
        Self { shortest_window: Some(shortest), ..self }
    }

    /// The bound with a clock of this resolution.
    #[must_use]
    pub fn with_clock_resolution(self, resolution: Micros) -> Self {
        Self { clock_resolution: resolution, ..self }
    }

    /// The bound when tokens are taken up to this long before they are used.
    ///
    /// The tokens that are used in a window were taken in that window or up to `prefetch` before it.
    #[must_use]
    pub fn with_prefetch(self, prefetch: Micros) -> Self {
        Self { prefetch, ..self }
    }

    /// The most that is admitted in any window of this length.
    ///
    /// For concurrency, it is the most in flight at the same time.
    ///
    /// For the shapers it holds for calls that cost one, plus a last call of any size, because a caller never
    /// waits for its own cost. Guava truncates every debt to whole microseconds, so these algorithms exceed their
    /// rate near one call per microsecond and are unbounded above it.
    pub fn max_in_window(&self, window: Micros) -> u64 {
        let length = window.saturating_add(self.clock_resolution).saturating_add(self.prefetch).get();
        match self.shape {
            BoundShape::BurstAndRate { burst, rate } => {
                burst.saturating_add(mul_div_floor(length, rate.amount(), rate.period().get()))
            }
            BoundShape::Windows { rate, extra_windows: more, fewer_tokens: less } => {
                let shortest = self.shortest_window.unwrap_or(rate.period());
                let windows = length.div_ceil(shortest.get()).saturating_add(more);
                windows.saturating_mul(rate.amount()).saturating_sub(less)
            }
            BoundShape::Debt { stored, rate, early_us: early } => {
                let (amount, period) = (u128::from(rate.amount()), u128::from(rate.period().get()));
                let served = u128::from(length) * amount + u128::from(stored) * period;
                let paced = match period.checked_sub(amount * u128::from(early)) {
                    None | Some(0) => u128::MAX,
                    Some(interval) => served.div_ceil(interval),
                };
                u64::try_from(paced).unwrap_or(u64::MAX).saturating_add(1)
            }
            BoundShape::Concurrency { limit } | BoundShape::Total { limit, .. } => limit,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shape {
            BoundShape::BurstAndRate { burst, rate } => {
                let unit = rate.unit();
                write!(f, "at most {} at once and {rate} on top: ", unit.display(burst))?;
                write!(f, "{} in any {}", unit.display(self.max_in_window(rate.period())), rate.period())?;
            }
            BoundShape::Windows { rate, .. } => {
                let max = rate.unit().display(self.max_in_window(rate.period()));
                write!(f, "at most {max} in any {}", rate.period())?;
            }
            BoundShape::Debt { .. } if self.max_in_window(Micros::new(1)) == u64::MAX => {
                f.write_str("no bound: the interval between calls is below one microsecond")?;
            }
            BoundShape::Debt { stored, rate, .. } => {
                f.write_str("at most ")?;
                if stored > 0 {
                    write!(f, "{} stored and ", rate.unit().display(stored))?;
                }
                write!(f, "{rate}, and one call of any size before the next one waits")?;
            }
            BoundShape::Concurrency { limit } => write!(f, "at most {limit} in flight")?,
            BoundShape::Total { limit, unit } => write!(f, "at most {} in all", unit.display(limit))?,
        }
        if self.prefetch > Micros::ZERO {
            write!(f, ", prefetched up to {}", self.prefetch)?;
        }
        match self.clock_resolution {
            Micros::ZERO => Ok(()),
            resolution => write!(f, ", with a clock resolution of {resolution}"),
        }
    }
}
