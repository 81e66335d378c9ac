//! Texts as trees: YAML, TOML and JSON become the same nodes, of which each knows where it stands.

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

/// In which language a text is written.
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
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Yaml, Self::Toml, Self::Json];

    /// That of a file, by the end of its name.
    pub fn from_path(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "yaml" | "yml" => Some(Self::Yaml),
            "toml" => Some(Self::Toml),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// A larger file is a mistake.
pub(crate) const MAX_FILE_BYTES: usize = 1024 * 1024;

/// Nobody nests deeper; whoever does wants a stack to overflow.
const MAX_DEPTH: usize = 64;

/// No name is longer.
const MAX_KEY_CHARS: usize = 256;

/// What aliases and templates may add to what is written out, in bytes: so that no small file unfolds to a large one.
pub(crate) const MAX_EXPANDED_BYTES: usize = 16 * 1024 * 1024;

/// All texts that a policy is read from.
#[derive(Debug, Default)]
pub struct Sources {
    files: Vec<SourceFile>,
}

/// One text.
#[derive(Debug)]
pub struct SourceFile {
    /// Its file; empty where it has none.
    pub path: PathBuf,
    /// What it says.
    pub text: String,
}

/// Some bytes of one of the texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceSpan {
    /// The text, by its place among the others.
    pub file: usize,
    /// The first byte.
    pub start: usize,
    /// Behind the last byte.
    pub end: usize,
}

/// What the texts of a tree are: their own, or pieces of the text that it was read from.
pub(crate) trait SourceText<'a>:
    Clone + Deref<Target = str> + From<&'a str> + From<Cow<'a, str>>
{
}

impl SourceText<'_> for String {}

impl<'a> SourceText<'a> for Cow<'a, str> {}

/// One value, and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct SyntaxNode<T = String> {
    pub(crate) value: SyntaxValue<T>,
    pub(crate) span: SourceSpan,
}

/// What a value can be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SyntaxValue<T = String> {
    Null,
    Bool(bool),
    /// As it was written, in decimal.
    Number(T),
    Text(T),
    List(Vec<SyntaxNode<T>>),
    Map(Vec<(SyntaxKey<T>, SyntaxNode<T>)>),
}

/// The key of a map, and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct SyntaxKey<T = String> {
    pub(crate) text: T,
    pub(crate) span: SourceSpan,
}

/// What is wrong with some bytes, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpannedError {
    pub(crate) span: SourceSpan,
    pub(crate) problem: String,
    pub(crate) fix: String,
    pub(crate) secrecy: Secrecy,
}

/// Whether the line of a fault may be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Secrecy {
    /// As it is, but for what looks like a password.
    Shown,
    /// What is at fault may be one.
    Hidden,
}

impl SpannedError {
    /// What is wrong there, and the fix.
    pub fn new(at: SourceSpan, problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { span: at, problem: problem.into(), fix: fix.into(), secrecy: Secrecy::Shown }
    }

    /// The same, without showing what is at fault.
    pub(crate) fn hide_value(self) -> Self {
        Self { secrecy: Secrecy::Hidden, ..self }
    }
}

impl<T> SyntaxValue<T> {
    pub(crate) fn is_map(&self) -> bool {
        matches!(self, Self::Map(_))
    }
}

/// Values are the same whether or not they stand at the same place.
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
    /// What a copy of it takes, about.
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

    /// Its kind, for people.
    pub(crate) fn kind_name(&self) -> &'static str {
        match self.value {
            SyntaxValue::Null => "nothing",
            SyntaxValue::Bool(_) => "true or false",
            SyntaxValue::Number(_) => "a number",
            SyntaxValue::Text(_) => "a text",
            SyntaxValue::List(_) => "a list",
            SyntaxValue::Map(_) => "a map",
        }
    }
}

impl Sources {
    /// Takes a text in, and gives its tree; whatever is wrong with its syntax is an error.
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

