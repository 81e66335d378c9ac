//! Rates: an amount per period.

use super::QuotaError;
use crate::units::{LARGEST_EXACT, Micros, PERIOD_UNITS};
use core::fmt;

/// An amount per period: the start of a quota. [`Rate::quota`] and the other methods of `Rate` select the algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    amount: u64,
    period: Micros,
    unit: RateUnit,
}

/// The unit of an amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateUnit {
    /// Requests, calls or permits; printed without a unit.
    #[default]
    Requests,
    /// Bytes; parsed and printed with decimal prefixes.
    Bytes,
}

impl Rate {
    /// A rate of `amount` in each `period`.
    pub const fn new(amount: u64, period: Micros) -> Self {
        Self { amount, period, unit: RateUnit::Requests }
    }

    /// Returns the same rate in another unit.
    #[must_use]
    pub const fn with_unit(self, unit: RateUnit) -> Self {
        Self { unit, ..self }
    }

    /// The amount per period.
    pub const fn amount(self) -> u64 {
        self.amount
    }

    /// The period.
    pub const fn period(self) -> Micros {
        self.period
    }

    /// The unit of the amount.
    pub const fn unit(self) -> RateUnit {
        self.unit
    }

    /// The rate as a correctly rounded double, for the algorithms that are defined in doubles.
    pub(crate) fn per_second(self) -> f64 {
        let period = self.period.get() as f64;
        match self.amount.checked_mul(1_000_000) {
            Some(scaled) if scaled <= LARGEST_EXACT => scaled as f64 / period,
            _ => self.amount as f64 / (period / 1_000_000.0),
        }
    }

    /// Rejects an amount or a period of zero, and an amount that is not exact in a double.
    pub(crate) fn validate(self) -> Result<(), QuotaError> {
        QuotaError::require_nonzero("a rate", self.amount)?;
        QuotaError::require_nonzero("a period", self.period.get())?;
        QuotaError::require_exact("a rate", self.amount)
    }
}

/// Prints as `100/min` if the period is exactly one unit, else as `5 per 10s`.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = self.unit.display(self.amount);
        match PERIOD_UNITS.iter().find(|(_, size)| *size == self.period.get()) {
            Some((name, _)) => write!(f, "{amount}/{name}"),
            None => write!(f, "{amount} per {}", self.period),
        }
    }
}

/// The byte units, smallest first.
pub(super) const BYTE_UNITS: [(&str, u64); 5] =
    [("B", 1), ("kB", 1_000), ("MB", 1_000_000), ("GB", 1_000_000_000), ("TB", 1_000_000_000_000)];

impl RateUnit {
    /// Formats the amount with its unit: `1.5MB`, or only the number.
    pub fn display(self, amount: u64) -> impl fmt::Display {
        UnitDisplay { amount, unit: self }
    }
}

struct UnitDisplay {
    amount: u64,
    unit: RateUnit,
}

impl fmt::Display for UnitDisplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { amount, unit } = *self;
        if unit == RateUnit::Requests {
            return write!(f, "{amount}");
        }
        let (name, size) =
            BYTE_UNITS.iter().rev().find(|(_, size)| amount >= *size).unwrap_or(&BYTE_UNITS[0]);
        write!(f, "{}", amount / size)?;
        let mut rest = amount % size;
        let mut digit_value = size / 10;
        if rest > 0 {
            f.write_str(".")?;
        }
        while rest > 0 {
            write!(f, "{}", rest / digit_value)?;
            rest %= digit_value;
            digit_value /= 10;
        }
        f.write_str(name)
    }
}
