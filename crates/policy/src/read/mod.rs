//! Makes a policy of trees, and finds all that is wrong with them at once.

mod action;
mod amount;
mod decisions;
mod include;
mod key;
mod matching;
mod observe;
mod path;
mod policy;
mod references;
mod rule;
mod server;
mod template;
mod terms;
mod upstream;
mod values;

pub use matching::is_host;
pub use path::is_path;
pub(crate) use policy::POLICY;
pub(crate) use rule::RULE;
pub use upstream::is_upstream_url;
pub(crate) use values::{Mistake, usual_word, word_names, write_word};

use crate::{
    model::Policy,
    problem::Problems,
    source::{Disk, Fault, Files, Format, Name, Node, Sources, Span, Value, short},
    table::Table,
};
use references::References;
use std::{collections::HashMap, path::Path, str::FromStr};
use tidegate_core::spelling;

impl Policy {
    /// What a file says, and the files that it includes. The end of its name tells its language: `.yaml`, `.yml`, `.toml` or
    /// `.json`. Paths in a file are relative to it.
    ///
    /// ```
    /// use std::{io, path::Path};
    /// use tidegate_policy::Policy;
    ///
    /// let files = |path: &Path| match path.to_str() {
    ///     Some("policy.yaml") => Ok(b"include: more.toml\n".to_vec()),
    ///     Some("more.toml") => Ok(b"[[rules]]\nname = 'a'\nquota = '5/min'\n".to_vec()),
    ///     _ => Err(io::ErrorKind::NotFound.into()),
    /// };
    /// let policy = Policy::read("policy.yaml", &files)?;
    /// assert_eq!(policy.rules[0].name, "a");
    /// # Ok::<(), tidegate_policy::Problems>(())
    /// ```
    pub fn read(path: impl AsRef<Path>, files: &dyn Files) -> Result<Self, Problems> {
        Self::read_with_places(path.as_ref(), files).map(|(policy, _, _)| policy)
    }

    /// The same, with the texts and the tree that it was made of.
    pub(crate) fn read_with_places(
        path: &Path,
        files: &dyn Files,
    ) -> Result<(Self, Node, Sources), Problems> {
        let mut sources = Sources::default();
        match include::load(path, files, &mut sources) {
            Ok(root) => Self::of(&root, &sources).map(|policy| (policy, root, sources)),
            Err(faults) => Err(Problems::of(faults, &sources)),
        }
    }

    /// The same, from the disk.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, Problems> {
        Self::read(path, &Disk)
    }

    /// What a text says, which includes no files.
    pub fn parse(text: &str, format: Format) -> Result<Self, Problems> {
        let mut sources = Sources::default();
        let node = sources.parse(Path::new(""), text.as_bytes(), format);
        match node.and_then(|root| include::refuse(&root).map(|()| root)) {
            Ok(root) => Self::of(&root, &sources),
            Err(faults) => Err(Problems::of(faults, &sources)),
        }
    }

    fn of(root: &Node, sources: &Sources) -> Result<Self, Problems> {
        let mut reader = Reader {
            sources,
            faults: Vec::new(),
            scope: Vec::new(),
            references: References::of(root),
            templates: template::of(root),
            voice: Voice::Loud,
            unfolded: 0,
        };
        let mut policy = Self::default();
        // An empty file says nothing.
        let mut strays = Strays::default();
        if root.value != Value::Null
            && let Some(entries) = reader.entries(root, POLICY.what)
        {
            let entries = entries.iter().map(|(name, node)| (name, node));
            strays = reader.fill_from(entries, root.at, &POLICY, &mut policy);
        }
        reader.check_references(&strays);
        match reader.faults.is_empty() {
            true => Ok(policy),
            false => Err(Problems::of(reader.faults, sources)),
        }
    }
}

/// What a text in YAML says.
impl FromStr for Policy {
    type Err = Problems;

    fn from_str(text: &str) -> Result<Self, Problems> {
        Self::parse(text, Format::Yaml)
    }
}

/// Reads one tree.
pub(crate) struct Reader<'a> {
    sources: &'a Sources,
    faults: Vec<Fault>,
    /// What is being read, the whole first: ``rule `login` ``.
    scope: Vec<String>,
    references: References,
    templates: HashMap<&'a str, &'a Node>,
    voice: Voice,
    /// What templates have added so far, in bytes.
    unfolded: usize,
}

