//! Makes a policy of trees, and finds all that is wrong with them at once.

mod action;
mod admission;
mod decisions;
mod include;
mod key;
mod limits;
mod matching;
mod observe;
mod path;
mod policy;
mod references;
mod rule;
mod server;
mod template;
mod upstream;
mod values;

pub use matching::is_host;
pub use path::is_path;
pub(crate) use policy::POLICY;
pub(crate) use rule::RULE;
pub use upstream::is_upstream_url;
pub(crate) use values::{ValueError, default_keyword, keyword_names, write_keyword};

use crate::{
    map_schema::MapSchema,
    model::Policy,
    problem::Problems,
    source::{
        DiskFiles, FileSource, PolicyFormat, SourceSpan, Sources, SpannedError, SyntaxKey, SyntaxNode,
        SyntaxValue, truncate,
    },
};
use references::References;
use std::{collections::HashMap, path::Path, str::FromStr};
use tidegate_core::suggest;

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
    pub fn read(path: impl AsRef<Path>, files: &dyn FileSource) -> Result<Self, Problems> {
        Self::read_with_sources(path.as_ref(), files).map(|(policy, _, _)| policy)
    }

    /// The same, with the texts and the tree that it was made of.
    pub(crate) fn read_with_sources(
        path: &Path,
        files: &dyn FileSource,
    ) -> Result<(Self, SyntaxNode, Sources), Problems> {
        let mut sources = Sources::default();
        match include::load(path, files, &mut sources) {
            Ok(root) => Self::from_root(&root, &sources).map(|policy| (policy, root, sources)),
            Err(faults) => Err(Problems::from_errors(faults, &sources)),
        }
    }

    /// The same, from the disk.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, Problems> {
        Self::read(path, &DiskFiles)
    }

    /// What a text says, which includes no files.
    pub fn parse(text: &str, format: PolicyFormat) -> Result<Self, Problems> {
        let mut sources = Sources::default();
        let node = sources.parse(Path::new(""), text.as_bytes(), format);
        match node.and_then(|root| include::reject_include(&root).map(|()| root)) {
            Ok(root) => Self::from_root(&root, &sources),
            Err(faults) => Err(Problems::from_errors(faults, &sources)),
        }
    }

    fn from_root(root: &SyntaxNode, sources: &Sources) -> Result<Self, Problems> {
        let mut reader = PolicyReader {
            sources,
            errors: Vec::new(),
            scope: Vec::new(),
            references: References::from_root(root),
            templates: template::collect_templates(root),
            reporting: ErrorReporting::Enabled,
            expanded_bytes: 0,
        };
        let mut policy = Self::default();
        // An empty file says nothing.
        let mut strays = UnknownKeys::default();
        if root.value != SyntaxValue::Null
            && let Some(entries) = reader.entries(root, POLICY.name)
        {
            let entries = entries.iter().map(|(name, node)| (name, node));
            strays = reader.read_entries(entries, root.span, &POLICY, &mut policy);
        }
        reader.check_references(&strays);
        match reader.errors.is_empty() {
            true => Ok(policy),
            false => Err(Problems::from_errors(reader.errors, sources)),
        }
    }
}

/// What a text in YAML says.
impl FromStr for Policy {
    type Err = Problems;

    fn from_str(text: &str) -> Result<Self, Problems> {
        Self::parse(text, PolicyFormat::Yaml)
    }
}

/// Reads one tree.
pub(crate) struct PolicyReader<'a> {
    sources: &'a Sources,
    errors: Vec<SpannedError>,
    /// What is being read, the whole first: ``rule `login` ``.
    scope: Vec<String>,
    references: References,
    templates: HashMap<&'a str, &'a SyntaxNode>,
    reporting: ErrorReporting,
    /// What templates have added so far, in bytes.
    expanded_bytes: usize,
}

/// Whether faults are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorReporting {
    Enabled,
    /// What is read again was blamed when it was read first.
    Suppressed,
}

