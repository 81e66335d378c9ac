//! Problems of a policy with their positions and fixes.

use crate::source::{Secrecy, SourceSpan, Sources, SpannedError, line_and_column};
use std::{
    error, fmt,
    ops::Range,
    path::{Path, PathBuf},
    slice, vec,
};
use unicode_width::UnicodeWidthStr as _;

/// The problems of a policy, in the order of their positions. There is at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    problems: Vec<Problem>,
    /// The number of omitted problems.
    omitted: usize,
}

/// A problem of a policy.
///
/// ```text
/// policy.yaml:3:5: unknown key `quta` in rule `login`; did you mean `quota`?
///       quta: 5/min
///       ^^^^
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    path: PathBuf,
    problem: String,
    fix: String,
    excerpt: Option<Excerpt>,
}

/// A line of the source, and the range of characters to mark.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Excerpt {
    line: usize,
    column: usize,
    text: String,
    carets: Range<usize>,
}

/// The maximum number of problems to report.
const MAX_PROBLEMS: usize = 1_000;

impl Problems {
    /// Sorts errors by position, and converts them.
    pub fn from_errors(mut faults: Vec<SpannedError>, sources: &Sources) -> Self {
        faults.sort();
        faults.dedup();
        let omitted = faults.len().saturating_sub(MAX_PROBLEMS);
        faults.truncate(MAX_PROBLEMS);
        Self {
            problems: faults.into_iter().map(|fault| Problem::from_error(fault, sources)).collect(),
            omitted,
        }
    }

    /// The number of problems.
    pub fn count(&self) -> usize {
        self.problems.len() + self.omitted
    }

    /// Iterates over the first thousand problems, in order.
    pub fn iter(&self) -> slice::Iter<'_, Problem> {
        self.problems.iter()
    }
}

impl<'a> IntoIterator for &'a Problems {
    type Item = &'a Problem;
    type IntoIter = slice::Iter<'a, Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl IntoIterator for Problems {
    type Item = Problem;
    type IntoIter = vec::IntoIter<Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.problems.into_iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            let between = if index > 0 { "\n\n" } else { "" };
            write!(f, "{between}{problem}")?;
        }
        match self.omitted {
            0 => Ok(()),
            more => write!(f, "\n\nand {more} more"),
        }
    }
}

impl error::Error for Problems {}

impl Problem {
    fn from_error(fault: SpannedError, sources: &Sources) -> Self {
        let SpannedError { span: at, problem, fix, secrecy } = fault;
        let source = sources.file(at);
        Self {
            path: source.map(|source| source.path.clone()).unwrap_or_default(),
            problem: escape_control_chars(problem),
            fix: escape_control_chars(fix),
            excerpt: source
                .filter(|source| !source.text.is_empty())
                .map(|source| Excerpt::new(&source.text, at, secrecy)),
        }
    }

    /// The file; empty for a policy from a string.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The line, counted from one; `None` for a problem of the whole file.
    pub fn line(&self) -> Option<usize> {
        self.excerpt.as_ref().map(|excerpt| excerpt.line)
    }

    /// The column in characters, counted from one; `None` for a problem of the whole file.
    pub fn column(&self) -> Option<usize> {
        self.excerpt.as_ref().map(|excerpt| excerpt.column)
    }

    /// The problem, in one line.
    pub fn problem(&self) -> &str {
        &self.problem
    }

    /// The fix, in one line.
    pub fn fix(&self) -> &str {
        &self.fix
    }
}