/// Whether faults are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Voice {
    Loud,
    /// What is read again was blamed when it was read first.
    Muted,
}

/// The unknown keys of a map. What is missing because its key was mistyped is not missing.
#[derive(Default)]
struct Strays {
    is_any: bool,
    /// The keys that they were to be, as far as one can tell.
    meant: Vec<&'static str>,
}

impl Reader<'_> {
    pub(crate) fn blame(&mut self, at: Span, problem: impl Into<String>, fix: impl Into<String>) {
        if self.voice == Voice::Loud {
            self.faults.push(Fault::new(at, problem, fix));
        }
    }

    /// The same, without showing what is at fault.
    fn blame_hidden(&mut self, at: Span, problem: &str, fix: &str) {
        if self.voice == Voice::Loud {
            self.faults.push(Fault::new(at, problem, fix).hidden());
        }
    }

    /// Whether more was blamed than anybody reads, so that advice is not worth its time.
    fn has_enough(&self) -> bool {
        self.faults.len() > 1_000
    }

    /// Reads the keys of a map.
    pub(crate) fn fill<T>(&mut self, node: &Node, table: &'static Table<T>, into: &mut T) {
        if let Some(entries) = self.entries(node, table.what) {
            self.fill_from(entries.iter().map(|(name, node)| (name, node)), node.at, table, into);
        }
    }

    /// The same, of entries that come from several places.
    fn fill_from<'n, T>(
        &mut self,
        entries: impl Iterator<Item = (&'n Name, &'n Node)>,
        at: Span,
        table: &'static Table<T>,
        into: &mut T,
    ) -> Strays {
        let mut missing: Vec<_> = table.required.to_vec();
        let mut strays = Strays::default();
        for (name, node) in entries {
            match table.key(&name.text) {
                Some(key) => (key.read)(self, node, into),
                None => {
                    strays.is_any = true;
                    strays.meant.extend(self.unknown(name, table.what, table.names()));
                }
            }
            missing.retain(|required| *required != name.text);
        }
        missing.retain(|required| !strays.meant.contains(required));
        for name in missing {
            let place = self.here(table.what);
            self.blame(at, format!("`{name}` is missing in {place}"), format!("say `{name}`"));
        }
        strays
    }

    fn entries<'n>(&mut self, node: &'n Node, what: &str) -> Option<&'n [(Name, Node)]> {
        match &node.value {
            Value::Map(entries) => Some(entries),
            _ => {
                let place = self.here(what);
                let problem = format!("{place} is a map, not {}", node.kind());
                self.blame(node.at, problem, "write a key and a value for each thing it says");
                None
            }
        }
    }

    /// Returns the key that it was to be, if there is one like it.
    fn unknown(
        &mut self,
        name: &Name,
        what: &str,
        known: impl Iterator<Item = &'static str> + Clone,
    ) -> Option<&'static str> {
        if self.has_enough() {
            self.blame(name.at, "an unknown key", "leave it out");
            return None;
        }
        let meant = spelling::meant(&name.text, known.clone());
        let fix = match meant {
            Some(known) => format!("did you mean `{known}`?"),
            None => format!("there are: {}", known.collect::<Vec<_>>().join(", ")),
        };
        let place = self.here(what);
        let shown = if name.text.contains('@') { "…".to_owned() } else { short(&name.text) };
        self.blame(name.at, format!("unknown key `{shown}` in {place}"), fix);
        meant
    }

    /// Where one is: `` `match` of rule `login` ``.
    fn here(&self, what: &str) -> String {
        match self.scope.last() {
            Some(scope) if scope.trim_start_matches("a ").starts_with(what) => scope.clone(),
            // A template says what a rule says.
            Some(scope) if what == "rule" => scope.clone(),
            Some(scope) => format!("`{what}` of {scope}"),
            None if what == "policy" => "the policy".to_owned(),
            None if matches!(what, "rule" | "route") => format!("a {what}"),
            None => format!("`{what}`"),
        }
    }

    /// Reads something that errors shall name.
    fn within<T>(&mut self, scope: String, read: impl FnOnce(&mut Self) -> T) -> T {
        self.scope.push(scope);
        let read = read(self);
        self.scope.pop();
        read
    }
}
