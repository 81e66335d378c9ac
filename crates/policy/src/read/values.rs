//! Single values: texts, numbers, times, sizes, and lists of them.

use super::Reader;
use crate::{
    source::{Name, Node, Span, Value, short},
    table::Written,
};
use std::{
    ops::{Range, RangeInclusive},
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};
use tidegate_access::BanRule;
use tidegate_core::{LARGEST_EXACT, Micros, Quota, QuotaError, SettingError, Share, Unit, spelling};
use tidegate_limiter::Outage;
use tidegate_overload::ScheduleError;

/// What is wrong with a text, where in it, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    pub(crate) problem: String,
    pub(crate) fix: String,
    /// The bytes of the text that are at fault; all of it where that is not known.
    pub(crate) span: Option<Range<usize>>,
}

impl Mistake {
    pub(crate) fn new(problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { problem: problem.into(), fix: fix.into(), span: None }
    }

    pub(crate) fn at(self, span: Range<usize>) -> Self {
        Self { span: Some(span), ..self }
    }

    /// The same, of a text that stands behind so many bytes of another.
    fn behind(self, bytes: usize, length: usize) -> Self {
        let span = self.span.unwrap_or(0..length);
        Self { span: Some(span.start + bytes..span.end + bytes), ..self }
    }
}

impl From<QuotaError> for Mistake {
    fn from(error: QuotaError) -> Self {
        Self { problem: error.problem().to_owned(), fix: error.fix().to_owned(), span: error.span() }
    }
}

impl From<ScheduleError> for Mistake {
    fn from(error: ScheduleError) -> Self {
        Self { problem: error.problem().to_owned(), fix: error.fix().to_owned(), span: error.span() }
    }
}

impl From<SettingError> for Mistake {
    fn from(error: SettingError) -> Self {
        Self::new(error.problem(), error.fix())
    }
}

