//! Single values: texts, numbers, times, sizes, and lists of them.

use super::PolicyReader;
use crate::{
    map_schema::OutputValue,
    source::{SourceSpan, SyntaxKey, SyntaxNode, SyntaxValue, truncate},
};
use std::{
    ops::{Range, RangeInclusive},
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};
use tidegate_access::BanRule;
use tidegate_core::{LARGEST_EXACT, Micros, Percent, Quota, QuotaError, RateUnit, SettingError, suggest};
use tidegate_limiter::FailureMode;
use tidegate_overload::ScheduleError;

/// What is wrong with a text, where in it, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ValueError {
    pub(crate) problem: String,
    pub(crate) fix: String,
    /// The bytes of the text that are at fault; all of it where that is not known.
    pub(crate) span: Option<Range<usize>>,
}

impl ValueError {
    pub(crate) fn new(problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { problem: problem.into(), fix: fix.into(), span: None }
    }

    pub(crate) fn with_span(self, span: Range<usize>) -> Self {
        Self { span: Some(span), ..self }
    }

    /// The same, of a text that stands behind so many bytes of another.
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
    /// A text; a number is the text that it was written as.
    pub(super) fn text<'n>(&mut self, node: &'n SyntaxNode) -> Option<&'n str> {
        match &node.value {
            SyntaxValue::Text(text) | SyntaxValue::Number(text) => Some(text),
            _ => {
                let fix = match &node.value {
                    SyntaxValue::Null => "say something behind the key, or leave it out",
                    SyntaxValue::List(_) | SyntaxValue::Map(_) => {
                        "write a text, in quotes if it has signs in it"
                    }
                    _ => "put it in quotes",
                };
                self.report_error(node.span, format!("a text is needed here, not {}", node.kind_name()), fix);
                None
            }
        }
    }

    /// A text, or what is written without quotes for one.
    pub(super) fn scalar(&mut self, node: &SyntaxNode) -> Option<String> {
        match &node.value {
            SyntaxValue::Bool(is) => Some(is.to_string()),
            _ => self.text(node).map(str::to_owned),
        }
    }

    /// A text as something else says what it means.
    pub(super) fn read<T>(
        &mut self,
        node: &SyntaxNode,
        read: impl FnOnce(&str) -> Result<T, ValueError>,
    ) -> Option<T> {
        let text = self.text(node)?;
        read(text).map_err(|mistake| self.report_value_error(node.span, text, mistake)).ok()
    }

    /// The same, where no address belongs: one may hold a password, and is not told.
    pub(super) fn parse<T>(&mut self, node: &SyntaxNode) -> Option<T>
    where
        T: FromStr,
        ValueError: From<T::Err>,
    {
        self.read(node, |text| match text.contains("://") || text.contains('@') {
            true => Err(ValueError::new("an address does not belong here", "write it where it is asked for")),
            false => Ok(text.parse::<T>()?),
        })
    }

    /// A quota; what nginx and others write for one is understood well enough to name the right spelling.
    pub(super) fn quota(&mut self, node: &SyntaxNode) -> Option<Quota> {
        let text = self.text(node)?;
        match (text.parse::<Quota>(), suggest_quota(text)) {
            (Err(_), Some(meant)) => {
                let problem = format!("`{}` is not a quota", truncate(text));
                self.report_value_error(
                    node.span,
                    text,
                    ValueError::new(problem, format!("did you mean `{meant}`?")),
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

    /// Each of one or several; an empty list is a slip.
    pub(super) fn one_or_many<T>(
        &mut self,
        node: &SyntaxNode,
        mut read: impl FnMut(&mut Self, &SyntaxNode) -> Option<T>,
    ) -> Vec<T> {
        match &node.value {
            SyntaxValue::List(items) if items.is_empty() => {
                self.report_error(node.span, "an empty list", "put something in, or leave the key out");
                Vec::new()
            }
            SyntaxValue::List(items) => items.iter().filter_map(|item| read(self, item)).collect(),
            _ => read(self, node).into_iter().collect(),
        }
    }

    /// Each of a map with names that the file chooses.
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

    /// A name of something.
    pub(super) fn name(&mut self, node: &SyntaxNode) -> Option<String> {
        self.read(node, |text| check_name(text).map(str::to_owned))
    }

    /// A text that says something.
    pub(super) fn non_empty_text(&mut self, node: &SyntaxNode) -> Option<String> {
        self.read(node, |text| match text.trim().is_empty() {
            true => Err(ValueError::new("an empty text", "write something, or leave the key out")),
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
                        format!("a whole number is needed here, not `{}`", truncate(text))
                    }
                    _ => format!("a whole number is needed here, not {}", node.kind_name()),
                };
                let fix = match *range.end() {
                    u64::MAX => format!("write one, {} or more", range.start()),
                    most => format!("write one from {} to {most}", range.start()),
                };
                self.report_error(node.span, problem, fix);
                None
            }
        }
    }

    /// A length of time, which may be none.
    pub(super) fn duration(&mut self, node: &SyntaxNode) -> Option<Duration> {
        self.parse::<Micros>(node).map(Into::into)
    }

    /// A length of time above zero.
    pub(super) fn positive_duration(&mut self, node: &SyntaxNode) -> Option<Duration> {
        let time = self.parse::<Micros>(node)?;
        match SettingError::require_finite("a time", time) {
            Ok(()) => Some(time.into()),
            Err(error) => {
                self.report_error(node.span, error.problem(), error.fix());
                None
            }
        }
    }

    /// Bytes: `32KiB`, `1.5MB`, or a number of them.
    pub(super) fn size(&mut self, node: &SyntaxNode) -> Option<u64> {
        self.read(node, parse_size)
    }

    /// One of a few words.
    pub(super) fn keyword<T: Copy>(&mut self, node: &SyntaxNode, words: &[(&'static str, T)]) -> Option<T> {
        let text = self.scalar(node)?;
        match words.iter().find(|(word, _)| *word == text) {
            Some((_, value)) => Some(*value),
            None => {
                let (problem, fix) = unknown_word_error(&text, words.iter().map(|(word, _)| *word));
                self.report_error(node.span, problem, fix);
                None
            }
        }
    }

    /// A path, relative to the file that names it.
    pub(super) fn path(&mut self, node: &SyntaxNode) -> Option<PathBuf> {
        let path = self.non_empty_text(node)?;
        let file = self.sources.file(node.span)?;
        Some(match file.path.parent() {
            Some(folder) => folder.join(path),
            None => path.into(),
        })
    }

    /// Bytes per second.
    pub(super) fn byte_rate(&mut self, node: &SyntaxNode) -> Option<Quota> {
        let quota: Quota = self.parse(node)?;
        match quota.rate().map(tidegate_core::Rate::unit) {
            Some(RateUnit::Bytes) => Some(quota),
            _ => {
                let problem = format!("`{quota}` counts no bytes");
                self.report_error(node.span, problem, "write bytes per second, as in `1MB/s`");
                None
            }
        }
    }

    pub(super) fn percent(&mut self, node: &SyntaxNode) -> Option<Percent> {
        self.parse(node)
    }

    pub(super) fn failure_mode(&mut self, node: &SyntaxNode) -> Option<FailureMode> {
        self.read(node, parse_failure_mode)
    }

    /// `10/min for 1h`: points at the part that is wrong.
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

/// `10r/s`, `100rps`, `5 req/min`: the quota that is meant.
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

/// What a word that is none of these is told.
pub(super) fn unknown_word_error<'k>(
    text: &str,
    known: impl Iterator<Item = &'k str> + Clone,
) -> (String, String) {
    let all = known.clone().collect::<Vec<_>>().join(", ");
    let fix = match suggest::closest(text, known) {
        Some(known) => format!("did you mean `{known}`? There are: {all}"),
        None => format!("use one of {all}"),
    };
    (format!("unknown word `{}`", truncate(text)), fix)
}

fn check_name(text: &str) -> Result<&str, ValueError> {
    const MAX_NAME_CHARS: usize = 256;
    match text {
        "" => Err(ValueError::new("an empty name", "give it one")),
        text if text.trim() != text || text.chars().any(char::is_control) => Err(ValueError::new(
            "a name with spaces around it or control characters in it",
            "write a word or a few",
        )),
        text if text.chars().count() > MAX_NAME_CHARS => Err(ValueError::new(
            format!("a name of more than {MAX_NAME_CHARS} characters"),
            "write a shorter one",
        )),
        text if text.contains("://") => Err(ValueError::new(
            "an address where a name belongs",
            "write the name in front, and the address behind it",
        )),
        text => Ok(text),
    }
}

fn parse_size(text: &str) -> Result<u64, ValueError> {
    let fix = "write bytes, as in `32KiB` or `1.5MB`";
    if let Ok(bytes) = text.parse() {
        return Ok(bytes);
    }
    // Sizes are written as in quotas, and read by the same reader: any whole number of bytes per microsecond is exact.
    let error = |error: QuotaError| {
        let problem = format!("`{}` is not a size", truncate(text));
        ValueError { problem, fix: fix.to_owned(), span: error.span().filter(|span| span.end <= text.len()) }
    };
    let quota = format!("{text}/us").parse::<Quota>().map_err(error)?;
    match quota.rate() {
        Some(rate) if rate.unit() == RateUnit::Bytes && rate.period() == Micros::new(1) => Ok(rate.amount()),
        _ => Err(ValueError::new(format!("`{}` is not a size", truncate(text)), fix)),
    }
}

/// `open`, `closed`, `local`, or `local N` where so many processes share the quota.
fn parse_failure_mode(text: &str) -> Result<FailureMode, ValueError> {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    match (word, rest.trim()) {
        ("open", "") => Ok(FailureMode::Open),
        ("closed", "") => Ok(FailureMode::Closed),
        ("local", "") => Ok(FailureMode::Local { nodes: 1 }),
        ("local", nodes) => match nodes.parse() {
            Ok(nodes) if nodes > 0 => Ok(FailureMode::Local { nodes }),
            _ => Err(ValueError::new(
                format!("`{}` is not a number of processes", truncate(nodes)),
                "write `local N`, where N processes share the quota",
            )
            .with_span(word.len() + 1..text.len())),
        },
        _ => {
            let (problem, fix) = unknown_word_error(text, ["open", "closed", "local"].into_iter());
            Err(ValueError::new(problem, fix))
        }
    }
}

/// A length of time, to be printed.
pub(super) fn write_duration(time: &Duration) -> OutputValue {
    OutputValue::text(Micros::from(*time))
}

/// A size, to be printed.
pub(super) fn write_size(bytes: &u64) -> OutputValue {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    match *bytes {
        // Larger ones are read only as plain numbers.
        0 | LARGEST_EXACT.. => OutputValue::Number(*bytes),
        bytes if bytes.is_multiple_of(MIB) => OutputValue::text(format!("{}MiB", bytes / MIB)),
        bytes if bytes.is_multiple_of(KIB) => OutputValue::text(format!("{}KiB", bytes / KIB)),
        bytes => OutputValue::Number(bytes),
    }
}

pub(super) fn write_failure_mode(outage: &FailureMode) -> OutputValue {
    OutputValue::text(match outage {
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

/// The words themselves, for the schema.
pub(crate) const fn keyword_names<T, const N: usize>(words: &[(&'static str, T); N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut at = 0;
    while at < N {
        names[at] = words[at].0;
        at += 1;
    }
    names
}

/// The word for a value, to be printed; none for the usual one.
pub(crate) fn write_keyword<T: PartialEq + Default>(
    value: &T,
    words: &[(&'static str, T)],
) -> Option<OutputValue> {
    let word = words.iter().find(|(_, known)| known == value)?.0;
    (*value != T::default()).then(|| OutputValue::text(word))
}

/// The word for the default, for the schema.
pub(crate) fn default_keyword<T: PartialEq + Default>(words: &[(&'static str, T)]) -> OutputValue {
    let default = T::default();
    OutputValue::text(words.iter().find(|(_, known)| *known == default).map_or("", |(word, _)| word))
}
