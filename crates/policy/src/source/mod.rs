//! Parses YAML, TOML and JSON into the same syntax trees. Each node has its position.

mod files;
mod json;
mod toml;
mod yaml;

pub(crate) use yaml::parse_plain_scalar;

pub use files::{DiskFiles, FileSource};

use std::{
    borrow::Cow,
    collections::HashMap,
    ops::Deref,
    path::{Path, PathBuf},
};

/// The format of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyFormat {
    /// YAML 1.2, with the types of its core schema.
    Yaml,
    /// TOML 1.1.
    Toml,
    /// JSON as in RFC 8259.
    Json,
}

impl PolicyFormat {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::Yaml, Self::Toml, Self::Json];

    /// Returns the format of a file by its extension.
    pub fn from_path(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "yaml" | "yml" => Some(Self::Yaml),
            "toml" => Some(Self::Toml),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// The maximum size of a policy file.
pub(crate) const MAX_FILE_BYTES: usize = 1024 * 1024;

/// The maximum nesting depth. It prevents stack overflows.
const MAX_DEPTH: usize = 64;

/// The maximum length of a key.
const MAX_KEY_CHARS: usize = 256;

/// The maximum number of bytes that aliases and templates may add, so that a small file cannot expand to a huge policy.
pub(crate) const MAX_EXPANDED_BYTES: usize = 16 * 1024 * 1024;

/// The source files of a policy.
#[derive(Debug, Default)]
pub struct Sources {
    files: Vec<SourceFile>,
}

/// A source file.
#[derive(Debug)]
pub struct SourceFile {
    /// The path; empty for a string.
    pub path: PathBuf,
    /// The content.
    pub text: String,
}

/// A range of bytes in a source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceSpan {
    /// The index of the file in [`Sources`].
    pub file: usize,
    /// The first byte.
    pub start: usize,
    /// The byte after the last one.
    pub end: usize,
}

/// The string type of a tree: owned, or borrowed from the source.
pub(crate) trait SourceText<'a>:
    Clone + Deref<Target = str> + From<&'a str> + From<Cow<'a, str>>
{
}

impl SourceText<'_> for String {}

impl<'a> SourceText<'a> for Cow<'a, str> {}

/// A value and its position.
#[derive(Clone, Debug)]
pub(crate) struct SyntaxNode<T = String> {
    pub(crate) value: SyntaxValue<T>,
    pub(crate) span: SourceSpan,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SyntaxValue<T = String> {
    Null,
    Bool(bool),
    /// The decimal notation of the source.
    Number(T),
    Text(T),
    List(Vec<SyntaxNode<T>>),
    Map(Vec<(SyntaxKey<T>, SyntaxNode<T>)>),
}

/// The key of a map and its position.
#[derive(Clone, Debug)]
pub(crate) struct SyntaxKey<T = String> {
    pub(crate) text: T,
    pub(crate) span: SourceSpan,
}

/// An error at a position, with its fix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpannedError {
    pub(crate) span: SourceSpan,
    pub(crate) problem: String,
    pub(crate) fix: String,
    pub(crate) secrecy: Secrecy,
}

/// Whether the value at the position of an error may be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Secrecy {
    /// Shown, except for parts that look like a password.
    Shown,
    /// Hidden, because the value may be a password.
    Hidden,
}

impl SpannedError {
    /// An error at this position.
    pub fn new(at: SourceSpan, problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { span: at, problem: problem.into(), fix: fix.into(), secrecy: Secrecy::Shown }
    }

    /// Hides the value at the position.
    pub(crate) fn hide_value(self) -> Self {
        Self { secrecy: Secrecy::Hidden, ..self }
    }
}

impl<T> SyntaxValue<T> {
    pub(crate) fn is_map(&self) -> bool {
        matches!(self, Self::Map(_))
    }
}

/// Compares values and ignores positions.
impl<T: PartialEq> PartialEq for SyntaxNode<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T: PartialEq> PartialEq for SyntaxKey<T> {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl<T: Deref<Target = str>> SyntaxNode<T> {
    /// The approximate size of a copy.
    pub(crate) fn estimated_bytes(&self) -> usize {
        const NODE_BYTES: usize = 64;
        NODE_BYTES
            + match &self.value {
                SyntaxValue::Null | SyntaxValue::Bool(_) => 0,
                SyntaxValue::Number(text) | SyntaxValue::Text(text) => text.len(),
                SyntaxValue::List(items) => items.iter().map(Self::estimated_bytes).sum(),
                SyntaxValue::Map(entries) => {
                    entries.iter().map(|(name, node)| name.text.len() + node.estimated_bytes()).sum()
                }
            }
    }

    /// The kind of the value, for messages.
    pub(crate) fn kind_name(&self) -> &'static str {
        match self.value {
            SyntaxValue::Null => "null",
            SyntaxValue::Bool(_) => "a boolean",
            SyntaxValue::Number(_) => "a number",
            SyntaxValue::Text(_) => "a string",
            SyntaxValue::List(_) => "a list",
            SyntaxValue::Map(_) => "a map",
        }
    }
}

impl Sources {
    /// Adds a source and parses it.
    pub(crate) fn parse(
        &mut self,
        path: &Path,
        bytes: &[u8],
        format: PolicyFormat,
    ) -> Result<SyntaxNode, Vec<SpannedError>> {
        let file = self.add(path, bytes).map_err(|fault| vec![fault])?;
        let text = self.files.get(file).map_or("", |source| source.text.as_str());
        match format {
            PolicyFormat::Yaml => yaml::parse(file, text).map_err(|fault| vec![fault]),
            PolicyFormat::Toml => toml::parse(file, text),
            PolicyFormat::Json => json::parse(file, text).map_err(|fault| vec![fault]),
        }
    }

