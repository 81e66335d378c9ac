//! Another mode for one rule, in the text of a policy, of which every other byte stays.
//!
//! ```text
//!   name of a rule ──▶ its place in its file ──▶ one splice ──▶ read again: the same policy but for that mode
//! ```
//!
//! Nothing is written here: whoever has an edit writes what it leaves.

mod place;

use crate::{
    model::{Enforcement, Policy},
    problem::Problems,
    source::{Fault, Files, Format, Node, Value},
};
use std::{
    cell::RefCell,
    collections::HashMap,
    io,
    path::{Path, PathBuf},
};
use tidegate_core::spelling;

/// Another mode for one rule: which bytes of which file say it.
///
/// ```
/// use std::path::Path;
/// use tidegate_policy::edit::ModeEdit;
///
/// let files = |_: &Path| Ok(b"rules:\n  - name: login  # ask Ann\n    quota: 5/min\n".to_vec());
/// let edit = ModeEdit::of("policy.yaml", &files, "login", &"enforce 10%".parse()?)?;
/// assert_eq!(
///     String::from_utf8_lossy(&edit.after()),
///     "rules:\n  - name: login  # ask Ann\n    mode: enforce 10%\n    quota: 5/min\n",
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ModeEdit {
    /// The file that holds the rule: the policy, or one that it includes.
    pub file: PathBuf,
    /// What that file says now.
    pub before: Vec<u8>,
    /// What is changed in it; nothing where the rule is in that mode already.
    pub splice: Option<Splice>,
    /// The mode of the rule now.
    pub from: Enforcement,
    /// The mode that it is to have.
    pub to: Enforcement,
    /// The policy as it is now.
    pub policy: Policy,
}

/// Some bytes of a file in the place of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Splice {
    /// Where, in bytes.
    pub at: usize,
    /// What was there.
    pub removed: String,
    /// What is there instead.
    pub put: String,
}

/// What keeps a mode from being changed in a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// The policy is wrong as it is.
    #[error("{0}")]
    Policy(Problems),
    /// There is no such rule.
    #[error("there is no rule `{name}`; {}", suggestion(.near))]
    NoRule {
        /// The name that was given.
        name: String,
        /// A name that is there and looks like it.
        near: Option<String>,
    },
    /// It cannot be said at this place without saying more.
    #[error("{0}")]
    Place(Problems),
}

impl ModeEdit {
    /// Has this rule of a policy say this mode. What comes of it was read again, and is the same policy but for that.
    pub fn of(
        path: impl AsRef<Path>,
        files: &dyn Files,
        rule: &str,
        to: &Enforcement,
    ) -> Result<Self, EditError> {
        let path = path.as_ref();
        let kept = Kept { files, read: RefCell::default() };
        let (policy, root, sources) = Policy::read_with_places(path, &kept).map_err(EditError::Policy)?;
        let Some((place, found)) = policy.rules.iter().enumerate().find(|(_, found)| found.name == rule)
        else {
            let names = policy.rules.iter().map(|rule| rule.name.as_str());
            let near = spelling::meant(rule, names).map(str::to_owned);
            return Err(EditError::NoRule { name: rule.to_owned(), near });
        };
        let cannot = |at| {
            let problem = format!("the mode of rule `{rule}` cannot be changed here without changing more");
            let fault = Fault::new(at, problem, format!("write `mode: {to}` there by hand"));
            EditError::Place(Problems::of(vec![fault], &sources))
        };
        let node = rules_of(&root).get(place).copied();
        let Some((node, source)) = node.and_then(|node| Some((node, sources.source(node.at)?))) else {
            return Err(cannot(root.at));
        };
        let edit = Self {
            file: source.path.clone(),
            before: kept.bytes(&source.path).unwrap_or_default(),
            splice: None,
            from: found.enforcement.clone(),
            to: to.clone(),
            policy: policy.clone(),
        };
        if edit.from == edit.to {
            return Ok(edit);
        }
        let format = Format::of_path(&source.path).unwrap_or(Format::Yaml);
        // A byte order mark is no part of the text.
        let mark = edit.before.len().saturating_sub(source.text.len());
        let splices = place::splices(&source.text, format, node, &to.to_string()).into_iter();
        let mut edits = splices.map(|splice| edit.with(Splice { at: splice.at + mark, ..splice }));
        edits.find(|edit| edit.holds(path, &kept, place)).ok_or_else(|| cannot(node.at))
    }

    /// What the file says with it.
    pub fn after(&self) -> Vec<u8> {
        match &self.splice {
            None => self.before.clone(),
            Some(splice) => splice.apply(&self.before).unwrap_or_else(|| self.before.clone()),
        }
    }

    fn with(&self, splice: Splice) -> Self {
        Self { splice: Some(splice), ..self.clone() }
    }

    /// Whether what comes of it is the policy as it was but for the mode of the rule at this place.
    fn holds(&self, path: &Path, kept: &Kept<'_>, place: usize) -> bool {
        let files = |asked: &Path| match asked == self.file {
            true => Ok(self.after()),
            false => kept.bytes(asked).ok_or_else(|| io::ErrorKind::NotFound.into()),
        };
        let mut expected = self.policy.clone();
        if let Some(rule) = expected.rules.get_mut(place) {
            rule.enforcement = self.to.clone();
        }
        Policy::read(path, &files).is_ok_and(|policy| policy == expected)
    }
}

impl Splice {
    /// These bytes with it; `None` where they are not those that it is for.
    pub fn apply(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let (before, rest) = bytes.split_at_checked(self.at)?;
        let behind = rest.strip_prefix(self.removed.as_bytes())?;
        Some([before, self.put.as_bytes(), behind].concat())
    }

    /// What takes it back.
    #[must_use]
    pub fn reversed(&self) -> Self {
        Self { at: self.at, removed: self.put.clone(), put: self.removed.clone() }
    }
}

/// The rules of a tree, in their order.
fn rules_of(root: &Node) -> Vec<&Node> {
    let Value::Map(entries) = &root.value else { return Vec::new() };
    match entries.iter().find(|(name, _)| name.text == "rules").map(|(_, node)| node) {
        None => Vec::new(),
        Some(Node { value: Value::List(items), .. }) => items.iter().collect(),
        Some(only) => vec![only],
    }
}

/// Keeps what was read, so that it is the same when it is read again.
struct Kept<'a> {
    files: &'a dyn Files,
    read: RefCell<HashMap<PathBuf, Vec<u8>>>,
}

impl Kept<'_> {
    fn bytes(&self, path: &Path) -> Option<Vec<u8>> {
        self.read.borrow().get(path).cloned()
    }
}

impl Files for Kept<'_> {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let bytes = self.files.read(path)?;
        self.read.borrow_mut().insert(path.to_owned(), bytes.clone());
        Ok(bytes)
    }
}

fn suggestion(near: &Option<String>) -> String {
    near.as_ref().map_or("name one of the policy's".to_owned(), |near| format!("did you mean `{near}`?"))
}
