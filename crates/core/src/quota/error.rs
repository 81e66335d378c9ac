//! Errors of invalid quotas.

use super::{QuotaReader, Rate};
use crate::{
    math::gcd,
    span::TextSpan,
    units::{LARGEST_EXACT, Micros},
};
use alloc::{format, string::String};
use core::{error, fmt, ops::Range};

/// An invalid quota. Prints the problem, its position in the text (if the quota was parsed) and the fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaError {
    problem: String,
    fix: String,
    span: Option<TextSpan>,
}

impl QuotaError {
    /// The problem, in one line.
    pub fn problem(&self) -> &str {
        &self.problem
    }

    /// The fix, in one line.
    pub fn fix(&self) -> &str {
        &self.fix
    }

    /// The byte range of the error, if the quota was parsed from text.
    pub fn span(&self) -> Option<Range<usize>> {
        self.span.as_ref().map(TextSpan::span)
    }

    pub(super) fn new(problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { problem: problem.into(), fix: fix.into(), span: None }
    }

    /// Adds a position in `text`, unless the error already has one.
    pub(super) fn with_span(mut self, text: &str, span: Range<usize>) -> Self {
        self.span.get_or_insert_with(|| TextSpan::new(text, span));
        self
    }

    /// Adds the position of the last word that was read.
    pub(crate) fn with_last_span(self, reader: &QuotaReader<'_>) -> Self {
        self.with_span(reader.text(), reader.last_span())
    }

    pub(crate) fn require_nonzero(what: &str, value: u64) -> Result<(), Self> {
        match value {
            0 => Err(Self::new(format!("{what} must not be zero"), "give a number above zero")),
            _ => Ok(()),
        }
    }

    pub(crate) fn require_exact(what: &str, value: u64) -> Result<(), Self> {
        if value <= LARGEST_EXACT {
            return Ok(());
        }
        Err(Self::new(format!("{what} of {value} is too large"), format!("the largest is {LARGEST_EXACT}")))
    }

    /// `tokens` of `units_per_token` units each exceed the range of exact integers.
    pub(crate) fn inexact(rate: Rate, tokens: u64, units_per_token: u64) -> Self {
        let problem = format!(
            "{rate} with a capacity of {tokens} cannot be counted exactly: {tokens} x {units_per_token} units exceed {}",
            LARGEST_EXACT / 2
        );
        // A rounder amount shares a larger divisor with the period, so a token needs fewer units.
        let mut step = 10;
        while step <= rate.amount() {
            let rounder = rate.amount() / step * step;
            let units_per_token = rate.period().get() / gcd(rounder, rate.period().get());
            let capacity = if tokens == rate.amount() { rounder } else { tokens };
            if capacity.checked_mul(units_per_token).is_some_and(|all| all < LARGEST_EXACT / 2) {
                let nearby = Rate::new(rounder, rate.period()).with_unit(rate.unit());
                return Self::new(problem, format!("use {nearby}, a smaller burst or a shorter period"));
            }
            step = step.saturating_mul(10);
        }
        Self::new(problem, "use a smaller amount or a shorter period")
    }

    /// All tokens in each tick of a window exceed the range of exact integers.
    pub(crate) fn too_fine(rate: Rate) -> Self {
        Self::new(
            format!("{rate} cannot be counted exactly: {} tokens in each tick of the window", rate.amount()),
            "use a smaller amount, or a period with more small divisors, such as a whole number of seconds",
        )
    }

    pub(crate) fn conflict(small: &str, value: u64, large: &str, limit: u64) -> Self {
        Self::new(format!("{small} {value} exceeds {large} {limit}"), format!("use at most {limit}"))
    }

    pub(crate) fn uneven_parts(period: Micros, parts: u64, max: u64) -> Self {
        Self::new(
            format!("{period} cannot be divided into {parts} equal parts of whole microseconds"),
            format!("use a number of parts that divides the period, at most {max}"),
        )
    }

    pub(crate) fn log_too_long(amount: u64, max: u64) -> Self {
        Self::new(
            format!("a log of {amount} timestamps per key is too long"),
            format!("use at most {max}, or `sliding-strict 60`, which also never exceeds the limit"),
        )
    }

    pub(crate) fn concurrency_has_no_rate(rate: Rate) -> Self {
        Self::new("a concurrency limit has no period", format!("write `{} at once`", rate.amount()))
    }

    pub(crate) fn total_has_no_rate(rate: Rate) -> Self {
        let amount = rate.unit().display(rate.amount());
        Self::new("a total has no period", format!("write `{amount} total`"))
    }

    pub(crate) fn unknown_time_zone(name: &str, similar: Option<&str>) -> Self {
        let fix = match similar {
            Some(similar) => format!("did you mean `{similar}`?"),
            None => "write a name of the IANA database, as in `Asia/Shanghai` or `UTC`".into(),
        };
        Self::new(format!("unknown time zone `{name}`"), fix)
    }

    /// A month without a time zone.
    pub(crate) fn month_without_zone(amount: &str) -> Self {
        Self::new(
            "a month has no fixed length",
            format!("write `{amount}/month fixed-window in UTC` with your time zone, or `{amount} per 30d`"),
        )
    }

    pub(crate) fn not_a_calendar_period(period: Micros) -> Self {
        Self::new(
            format!("{period} is not a period of the calendar"),
            "use day, week or month with a time zone",
        )
    }

    pub(crate) fn invalid_cold_factor(factor: f64, max: f64) -> Self {
        Self::new(
            format!("a cold factor of {factor} is out of range"),
            format!("give a number from 1 to {max}"),
        )
    }
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.span {
            None => write!(f, "{}; {}", self.problem, self.fix),
            Some(span) => write!(f, "{}\n{span}\n{}", self.problem, self.fix),
        }
    }
}

impl error::Error for QuotaError {}