/// The unknown keys of a map. What is missing because its key was mistyped is not missing.
#[derive(Default)]
struct UnknownKeys {
    has_any: bool,
    /// The keys that they were to be, as far as one can tell.
    suggested: Vec<&'static str>,
}

impl PolicyReader<'_> {
    pub(crate) fn report_error(
        &mut self,
        at: SourceSpan,
        problem: impl Into<String>,
        fix: impl Into<String>,
    ) {
        if self.reporting == ErrorReporting::Enabled {
            self.errors.push(SpannedError::new(at, problem, fix));
        }
    }

    /// The same, without showing what is at fault.
    fn report_secret_error(&mut self, at: SourceSpan, problem: &str, fix: &str) {
        if self.reporting == ErrorReporting::Enabled {
            self.errors.push(SpannedError::new(at, problem, fix).hide_value());
        }
    }

    /// Whether more was blamed than anybody reads, so that advice is not worth its time.
    fn has_too_many_errors(&self) -> bool {
        self.errors.len() > 1_000
    }

    /// Reads the keys of a map.
    pub(crate) fn read_map<T>(&mut self, node: &SyntaxNode, table: &'static MapSchema<T>, into: &mut T) {
        if let Some(entries) = self.entries(node, table.name) {
            self.read_entries(entries.iter().map(|(name, node)| (name, node)), node.span, table, into);
        }
    }

    /// The same, of entries that come from several places.
    fn read_entries<'n, T>(
        &mut self,
        entries: impl Iterator<Item = (&'n SyntaxKey, &'n SyntaxNode)>,
        at: SourceSpan,
        table: &'static MapSchema<T>,
        into: &mut T,
    ) -> UnknownKeys {
        let mut missing: Vec<_> = table.required.to_vec();
        let mut strays = UnknownKeys::default();
        for (name, node) in entries {
            match table.key(&name.text) {
                Some(key) => (key.read)(self, node, into),
                None => {
                    strays.has_any = true;
                    strays.suggested.extend(self.report_unknown_key(name, table.name, table.names()));
                }
            }
            missing.retain(|required| *required != name.text);
        }
        missing.retain(|required| !strays.suggested.contains(required));
        for name in missing {
            let place = self.describe_location(table.name);
            self.report_error(at, format!("`{name}` is missing in {place}"), format!("say `{name}`"));
        }
        strays
    }

    fn entries<'n>(&mut self, node: &'n SyntaxNode, what: &str) -> Option<&'n [(SyntaxKey, SyntaxNode)]> {
        match &node.value {
            SyntaxValue::Map(entries) => Some(entries),
            _ => {
                let place = self.describe_location(what);
                let problem = format!("{place} is a map, not {}", node.kind_name());
                self.report_error(node.span, problem, "write a key and a value for each thing it says");
                None
            }
        }
    }

    /// Returns the key that it was to be, if there is one like it.
    fn report_unknown_key(
        &mut self,
        name: &SyntaxKey,
        what: &str,
        known: impl Iterator<Item = &'static str> + Clone,
    ) -> Option<&'static str> {
        if self.has_too_many_errors() {
            self.report_error(name.span, "an unknown key", "leave it out");
            return None;
        }
        let suggested = suggest::closest(&name.text, known.clone());
        let fix = match suggested {
            Some(known) => format!("did you mean `{known}`?"),
            None => format!("there are: {}", known.collect::<Vec<_>>().join(", ")),
        };
        let place = self.describe_location(what);
        let shown = if name.text.contains('@') { "…".to_owned() } else { truncate(&name.text) };
        self.report_error(name.span, format!("unknown key `{shown}` in {place}"), fix);
        suggested
    }

    /// Where one is: `` `match` of rule `login` ``.
    fn describe_location(&self, what: &str) -> String {
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
    fn with_scope<T>(&mut self, scope: String, read: impl FnOnce(&mut Self) -> T) -> T {
        self.scope.push(scope);
        let read = read(self);
        self.scope.pop();
        read
    }
}
