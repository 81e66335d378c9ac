//! Why a quota was refused, where, and what to write instead.

use super::{QuotaReader, Rate};
use crate::{
    math::gcd,
    span::TextSpan,
    units::{LARGEST_EXACT, Micros},
};
use alloc::{format, string::String};
use core::{error, fmt, ops::Range};

/// Why a quota was refused. Prints the place in the text, where there is one, and the way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaError {
    problem: String,
    fix: String,
    span: Option<TextSpan>,
}

impl QuotaError {
    /// What is wrong, in one line.
    pub fn problem(&self) -> &str {
        &self.problem
    }

    /// What to do about it, in one line.
    pub fn fix(&self) -> &str {
        &self.fix
    }

    /// The bytes of the text that are at fault, when the quota came from text.
    pub fn span(&self) -> Option<Range<usize>> {
        self.span.as_ref().map(TextSpan::span)
    }

    pub(super) fn new(problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { problem: problem.into(), fix: fix.into(), span: None }
    }

    /// The same error at a place in `text`, unless it already has one.
    pub(super) fn with_span(mut self, text: &str, span: Range<usize>) -> Self {
        self.span.get_or_insert_with(|| TextSpan::new(text, span));
        self
    }

    /// The same error at the last word that was read.
    pub(crate) fn with_last_span(self, reader: &QuotaReader<'_>) -> Self {
        self.with_span(reader.text(), reader.last_span())
    }

    pub(crate) fn require_nonzero(what: &str, value: u64) -> Result<(), Self> {
        match value {
            0 => Err(Self::new(format!("{what} of zero"), "give a number above zero")),
            _ => Ok(()),
        }
    }

    pub(crate) fn require_exact(what: &str, value: u64) -> Result<(), Self> {
        if value <= LARGEST_EXACT {
            return Ok(());
        }
        Err(Self::new(format!("{what} of {value} is too large"), format!("the largest is {LARGEST_EXACT}")))
    }

    /// `tokens` of `price` microseconds each leave the range in which every number is exact.
    pub(crate) fn inexact(rate: Rate, tokens: u64, price: u64) -> Self {
        let problem = format!(
            "{rate} with room for {tokens} cannot be counted exactly: {tokens} x {price} steps is more than {}",
            LARGEST_EXACT / 2
        );
        // Fewer digits share a larger divisor with the period, and so need fewer steps.
        let mut step = 10;
        while step <= rate.amount() {
            let rounder = rate.amount() / step * step;
            let price = rate.period().get() / gcd(rounder, rate.period().get());
            let room = if tokens == rate.amount() { rounder } else { tokens };
            if room.checked_mul(price).is_some_and(|all| all < LARGEST_EXACT / 2) {
                let nearby = Rate::new(rounder, rate.period()).with_unit(rate.unit());
                return Self::new(
                    problem,
                    format!("{nearby} can be, or take a smaller burst or a shorter period"),
                );
            }
            step = step.saturating_mul(10);
        }
        Self::new(problem, "take a smaller amount or a shorter period")
    }

    /// Every token in every tick of a window leaves the range in which every number is exact.
    pub(crate) fn too_fine(rate: Rate) -> Self {
        Self::new(
            format!("{rate} cannot be counted exactly: {} tokens in each tick of the window", rate.amount()),
            "take a smaller amount, or a period with more small divisors, such as a whole number of seconds",
        )
    }

    pub(crate) fn conflict(small: &str, value: u64, large: &str, limit: u64) -> Self {
        Self::new(format!("{small} {value} is more than {large} {limit}"), format!("give at most {large}"))
    }

    pub(crate) fn uneven_parts(period: Micros, parts: u64, max: u64) -> Self {
        Self::new(
            format!("{period} cannot be cut into {parts} equal parts of whole microseconds"),
            format!("take a number of parts that divides the period, at most {max}"),
        )
    }

    pub(crate) fn log_too_long(amount: u64, max: u64) -> Self {
        Self::new(
            format!("a log of {amount} moments for each key is too long"),
            format!("take at most {max}, or `sliding-strict 60`, which also never exceeds the limit"),
        )
    }

    pub(crate) fn concurrency_has_no_rate(rate: Rate) -> Self {
        Self::new("a concurrency limit has no period", format!("write `{} at once`", rate.amount()))
    }

    pub(crate) fn invalid_cold_factor(factor: f64, max: f64) -> Self {
        Self::new(format!("a cold factor of {factor}"), format!("give a number from 1 to {max}"))
    }
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.span {
            None => write!(f, "{}; {}", self.problem, self.fix),
            Some(place) => write!(f, "{}\n{place}\n{}", self.problem, self.fix),
        }
    }
}

impl error::Error for QuotaError {}
