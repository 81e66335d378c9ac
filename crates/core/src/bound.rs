//! The worst case that a quota lets through, as a number that a program can print.

use crate::{math::mul_div_floor, quota::Rate, units::Micros};
use core::fmt;

/// The most that a quota admits in any window, whatever the callers do.
///
/// ```
/// use tidegate_core::{Micros, Quota};
///
/// let minute = Micros::from_secs(60);
/// assert_eq!(Quota::per_minute(100).burst(20)?.bound().in_any(minute), 120);
/// assert_eq!(Quota::per_minute(100).fixed_window()?.bound().in_any(minute), 200);
/// assert_eq!(Quota::per_minute(100).sliding_window()?.bound().in_any(minute), 199);
/// assert_eq!(Quota::per_minute(100).sliding_strict(60)?.bound().in_any(minute), 100);
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    shape: Shape,
    blur: Micros,
    ahead: Micros,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    BurstAndRate { burst: u64, rate: Rate },
    Windows { rate: Rate, more: u64, less: u64 },
    Debt { stored: u64, rate: Rate, early: u64 },
    AtOnce { limit: u64 },
}

impl Bound {
    pub(crate) fn burst_and_rate(burst: u64, rate: Rate) -> Self {
        Self::of(Shape::BurstAndRate { burst, rate })
    }

    /// The limit in each of the windows that a stretch of time can touch: `more` than it is long, `less` tokens.
    pub(crate) fn windows(rate: Rate, more: u64, less: u64) -> Self {
        Self::of(Shape::Windows { rate, more, less })
    }

    /// Permits at `rate` with some stored, where each call may cut its debt short by `early` microseconds.
    pub(crate) fn debt(stored: u64, rate: Rate, early: u64) -> Self {
        Self::of(Shape::Debt { stored, rate, early })
    }

    pub(crate) fn at_once(limit: u64) -> Self {
        Self::of(Shape::AtOnce { limit })
    }

    fn of(shape: Shape) -> Self {
        Self { shape, blur: Micros::ZERO, ahead: Micros::ZERO }
    }

    /// The bound under a clock that shows time only to this resolution.
    #[must_use]
    pub fn blurred(self, resolution: Micros) -> Self {
        Self { blur: resolution, ..self }
    }

    /// The bound where tokens may be taken up to this long ahead of their use: what is used in a stretch of time was
    /// taken in it or that long before.
    #[must_use]
    pub fn ahead(self, of_use: Micros) -> Self {
        Self { ahead: of_use, ..self }
    }

    /// The most that is admitted in any stretch of time of this length.
    ///
    /// For the shapers, whose callers never wait for their own cost, this holds for calls that cost one; a last
    /// call of any size comes on top. Guava drops the fraction of a microsecond of every debt, so near a call per
    /// microsecond they let through more than their rate, and above it nothing bounds them. For concurrency it is
    /// the most in flight at any moment.
    pub fn in_any(&self, window: Micros) -> u64 {
        let length = window.plus(self.blur).plus(self.ahead).get();
        match self.shape {
            Shape::BurstAndRate { burst, rate } => {
                burst.saturating_add(mul_div_floor(length, rate.amount(), rate.period().get()))
            }
            Shape::Windows { rate, more, less } => {
                let windows = length.div_ceil(rate.period().get()).saturating_add(more);
                windows.saturating_mul(rate.amount()).saturating_sub(less)
            }
            Shape::Debt { stored, rate, early } => {
                let (amount, period) = (u128::from(rate.amount()), u128::from(rate.period().get()));
                let served = u128::from(length) * amount + u128::from(stored) * period;
                let paced = match period.checked_sub(amount * u128::from(early)) {
                    None | Some(0) => u128::MAX,
                    Some(interval) => served.div_ceil(interval),
                };
                u64::try_from(paced).unwrap_or(u64::MAX).saturating_add(1)
            }
            Shape::AtOnce { limit } => limit,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shape {
            Shape::BurstAndRate { burst, rate } => {
                let unit = rate.unit();
                write!(f, "at most {} at once and {rate} on top: ", unit.show(burst))?;
                write!(f, "{} in any {}", unit.show(self.in_any(rate.period())), rate.period())?;
            }
            Shape::Windows { rate, .. } => {
                let most = rate.unit().show(self.in_any(rate.period()));
                write!(f, "at most {most} in any {}", rate.period())?;
            }
            Shape::Debt { .. } if self.in_any(Micros::new(1)) == u64::MAX => {
                f.write_str("no bound: its calls are closer together than the microseconds it waits in")?;
            }
            Shape::Debt { stored, rate, .. } => {
                f.write_str("at most ")?;
                if stored > 0 {
                    write!(f, "{} stored and ", rate.unit().show(stored))?;
                }
                write!(f, "{rate}, and one call of any size before the next one waits")?;
            }
            Shape::AtOnce { limit } => write!(f, "at most {limit} in flight")?,
        }
        if self.ahead > Micros::ZERO {
            write!(f, ", taken up to {} ahead", self.ahead)?;
        }
        match self.blur {
            Micros::ZERO => Ok(()),
            blur => write!(f, ", by a clock that ticks every {blur}"),
        }
    }
}
