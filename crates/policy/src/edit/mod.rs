//! Another mode for one rule, in the text of a policy, of which every other byte stays.
//!
//! ```text
//!   name of a rule ──▶ its place in its file ──▶ one splice ──▶ read again: the same policy but for that mode
//! ```
//!
//! Nothing is written here: whoever has an edit writes what it leaves.

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

/// Another mode for one rule: which bytes of which file say it.
///
/// ```
/// use std::path::Path;
/// use tidegate_policy::edit::ModeEdit;
///
/// let files = |_: &Path| Ok(b"rules:\n  - name: login  # ask Ann\n    quota: 5/min\n".to_vec());
/// let edit = ModeEdit::plan("policy.yaml", &files, "login", &"enforce 10%".parse()?)?;
/// assert_eq!(
///     String::from_utf8_lossy(&edit.new_content()),
///     "rules:\n  - name: login  # ask Ann\n    mode: enforce 10%\n    quota: 5/min\n",
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ModeEdit {
    /// The file that holds the rule: the policy, or one that it includes.
    pub file: PathBuf,
    /// What that file says now.
    pub old_content: Vec<u8>,
    /// What is changed in it; nothing where the rule is in that mode already.
    pub splice: Option<Splice>,
    /// The mode of the rule now.
    pub old_mode: RuleEnforcement,
    /// The mode that it is to have.
    pub new_mode: RuleEnforcement,
    /// The policy as it is now.
    pub policy: Policy,
}

/// Some bytes of a file in the place of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Splice {
    /// Where, in bytes.
    pub offset: usize,
    /// What was there.
    pub removed: String,
    /// What is there instead.
    pub inserted: String,
}

/// What keeps a mode from being changed in a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// The policy is wrong as it is.
    #[error("{0}")]
    Policy(Problems),
    /// There is no such rule.
    #[error("there is no rule `{name}`; {}", format_suggestion(.suggestion))]
    NoRule {
        /// The name that was given.
        name: String,
        /// A name that is there and looks like it.
        suggestion: Option<String>,
    },
    /// It cannot be said at this place without saying more.
    #[error("{0}")]
    Unsupported(Problems),
}

impl ModeEdit {
    /// Has this rule of a policy say this mode. What comes of it was read again, and is the same policy but for that.
    pub fn plan(
        path: impl AsRef<Path>,
        files: &dyn FileSource,
        rule: &str,
        to: &RuleEnforcement,
    ) -> Result<Self, EditError> {
        let path = path.as_ref();
        let recorded = RecordingFiles { files, contents: RefCell::default() };
        let (policy, root, sources) =
            Policy::read_with_sources(path, &recorded).map_err(EditError::Policy)?;
        let Some((place, found)) = policy.rules.iter().enumerate().find(|(_, found)| found.name == rule)
        else {
            let names = policy.rules.iter().map(|rule| rule.name.as_str());
            let near = suggest::closest(rule, names).map(str::to_owned);
            return Err(EditError::NoRule { name: rule.to_owned(), suggestion: near });
        };
        let cannot = |at| {
            let problem = format!("the mode of rule `{rule}` cannot be changed here without changing more");
            let fault = SpannedError::new(at, problem, format!("write `mode: {to}` there by hand"));
            EditError::Unsupported(Problems::from_errors(vec![fault], &sources))
        };
        let node = rule_nodes(&root).get(place).copied();
        let Some((node, source)) = node.and_then(|node| Some((node, sources.file(node.span)?))) else {
            return Err(cannot(root.span));
        };
        let edit = Self {
            file: source.path.clone(),
            old_content: recorded.get(&source.path).unwrap_or_default(),
            splice: None,
            old_mode: found.enforcement.clone(),
            new_mode: to.clone(),
            policy: policy.clone(),
        };
        if edit.old_mode == edit.new_mode {
            return Ok(edit);
        }
        let format = PolicyFormat::from_path(&source.path).unwrap_or(PolicyFormat::Yaml);
        // A byte order mark is no part of the text.
        let mark = edit.old_content.len().saturating_sub(source.text.len());
        let splices = splice::find_splices(&source.text, format, node, &to.to_string()).into_iter();
        let mut edits =
            splices.map(|splice| edit.with_splice(Splice { offset: splice.offset + mark, ..splice }));
        edits.find(|edit| edit.changes_only_mode(path, &recorded, place)).ok_or_else(|| cannot(node.span))
    }

    /// What the file says with it.
    pub fn new_content(&self) -> Vec<u8> {
        match &self.splice {
            None => self.old_content.clone(),
            Some(splice) => splice.apply(&self.old_content).unwrap_or_else(|| self.old_content.clone()),
        }
    }

    fn with_splice(&self, splice: Splice) -> Self {
        Self { splice: Some(splice), ..self.clone() }
    }

    /// Whether what comes of it is the policy as it was but for the mode of the rule at this place.
    fn changes_only_mode(&self, path: &Path, recorded: &RecordingFiles<'_>, place: usize) -> bool {
        let files = |requested: &Path| match requested == self.file {
            true => Ok(self.new_content()),
            false => recorded.get(requested).ok_or_else(|| io::ErrorKind::NotFound.into()),
        };
        let mut expected = self.policy.clone();
        if let Some(rule) = expected.rules.get_mut(place) {
            rule.enforcement = self.new_mode.clone();
        }
        Policy::read(path, &files).is_ok_and(|policy| policy == expected)
    }
}

impl Splice {
    /// These bytes with it; `None` where they are not those that it is for.
    pub fn apply(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let (before, rest) = bytes.split_at_checked(self.offset)?;
        let behind = rest.strip_prefix(self.removed.as_bytes())?;
        Some([before, self.inserted.as_bytes(), behind].concat())
    }

    /// What takes it back.
    #[must_use]
    pub fn inverse(&self) -> Self {
        Self { offset: self.offset, removed: self.inserted.clone(), inserted: self.removed.clone() }
    }
}

/// The rules of a tree, in their order.
fn rule_nodes(root: &SyntaxNode) -> Vec<&SyntaxNode> {
    let SyntaxValue::Map(entries) = &root.value else { return Vec::new() };
    match entries.iter().find(|(name, _)| name.text == "rules").map(|(_, node)| node) {
        None => Vec::new(),
        Some(SyntaxNode { value: SyntaxValue::List(items), .. }) => items.iter().collect(),
        Some(only) => vec![only],
    }
}

/// Keeps what was read, so that it is the same when it is read again.
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
    suggested.as_ref().map_or("name one of the policy's".to_owned(), |near| format!("did you mean `{near}`?"))
}
