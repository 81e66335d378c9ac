//! Times of the day and days of the week, such as `mon-fri 09:00-18:00`.

use std::{error, fmt, ops::Range, str::FromStr};
use tidegate_core::{Micros, span::TextSpan};

/// Times of the week, each day or on some days: `+08:00; mon-fri 18:00-22:00; sat,sun`.
///
/// ```
/// use tidegate_core::Micros;
/// use tidegate_overload::load::TimeWindows;
///
/// let evenings: TimeWindows = "mon-fri 18:00-22:00; sat,sun".parse()?;
/// assert!(!evenings.contains(Micros::from_secs(12 * 3_600))); // the epoch is a Thursday
/// assert!(evenings.contains(Micros::from_secs(19 * 3_600)));
/// # Ok::<(), tidegate_overload::ScheduleError>(())
/// ```
///
/// The syntax is that of a [`Schedule`](super::Schedule) without factors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeWindows {
    offset: UtcOffset,
    ranges: Vec<TimeRange>,
}

impl TimeWindows {
    /// Whether a time since the Unix epoch is in one of the windows.
    pub fn contains(&self, now: Micros) -> bool {
        let minute = self.offset.minute_of_week(now);
        self.ranges.iter().any(|range| range.contains(minute))
    }
}

impl FromStr for TimeWindows {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        let (offset, entries) = split_entries(text, "mon-fri 18:00-22:00")?;
        let fix = "write days and a time range, in this order";
        let ranges: Result<_, _> = entries.iter().map(|words| TimeRange::parse(text, words, fix)).collect();
        Ok(Self { offset, ranges: ranges? })
    }
}

impl fmt::Display for TimeWindows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.offset.fmt(f)?;
        for (index, range) in self.ranges.iter().enumerate() {
            write!(f, "{}{range}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

/// The UTC offset of local time, in minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UtcOffset(i64);

/// A range of times on some days of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimeRange {
    /// One bit for each day, Monday first.
    days: u8,
    /// In minutes of the day, the end not included; over midnight when the end is before the start.
    start: u64,
    end: u64,
}

const MICROS_PER_MINUTE: u64 = 60_000_000;
const MINUTES_PER_DAY: u64 = 24 * 60;
pub(super) const MINUTES_PER_WEEK: u64 = 7 * MINUTES_PER_DAY;
const DAY_NAMES: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
const ALL_DAYS: u8 = 0b111_1111;
/// The epoch is a Thursday.
const EPOCH_WEEKDAY: u64 = 3;
/// More than a schedule needs; each lookup scans all entries.
const MAX_ENTRIES: usize = 64;

impl UtcOffset {
    pub(super) fn minute_of_week(self, now: Micros) -> u64 {
        let minutes = (now.get() / MICROS_PER_MINUTE + EPOCH_WEEKDAY * MINUTES_PER_DAY) as i64 + self.0;
        minutes.rem_euclid(MINUTES_PER_WEEK as i64) as u64
    }

    /// The start of the minute that is this many minutes after that of `now`.
    pub(super) fn minutes_later(now: Micros, minutes: u64) -> Micros {
        Micros::new((now.get() / MICROS_PER_MINUTE + minutes) * MICROS_PER_MINUTE)
    }
}

/// Nothing for UTC, otherwise `+08:00; `.
impl fmt::Display for UtcOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { '-' } else { '+' };
        match self.0 {
            0 => Ok(()),
            minutes => write!(f, "{sign}{}; ", TimeOfDay(minutes.unsigned_abs())),
        }
    }
}

impl TimeRange {
    pub(super) fn contains(&self, minute: u64) -> bool {
        let (day, time) = (minute / MINUTES_PER_DAY, minute % MINUTES_PER_DAY);
        let is_on = |day: u64| self.days & 1 << (day % 7) != 0;
        match self.start < self.end {
            true => is_on(day) && (self.start..self.end).contains(&time),
            false => is_on(day) && time >= self.start || is_on(day + 6) && time < self.end,
        }
    }