/// Writes `policy.yaml:3:9: problem; fix`, the line, and carets below the marked range.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, problem, fix, excerpt } = self;
        if !path.as_os_str().is_empty() {
            write!(f, "{}:", path.display())?;
        }
        let between = if fix.is_empty() { "" } else { "; " };
        let Some(Excerpt { line, column, text: shown, carets }) = excerpt else {
            return write!(f, " {problem}{between}{fix}");
        };
        writeln!(f, "{line}:{column}: {problem}{between}{fix}")?;
        writeln!(f, "  {shown}")?;
        // Wide characters take two columns of a terminal.
        let before: String = shown.chars().take(carets.start).collect();
        let pointed: String = shown.chars().skip(carets.start).take(carets.len()).collect();
        let (indent, width) = (before.width(), pointed.width().max(1));
        write!(f, "  {:indent$}{}", "", "^".repeat(width))
    }
}

/// The maximum number of characters of a shown line.
const MAX_EXCERPT_CHARS: usize = 160;

/// Longer lines are not shown, because the search for secrets in many of them would take too long.
const MAX_LINE_BYTES: usize = 8 * 1024;

impl Excerpt {
    fn new(text: &str, at: SourceSpan, secrecy: Secrecy) -> Self {
        let (line, column) = line_and_column(text, at.start);
        let whole = text.split('\n').nth(line - 1).unwrap_or_default().trim_end_matches('\r');
        if whole.len() > MAX_LINE_BYTES {
            return Self { line, column, text: "…".to_owned(), carets: 0..1 };
        }
        let before = column - 1;
        let first: String = whole.chars().take(before).collect();
        let width = at.end.saturating_sub(at.start).min(whole.len().saturating_sub(first.len()));
        let pointed = whole.get(first.len()..first.len() + width).unwrap_or_default();
        let carets = before..before + pointed.trim_end().chars().count().max(1);
        let (shown, carets) = match secrecy {
            Secrecy::Shown => redact_secrets(whole, carets),
            Secrecy::Hidden => (first + "…", before..before + 1),
        };
        let (shown, carets) = truncate_line(&shown, carets);
        // The width of a tab depends on the terminal, and other control characters could manipulate it.
        Self { line, column, text: shown.replace(char::is_control, " "), carets }
    }
}

/// Removes possible passwords from a line: the text between `://` and `@`, the whole address of URLs other than HTTP, and the
/// values of keys with such names.
fn redact_secrets(line: &str, carets: Range<usize>) -> (String, Range<usize>) {
    let lower = line.to_ascii_lowercase();
    let named = ["pass", "secret", "credential", "api-key", "apikey"]
        .iter()
        .filter_map(|name| lower.find(name))
        .min()
        .and_then(|name| lower[name..].find([':', '=']).map(|sign| name + sign + 1));
    let within = lower.find("://").map(|scheme| {
        let start = scheme + 3;
        let is_http = lower[..scheme].ends_with("http") || lower[..scheme].ends_with("https");
        let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ',' | '}' | ']');
        let word = lower[start..].find(ends).map_or(lower.len(), |length| start + length);
        let end = lower.rfind('@').unwrap_or(start);
        start..if is_http { end } else { end.max(word) }
    });
    let hidden = match (named, within) {
        (Some(from), _) => from..line.len(),
        (None, Some(within)) if within.start < within.end => within,
        _ => return (line.to_owned(), carets),
    };
    let (Some(before), Some(behind)) = (line.get(..hidden.start), line.get(hidden.end..)) else {
        return ("…".to_owned(), 0..1);
    };
    let shown = format!("{before}…{behind}");
    let (from, until) = (before.chars().count(), line[..hidden.end].chars().count());
    // The hidden text is replaced by one character.
    let moved = |at: usize| match at {
        at if at <= from => at,
        at if at <= until => from,
        at => at - (until - from) + 1,
    };
    let (start, end) = (moved(carets.start), moved(carets.end));
    let end = if carets.end > from { end.max(from + 1) } else { end };
    (shown, start..end.max(start + 1))
}

/// Escapes control characters, because messages may quote the file, and a terminal would interpret them.
fn escape_control_chars(text: String) -> String {
    match text.contains(char::is_control) {
        false => text,
        true => text.chars().fold(String::new(), |mut all, sign| {
            match sign.is_control() {
                true => all.extend(sign.escape_default()),
                false => all.push(sign),
            }
            all
        }),
    }
}

