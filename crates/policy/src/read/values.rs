//! Reads scalar values: strings, numbers, durations, sizes, and lists of them.

use super::PolicyReader;
use crate::{
    map_schema::OutputValue,
    model::{BandwidthRate, MIN_PLAIN_SIZE},
    source::{SourceSpan, SyntaxKey, SyntaxNode, SyntaxValue, truncate},
};
use std::{
    ops::{Range, RangeInclusive},
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};
use tidegate_access::BanRule;
use tidegate_core::{Micros, Percent, Quota, QuotaError, RateUnit, SettingError, suggest};
use tidegate_limiter::FailureMode;
use tidegate_overload::ScheduleError;

/// Keywords that had another name: the old name and the new one.
const RENAMED_VALUES: [(&str, &str); 2] = [("full", "all"), ("refuse", "reject")];

/// An error in a string value: the problem, the fix, and the bytes at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ValueError {
    pub(crate) problem: String,
    pub(crate) fix: String,
    /// The bytes at fault; `None` for the whole string.
    pub(crate) span: Option<Range<usize>>,
}

impl ValueError {
    pub(crate) fn new(problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { problem: problem.into(), fix: fix.into(), span: None }
    }

    pub(crate) fn with_span(self, span: Range<usize>) -> Self {
        Self { span: Some(span), ..self }
    }

    /// Shifts the span for a string that starts `bytes` bytes into another one.
    fn offset_by(self, bytes: usize, length: usize) -> Self {
        let span = self.span.unwrap_or(0..length);
        Self { span: Some(span.start + bytes..span.end + bytes), ..self }
    }
}

impl From<QuotaError> for ValueError {
    fn from(error: QuotaError) -> Self {
        Self { problem: error.problem().to_owned(), fix: error.fix().to_owned(), span: error.span() }
    }
}

impl From<ScheduleError> for ValueError {
    fn from(error: ScheduleError) -> Self {
        Self { problem: error.problem().to_owned(), fix: error.fix().to_owned(), span: error.span() }
    }
}

impl From<SettingError> for ValueError {
    fn from(error: SettingError) -> Self {
        Self::new(error.problem(), error.fix())
    }
}

