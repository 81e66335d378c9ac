//! Why a controller's setting was refused, and what to write instead.

use crate::units::Micros;
use alloc::{format, string::String};
use core::{error, fmt};

/// Why a setting of a controller was refused. Prints what is wrong and the way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingError {
    problem: String,
    fix: String,
}

impl SettingError {
    /// An error of one line each: what is wrong, and what to do about it.
    pub fn new(problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { problem: problem.into(), fix: fix.into() }
    }

    /// What is wrong, in one line.
    pub fn problem(&self) -> &str {
        &self.problem
    }

    /// What to do about it, in one line.
    pub fn fix(&self) -> &str {
        &self.fix
    }

    /// Refuses a number of zero.
    pub fn require_nonzero(what: &str, value: u64) -> Result<(), Self> {
        match value {
            0 => Err(Self::new(format!("{what} of zero"), "give a number above zero")),
            _ => Ok(()),
        }
    }

    /// Refuses a length of time of zero, and one that never ends.
    pub fn require_finite(what: &str, value: Micros) -> Result<(), Self> {
        match value {
            Micros::ZERO => Err(Self::new(format!("{what} of zero"), "give a time above zero, as in `10s`")),
            Micros::MAX => Err(Self::new(format!("{what} without an end"), "give a time, as in `10s`")),
            _ => Ok(()),
        }
    }

    /// Refuses a number outside of a range, its ends included.
    pub fn require_in_range<T>(what: &str, value: T, min: T, max: T) -> Result<(), Self>
    where
        T: Copy + PartialOrd + fmt::Display,
    {
        // Written so that NaN is outside of every range.
        if value >= min && value <= max {
            return Ok(());
        }
        Err(Self::new(format!("{what} of {value}"), format!("give a number from {min} to {max}")))
    }
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.problem, self.fix)
    }
}

impl error::Error for SettingError {}
