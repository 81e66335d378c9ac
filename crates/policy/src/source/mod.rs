//! Texts as trees: YAML, TOML and JSON become the same nodes, of which each knows where it stands.

mod files;
mod json;
mod toml;
mod yaml;

pub(crate) use yaml::plain;

pub use files::{Disk, Files};

use std::{
    borrow::Cow,
    collections::HashMap,
    ops::Deref,
    path::{Path, PathBuf},
};

/// In which language a text is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// YAML 1.2, with the types of its core schema.
    Yaml,
    /// TOML 1.1.
    Toml,
    /// JSON as in RFC 8259.
    Json,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Yaml, Self::Toml, Self::Json];

    /// That of a file, by the end of its name.
    pub fn of_path(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "yaml" | "yml" => Some(Self::Yaml),
            "toml" => Some(Self::Toml),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// A larger file is a mistake.
pub(crate) const MOST_BYTES: usize = 1024 * 1024;

/// Nobody nests deeper; whoever does wants a stack to overflow.
const DEEPEST: usize = 64;

/// No name is longer.
const LONGEST_KEY: usize = 256;

/// What aliases and templates may add to what is written out, in bytes: so that no small file unfolds to a large one.
pub(crate) const MOST_UNFOLDED: usize = 16 * 1024 * 1024;

/// All texts that a policy is read from.
#[derive(Debug, Default)]
pub struct Sources {
    files: Vec<Source>,
}

/// One text.
#[derive(Debug)]
pub struct Source {
    /// Its file; empty where it has none.
    pub path: PathBuf,
    /// What it says.
    pub text: String,
}

/// Some bytes of one of the texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The text, by its place among the others.
    pub file: usize,
    /// The first byte.
    pub start: usize,
    /// Behind the last byte.
    pub end: usize,
}

/// What the texts of a tree are: their own, or pieces of the text that it was read from.
pub(crate) trait Text<'a>: Clone + Deref<Target = str> + From<&'a str> + From<Cow<'a, str>> {}

impl Text<'_> for String {}

impl<'a> Text<'a> for Cow<'a, str> {}

/// One value, and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Node<T = String> {
    pub(crate) value: Value<T>,
    pub(crate) at: Span,
}

/// What a value can be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value<T = String> {
    Null,
    Bool(bool),
    /// As it was written, in decimal.
    Number(T),
    Text(T),
    List(Vec<Node<T>>),
    Map(Vec<(Name<T>, Node<T>)>),
}

/// The key of a map, and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Name<T = String> {
    pub(crate) text: T,
    pub(crate) at: Span,
}

/// What is wrong with some bytes, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fault {
    pub(crate) at: Span,
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

impl Fault {
    /// What is wrong there, and the fix.
    pub fn new(at: Span, problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { at, problem: problem.into(), fix: fix.into(), secrecy: Secrecy::Shown }
    }

    /// The same, without showing what is at fault.
    pub(crate) fn hidden(self) -> Self {
        Self { secrecy: Secrecy::Hidden, ..self }
    }
}

impl<T> Value<T> {
    pub(crate) fn is_map(&self) -> bool {
        matches!(self, Self::Map(_))
    }
}

/// Values are the same whether or not they stand at the same place.
impl<T: PartialEq> PartialEq for Node<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T: PartialEq> PartialEq for Name<T> {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl<T: Deref<Target = str>> Node<T> {
    /// What a copy of it takes, about.
    pub(crate) fn weight(&self) -> usize {
        const EACH: usize = 64;
        EACH + match &self.value {
            Value::Null | Value::Bool(_) => 0,
            Value::Number(text) | Value::Text(text) => text.len(),
            Value::List(items) => items.iter().map(Self::weight).sum(),
            Value::Map(entries) => entries.iter().map(|(name, node)| name.text.len() + node.weight()).sum(),
        }
    }

    /// Its kind, for people.
    pub(crate) fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "nothing",
            Value::Bool(_) => "true or false",
            Value::Number(_) => "a number",
            Value::Text(_) => "a text",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }
}

impl Sources {
    /// Takes a text in, and gives its tree; whatever is wrong with its syntax is an error.
    pub(crate) fn parse(&mut self, path: &Path, bytes: &[u8], format: Format) -> Result<Node, Vec<Fault>> {
        let file = self.take(path, bytes).map_err(|fault| vec![fault])?;
        let text = self.files.get(file).map_or("", |source| source.text.as_str());
        match format {
            Format::Yaml => yaml::parse(file, text).map_err(|fault| vec![fault]),
            Format::Toml => toml::parse(file, text),
            Format::Json => json::parse(file, text).map_err(|fault| vec![fault]),
        }
    }

