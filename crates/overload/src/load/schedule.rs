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

use std::{error, fmt, ops::Range, str::FromStr};
use tidegate_core::{Micros, Ratio, span::TextSpan};

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
    /// The UTC offset of local time.
    offset_minutes: i64,
    entries: Vec<ScheduleEntry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ScheduleEntry {
    /// One bit for each day, Monday first.
    days: u8,
    /// In minutes of the day, the end not included; over midnight when the end is before the start.
    start: u64,
    end: u64,
    factor: Ratio,
}

const MICROS_PER_MINUTE: u64 = 60_000_000;
const MINUTES_PER_DAY: u64 = 24 * 60;
const MINUTES_PER_WEEK: u64 = 7 * MINUTES_PER_DAY;
const DAY_NAMES: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
const ALL_DAYS: u8 = 0b111_1111;
/// The epoch is a Thursday.
const EPOCH_WEEKDAY: u64 = 3;
/// More than a schedule needs; each lookup scans all entries.
const MAX_ENTRIES: usize = 64;

impl Schedule {
    /// The factor at a time since the Unix epoch.
    pub fn factor_at(&self, now: Micros) -> Ratio {
        self.factor_at_minute(self.minute_of_week(now))
    }

    /// The first time after `now` with another factor; `None` if the factor is constant.
    pub fn next_change(&self, now: Micros) -> Option<Micros> {
        let minute = self.minute_of_week(now);
        let current = self.factor_at_minute(minute);
        let mut waits: Vec<u64> =
            self.boundaries().map(|edge| (edge + MINUTES_PER_WEEK - minute) % MINUTES_PER_WEEK).collect();
        waits.sort_unstable();
        let wait = waits
            .into_iter()
            .find(|wait| self.factor_at_minute((minute + wait) % MINUTES_PER_WEEK) != current)?;
        Some(Micros::new((now.get() / MICROS_PER_MINUTE + wait) * MICROS_PER_MINUTE))
    }

    /// All factors of the schedule.
    pub fn factors(&self) -> impl Iterator<Item = Ratio> {
        self.entries.iter().map(|entry| entry.factor).chain([Ratio::ONE])
    }

    fn factor_at_minute(&self, minute: u64) -> Ratio {
        self.entries.iter().find(|entry| entry.contains(minute)).map_or(Ratio::ONE, |entry| entry.factor)
    }

    fn minute_of_week(&self, now: Micros) -> u64 {
        let minutes =
            (now.get() / MICROS_PER_MINUTE + EPOCH_WEEKDAY * MINUTES_PER_DAY) as i64 + self.offset_minutes;
        minutes.rem_euclid(MINUTES_PER_WEEK as i64) as u64
    }

    /// The minutes of the week at which an entry starts or ends.
    fn boundaries(&self) -> impl Iterator<Item = u64> {
        self.entries.iter().flat_map(|entry| {
            (0..7).flat_map(move |day| {
                [entry.start, entry.end].map(|edge| (day * MINUTES_PER_DAY + edge) % MINUTES_PER_WEEK)
            })
        })
    }
}

impl ScheduleEntry {
    fn contains(&self, minute: u64) -> bool {
        let (day, time) = (minute / MINUTES_PER_DAY, minute % MINUTES_PER_DAY);
        let is_on = |day: u64| self.days & 1 << (day % 7) != 0;
        match self.start < self.end {
            true => is_on(day) && (self.start..self.end).contains(&time),
            false => is_on(day) && time >= self.start || is_on(day + 6) && time < self.end,
        }
    }
}

impl FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        let mut schedule = Self { offset_minutes: 0, entries: Vec::new() };
        let mut from = 0;
        for (index, part) in text.split([';', '\n']).enumerate() {
            let words = tokenize(part, from);
            from += part.len() + 1;
            match words.as_slice() {
                [] => {}
                [word] if index == 0 && word.text.starts_with(['+', '-']) => {
                    schedule.offset_minutes =
                        parse_offset(*word).map_err(|error| error.with_span(text, word.span()))?;
                }
                words => schedule.entries.push(parse_entry(text, words)?),
            }
        }
        match schedule.entries.len() {
            0 => Err(ScheduleError::new(
                "schedule has no entries",
                "write one, as in `mon-fri 09:00-18:00 x2`",
            )),
            1..=MAX_ENTRIES => Ok(schedule),
            entries => Err(ScheduleError::new(
                format!("a schedule of {entries} entries"),
                format!("write at most {MAX_ENTRIES}"),
            )),
        }
    }
}

/// A word and its position.
#[derive(Clone, Copy)]
struct ScheduleToken<'a> {
    text: &'a str,
    start: usize,
}

impl ScheduleToken<'_> {
    fn span(&self) -> Range<usize> {
        self.start..self.start + self.text.len()
    }
}

fn tokenize(part: &str, from: usize) -> Vec<ScheduleToken<'_>> {
    let start = |word: &str| from + (word.as_ptr() as usize - part.as_ptr() as usize);
    part.split_whitespace().map(|text| ScheduleToken { text, start: start(text) }).collect()
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
    let mut entry = ScheduleEntry { days: ALL_DAYS, start: 0, end: MINUTES_PER_DAY, factor };
    let (days_word, times_word) = match before {
        [] => (None, None),
        [only] if only.text.starts_with(|first: char| first.is_ascii_digit()) => (None, Some(only)),
        [only] => (Some(only), None),
        [first, second] => (Some(first), Some(second)),
        [_, _, third, ..] => {
            let problem = format!("unexpected `{}`", third.text);
            return Err(ScheduleError::new(problem, "write days, a time range and a factor, in this order")
                .with_span(text, third.span()));
        }
    };
    if let Some(word) = days_word {
        entry.days = parse_days(word.text).map_err(|error| error.with_span(text, word.span()))?;
    }
    if let Some(word) = times_word {
        (entry.start, entry.end) =
            parse_time_range(word.text).map_err(|error| error.with_span(text, word.span()))?;
    }
    Ok(entry)
}

/// `+08:00`.
fn parse_offset(word: ScheduleToken<'_>) -> Result<i64, ScheduleError> {
    let invalid =
        || ScheduleError::new(format!("invalid UTC offset `{}`", word.text), "write one as in `+08:00`");
    let (sign, time) = word.text.split_at_checked(1).ok_or_else(invalid)?;
    let minutes = parse_time_of_day(time).filter(|minutes| *minutes <= 14 * 60).ok_or_else(invalid)? as i64;
    Ok(if sign == "-" { -minutes } else { minutes })
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

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.offset_minutes != 0 {
            let sign = if self.offset_minutes < 0 { '-' } else { '+' };
            write!(f, "{sign}{}; ", TimeOfDay(self.offset_minutes.unsigned_abs()))?;
        }
        for (index, entry) in self.entries.iter().enumerate() {
            write!(f, "{}{entry}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl fmt::Display for ScheduleEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
            f.write_str(" ")?;
        }
        if (self.start, self.end) != (0, MINUTES_PER_DAY) {
            write!(f, "{}-{} ", TimeOfDay(self.start), TimeOfDay(self.end))?;
        }
        self.factor.fmt(f)
    }
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
    fn new(problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { problem: problem.into(), fix: fix.into(), location: None }
    }

    fn with_span(self, text: &str, span: Range<usize>) -> Self {
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
