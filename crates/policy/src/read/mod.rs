//! Reads a policy from syntax trees, and reports all problems at once.

mod action;
mod admission;
mod decisions;
mod identity;
mod include;
mod key;
mod key_hook;
mod limits;
mod load;
pub(crate) mod matching;
mod observe;
mod overrides;
mod path;
mod policy;
mod references;
mod rule;
mod server;
mod settle;
mod template;
mod upstream;
mod values;

pub use matching::is_host;
pub use path::is_path;
pub(crate) use policy::POLICY;
pub(crate) use rule::RULE;
pub(crate) use template::QUOTA_KEYS;
pub use upstream::is_upstream_url;
pub(crate) use values::{ValueError, default_keyword, keyword_names, parse_bandwidth_rate, write_keyword};

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
    /// Reads a policy file and the files that it includes. The file extension selects the format: `.yaml`, `.yml`, `.toml`
    /// or `.json`. Paths in a file are relative to that file.
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

    /// Like [`Policy::read`], and returns the syntax tree and the source texts as well.
    pub(crate) fn read_with_sources(
        path: &Path,
        files: &dyn FileSource,
    ) -> Result<(Self, SyntaxNode, Sources), Problems> {
        let (root, sources) = Self::read_tree(path, files)?;
        Self::from_root(&root, &sources).map(|policy| (policy, root, sources))
    }

    /// Reads the syntax tree of a policy file and of the files that it includes.
    pub(crate) fn read_tree(path: &Path, files: &dyn FileSource) -> Result<(SyntaxNode, Sources), Problems> {
        let mut sources = Sources::default();
        match include::load(path, files, &mut sources) {
            Ok(root) => Ok((root, sources)),
            Err(faults) => Err(Problems::from_errors(faults, &sources)),
        }
    }

    /// Reads a policy file from disk, and the files that it includes.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, Problems> {
        Self::read(path, &DiskFiles)
    }

    /// Parses a policy from a string, which cannot include files.
    pub fn parse(text: &str, format: PolicyFormat) -> Result<Self, Problems> {
        let mut sources = Sources::default();
        let node = sources.parse(Path::new(""), text.as_bytes(), format);
        match node.and_then(|root| include::reject_include(&root).map(|()| root)) {
            Ok(root) => Self::from_root(&root, &sources),
            Err(faults) => Err(Problems::from_errors(faults, &sources)),
        }
    }

    /// Reads a policy from its syntax tree.
    pub(crate) fn from_root(root: &SyntaxNode, sources: &Sources) -> Result<Self, Problems> {
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
        // An empty file is an empty policy.
        let mut unknown = UnknownKeys::default();
        if root.value != SyntaxValue::Null
            && let Some(entries) = reader.entries(root, POLICY.name)
        {
            let entries = entries.iter().map(|(name, node)| (name, node));
            unknown = reader.read_entries(entries, root.span, &POLICY, &mut policy);
        }
        reader.check_references(&unknown);
        match reader.errors.is_empty() {
            true => Ok(policy),
            false => Err(Problems::from_errors(reader.errors, sources)),
        }
    }
}

/// Parses YAML.
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
    /// The items being read, outermost first: ``rule `login` ``.
    scope: Vec<String>,
    references: References,
    templates: HashMap<&'a str, &'a SyntaxNode>,
    reporting: ErrorReporting,
    /// The bytes that templates have added so far.
    expanded_bytes: usize,
}

/// Whether errors are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorReporting {
    Enabled,
    /// For entries that are read a second time: their errors were recorded the first time.
    Suppressed,
}

/// Keys that had another name: the map, the old name and the new one.
const RENAMED_KEYS: [(&str, &str, &str); 33] = [
    ("adaptive", "least", "min"),
    ("adaptive", "most", "max"),
    ("breaker", "least", "min-calls"),
    ("breaker", "open", "open-duration"),
    ("breaker", "over", "window-size"),
    ("breaker", "probes", "half-open-calls"),
    ("breaker", "slow", "slow-call-duration"),
    ("breaker", "slow-rate", "slow-call-rate"),
    ("charge", "header", "settle: header NAME"),
    ("connections", "body-size", "max-body-size"),
    ("connections", "drain", "drain-timeout"),
    ("connections", "header-size", "max-header-size"),
    ("connections", "most", "max"),
    ("connections", "per-client", "max-per-client"),
    ("cost", "else", "default"),
    ("cost", "most", "max"),
    ("cost", "of", "from"),
    ("health", "every", "interval"),
    ("health", "failures", "unhealthy-threshold"),
    ("health", "successes", "healthy-threshold"),
    ("metrics", "every", "interval"),
    ("policy", "introduce", "forwarded-headers"),
    ("policy", "on-outage", "failure-mode"),
    ("priority", "by", "key"),
    ("priority", "else", "default"),
    ("queue", "in-all", "max-total"),
    ("queue", "most", "max"),
    ("retries", "most", "max"),
    ("rule", "on-outage", "failure-mode"),
    ("tiers", "by", "key"),
    ("tiers", "each", "quotas"),
    ("tiers", "else", "default"),
    ("tls", "clients", "client-ca"),
];