impl Reader<'_> {
    /// A text; a number is the text that it was written as.
    pub(super) fn text<'n>(&mut self, node: &'n Node) -> Option<&'n str> {
        match &node.value {
            Value::Text(text) | Value::Number(text) => Some(text),
            _ => {
                let fix = match &node.value {
                    Value::Null => "say something behind the key, or leave it out",
                    Value::List(_) | Value::Map(_) => "write a text, in quotes if it has signs in it",
                    _ => "put it in quotes",
                };
                self.blame(node.at, format!("a text is needed here, not {}", node.kind()), fix);
                None
            }
        }
    }

    /// A text, or what is written without quotes for one.
    pub(super) fn scalar(&mut self, node: &Node) -> Option<String> {
        match &node.value {
            Value::Bool(is) => Some(is.to_string()),
            _ => self.text(node).map(str::to_owned),
        }
    }

    /// A text as something else says what it means.
    pub(super) fn read<T>(
        &mut self,
        node: &Node,
        read: impl FnOnce(&str) -> Result<T, Mistake>,
    ) -> Option<T> {
        let text = self.text(node)?;
        read(text).map_err(|mistake| self.blame_inside(node.at, text, mistake)).ok()
    }

    /// The same, where no address belongs: one may hold a password, and is not told.
    pub(super) fn parse<T>(&mut self, node: &Node) -> Option<T>
    where
        T: FromStr,
        Mistake: From<T::Err>,
    {
        self.read(node, |text| match text.contains("://") || text.contains('@') {
            true => Err(Mistake::new("an address does not belong here", "write it where it is asked for")),
            false => Ok(text.parse::<T>()?),
        })
    }

    /// A quota; what nginx and others write for one is understood well enough to name the right spelling.
    pub(super) fn quota(&mut self, node: &Node) -> Option<Quota> {
        let text = self.text(node)?;
        match (text.parse::<Quota>(), suggested_quota(text)) {
            (Err(_), Some(meant)) => {
                let problem = format!("`{}` is not a quota", short(text));
                self.blame_inside(node.at, text, Mistake::new(problem, format!("did you mean `{meant}`?")));
                None
            }
            _ => self.parse(node),
        }
    }

    pub(super) fn blame_inside(&mut self, at: Span, text: &str, mistake: Mistake) {
        let Mistake { problem, fix, span } = mistake;
        let inside = self.sources.inside(at, text);
        let at = match (span, inside) {
            (Some(span), Some(inside)) => {
                Span { start: inside.start + span.start, end: inside.start + span.end, ..inside }
            }
            (None, Some(inside)) => inside,
            (_, None) => at,
        };
        self.blame(at, problem, fix);
    }

    /// Each of one or several; an empty list is a slip.
    pub(super) fn several<T>(
        &mut self,
        node: &Node,
        mut read: impl FnMut(&mut Self, &Node) -> Option<T>,
    ) -> Vec<T> {
        match &node.value {
            Value::List(items) if items.is_empty() => {
                self.blame(node.at, "an empty list", "put something in, or leave the key out");
                Vec::new()
            }
            Value::List(items) => items.iter().filter_map(|item| read(self, item)).collect(),
            _ => read(self, node).into_iter().collect(),
        }
    }

    /// Each of a map with names that the file chooses.
    pub(super) fn names(&mut self, node: &Node, what: &str, mut read: impl FnMut(&mut Self, &Name, &Node)) {
        let Some(entries) = self.entries(node, what) else { return };
        for (name, node) in entries {
            match checked_name(&name.text) {
                Ok(_) => read(self, name, node),
                Err(mistake) => self.blame(name.at, mistake.problem, mistake.fix),
            }
        }
    }

    /// A name of something.
    pub(super) fn name(&mut self, node: &Node) -> Option<String> {
        self.read(node, |text| checked_name(text).map(str::to_owned))
    }

    /// A text that says something.
    pub(super) fn filled(&mut self, node: &Node) -> Option<String> {
        self.read(node, |text| match text.trim().is_empty() {
            true => Err(Mistake::new("an empty text", "write something, or leave the key out")),
            false => Ok(text.to_owned()),
        })
    }

    pub(super) fn whole(&mut self, node: &Node, range: RangeInclusive<u64>) -> Option<u64> {
        let number = match &node.value {
            Value::Number(text) => text.parse::<u64>().ok(),
            _ => None,
        };
        match number.filter(|number| range.contains(number)) {
            Some(number) => Some(number),
            None => {
                let problem = match &node.value {
                    Value::Number(text) if number.is_some() => format!("`{}` is out of range", short(text)),
                    Value::Number(text) => format!("a whole number is needed here, not `{}`", short(text)),
                    _ => format!("a whole number is needed here, not {}", node.kind()),
                };
                let fix = match *range.end() {
                    u64::MAX => format!("write one, {} or more", range.start()),
                    most => format!("write one from {} to {most}", range.start()),
                };
                self.blame(node.at, problem, fix);
                None
            }
        }
    }

    /// A length of time, which may be none.
    pub(super) fn time(&mut self, node: &Node) -> Option<Duration> {
        self.parse::<Micros>(node).map(Into::into)
    }

    /// A length of time above zero.
    pub(super) fn length(&mut self, node: &Node) -> Option<Duration> {
        let time = self.parse::<Micros>(node)?;
        match SettingError::refuse_endless("a time", time) {
            Ok(()) => Some(time.into()),
            Err(error) => {
                self.blame(node.at, error.problem(), error.fix());
                None
            }
        }
    }

    /// Bytes: `32KiB`, `1.5MB`, or a number of them.
    pub(super) fn size(&mut self, node: &Node) -> Option<u64> {
        self.read(node, size)
    }

    /// One of a few words.
    pub(super) fn word<T: Copy>(&mut self, node: &Node, words: &[(&'static str, T)]) -> Option<T> {
        let text = self.scalar(node)?;
        match words.iter().find(|(word, _)| *word == text) {
            Some((_, value)) => Some(*value),
            None => {
                let (problem, fix) = unknown_word(&text, words.iter().map(|(word, _)| *word));
                self.blame(node.at, problem, fix);
                None
            }
        }
    }

    /// A path, relative to the file that names it.
    pub(super) fn path(&mut self, node: &Node) -> Option<PathBuf> {
        let path = self.filled(node)?;
        let file = self.sources.source(node.at)?;
        Some(match file.path.parent() {
            Some(folder) => folder.join(path),
            None => path.into(),
        })
    }

    /// Bytes per second.
    pub(super) fn byte_rate(&mut self, node: &Node) -> Option<Quota> {
        let quota: Quota = self.parse(node)?;
        match quota.rate().map(tidegate_core::Rate::unit) {
            Some(Unit::Bytes) => Some(quota),
            _ => {
                let problem = format!("`{quota}` counts no bytes");
                self.blame(node.at, problem, "write bytes per second, as in `1MB/s`");
                None
            }
        }
    }

    pub(super) fn share(&mut self, node: &Node) -> Option<Share> {
        self.parse(node)
    }

    pub(super) fn outage(&mut self, node: &Node) -> Option<Outage> {
        self.read(node, outage)
    }

    /// `10/min for 1h`: points at the part that is wrong.
    pub(super) fn ban(&mut self, node: &Node) -> Option<BanRule> {
        self.read(node, |text| {
            text.parse::<BanRule>().map_err(|error| {
                let parts = text.split_once(" for ").map(|(quota, rest)| {
                    let length = rest.split(" growing ").next().unwrap_or_default();
                    (quota, length, quota.len() + " for ".len())
                });
                let inner = parts.and_then(|(quota, length, from)| {
                    let quota_error =
                        quota.parse::<Quota>().err().map(|error| Mistake::from(error).behind(0, quota.len()));
                    let time_error = || length.parse::<Micros>().err();
                    quota_error
                        .or_else(|| time_error().map(|error| Mistake::from(error).behind(from, length.len())))
                });
                inner.unwrap_or_else(|| {
                    Mistake::new(error.problem().lines().next().unwrap_or_default(), error.fix())
                })
            })
        })
    }
}

/// `10r/s`, `100rps`, `5 req/min`: the quota that is meant.
fn suggested_quota(text: &str) -> Option<String> {
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
    let meant = format!("{number}/{period}{tail}");
    meant.parse::<Quota>().is_ok().then_some(meant)
}

/// What a word that is none of these is told.
pub(super) fn unknown_word<'k>(text: &str, known: impl Iterator<Item = &'k str> + Clone) -> (String, String) {
    let all = known.clone().collect::<Vec<_>>().join(", ");
    let fix = match spelling::meant(text, known) {
        Some(known) => format!("did you mean `{known}`? There are: {all}"),
        None => format!("use one of {all}"),
    };
    (format!("unknown word `{}`", short(text)), fix)
}

