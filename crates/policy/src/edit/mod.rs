//! Changes one value of a rule in the text of a policy, and leaves every other byte unchanged.
//!
//! ```text
//!   name of a rule ──▶ its position in its file ──▶ one splice ──▶ parse again: the same tree except for that value
//! ```
//!
//! This module writes no files; the caller writes the new content.

mod splice;
mod value;

use crate::{
    model::Policy,
    problem::Problems,
    source::{FileSource, PolicyFormat, Sources, SpannedError, SyntaxNode, SyntaxValue, truncate},
};
use std::{
    cell::RefCell,
    collections::HashMap,
    io,
    path::{Path, PathBuf},
};
use tidegate_core::suggest;
use value::{
    check_key, find_node, find_value, first_key, list_values, replaced_key, scalar, template_of,
    without_value,
};

/// The keys of a rule that an edit can change, and what is below them: the mode, and what has numbers.
const EDITABLE_KEYS: [&str; 19] = [
    "mode",
    "quota",
    "quotas",
    "tiers",
    "cost",
    "settle",
    "bandwidth",
    "adaptive",
    "breaker",
    "ban",
    "wait",
    "queue",
    "capacity",
    "prefetch",
    "priority",
    "schedule",
    "scale",
    "shed",
    "while-failing",
];

/// A change of one value of a rule: the file and the bytes to replace.
///
/// ```
/// use std::path::Path;
/// use tidegate_policy::edit::RuleEdit;
///
/// let files = |_: &Path| Ok(b"rules:\n  - name: login  # ask Ann\n    quota: 5/min\n".to_vec());
/// let edit = RuleEdit::prepare("policy.yaml", &files, "login", "quota", "8/min")?;
/// assert_eq!(edit.old_value.as_deref(), Some("5/min"));
/// assert_eq!(
///     String::from_utf8_lossy(&edit.new_content()),
///     "rules:\n  - name: login  # ask Ann\n    quota: 8/min\n",
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RuleEdit {
    /// The file that contains the rule: the policy file, or one that it includes.
    pub file: PathBuf,
    /// The current content of that file.
    pub old_content: Vec<u8>,
    /// The change; `None` if the policy would be the same.
    pub splice: Option<Splice>,
    /// The current value: that of the rule, or else that of its template; `None` if the default applies.
    pub old_value: Option<String>,
    /// The current policy.
    pub policy: Policy,
    /// The policy with the change.
    pub new_policy: Policy,
}

/// A value of a rule that an edit can change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleValue {
    /// The key: `quota`, or `tiers.quotas.gold`.
    pub key: String,
    /// The value, as in the file.
    pub value: String,
}

/// A replacement of bytes in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Splice {
    /// The offset, in bytes.
    pub offset: usize,
    /// The bytes to remove.
    pub removed: String,
    /// The bytes to insert.
    pub inserted: String,
}

/// The reason why a value cannot be changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// The current policy has problems.
    #[error("{0}")]
    Policy(Problems),
    /// The policy does not contain the rule.
    #[error("unknown rule `{name}`; {}", format_suggestion(.suggestion))]
    NoRule {
        /// The requested name.
        name: String,
        /// A similar name that exists.
        suggestion: Option<String>,
    },
    /// The key is not one that an edit can change, or the rule does not have it.
    #[error("{0}")]
    Key(String),
    /// The policy would be invalid with this value.
    #[error("{0}")]
    Value(Problems),
    /// The value cannot be changed at this position without other changes.
    #[error("{0}")]
    Unsupported(Problems),
}

/// The file of a rule, and what it contains.
struct RuleSource<'a> {
    root: &'a SyntaxNode,
    /// The node of the rule.
    node: &'a SyntaxNode,
    index: usize,
    format: PolicyFormat,
    /// The text of the file, without a byte order mark.
    text: &'a str,
    file: &'a Path,
}