    /// Takes a text in, by its place among the others.
    pub fn take(&mut self, path: &Path, bytes: &[u8]) -> Result<usize, Fault> {
        let file = self.files.len();
        let lossy = String::from_utf8_lossy(bytes);
        let whole = Span { file, start: 0, end: 0 };
        // The byte order mark of some editors says nothing.
        let text = lossy.strip_prefix('\u{feff}').unwrap_or(&lossy);
        if bytes.len() > MOST_BYTES {
            self.files.push(Source { path: path.to_owned(), text: String::new() });
            let problem = format!("{} bytes are too many for a policy", bytes.len());
            return Err(Fault::new(whole, problem, "split it with `include`, each file up to 1 MiB"));
        }
        self.files.push(Source { path: path.to_owned(), text: text.to_owned() });
        if let Err(error) = std::str::from_utf8(bytes) {
            let start = error.valid_up_to().saturating_sub(lossy.len() - text.len());
            return Err(Fault::new(
                Span { file, start, end: start + 1 },
                "not UTF-8",
                "save the file as UTF-8",
            ));
        }
        Ok(file)
    }

    /// A file that could not be read has a name and no text.
    pub fn unread(&mut self, path: &Path) -> Span {
        self.files.push(Source { path: path.to_owned(), text: String::new() });
        Span { file: self.files.len() - 1, start: 0, end: 0 }
    }

    /// The text that has these bytes.
    pub fn source(&self, at: Span) -> Option<&Source> {
        self.files.get(at.file)
    }

    /// The bytes of a text that stands there as it is, without escapes: from where an error inside it can be shown.
    pub(crate) fn inside(&self, at: Span, text: &str) -> Option<Span> {
        let raw = self.source(at)?.text.get(at.start..at.end)?;
        let quotes = raw.find(text)?;
        let are_quotes =
            |text: &str| text.trim().len() <= 3 && text.trim().chars().all(|c| matches!(c, '"' | '\''));
        let is_whole = are_quotes(&raw[..quotes]) && are_quotes(&raw[quotes + text.len()..]);
        is_whole.then(|| Span {
            start: at.start + quotes,
            end: at.start + quotes + text.len(),
            file: at.file,
        })
    }

    /// `policy.yaml:3:9`
    pub(crate) fn place(&self, at: Span) -> String {
        let Some(source) = self.source(at) else { return String::new() };
        let (line, column) = position(&source.text, at.start);
        match source.path.as_os_str().is_empty() {
            true => format!("{line}:{column}"),
            false => format!("{}:{line}:{column}", source.path.display()),
        }
    }
}

/// All documents of a text in YAML, which is not kept; what is wrong with it has its line.
pub(crate) fn documents<'a, T: Text<'a>>(text: &'a str) -> Result<Vec<Node<T>>, (usize, Fault)> {
    yaml::documents(0, text).map_err(|fault| (position(text, fault.at.start).0, fault))
}

/// Line and column of a byte, counted from one, the column in characters.
pub fn position(text: &str, at: usize) -> (usize, usize) {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    let from = text[..at].rfind('\n').map_or(0, |end| end + 1);
    (text[..from].matches('\n').count() + 1, text[from..at].chars().count() + 1)
}

/// Takes the keys of a map, and refuses what is there twice.
#[derive(Default)]
struct Keys {
    /// Of a map that is large; a small one is looked through.
    starts: HashMap<String, usize>,
}

impl Keys {
    /// Names to look through: for so few a table costs more.
    const FEW: usize = 16;

    /// Takes the next name of a map that has these entries.
    fn take<T: Deref<Target = str>>(
        &mut self,
        text: &str,
        entries: &[(Name<T>, Node<T>)],
        name: &Name<T>,
    ) -> Result<(), Fault> {
        if name.text.len() > LONGEST_KEY && name.text.chars().count() > LONGEST_KEY {
            let problem = format!("a key of {} characters", name.text.chars().count());
            return Err(Fault::new(name.at, problem, format!("write up to {LONGEST_KEY}")));
        }
        let first = if entries.len() < Self::FEW {
            entries.iter().find(|(known, _)| *known.text == *name.text).map(|(known, _)| known.at.start)
        } else {
            if self.starts.is_empty() {
                self.starts =
                    entries.iter().map(|(known, _)| (known.text.to_string(), known.at.start)).collect();
            }
            self.starts.insert(name.text.to_string(), name.at.start)
        };
        match first {
            None => Ok(()),
            Some(first) => {
                let (line, _) = position(text, first);
                let problem = format!("the key `{}` is here twice", short(&name.text));
                Err(Fault::new(name.at, problem, format!("leave one out; the first is on line {line}")))
            }
        }
    }
}

/// A text in an error: nobody reads all of a long one.
pub fn short(text: &str) -> String {
    const SHOWN: usize = 60;
    match text.char_indices().nth(SHOWN) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

fn too_deep(at: Span) -> Fault {
    Fault::new(at, format!("more than {DEEPEST} levels deep"), "say it with fewer levels")
}

#[cfg(test)]
mod tests;