    /// Whether it is the whole week.
    pub(super) fn is_always(&self) -> bool {
        (self.days, self.start, self.end) == (ALL_DAYS, 0, MINUTES_PER_DAY)
    }

    /// The minutes of the week at which it starts or ends.
    pub(super) fn boundaries(self) -> impl Iterator<Item = u64> {
        (0..7).flat_map(move |day| {
            [self.start, self.end].map(|edge| (day * MINUTES_PER_DAY + edge) % MINUTES_PER_WEEK)
        })
    }

    /// Parses days, a time range, or both.
    pub(super) fn parse(text: &str, words: &[ScheduleToken<'_>], fix: &str) -> Result<Self, ScheduleError> {
        let mut range = Self { days: ALL_DAYS, start: 0, end: MINUTES_PER_DAY };
        let (days_word, times_word) = match words {
            [] => (None, None),
            [only] if only.text.starts_with(|first: char| first.is_ascii_digit()) => (None, Some(only)),
            [only] => (Some(only), None),
            [first, second] => (Some(first), Some(second)),
            [_, _, third, ..] => {
                let problem = format!("unexpected `{}`", third.text);
                return Err(ScheduleError::new(problem, fix).with_span(text, third.span()));
            }
        };
        if let Some(word) = days_word {
            range.days = parse_days(word.text).map_err(|error| error.with_span(text, word.span()))?;
        }
        if let Some(word) = times_word {
            (range.start, range.end) =
                parse_time_range(word.text).map_err(|error| error.with_span(text, word.span()))?;
        }
        Ok(range)
    }
}

impl fmt::Display for TimeRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_time = (self.start, self.end) != (0, MINUTES_PER_DAY);
        if self.days != ALL_DAYS {
            let mut day = 0;
            let mut comma = "";
            while day < 7 {
                let run = (day..7).take_while(|day| self.days & 1 << day != 0).count();
                let last = day + run.max(1) - 1;
                match run {
                    0 => {}
                    1 => write!(f, "{comma}{}", DAY_NAMES[day])?,
                    2 => write!(f, "{comma}{},{}", DAY_NAMES[day], DAY_NAMES[last])?,
                    _ => write!(f, "{comma}{}-{}", DAY_NAMES[day], DAY_NAMES[last])?,
                }
                comma = if run > 0 { "," } else { comma };
                day = last + 1;
            }
            f.write_str(if has_time { " " } else { "" })?;
        }
        match has_time || self.is_always() {
            true => write!(f, "{}-{}", TimeOfDay(self.start), TimeOfDay(self.end)),
            false => Ok(()),
        }
    }
}

/// A word and its position.
#[derive(Clone, Copy)]
pub(super) struct ScheduleToken<'a> {
    pub(super) text: &'a str,
    start: usize,
}

impl ScheduleToken<'_> {
    pub(super) fn span(&self) -> Range<usize> {
        self.start..self.start + self.text.len()
    }
}

/// Splits a schedule into its UTC offset and the words of each entry.
pub(super) fn split_entries<'a>(
    text: &'a str,
    example: &str,
) -> Result<(UtcOffset, Vec<Vec<ScheduleToken<'a>>>), ScheduleError> {
    let (mut offset, mut entries) = (UtcOffset::default(), Vec::new());
    let mut from = 0;
    for (index, part) in text.split([';', '\n']).enumerate() {
        let words = tokenize(part, from);
        from += part.len() + 1;
        match words.as_slice() {
            [] => {}
            [word] if index == 0 && word.text.starts_with(['+', '-']) => {
                offset = parse_offset(*word).map_err(|error| error.with_span(text, word.span()))?;
            }
            _ => entries.push(words),
        }
    }
    match entries.len() {
        0 => Err(ScheduleError::new("schedule has no entries", format!("write one, as in `{example}`"))),
        1..=MAX_ENTRIES => Ok((offset, entries)),
        count => Err(ScheduleError::new(
            format!("a schedule of {count} entries"),
            format!("write at most {MAX_ENTRIES}"),
        )),
    }
}