    /// Takes a text in, by its place among the others.
    pub fn add(&mut self, path: &Path, bytes: &[u8]) -> Result<usize, SpannedError> {
        let file = self.files.len();
        let lossy = String::from_utf8_lossy(bytes);
        let whole = SourceSpan { file, start: 0, end: 0 };
        // The byte order mark of some editors says nothing.
        let text = lossy.strip_prefix('\u{feff}').unwrap_or(&lossy);
        if bytes.len() > MAX_FILE_BYTES {
            self.files.push(SourceFile { path: path.to_owned(), text: String::new() });
            let problem = format!("{} bytes are too many for a policy", bytes.len());
            return Err(SpannedError::new(whole, problem, "split it with `include`, each file up to 1 MiB"));
        }
        self.files.push(SourceFile { path: path.to_owned(), text: text.to_owned() });
        if let Err(error) = std::str::from_utf8(bytes) {
            let start = error.valid_up_to().saturating_sub(lossy.len() - text.len());
            return Err(SpannedError::new(
                SourceSpan { file, start, end: start + 1 },
                "not UTF-8",
                "save the file as UTF-8",
            ));
        }
        Ok(file)
    }

    /// A file that could not be read has a name and no text.
    pub fn add_unreadable(&mut self, path: &Path) -> SourceSpan {
        self.files.push(SourceFile { path: path.to_owned(), text: String::new() });
        SourceSpan { file: self.files.len() - 1, start: 0, end: 0 }
    }

    /// The text that has these bytes.
    pub fn file(&self, at: SourceSpan) -> Option<&SourceFile> {
        self.files.get(at.file)
    }

    /// The bytes of a text that stands there as it is, without escapes: from where an error inside it can be shown.
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

    /// `policy.yaml:3:9`
    pub(crate) fn location(&self, at: SourceSpan) -> String {
        let Some(source) = self.file(at) else { return String::new() };
        let (line, column) = line_and_column(&source.text, at.start);
        match source.path.as_os_str().is_empty() {
            true => format!("{line}:{column}"),
            false => format!("{}:{line}:{column}", source.path.display()),
        }
    }
}

/// All documents of a text in YAML, which is not kept; what is wrong with it has its line.
pub(crate) fn parse_documents<'a, T: SourceText<'a>>(
    text: &'a str,
) -> Result<Vec<SyntaxNode<T>>, (usize, SpannedError)> {
    yaml::parse_documents(0, text).map_err(|fault| (line_and_column(text, fault.span.start).0, fault))
}

/// Line and column of a byte, counted from one, the column in characters.
pub fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    let from = text[..at].rfind('\n').map_or(0, |end| end + 1);
    (text[..from].matches('\n').count() + 1, text[from..at].chars().count() + 1)
}

/// Takes the keys of a map, and refuses what is there twice.
#[derive(Default)]
struct DuplicateKeyCheck {
    /// Of a map that is large; a small one is looked through.
    starts: HashMap<String, usize>,
}

impl DuplicateKeyCheck {
    /// Names to look through: for so few a table costs more.
    const LINEAR_SEARCH_MAX: usize = 16;

    /// Takes the next name of a map that has these entries.
    fn check<T: Deref<Target = str>>(
        &mut self,
        text: &str,
        entries: &[(SyntaxKey<T>, SyntaxNode<T>)],
        name: &SyntaxKey<T>,
    ) -> Result<(), SpannedError> {
        if name.text.len() > MAX_KEY_CHARS && name.text.chars().count() > MAX_KEY_CHARS {
            let problem = format!("a key of {} characters", name.text.chars().count());
            return Err(SpannedError::new(name.span, problem, format!("write up to {MAX_KEY_CHARS}")));
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
                let problem = format!("the key `{}` is here twice", truncate(&name.text));
                Err(SpannedError::new(
                    name.span,
                    problem,
                    format!("leave one out; the first is on line {line}"),
                ))
            }
        }
    }
}

/// A text in an error: nobody reads all of a long one.
pub fn truncate(text: &str) -> String {
    const MAX_SHOWN_CHARS: usize = 60;
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

fn too_deep_error(at: SourceSpan) -> SpannedError {
    SpannedError::new(at, format!("more than {MAX_DEPTH} levels deep"), "say it with fewer levels")
}

#[cfg(test)]
mod tests;