impl PolicyReader<'_> {
    /// Reads a string. A number is read as the string that it was written as.
    pub(super) fn text<'n>(&mut self, node: &'n SyntaxNode) -> Option<&'n str> {
        match &node.value {
            SyntaxValue::Text(text) | SyntaxValue::Number(text) => Some(text),
            _ => {
                let fix = match &node.value {
                    SyntaxValue::Null => "add a value, or remove the key",
                    SyntaxValue::List(_) | SyntaxValue::Map(_) => {
                        "write a string, in quotes if it contains special characters"
                    }
                    _ => "put it in quotes",
                };
                self.report_error(node.span, format!("expected a string, found {}", node.kind_name()), fix);
                None
            }
        }
    }

    /// Reads a string; numbers and booleans without quotes are accepted.
    pub(super) fn scalar(&mut self, node: &SyntaxNode) -> Option<String> {
        match &node.value {
            SyntaxValue::Bool(is) => Some(is.to_string()),
            _ => self.text(node).map(str::to_owned),
        }
    }

    /// Reads a string and parses it with `read`.
    pub(super) fn read<T>(
        &mut self,
        node: &SyntaxNode,
        read: impl FnOnce(&str) -> Result<T, ValueError>,
    ) -> Option<T> {
        let text = self.text(node)?;
        read(text).map_err(|mistake| self.report_value_error(node.span, text, mistake)).ok()
    }

    /// Parses a string that is not an address. An address may contain a password, so its text is not passed to the parser's errors.
    pub(super) fn parse<T>(&mut self, node: &SyntaxNode) -> Option<T>
    where
        T: FromStr,
        ValueError: From<T::Err>,
    {
        self.read(node, |text| match text.contains("://") || text.contains('@') {
            true => Err(ValueError::new(
                "unexpected URL or `@` in a value",
                "use a URL only for keys that take one",
            )),
            false => Ok(text.parse::<T>()?),
        })
    }

    /// Reads a quota. Notations of nginx and others are rejected with the equivalent quota as a suggestion.
    pub(super) fn quota(&mut self, node: &SyntaxNode) -> Option<Quota> {
        let text = self.text(node)?;
        match (text.parse::<Quota>(), suggest_quota(text)) {
            (Err(_), Some(suggestion)) => {
                let problem = format!("invalid quota `{}`", truncate(text));
                self.report_value_error(
                    node.span,
                    text,
                    ValueError::new(problem, format!("did you mean `{suggestion}`?")),
                );
                None
            }
            _ => self.parse(node),
        }
    }

    pub(super) fn report_value_error(&mut self, at: SourceSpan, text: &str, mistake: ValueError) {
        let ValueError { problem, fix, span } = mistake;
        let inside = self.sources.unquoted_span(at, text);
        let at = match (span, inside) {
            (Some(span), Some(inside)) => {
                SourceSpan { start: inside.start + span.start, end: inside.start + span.end, ..inside }
            }
            (None, Some(inside)) => inside,
            (_, None) => at,
        };
        self.report_error(at, problem, fix);
    }

    /// Reads one item or a list of items, which must not be empty.
    pub(super) fn one_or_many<T>(
        &mut self,
        node: &SyntaxNode,
        mut read: impl FnMut(&mut Self, &SyntaxNode) -> Option<T>,
    ) -> Vec<T> {
        match &node.value {
            SyntaxValue::List(items) if items.is_empty() => {
                self.report_error(node.span, "empty list", "add an item, or remove the key");
                Vec::new()
            }
            SyntaxValue::List(items) => items.iter().filter_map(|item| read(self, item)).collect(),
            _ => read(self, node).into_iter().collect(),
        }
    }

    /// Reads each entry of a map whose keys are names chosen by the user.
    pub(super) fn named_entries(
        &mut self,
        node: &SyntaxNode,
        what: &str,
        mut read: impl FnMut(&mut Self, &SyntaxKey, &SyntaxNode),
    ) {
        let Some(entries) = self.entries(node, what) else { return };
        for (name, node) in entries {
            match check_name(&name.text) {
                Ok(_) => read(self, name, node),
                Err(mistake) => self.report_error(name.span, mistake.problem, mistake.fix),
            }
        }
    }

    /// Reads a name.
    pub(super) fn name(&mut self, node: &SyntaxNode) -> Option<String> {
        self.read(node, |text| check_name(text).map(str::to_owned))
    }

    /// Reads a string that is not blank.
    pub(super) fn non_empty_text(&mut self, node: &SyntaxNode) -> Option<String> {
        self.read(node, |text| match text.trim().is_empty() {
            true => Err(ValueError::new("empty string", "write a value, or remove the key")),
            false => Ok(text.to_owned()),
        })
    }

    pub(super) fn integer(&mut self, node: &SyntaxNode, range: RangeInclusive<u64>) -> Option<u64> {
        let number = match &node.value {
            SyntaxValue::Number(text) => text.parse::<u64>().ok(),
            _ => None,
        };
        match number.filter(|number| range.contains(number)) {
            Some(number) => Some(number),
            None => {
                let problem = match &node.value {
                    SyntaxValue::Number(text) if number.is_some() => {
                        format!("`{}` is out of range", truncate(text))
                    }
                    SyntaxValue::Number(text) => {
                        format!("expected an integer, found `{}`", truncate(text))
                    }
                    _ => format!("expected an integer, found {}", node.kind_name()),
                };
                let fix = match *range.end() {
                    u64::MAX => format!("write an integer of at least {}", range.start()),
                    max => format!("write an integer from {} to {max}", range.start()),
                };
                self.report_error(node.span, problem, fix);
                None
            }
        }
    }

    /// Reads a duration, which may be zero.
    pub(super) fn duration(&mut self, node: &SyntaxNode) -> Option<Duration> {
        self.parse::<Micros>(node).map(Into::into)
    }

    /// Reads a duration above zero.
    pub(super) fn positive_duration(&mut self, node: &SyntaxNode) -> Option<Duration> {
        let time = self.parse::<Micros>(node)?;
        match SettingError::require_finite("a duration", time) {
            Ok(()) => Some(time.into()),
            Err(error) => {
                self.report_error(node.span, error.problem(), error.fix());
                None
            }
        }
    }

    /// Reads a size: `32KiB`, `1.5MB`, or a number of bytes.
    pub(super) fn size(&mut self, node: &SyntaxNode) -> Option<u64> {
        self.read(node, parse_size)
    }

    /// Reads one of several keywords.
    pub(super) fn keyword<T: Copy>(
        &mut self,
        node: &SyntaxNode,
        keywords: &[(&'static str, T)],
    ) -> Option<T> {
        let text = self.scalar(node)?;
        match keywords.iter().find(|(word, _)| *word == text) {
            Some((_, value)) => Some(*value),
            None => {
                let known: Vec<_> = keywords.iter().map(|(word, _)| *word).collect();
                self.report_unknown_keyword(node, &text, &known);
                None
            }
        }
    }

    fn report_unknown_keyword(&mut self, node: &SyntaxNode, text: &str, known: &[&str]) {
        let renamed = RENAMED_VALUES.iter().find(|(old, new)| *old == text && known.contains(new));
        let (problem, fix) = unknown_word_error(text, known);
        let fix = renamed.map_or(fix, |(_, new)| format!("use `{new}`"));
        self.report_error(node.span, problem, fix);
    }

    /// Reads a path, which is relative to the policy file that contains it.
    pub(super) fn path(&mut self, node: &SyntaxNode) -> Option<PathBuf> {
        let path = self.non_empty_text(node)?;
        let file = self.sources.file(node.span)?;
        Some(match file.path.parent() {
            Some(folder) => folder.join(path),
            None => path.into(),
        })
    }

    pub(super) fn percent(&mut self, node: &SyntaxNode) -> Option<Percent> {
        self.parse(node)
    }

    pub(super) fn failure_mode(&mut self, node: &SyntaxNode) -> Option<FailureMode> {
        self.read(node, parse_failure_mode)
    }

    /// Reads a ban rule, such as `10/min for 1h`. The span of an error covers the invalid part only.
    pub(super) fn ban(&mut self, node: &SyntaxNode) -> Option<BanRule> {
        self.read(node, |text| {
            text.parse::<BanRule>().map_err(|error| {
                let parts = text.split_once(" for ").map(|(quota, rest)| {
                    let length = rest.split(" growing ").next().unwrap_or_default();
                    (quota, length, quota.len() + " for ".len())
                });
                let inner = parts.and_then(|(quota, length, from)| {
                    let quota_error = quota
                        .parse::<Quota>()
                        .err()
                        .map(|error| ValueError::from(error).offset_by(0, quota.len()));
                    let time_error = || length.parse::<Micros>().err();
                    quota_error.or_else(|| {
                        time_error().map(|error| ValueError::from(error).offset_by(from, length.len()))
                    })
                });
                inner.unwrap_or_else(|| {
                    ValueError::new(error.problem().lines().next().unwrap_or_default(), error.fix())
                })
            })
        })
    }
}

/// Returns the quota for a notation such as `10r/s`, `100rps` or `5 req/min`.
fn suggest_quota(text: &str) -> Option<String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).filter(|digits| *digits > 0)?;
    let (number, rest) = text.split_at(digits);
    let unit = rest.split_whitespace().next()?.to_ascii_lowercase();
    let tail = rest.trim_start().get(unit.len()..).unwrap_or_default();
    let period = match unit.as_str() {
        "rps" | "qps" | "r/s" | "req/s" | "reqs/s" | "requests/s" | "r/sec" => "s",
        "rpm" | "qpm" | "r/m" | "r/min" | "req/m" | "req/min" | "reqs/min" | "requests/min" => "min",
        "rph" | "r/h" | "req/h" | "requests/h" => "h",
        "rpd" | "r/d" | "req/d" | "requests/d" => "d",
        _ => return None,
    };
    let suggestion = format!("{number}/{period}{tail}");
    suggestion.parse::<Quota>().is_ok().then_some(suggestion)
}