    /// Adds a source and returns its index.
    pub fn add(&mut self, path: &Path, bytes: &[u8]) -> Result<usize, SpannedError> {
        let file = self.files.len();
        let lossy = String::from_utf8_lossy(bytes);
        let whole = SourceSpan { file, start: 0, end: 0 };
        // Some editors write a byte order mark.
        let text = lossy.strip_prefix('\u{feff}').unwrap_or(&lossy);
        if bytes.len() > MAX_FILE_BYTES {
            self.files.push(SourceFile { path: path.to_owned(), text: String::new() });
            let problem = format!("policy file too large ({} bytes)", bytes.len());
            return Err(SpannedError::new(
                whole,
                problem,
                "split it into files of up to 1 MiB with `include`",
            ));
        }
        self.files.push(SourceFile { path: path.to_owned(), text: text.to_owned() });
        if let Err(error) = std::str::from_utf8(bytes) {
            let start = error.valid_up_to().saturating_sub(lossy.len() - text.len());
            return Err(SpannedError::new(
                SourceSpan { file, start, end: start + 1 },
                "invalid UTF-8",
                "save the file as UTF-8",
            ));
        }
        Ok(file)
    }

    /// Adds a file that could not be read, without content.
    pub fn add_unreadable(&mut self, path: &Path) -> SourceSpan {
        self.files.push(SourceFile { path: path.to_owned(), text: String::new() });
        SourceSpan { file: self.files.len() - 1, start: 0, end: 0 }
    }

    /// The source file of a span.
    pub fn file(&self, at: SourceSpan) -> Option<&SourceFile> {
        self.files.get(at.file)
    }

    /// The span of a string without its quotes, if it has no escapes. Errors can then point inside the string.
    pub(crate) fn unquoted_span(&self, at: SourceSpan, text: &str) -> Option<SourceSpan> {
        let raw = self.file(at)?.text.get(at.start..at.end)?;
        let quotes = raw.find(text)?;
        let are_quotes =
            |text: &str| text.trim().len() <= 3 && text.trim().chars().all(|c| matches!(c, '"' | '\''));
        let is_whole = are_quotes(&raw[..quotes]) && are_quotes(&raw[quotes + text.len()..]);
        is_whole.then(|| SourceSpan {
            start: at.start + quotes,
            end: at.start + quotes + text.len(),
            file: at.file,
        })
    }

    /// Formats a position: `policy.yaml:3:9`.
    pub(crate) fn location(&self, at: SourceSpan) -> String {
        let Some(source) = self.file(at) else { return String::new() };
        let (line, column) = line_and_column(&source.text, at.start);
        match source.path.as_os_str().is_empty() {
            true => format!("{line}:{column}"),
            false => format!("{}:{line}:{column}", source.path.display()),
        }
    }
}

/// Parses all documents of a YAML string. Errors have their line.
pub(crate) fn parse_documents<'a, T: SourceText<'a>>(
    text: &'a str,
) -> Result<Vec<SyntaxNode<T>>, (usize, SpannedError)> {
    yaml::parse_documents(0, text).map_err(|fault| (line_and_column(text, fault.span.start).0, fault))
}

/// Returns the line and the column of a byte, counted from one; the column is in characters.
pub fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let at = floor_char_boundary(text, at);
    let from = text[..at].rfind('\n').map_or(0, |end| end + 1);
    (text[..from].matches('\n').count() + 1, text[from..at].chars().count() + 1)
}

/// Returns the start of the character at a byte. `str::floor_char_boundary` needs Rust 1.91.
fn floor_char_boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default()
}

/// Rejects duplicate keys of a map.
#[derive(Default)]
struct DuplicateKeyCheck {
    /// The positions by key, for large maps only.
    starts: HashMap<String, usize>,
}

impl DuplicateKeyCheck {
    /// Maps up to this size are searched linearly, which is faster than hashing.
    const LINEAR_SEARCH_MAX: usize = 16;

    /// Checks the next key of a map with these entries.
    fn check<T: Deref<Target = str>>(
        &mut self,
        text: &str,
        entries: &[(SyntaxKey<T>, SyntaxNode<T>)],
        name: &SyntaxKey<T>,
    ) -> Result<(), SpannedError> {
        if name.text.len() > MAX_KEY_CHARS && name.text.chars().count() > MAX_KEY_CHARS {
            let problem = format!("key of {} characters", name.text.chars().count());
            return Err(SpannedError::new(name.span, problem, format!("shorten it to {MAX_KEY_CHARS}")));
        }
        let first = if entries.len() < Self::LINEAR_SEARCH_MAX {
            entries.iter().find(|(known, _)| *known.text == *name.text).map(|(known, _)| known.span.start)
        } else {
            if self.starts.is_empty() {
                self.starts =
                    entries.iter().map(|(known, _)| (known.text.to_string(), known.span.start)).collect();
            }
            self.starts.insert(name.text.to_string(), name.span.start)
        };
        match first {
            None => Ok(()),
            Some(first) => {
                let (line, _) = line_and_column(text, first);
                let problem = format!("duplicate key `{}`", truncate(&name.text));
                Err(SpannedError::new(
                    name.span,
                    problem,
                    format!("remove one of them; the first is on line {line}"),
                ))
            }
        }
    }
}

/// Truncates a string for an error message.
pub fn truncate(text: &str) -> String {
    const MAX_SHOWN_CHARS: usize = 60;
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

fn too_deep_error(at: SourceSpan) -> SpannedError {
    SpannedError::new(at, format!("more than {MAX_DEPTH} levels deep"), "use fewer levels")
}

#[cfg(test)]
mod tests;