/// Truncates a line around the marked range.
fn truncate_line(line: &str, carets: Range<usize>) -> (String, Range<usize>) {
    let count = line.chars().count();
    if count <= MAX_EXCERPT_CHARS {
        return (line.to_owned(), carets);
    }
    let from = carets.start.saturating_sub(MAX_EXCERPT_CHARS / 2);
    let before = if from > 0 { "…" } else { "" };
    let behind = if from + MAX_EXCERPT_CHARS < count { "…" } else { "" };
    let shown: String = line.chars().skip(from).take(MAX_EXCERPT_CHARS).collect();
    let offset = before.chars().count();
    let start = carets.start - from + offset;
    let end = (carets.end - from + offset).min(MAX_EXCERPT_CHARS + offset);
    (format!("{before}{shown}{behind}"), start..end.max(start + 1))
}

#[cfg(test)]
mod tests {
    use super::{Excerpt, Problems};
    use crate::source::{Secrecy, SourceSpan, Sources, SpannedError};
    use std::path::Path;

    #[test]
    fn excerpt_redacts_secrets() {
        let long = format!("key: {}!{}", "x".repeat(300), "y".repeat(300));
        let cases = [
            ("mode: of", 6..8, "mode: of|      ^^"),
            ("store: redis://:hunter2@db/1 x", 29..30, "store: redis://… x|                 ^"),
            ("store: redis://:hunter2@db", 7..26, "store: redis://…|       ^^^^^^^^^"),
            ("{a: 'http://:hunter2@db', b: 5}", 29..30, "{a: 'http://…@db', b: 5}|                      ^"),
            ("pasword: 1\npassword: hunter2", 11..19, "password:…|^^^^^^^^"),
            ("a: http://127.0.0.1:9000", 3..4, "a: http://127.0.0.1:9000|   ^"),
            ("schlüssel: 1\r\n", 12..13, "schlüssel: 1|           ^"),
            ("\ta: 1", 1..2, " a: 1| ^"),
            ("a", 900..999, "a| ^"),
            ("", 0..0, "|^"),
        ];
        for (text, span, expected) in cases {
            let Excerpt { text: shown, carets, .. } =
                Excerpt::new(text, SourceSpan { file: 0, start: span.start, end: span.end }, Secrecy::Shown);
            let carets = format!("{}{}", " ".repeat(carets.start), "^".repeat(carets.len()));
            assert_eq!(format!("{shown}|{carets}"), expected);
        }
        let cut = Excerpt::new(&long, SourceSpan { file: 0, start: 305, end: 306 }, Secrecy::Shown);
        assert_eq!(cut.text.chars().nth(cut.carets.start), Some('!'));
        assert!(cut.text.chars().count() < 170);
        let endless =
            Excerpt::new(&"x".repeat(9_000), SourceSpan { file: 0, start: 305, end: 306 }, Secrecy::Shown);
        assert_eq!((endless.column, endless.text.as_str()), (306, "…"));
    }

    #[test]
    fn carets_align_after_wide_characters() {
        let text = "name: 登录, quota: 100/分钟";
        let at = text.find("分").unwrap();
        let mut sources = Sources::default();
        sources.add(Path::new("p.yaml"), text.as_bytes()).unwrap();
        let fault = SpannedError::new(
            SourceSpan { file: 0, start: at, end: text.len() },
            "unknown period",
            "write `min`",
        );
        let shown = Problems::from_errors(vec![fault], &sources).to_string();
        let lines: Vec<_> = shown.lines().collect();
        assert_eq!(lines[0], "p.yaml:1:22: unknown period; write `min`");
        assert_eq!(lines[2], format!("  {}^^^^", " ".repeat(23)), "two columns for each of four characters");
    }
}