fn tokenize(part: &str, from: usize) -> Vec<ScheduleToken<'_>> {
    let start = |word: &str| from + (word.as_ptr() as usize - part.as_ptr() as usize);
    part.split_whitespace().map(|text| ScheduleToken { text, start: start(text) }).collect()
}

/// `+08:00`.
fn parse_offset(word: ScheduleToken<'_>) -> Result<UtcOffset, ScheduleError> {
    let invalid =
        || ScheduleError::new(format!("invalid UTC offset `{}`", word.text), "write one as in `+08:00`");
    let (sign, time) = word.text.split_at_checked(1).ok_or_else(invalid)?;
    let minutes = parse_time_of_day(time).filter(|minutes| *minutes <= 14 * 60).ok_or_else(invalid)? as i64;
    Ok(UtcOffset(if sign == "-" { -minutes } else { minutes }))
}

/// `mon-fri`, `sat,sun`, `fri-mon,wed`.
fn parse_days(text: &str) -> Result<u8, ScheduleError> {
    let day = |name: &str| {
        let known = DAY_NAMES.iter().position(|day| *day == name);
        known.ok_or_else(|| {
            ScheduleError::new(
                format!("invalid day `{name}`"),
                format!("use {}, as in `mon-fri` or `sat,sun`", DAY_NAMES.join(", ")),
            )
        })
    };
    let mut mask = 0;
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (day(first)?, day(last)?);
        for step in 0..=(last + 7 - first) % 7 {
            mask |= 1 << ((first + step) % 7);
        }
    }
    Ok(mask)
}

/// `09:00-18:00`, `22:00-06:00`, `18:00-24:00`.
fn parse_time_range(text: &str) -> Result<(u64, u64), ScheduleError> {
    let fix = "write the start and the end, as in `09:00-18:00`";
    let Some((start, end)) = text.split_once('-') else {
        return Err(ScheduleError::new(format!("invalid time range `{text}`"), fix));
    };
    let time = |text: &str| {
        parse_time_of_day(text).ok_or_else(|| ScheduleError::new(format!("invalid time `{text}`"), fix))
    };
    match (time(start)?, time(end)?) {
        (start, end) if start == end || start == MINUTES_PER_DAY => Err(ScheduleError::new(
            format!("time range `{text}` is empty"),
            "omit the time for the whole day, or give a later end",
        )),
        // `00:00` as an end is the end of the day.
        (start, 0) => Ok((start, MINUTES_PER_DAY)),
        span => Ok(span),
    }
}

/// `09:30` in minutes, up to `24:00`.
fn parse_time_of_day(text: &str) -> Option<u64> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |digits: &str| -> Option<u64> {
        let is_number = (1..=2).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| digits.parse().ok())?
    };
    let (hours, minutes) = (number(hours)?, number(minutes).filter(|_| minutes.len() == 2)?);
    Some(hours * 60 + minutes).filter(|time| minutes < 60 && *time <= MINUTES_PER_DAY)
}

/// Minutes of the day, displayed as `09:30`.
struct TimeOfDay(u64);

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

/// An invalid schedule. Prints the position in the text and the fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleError {
    problem: String,
    fix: String,
    location: Option<TextSpan>,
}

impl ScheduleError {
    pub(super) fn new(problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { problem: problem.into(), fix: fix.into(), location: None }
    }

    pub(super) fn with_span(self, text: &str, span: Range<usize>) -> Self {
        Self { location: Some(TextSpan::new(text, span)), ..self }
    }

    /// The problem, in one line.
    pub fn problem(&self) -> &str {
        &self.problem
    }

    /// The fix, in one line.
    pub fn fix(&self) -> &str {
        &self.fix
    }

    /// The invalid bytes of the text, if known.
    pub fn span(&self) -> Option<Range<usize>> {
        self.location.as_ref().map(TextSpan::span)
    }
}

impl fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.location {
            None => write!(f, "{}; {}", self.problem, self.fix),
            Some(location) => write!(f, "{}\n{location}\n{}", self.problem, self.fix),
        }
    }
}

impl error::Error for ScheduleError {}
