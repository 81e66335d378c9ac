//! Errors of invalid settings.

use crate::units::Micros;
use alloc::{format, string::String};
use core::{error, fmt};

/// An invalid setting of a controller. Prints the problem and the fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingError {
    problem: String,
    fix: String,
}

impl SettingError {
    /// An error with a problem and a fix, one line each.
    pub fn new(problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { problem: problem.into(), fix: fix.into() }
    }

    /// The problem, in one line.
    pub fn problem(&self) -> &str {
        &self.problem
    }

    /// The fix, in one line.
    pub fn fix(&self) -> &str {
        &self.fix
    }

    /// Rejects zero.
    pub fn require_nonzero(what: &str, value: u64) -> Result<(), Self> {
        match value {
            0 => Err(Self::new(format!("{what} must not be zero"), "give a number above zero")),
            _ => Ok(()),
        }
    }

    /// Rejects a duration of zero and an infinite one.
    pub fn require_finite(what: &str, value: Micros) -> Result<(), Self> {
        match value {
            Micros::ZERO => {
                Err(Self::new(format!("{what} must not be zero"), "give a time above zero, as in `10s`"))
            }
            Micros::MAX => Err(Self::new(format!("{what} must be finite"), "give a time, as in `10s`")),
            _ => Ok(()),
        }
    }

    /// Rejects a number outside of a range; both ends are valid.
    pub fn require_in_range<T>(what: &str, value: T, min: T, max: T) -> Result<(), Self>
    where
        T: Copy + PartialOrd + fmt::Display,
    {
        // The condition is positive so that NaN is rejected.
        if value >= min && value <= max {
            return Ok(());
        }
        Err(Self::new(
            format!("{what} of {value} is out of range"),
            format!("give a number from {min} to {max}"),
        ))
    }
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.problem, self.fix)
    }
}

impl error::Error for SettingError {}