impl RuleEdit {
    /// Plans the change of a value. The result is parsed again, and its tree equals the current one except for that value.
    pub fn prepare(
        path: impl AsRef<Path>,
        files: &dyn FileSource,
        rule: &str,
        key: &str,
        value: &str,
    ) -> Result<Self, EditError> {
        let path = path.as_ref();
        let recorded = RecordingFiles { files, contents: RefCell::default() };
        let (policy, root, sources) =
            Policy::read_with_sources(path, &recorded).map_err(EditError::Policy)?;
        check_key(key)?;
        let source = RuleSource::find(&policy, &root, &sources, rule)?;
        let unsupported = || {
            let shown = truncate(key);
            let problem = format!("cannot change `{shown}` of rule `{rule}` here without other changes");
            let fix = format!("write `{shown}: {}` manually", truncate(value));
            let fault = SpannedError::new(source.node.span, problem, fix);
            EditError::Unsupported(Problems::from_errors(vec![fault], &sources))
        };
        if value.chars().any(char::is_control) {
            return Err(EditError::Key(format!("`{}` has a control character; remove it", truncate(key))));
        }
        let mode = || {
            (key == "mode").then(|| policy.rules.get(source.index).map(|rule| rule.enforcement.to_string()))
        };
        let old_value = source.value_of(key).or_else(|| mode().flatten());
        let old_content = recorded.get(source.file).unwrap_or_default();
        let edit = Self {
            file: source.file.to_owned(),
            old_content,
            splice: None,
            old_value,
            policy: policy.clone(),
            new_policy: Policy::default(),
        };
        let splices = splice::find_splices(source.text, source.format, source.node, key, value);
        if splices.is_empty() && first_key(key) != key {
            return Err(source.unknown_key(rule, key));
        }
        let template = template_of(source.root, source.node, key);
        if let Some(replaced) = template.and_then(|template| replaced_key(template, key)) {
            let problem = format!("`{key}` of rule `{rule}` would replace `{replaced}` of its template");
            return Err(EditError::Key(format!("{problem}, with all values in it; change it in the file")));
        }
        // The parsed text has no byte order mark.
        let mark = edit.old_content.len().saturating_sub(source.text.len());
        let expected = without_value(&root, source.index, key);
        let mut problems = None;
        for splice in splices {
            let edit = edit.with_splice(Splice { offset: splice.offset + mark, ..splice });
            let files = |requested: &Path| match requested == edit.file {
                true => Ok(edit.new_content()),
                false => recorded.get(requested).ok_or_else(|| io::ErrorKind::NotFound.into()),
            };
            // A value that is no text in this notation may break the syntax; another notation follows.
            let Ok((tree, sources)) = Policy::read_tree(path, &files) else { continue };
            let is_only_change = without_value(&tree, source.index, key) == expected;
            let new_node = rule_node(&tree, source.index);
            let is_set = new_node.and_then(|node| find_value(node, key)).is_some_and(|new| new == value);
            if !is_only_change || !is_set {
                continue;
            }
            match Policy::from_root(&tree, &sources) {
                Ok(new_policy) if new_policy == policy => {
                    return Ok(Self { splice: None, new_policy, ..edit });
                }
                Ok(new_policy) => return Ok(Self { new_policy, ..edit }),
                Err(found) => problems = problems.or(Some(found)),
            }
        }
        Err(problems.map_or_else(unsupported, EditError::Value))
    }

    /// The content of the file with the change.
    pub fn new_content(&self) -> Vec<u8> {
        match &self.splice {
            None => self.old_content.clone(),
            Some(splice) => splice.apply(&self.old_content).unwrap_or_else(|| self.old_content.clone()),
        }
    }

    fn with_splice(&self, splice: Splice) -> Self {
        Self { splice: Some(splice), ..self.clone() }
    }
}

impl RuleValue {
    /// The values of a rule that an edit can change, except for the mode: its own, and those of its template that are not in a
    /// list or a map.
    pub fn read_all(
        path: impl AsRef<Path>,
        files: &dyn FileSource,
        rule: &str,
    ) -> Result<Vec<Self>, EditError> {
        let (policy, root, sources) =
            Policy::read_with_sources(path.as_ref(), files).map_err(EditError::Policy)?;
        Ok(RuleSource::find(&policy, &root, &sources, rule)?.values())
    }
}

impl<'a> RuleSource<'a> {
    fn find(
        policy: &Policy,
        root: &'a SyntaxNode,
        sources: &'a Sources,
        rule: &str,
    ) -> Result<Self, EditError> {
        let no_rule = || {
            let names = policy.rules.iter().map(|rule| rule.name.as_str());
            let suggestion = suggest::closest(rule, names).map(str::to_owned);
            EditError::NoRule { name: truncate(rule), suggestion }
        };
        let index = policy.rules.iter().position(|found| found.name == rule).ok_or_else(no_rule)?;
        let node = rule_node(root, index).ok_or_else(no_rule)?;
        let source = sources.file(node.span).ok_or_else(no_rule)?;
        let format = PolicyFormat::from_path(&source.path).unwrap_or(PolicyFormat::Yaml);
        Ok(Self { root, node, index, format, text: &source.text, file: &source.path })
    }