fn checked_name(text: &str) -> Result<&str, Mistake> {
    const LONGEST: usize = 256;
    match text {
        "" => Err(Mistake::new("an empty name", "give it one")),
        text if text.trim() != text || text.chars().any(char::is_control) => Err(Mistake::new(
            "a name with spaces around it or control characters in it",
            "write a word or a few",
        )),
        text if text.chars().count() > LONGEST => {
            Err(Mistake::new(format!("a name of more than {LONGEST} characters"), "write a shorter one"))
        }
        text if text.contains("://") => Err(Mistake::new(
            "an address where a name belongs",
            "write the name in front, and the address behind it",
        )),
        text => Ok(text),
    }
}

fn size(text: &str) -> Result<u64, Mistake> {
    let fix = "write bytes, as in `32KiB` or `1.5MB`";
    if let Ok(bytes) = text.parse() {
        return Ok(bytes);
    }
    // Sizes are written as in quotas, and read by the same reader: any whole number of bytes per microsecond is exact.
    let error = |error: QuotaError| {
        let problem = format!("`{}` is not a size", short(text));
        Mistake { problem, fix: fix.to_owned(), span: error.span().filter(|span| span.end <= text.len()) }
    };
    let quota = format!("{text}/us").parse::<Quota>().map_err(error)?;
    match quota.rate() {
        Some(rate) if rate.unit() == Unit::Bytes && rate.period() == Micros::new(1) => Ok(rate.amount()),
        _ => Err(Mistake::new(format!("`{}` is not a size", short(text)), fix)),
    }
}

/// `open`, `closed`, `local`, or `local N` where so many processes share the quota.
fn outage(text: &str) -> Result<Outage, Mistake> {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    match (word, rest.trim()) {
        ("open", "") => Ok(Outage::Open),
        ("closed", "") => Ok(Outage::Closed),
        ("local", "") => Ok(Outage::Local { nodes: 1 }),
        ("local", nodes) => match nodes.parse() {
            Ok(nodes) if nodes > 0 => Ok(Outage::Local { nodes }),
            _ => Err(Mistake::new(
                format!("`{}` is not a number of processes", short(nodes)),
                "write `local N`, where N processes share the quota",
            )
            .at(word.len() + 1..text.len())),
        },
        _ => {
            let (problem, fix) = unknown_word(text, ["open", "closed", "local"].into_iter());
            Err(Mistake::new(problem, fix))
        }
    }
}

/// A length of time, to be printed.
pub(super) fn write_time(time: &Duration) -> Written {
    Written::text(Micros::from(*time))
}

/// A size, to be printed.
pub(super) fn write_size(bytes: &u64) -> Written {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    match *bytes {
        // Larger ones are read only as plain numbers.
        0 | LARGEST_EXACT.. => Written::Number(*bytes),
        bytes if bytes.is_multiple_of(MIB) => Written::text(format!("{}MiB", bytes / MIB)),
        bytes if bytes.is_multiple_of(KIB) => Written::text(format!("{}KiB", bytes / KIB)),
        bytes => Written::Number(bytes),
    }
}

pub(super) fn write_outage(outage: &Outage) -> Written {
    Written::text(match outage {
        Outage::Open => "open".to_owned(),
        Outage::Closed => "closed".to_owned(),
        Outage::Local { nodes } => format!("local {nodes}"),
    })
}

pub(super) fn write_number(number: &u64) -> Written {
    Written::Number(*number)
}

pub(super) fn write_path<P: AsRef<Path>>(path: &P) -> Written {
    Written::text(path.as_ref().display())
}

/// The words themselves, for the schema.
pub(crate) const fn word_names<T, const N: usize>(words: &[(&'static str, T); N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut at = 0;
    while at < N {
        names[at] = words[at].0;
        at += 1;
    }
    names
}

/// The word for a value, to be printed; none for the usual one.
pub(crate) fn write_word<T: PartialEq + Default>(value: &T, words: &[(&'static str, T)]) -> Option<Written> {
    let word = words.iter().find(|(_, known)| known == value)?.0;
    (*value != T::default()).then(|| Written::text(word))
}

/// The word for the default, for the schema.
pub(crate) fn usual_word<T: PartialEq + Default>(words: &[(&'static str, T)]) -> Written {
    let usual = T::default();
    Written::text(words.iter().find(|(_, known)| *known == usual).map_or("", |(word, _)| word))
}
