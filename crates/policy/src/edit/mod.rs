//! Changes the mode of a rule in the text of a policy, and leaves every other byte unchanged.
//!
//! ```text
//!   name of a rule ──▶ its position in its file ──▶ one splice ──▶ parse again: the same policy except for that mode
//! ```
//!
//! This module writes no files; the caller writes the new content.

mod splice;

use crate::{
    model::{Policy, RuleEnforcement},
    problem::Problems,
    source::{FileSource, PolicyFormat, SpannedError, SyntaxNode, SyntaxValue},
};
use std::{
    cell::RefCell,
    collections::HashMap,
    io,
    path::{Path, PathBuf},
};
use tidegate_core::suggest;

/// A change of the mode of a rule: the file and the bytes to replace.
///
/// ```
/// use std::path::Path;
/// use tidegate_policy::edit::ModeEdit;
///
/// let files = |_: &Path| Ok(b"rules:\n  - name: login  # ask Ann\n    quota: 5/min\n".to_vec());
/// let edit = ModeEdit::prepare("policy.yaml", &files, "login", &"enforce 10%".parse()?)?;
/// assert_eq!(
///     String::from_utf8_lossy(&edit.new_content()),
///     "rules:\n  - name: login  # ask Ann\n    mode: enforce 10%\n    quota: 5/min\n",
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ModeEdit {
    /// The file that contains the rule: the policy file, or one that it includes.
    pub file: PathBuf,
    /// The current content of that file.
    pub old_content: Vec<u8>,
    /// The change; `None` if the rule already has that mode.
    pub splice: Option<Splice>,
    /// The current mode of the rule.
    pub old_mode: RuleEnforcement,
    /// The new mode of the rule.
    pub new_mode: RuleEnforcement,
    /// The current policy.
    pub policy: Policy,
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

/// The reason why a mode cannot be changed.
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
    /// The mode cannot be changed at this position without other changes.
    #[error("{0}")]
    Unsupported(Problems),
}

impl ModeEdit {
    /// Plans the change of the mode of a rule. The result is parsed again, and equals the policy except for the mode.
    pub fn prepare(
        path: impl AsRef<Path>,
        files: &dyn FileSource,
        rule: &str,
        new_mode: &RuleEnforcement,
    ) -> Result<Self, EditError> {
        let path = path.as_ref();
        let recorded = RecordingFiles { files, contents: RefCell::default() };
        let (policy, root, sources) =
            Policy::read_with_sources(path, &recorded).map_err(EditError::Policy)?;
        let Some((index, found)) = policy.rules.iter().enumerate().find(|(_, found)| found.name == rule)
        else {
            let names = policy.rules.iter().map(|rule| rule.name.as_str());
            let suggestion = suggest::closest(rule, names).map(str::to_owned);
            return Err(EditError::NoRule { name: rule.to_owned(), suggestion });
        };
        let unsupported = |at| {
            let problem = format!("cannot change the mode of rule `{rule}` here without other changes");
            let fault = SpannedError::new(at, problem, format!("write `mode: {new_mode}` manually"));
            EditError::Unsupported(Problems::from_errors(vec![fault], &sources))
        };
        let node = rule_nodes(&root).get(index).copied();
        let Some((node, source)) = node.and_then(|node| Some((node, sources.file(node.span)?))) else {
            return Err(unsupported(root.span));
        };
        let edit = Self {
            file: source.path.clone(),
            old_content: recorded.get(&source.path).unwrap_or_default(),
            splice: None,
            old_mode: found.enforcement.clone(),
            new_mode: new_mode.clone(),
            policy: policy.clone(),
        };
        if edit.old_mode == edit.new_mode {
            return Ok(edit);
        }
        let format = PolicyFormat::from_path(&source.path).unwrap_or(PolicyFormat::Yaml);
        // The parsed text has no byte order mark.
        let mark = edit.old_content.len().saturating_sub(source.text.len());
        let splices = splice::find_splices(&source.text, format, node, &new_mode.to_string()).into_iter();
        let mut edits =
            splices.map(|splice| edit.with_splice(Splice { offset: splice.offset + mark, ..splice }));
        edits
            .find(|edit| edit.changes_only_mode(path, &recorded, index))
            .ok_or_else(|| unsupported(node.span))
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

    /// Whether the new content equals the policy except for the mode of this rule.
    fn changes_only_mode(&self, path: &Path, recorded: &RecordingFiles<'_>, index: usize) -> bool {
        let files = |requested: &Path| match requested == self.file {
            true => Ok(self.new_content()),
            false => recorded.get(requested).ok_or_else(|| io::ErrorKind::NotFound.into()),
        };
        let mut expected = self.policy.clone();
        if let Some(rule) = expected.rules.get_mut(index) {
            rule.enforcement = self.new_mode.clone();
        }
        Policy::read(path, &files).is_ok_and(|policy| policy == expected)
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

/// The nodes of the rules of a tree, in order.
fn rule_nodes(root: &SyntaxNode) -> Vec<&SyntaxNode> {
    let SyntaxValue::Map(entries) = &root.value else { return Vec::new() };
    match entries.iter().find(|(name, _)| name.text == "rules").map(|(_, node)| node) {
        None => Vec::new(),
        Some(SyntaxNode { value: SyntaxValue::List(items), .. }) => items.iter().collect(),
        Some(only) => vec![only],
    }
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