    /// The value of the rule, or else of its template.
    fn value_of(&self, key: &str) -> Option<String> {
        let of_template = || find_value(template_of(self.root, self.node, first_key(key))?, key);
        find_value(self.node, key).or_else(of_template).map(str::to_owned)
    }

    fn values(&self) -> Vec<RuleValue> {
        let mut values = Vec::new();
        // The mode is no number, and has a command of its own.
        for key in EDITABLE_KEYS.into_iter().filter(|key| *key != "mode") {
            // A nested value of a template cannot be set for one rule.
            let of_template = || {
                let template = template_of(self.root, self.node, key)?;
                find_node(template, key).filter(|node| scalar(node).is_some())
            };
            if let Some(node) = find_node(self.node, key).or_else(of_template) {
                list_values(node, key.to_owned(), &mut values);
            }
        }
        values
    }

    fn unknown_key(&self, rule: &str, key: &str) -> EditError {
        let shown = truncate(key);
        if self.value_of(key).is_some() {
            let problem = format!("`{shown}` of rule `{rule}` is in its template, which other rules may use");
            return EditError::Key(format!("{problem}; change it in the file"));
        }
        let values = self.values();
        let names: Vec<&str> = values.iter().map(|value| value.key.as_str()).collect();
        let fix = match (suggest::closest(key, names.iter().copied()), names.is_empty()) {
            (Some(near), _) => format!("did you mean `{near}`?"),
            (None, true) => "add it to the file".to_owned(),
            (None, false) => format!("it has {}; add others to the file", names.join(", ")),
        };
        EditError::Key(format!("rule `{rule}` has no `{shown}`; {fix}"))
    }
}

impl Splice {
    /// Applies the replacement; `None` if the bytes do not contain `removed` at the offset.
    pub fn apply(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let (before, rest) = bytes.split_at_checked(self.offset)?;
        let behind = rest.strip_prefix(self.removed.as_bytes())?;
        Some([before, self.inserted.as_bytes(), behind].concat())
    }

    /// The replacement that reverts this one.
    #[must_use]
    pub fn inverse(&self) -> Self {
        Self { offset: self.offset, removed: self.inserted.clone(), inserted: self.removed.clone() }
    }
}

/// The node of a rule in a tree, by its index.
fn rule_node(root: &SyntaxNode, index: usize) -> Option<&SyntaxNode> {
    let SyntaxValue::Map(entries) = &root.value else { return None };
    let (_, rules) = entries.iter().find(|(name, _)| name.text == "rules")?;
    match &rules.value {
        SyntaxValue::List(items) => items.get(index),
        _ => Some(rules).filter(|_| index == 0),
    }
}

fn rule_node_mut(root: &mut SyntaxNode, index: usize) -> Option<&mut SyntaxNode> {
    let SyntaxValue::Map(entries) = &mut root.value else { return None };
    let (_, rules) = entries.iter_mut().find(|(name, _)| name.text == "rules")?;
    if !matches!(rules.value, SyntaxValue::List(_)) {
        return Some(rules).filter(|_| index == 0);
    }
    let SyntaxValue::List(items) = &mut rules.value else { return None };
    items.get_mut(index)
}

/// Records the content of each file, so that a second read returns the same.
struct RecordingFiles<'a> {
    files: &'a dyn FileSource,
    contents: RefCell<HashMap<PathBuf, Vec<u8>>>,
}

impl RecordingFiles<'_> {
    fn get(&self, path: &Path) -> Option<Vec<u8>> {
        self.contents.borrow().get(path).cloned()
    }
}

impl FileSource for RecordingFiles<'_> {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let bytes = self.files.read(path)?;
        self.contents.borrow_mut().insert(path.to_owned(), bytes.clone());
        Ok(bytes)
    }
}

fn format_suggestion(suggested: &Option<String>) -> String {
    suggested
        .as_ref()
        .map_or("use the name of a rule in the policy".to_owned(), |near| format!("did you mean `{near}`?"))
}