/// The unknown keys of a map. A required key that was mistyped is not reported as missing, too.
#[derive(Default)]
struct UnknownKeys {
    has_any: bool,
    /// The known keys that they resemble.
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

    /// Like [`Self::report_error`], without showing the value.
    fn report_secret_error(&mut self, at: SourceSpan, problem: &str, fix: &str) {
        if self.reporting == ErrorReporting::Enabled {
            self.errors.push(SpannedError::new(at, problem, fix).hide_value());
        }
    }

    /// Whether there are too many errors, so that searching for suggestions is not worth the time.
    fn has_too_many_errors(&self) -> bool {
        self.errors.len() > 1_000
    }

    /// Reads the keys of a map.
    pub(crate) fn read_map<T>(&mut self, node: &SyntaxNode, table: &'static MapSchema<T>, into: &mut T) {
        if let Some(entries) = self.entries(node, table.name) {
            self.read_entries(entries.iter().map(|(name, node)| (name, node)), node.span, table, into);
        }
    }

    /// Reads entries, which may come from several maps.
    fn read_entries<'n, T>(
        &mut self,
        entries: impl Iterator<Item = (&'n SyntaxKey, &'n SyntaxNode)>,
        at: SourceSpan,
        table: &'static MapSchema<T>,
        into: &mut T,
    ) -> UnknownKeys {
        let mut found = Vec::new();
        let mut unknown = UnknownKeys::default();
        for (name, node) in entries {
            match table.key(&name.text) {
                Some(key) if key_hook::is_ignored(table.name, key.name) => {}
                Some(key) => (key.read)(self, node, into),
                None => {
                    unknown.has_any = true;
                    let known: Vec<_> = table.names().collect();
                    unknown.suggested.extend(self.report_unknown_key(name, table.name, &known));
                }
            }
            found.push(name.text.as_str());
        }
        self.report_missing_keys(table.required, &found, &unknown, at, table.name);
        unknown
    }

    fn report_missing_keys(
        &mut self,
        required: &[&'static str],
        found: &[&str],
        unknown: &UnknownKeys,
        at: SourceSpan,
        what: &str,
    ) {
        for name in required.iter().filter(|name| !found.contains(name) && !unknown.suggested.contains(name))
        {
            let location = self.describe_location(what);
            self.report_error(at, format!("missing key `{name}` in {location}"), format!("add `{name}`"));
        }
    }

    fn entries<'n>(&mut self, node: &'n SyntaxNode, what: &str) -> Option<&'n [(SyntaxKey, SyntaxNode)]> {
        match &node.value {
            SyntaxValue::Map(entries) => Some(entries),
            _ => {
                let location = self.describe_location(what);
                let problem = format!("{location} must be a map, not {}", node.kind_name());
                self.report_error(node.span, problem, "write it as `key: value` pairs");
                None
            }
        }
    }

    /// Returns the known key that resembles it most, if one does.
    fn report_unknown_key(
        &mut self,
        name: &SyntaxKey,
        what: &str,
        known: &[&'static str],
    ) -> Option<&'static str> {
        if self.has_too_many_errors() {
            self.report_error(name.span, "unknown key", "remove it");
            return None;
        }
        let written = name.text.replace('_', "-");
        let renamed =
            RENAMED_KEYS.iter().find(|(map, old, _)| *map == what && *old == written).map(|key| key.2);
        let suggested = renamed.or_else(|| suggest::closest(&name.text, known.iter().copied()));
        let fix = match suggested {
            Some(known) if renamed.is_some() => format!("it is now `{known}`"),
            Some(known) => format!("did you mean `{known}`?"),
            None => format!("use one of {}", known.join(", ")),
        };
        let location = self.describe_location(what);
        let shown = if name.text.contains('@') { "…".to_owned() } else { truncate(&name.text) };
        self.report_error(name.span, format!("unknown key `{shown}` in {location}"), fix);
        suggested
    }

    /// Describes a map by its name and scope: `` `match` of rule `login` ``.
    fn describe_location(&self, what: &str) -> String {
        match self.scope.last() {
            Some(scope) if scope.trim_start_matches("a ").starts_with(what) => scope.clone(),
            // A template has the keys of a rule.
            Some(scope) if what == "rule" => scope.clone(),
            Some(scope) => format!("`{what}` of {scope}"),
            None if what == "policy" => "the policy".to_owned(),
            None if matches!(what, "rule" | "route") => format!("a {what}"),
            None => format!("`{what}`"),
        }
    }

    /// Calls `read` with a scope that errors name.
    fn with_scope<T>(&mut self, scope: String, read: impl FnOnce(&mut Self) -> T) -> T {
        self.scope.push(scope);
        let read = read(self);
        self.scope.pop();
        read
    }
}