/// The problem and the fix for a value that is not one of the known keywords.
pub(super) fn unknown_word_error(text: &str, known: &[&str]) -> (String, String) {
    let all = known.join(", ");
    let fix = match suggest::closest(text, known.iter().copied()) {
        Some(known) => format!("did you mean `{known}`? Use one of {all}"),
        None => format!("use one of {all}"),
    };
    (format!("unknown value `{}`", truncate(text)), fix)
}

fn check_name(text: &str) -> Result<&str, ValueError> {
    const MAX_NAME_CHARS: usize = 256;
    match text {
        "" => Err(ValueError::new("empty name", "write a name")),
        text if text.trim() != text || text.chars().any(char::is_control) => Err(ValueError::new(
            "name with leading or trailing spaces or with control characters",
            "remove them",
        )),
        text if text.chars().count() > MAX_NAME_CHARS => {
            Err(ValueError::new(format!("name longer than {MAX_NAME_CHARS} characters"), "shorten it"))
        }
        text if text.contains("://") => Err(ValueError::new(
            "expected a name, found a URL",
            "write the name as the key, and the URL as its value",
        )),
        text => Ok(text),
    }
}

/// Parses `1MB/s`, `1MB/s burst 10MB` or `100kB/s after 200kB`.
pub(crate) fn parse_bandwidth_rate(text: &str) -> Result<BandwidthRate, ValueError> {
    let (rate, after) = match text.split_once(" after") {
        None => (text, None),
        Some((rate, after)) => (rate, Some(after)),
    };
    if rate.contains("://") || rate.contains('@') {
        return Err(ValueError::new(
            "unexpected URL or `@` in a value",
            "write bytes per second, as in `1MB/s`",
        ));
    }
    let quota: Quota =
        rate.parse().map_err(|error: QuotaError| ValueError::from(error).offset_by(0, rate.len()))?;
    if quota.rate().map(tidegate_core::Rate::unit) != Some(RateUnit::Bytes) {
        let problem = format!("`{quota}` is not a byte rate");
        return Err(
            ValueError::new(problem, "write bytes per second, as in `1MB/s`").with_span(0..rate.len())
        );
    }
    let after = after.map_or(Ok(0), |size| {
        let start = text.len() - size.trim_start().len();
        parse_size(size.trim()).map_err(|error| error.offset_by(start, size.trim().len()))
    })?;
    let parsed = BandwidthRate { quota, after };
    parsed.check_min_rate(std::iter::empty())?;
    Ok(parsed)
}

