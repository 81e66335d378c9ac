//! A factor by the time of day and the day of the week.
//!
//! ```text
//!   +08:00; mon-fri 09:00-18:00 x2; 22:00-06:00 x0.5
//!
//!   x2   ┤            ┌───────────┐
//!   x1   ┤      ┌─────┘           └─────┐
//!   x0.5 ┤──────┘                       └───
//!        └0─────6─────9──────────18────22──▶ on a Monday, in UTC+8
//! ```
//!
//! The first entry that matches applies; without a match the factor is x1. An entry without days applies
//! every day, one without a time the whole day. The UTC offset is fixed: there is no daylight saving time.
//!
//! A time range over midnight belongs to the day on which it starts: `fri 22:00-06:00` ends on Saturday
//! morning.

use super::time_windows::{MINUTES_PER_WEEK, ScheduleToken, TimeRange, UtcOffset, split_entries};
use std::{fmt, str::FromStr};
use tidegate_core::{Micros, Ratio};

pub use super::time_windows::ScheduleError;

/// Factors of a limit by time of day and day of the week.
///
/// ```
/// use tidegate_overload::Schedule;
/// use tidegate_core::Micros;
///
/// let schedule: Schedule = "mon-fri 09:00-18:00 x2; 22:00-06:00 x0.5".parse()?;
/// let thursday_noon = Micros::from_secs(12 * 3_600); // the epoch is a Thursday
/// assert_eq!(schedule.factor_at(thursday_noon).to_string(), "x2");
/// assert_eq!(schedule.next_change(thursday_noon), Some(Micros::from_secs(18 * 3_600)));
/// # Ok::<(), tidegate_overload::ScheduleError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    offset: UtcOffset,
    entries: Vec<ScheduleEntry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ScheduleEntry {
    range: TimeRange,
    factor: Ratio,
}

impl Schedule {
    /// The factor at a time since the Unix epoch.
    pub fn factor_at(&self, now: Micros) -> Ratio {
        self.factor_at_minute(self.offset.minute_of_week(now))
    }

    /// The first time after `now` with another factor; `None` if the factor is constant.
    pub fn next_change(&self, now: Micros) -> Option<Micros> {
        let minute = self.offset.minute_of_week(now);
        let current = self.factor_at_minute(minute);
        let edges = self.entries.iter().flat_map(|entry| entry.range.boundaries());
        let mut waits: Vec<u64> =
            edges.map(|edge| (edge + MINUTES_PER_WEEK - minute) % MINUTES_PER_WEEK).collect();
        waits.sort_unstable();
        let wait = waits
            .into_iter()
            .find(|wait| self.factor_at_minute((minute + wait) % MINUTES_PER_WEEK) != current)?;
        Some(UtcOffset::minutes_later(now, wait))
    }

    /// All factors of the schedule.
    pub fn factors(&self) -> impl Iterator<Item = Ratio> {
        self.entries.iter().map(|entry| entry.factor).chain([Ratio::ONE])
    }

    fn factor_at_minute(&self, minute: u64) -> Ratio {
        let entry = self.entries.iter().find(|entry| entry.range.contains(minute));
        entry.map_or(Ratio::ONE, |entry| entry.factor)
    }
}

impl FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        let (offset, entries) = split_entries(text, "mon-fri 09:00-18:00 x2")?;
        let entries: Result<_, _> = entries.iter().map(|words| parse_entry(text, words)).collect();
        Ok(Self { offset, entries: entries? })
    }
}

/// Parses `mon-fri 09:00-18:00 x2`; only the factor is mandatory.
fn parse_entry(text: &str, words: &[ScheduleToken<'_>]) -> Result<ScheduleEntry, ScheduleError> {
    let [before @ .., last] = words else {
        return Err(ScheduleError::new(
            "schedule entry is empty",
            "write one, as in `mon-fri 09:00-18:00 x2`",
        ));
    };
    if !last.text.starts_with('x') {
        let end = last.span().end;
        return Err(ScheduleError::new("missing factor", "end the entry with one, as in `x2` or `x0.5`")
            .with_span(text, end..end));
    }
    let factor: Ratio = last.text.parse().map_err(|error: tidegate_core::SettingError| {
        ScheduleError::new(error.problem(), error.fix()).with_span(text, last.span())
    })?;
    let range = TimeRange::parse(text, before, "write days, a time range and a factor, in this order")?;
    Ok(ScheduleEntry { range, factor })
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.offset.fmt(f)?;
        for (index, entry) in self.entries.iter().enumerate() {
            write!(f, "{}{entry}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl fmt::Display for ScheduleEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.range.is_always() {
            true => self.factor.fmt(f),
            false => write!(f, "{} {}", self.range, self.factor),
        }
    }
}