pub(super) fn parse_size(text: &str) -> Result<u64, ValueError> {
    let fix = "write a number of bytes, as in `32KiB` or `1.5MB`";
    if let Ok(bytes) = text.parse() {
        return Ok(bytes);
    }
    // The quota parser reads sizes too: any whole number of bytes per microsecond is exact.
    let error = |error: QuotaError| {
        let problem = format!("invalid size `{}`", truncate(text));
        ValueError { problem, fix: fix.to_owned(), span: error.span().filter(|span| span.end <= text.len()) }
    };
    let quota = format!("{text}/us").parse::<Quota>().map_err(error)?;
    match quota.rate() {
        Some(rate) if rate.unit() == RateUnit::Bytes && rate.period() == Micros::new(1) => Ok(rate.amount()),
        _ => Err(ValueError::new(format!("invalid size `{}`", truncate(text)), fix)),
    }
}

/// Parses One of `open`, `closed`, `local`, or `local N` for N processes that share the quota.
fn parse_failure_mode(text: &str) -> Result<FailureMode, ValueError> {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    match (word, rest.trim()) {
        ("open", "") => Ok(FailureMode::Open),
        ("closed", "") => Ok(FailureMode::Closed),
        ("local", "") => Ok(FailureMode::Local { nodes: 1 }),
        ("local", nodes) => match nodes.parse() {
            Ok(nodes) if nodes > 0 => Ok(FailureMode::Local { nodes }),
            _ => Err(ValueError::new(
                format!("invalid number of processes `{}`", truncate(nodes)),
                "write `local N` with the number of processes that share the quota",
            )
            .with_span(word.len() + 1..text.len())),
        },
        _ => {
            let (problem, fix) = unknown_word_error(text, &["open", "closed", "local"]);
            Err(ValueError::new(problem, fix))
        }
    }
}

/// Prints a duration.
pub(super) fn write_duration(time: &Duration) -> OutputValue {
    OutputValue::text(Micros::from(*time))
}

/// Prints a size.
pub(super) fn write_size(bytes: &u64) -> OutputValue {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    match *bytes {
        0 | MIN_PLAIN_SIZE.. => OutputValue::Number(*bytes),
        bytes if bytes.is_multiple_of(MIB) => OutputValue::text(format!("{}MiB", bytes / MIB)),
        bytes if bytes.is_multiple_of(KIB) => OutputValue::text(format!("{}KiB", bytes / KIB)),
        bytes => OutputValue::Number(bytes),
    }
}

pub(super) fn write_failure_mode(failure_mode: &FailureMode) -> OutputValue {
    OutputValue::text(match failure_mode {
        FailureMode::Open => "open".to_owned(),
        FailureMode::Closed => "closed".to_owned(),
        FailureMode::Local { nodes } => format!("local {nodes}"),
    })
}

pub(super) fn write_number(number: &u64) -> OutputValue {
    OutputValue::Number(*number)
}

pub(super) fn write_path<P: AsRef<Path>>(path: &P) -> OutputValue {
    OutputValue::text(path.as_ref().display())
}

/// Returns the keywords, for the schema.
pub(crate) const fn keyword_names<T, const N: usize>(keywords: &[(&'static str, T); N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut at = 0;
    while at < N {
        names[at] = keywords[at].0;
        at += 1;
    }
    names
}

/// Prints the keyword for a value; `None` for the default value.
pub(crate) fn write_keyword<T: PartialEq + Default>(
    value: &T,
    keywords: &[(&'static str, T)],
) -> Option<OutputValue> {
    let word = keywords.iter().find(|(_, known)| known == value)?.0;
    (*value != T::default()).then(|| OutputValue::text(word))
}

/// Returns the keyword for the default value, for the schema.
pub(crate) fn default_keyword<T: PartialEq + Default>(keywords: &[(&'static str, T)]) -> OutputValue {
    let default = T::default();
    OutputValue::text(keywords.iter().find(|(_, known)| *known == default).map_or("", |(word, _)| word))
}
