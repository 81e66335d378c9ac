//! Changes values of rules in the policy file while it is served, with a history beside it.
//!
//! ```text
//!   lock ──▶ read ──▶ edit ──▶ new files, synced ──▶ unchanged since read? ──▶ rename: first the history, then the policy
//! (directory)                  .policy.yaml.new                               policy.yaml.changes, policy.yaml
//! ```
//!
//! A writer that is killed leaves the old file or the new one, never a part. The history is written first, so every change
//! has its line; a line without a change is recognized by the digest of the file.

mod error;
mod history;
mod write;

pub use error::PolicyFileError;
pub use history::RuleChange;
pub use write::replace_file;

use history::{ChangeHistory, HistoryRecord, MODE};
use serde_json::{Value, json};
use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};
use tidegate_core::Utc;
use tidegate_limiter::Clock;
use tidegate_policy::{
    DiskFiles, FileSource as _, Policy,
    edit::{EditError, RuleEdit, RuleValue, Splice},
    model::RuleEnforcement,
};
use write::PendingFile;

/// The values of a rule that can be set, in a response of the admin API.
pub fn settings_json(rule: &str, values: &[RuleValue]) -> Value {
    let settings = values.iter().map(|value| json!({ "key": value.key, "value": value.value }));
    json!({ "rule": rule, "settings": settings.collect::<Vec<_>>() })
}

/// Changes values of rules in a policy file.
///
/// ```no_run
/// use tidegate_admin::{ChangeResult, PolicyFile};
///
/// let file = PolicyFile::new("policy.yaml");
/// if let ChangeResult::Changed(change) = file.set_mode("login", &"enforce 10%".parse()?)? {
///     println!("{change}");
/// }
/// file.roll_back(None)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct PolicyFile {
    path: PathBuf,
    author: String,
    clock: Clock,
    /// The policy that the file must still contain, if set.
    loaded: Option<Box<Policy>>,
}

/// A new value of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSetting {
    /// The rule.
    pub rule: String,
    /// The key: `mode`, `quota`, or `tiers.quotas.gold`.
    pub key: String,
    /// The new value, as in a policy.
    pub value: String,
    /// The value that it replaces.
    pub from: ExpectedValue,
}

/// The value that a change replaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpectedValue {
    /// Any value.
    Any,
    /// Only this value, `None` for the default. Another one is an error, because another operator has changed it.
    Only(Option<String>),
}

/// The result of a change.
#[derive(Clone, Debug, PartialEq)]
pub enum ChangeResult {
    /// The file was changed.
    Changed(RuleChange),
    /// The rule had that value already.
    Unchanged,
}

/// The steps of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteStep {
    /// The temporary files are written.
    Prepared,
    /// The history is replaced.
    HistoryWritten,
}

impl PolicyFile {
    /// A policy file that is changed from the command line.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), author: "command line".to_owned(), clock: Clock::system(), loaded: None }
    }

    /// Sets the author in the history.
    #[must_use]
    pub fn with_author(self, author: impl Into<String>) -> Self {
        Self { author: author.into(), ..self }
    }

    /// Changes the file only if it still contains this policy.
    #[must_use]
    pub fn if_unchanged(self, loaded: Policy) -> Self {
        Self { loaded: Some(Box::new(loaded)), ..self }
    }

    /// The mode of a rule in the file; `None` if the rule does not exist.
    pub fn mode_of(&self, rule: &str) -> Result<Option<RuleEnforcement>, PolicyFileError> {
        let policy = self.read_policy()?;
        Ok(policy.rules.into_iter().find(|known| known.name == rule).map(|known| known.enforcement))
    }

    /// The values of a rule that [`set`](Self::set) can change.
    pub fn values_of(&self, rule: &str) -> Result<Vec<RuleValue>, PolicyFileError> {
        RuleValue::read_all(&self.path, &DiskFiles, rule).map_err(PolicyFileError::Edit)
    }

    /// Sets the mode of a rule.
    pub fn set_mode(&self, rule: &str, to: &RuleEnforcement) -> Result<ChangeResult, PolicyFileError> {
        self.set(&RuleSetting::mode(rule, to))
    }

    /// Sets a value of a rule.
    pub fn set(&self, setting: &RuleSetting) -> Result<ChangeResult, PolicyFileError> {
        self.set_in_steps(setting, |_| Ok(()))
    }

    fn set_in_steps(
        &self,
        setting: &RuleSetting,
        step: impl FnMut(WriteStep) -> Result<(), PolicyFileError>,
    ) -> Result<ChangeResult, PolicyFileError> {
        let _lock = self.lock()?;
        let RuleSetting { rule, key, value, from } = setting;
        let edit =
            RuleEdit::prepare(&self.path, &DiskFiles, rule, key, value).map_err(PolicyFileError::Edit)?;
        let history = ChangeHistory::read(&self.path)?;
        if let ExpectedValue::Only(expected) = from
            && *expected != edit.old_value
        {
            return Err(PolicyFileError::Conflict {
                rule: rule.clone(),
                key: key.clone(),
                now: edit.old_value,
                expected: expected.clone(),
                last: history.last_change_of(rule, key).cloned().map(Box::new),
            });
        }
        self.check_unchanged(&edit.policy)?;
        let Some(splice) = &edit.splice else { return Ok(ChangeResult::Unchanged) };
        let change = RuleChange {
            rule: rule.clone(),
            key: key.clone(),
            from: edit.old_value.clone(),
            to: Some(value.clone()),
            file: self.relative_path(&edit.file),
            ..self.new_change(&history)
        };
        let contents = (edit.file.as_path(), edit.old_content.as_slice(), edit.new_content());
        apply_change(history, (change, splice.clone()), contents, step).map(ChangeResult::Changed)
    }

    /// Reverts the last change that is not reverted yet; with an id, only if that change has this id.
    pub fn roll_back(&self, id: Option<u64>) -> Result<RuleChange, PolicyFileError> {
        self.roll_back_in_steps(id, |_| Ok(()))
    }

    fn roll_back_in_steps(
        &self,
        id: Option<u64>,
        step: impl FnMut(WriteStep) -> Result<(), PolicyFileError>,
    ) -> Result<RuleChange, PolicyFileError> {
        let _lock = self.lock()?;
        let history = ChangeHistory::read(&self.path)?;
        let last = self.find_last_change(&history)?;
        if id.is_some_and(|id| id != last.change.id) {
            return Err(PolicyFileError::NotLastChange(last.change.id));
        }
        self.invert(history, &last, Some(last.change.id), step)
    }

    /// Reverts a change that the gateway rejected, and returns the error to report.
    pub fn restore(&self, change: &RuleChange, rejection: String) -> PolicyFileError {
        let reverted = match change.reverts {
            None => self.roll_back(Some(change.id)),
            Some(_) => self.repeat(change.id),
        };
        match reverted {
            Ok(_) => PolicyFileError::Rejected(rejection),
            Err(error) => PolicyFileError::RestoreFailed { rejection, source: Box::new(error) },
        }
    }

    /// Makes the change again that a rejected rollback reverted.
    fn repeat(&self, rollback: u64) -> Result<RuleChange, PolicyFileError> {
        let _lock = self.lock()?;
        let history = ChangeHistory::read(&self.path)?;
        let record = history.last().filter(|last| last.change.id == rollback).cloned();
        let record = record.ok_or_else(|| PolicyFileError::ConcurrentChange(self.path.clone()))?;
        self.invert(history, &record, None, |_| Ok(()))
    }

    /// Applies the inverse of a change, if the policy is valid with it.
    fn invert(
        &self,
        history: ChangeHistory,
        record: &HistoryRecord,
        reverts: Option<u64>,
        step: impl FnMut(WriteStep) -> Result<(), PolicyFileError>,
    ) -> Result<RuleChange, PolicyFileError> {
        let file = self.folder().join(&record.change.file);
        let before = read_file(&file)?;
        self.check_unchanged(&self.read_policy()?)?;
        let splice = record.splice.inverse();
        let is_as_left = history::digest(&before) == record.digest_after;
        let after = splice.apply(&before).filter(|_| is_as_left);
        let after = after.ok_or_else(|| PolicyFileError::ConcurrentChange(file.clone()))?;
        self.validate(&file, &after)?;
        let change = RuleChange {
            rule: record.change.rule.clone(),
            key: record.change.key.clone(),
            from: record.change.to.clone(),
            to: record.change.from.clone(),
            file: record.change.file.clone(),
            reverts,
            ..self.new_change(&history)
        };
        apply_change(history, (change, splice), (&file, &before, after), step)
    }

    /// The next change, with its number, time and author.
    fn new_change(&self, history: &ChangeHistory) -> RuleChange {
        RuleChange {
            id: history.next_id(),
            time: Utc::from(self.clock.now()).to_string(),
            author: self.author.clone(),
            rule: String::new(),
            key: String::new(),
            from: None,
            to: None,
            file: PathBuf::new(),
            reverts: None,
        }
    }

    fn read_policy(&self) -> Result<Policy, PolicyFileError> {
        Policy::read(&self.path, &DiskFiles)
            .map_err(|problems| PolicyFileError::Edit(EditError::Policy(problems)))
    }

    /// The recorded changes, newest first.
    pub fn changes(&self) -> Result<Vec<RuleChange>, PolicyFileError> {
        Ok(ChangeHistory::read(&self.path)?.newest_first())
    }

    /// The change that a rollback would revert.
    pub fn last_change(&self) -> Result<RuleChange, PolicyFileError> {
        self.find_last_change(&ChangeHistory::read(&self.path)?).map(|entry| entry.change)
    }

    /// The last change that is in its file: reverted neither by a rollback nor manually.
    fn find_last_change(&self, history: &ChangeHistory) -> Result<HistoryRecord, PolicyFileError> {
        let digest = |entry: &HistoryRecord| {
            let file = self.folder().join(&entry.change.file);
            read_file(&file).map(|bytes| (history::digest(&bytes), file))
        };
        let is_unmade = |entry: &HistoryRecord| digest(entry).map(|(now, _)| now == entry.digest_before);
        for entry in history.active_changes(is_unmade)? {
            let (now, file) = digest(entry)?;
            if now == entry.digest_after {
                return Ok(entry.clone());
            }
            // A file with the old digest was reverted manually; any other content is a concurrent change.
            if now != entry.digest_before {
                return Err(PolicyFileError::ConcurrentChange(file));
            }
        }
        Err(PolicyFileError::NothingToRevert)
    }

    /// Returns an error if the file does not contain the policy in force.
    fn check_unchanged(&self, now: &Policy) -> Result<(), PolicyFileError> {
        match self.loaded.as_deref().is_some_and(|loaded| loaded != now) {
            true => Err(PolicyFileError::ConcurrentChange(self.path.clone())),
            false => Ok(()),
        }
    }

    /// Checks that the policy is valid with this content of a file.
    fn validate(&self, file: &Path, after: &[u8]) -> Result<(), PolicyFileError> {
        let file = absolute(file);
        let files = |path: &Path| match absolute(path) == file {
            true => Ok(after.to_vec()),
            false => DiskFiles.read(path),
        };
        let tried = Policy::read(&self.path, &files);
        tried.map(drop).map_err(|problems| PolicyFileError::Edit(EditError::Policy(problems)))
    }

    /// Locks the directory against other writers, in all processes, until the result is dropped.
    fn lock(&self) -> Result<File, PolicyFileError> {
        let folder = self.folder();
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let lock = || -> io::Result<File> {
            let file = File::open(folder)?;
            file.lock()?;
            Ok(file)
        };
        lock().map_err(|error| PolicyFileError::io("cannot lock the directory", folder, error))
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// The path of a file relative to the policy, independent of the working directory.
    fn relative_path(&self, file: &Path) -> PathBuf {
        let file = absolute(file);
        file.strip_prefix(absolute(self.folder())).map(Path::to_owned).unwrap_or(file)
    }
}

/// Records a change and applies it, if the file is unchanged.
fn apply_change(
    mut history: ChangeHistory,
    (change, splice): (RuleChange, Splice),
    (file, before, after): (&Path, &[u8], Vec<u8>),
    mut step: impl FnMut(WriteStep) -> Result<(), PolicyFileError>,
) -> Result<RuleChange, PolicyFileError> {
    history.push(HistoryRecord {
        change: change.clone(),
        splice,
        digest_before: history::digest(before),
        digest_after: history::digest(&after),
    });
    let next = PendingFile::write(file, &after)?;
    let note = history.prepare().inspect_err(|_| next.discard())?;
    step(WriteStep::Prepared)?;
    if read_file(file)? != before {
        next.discard();
        note.discard();
        return Err(PolicyFileError::ConcurrentChange(file.to_owned()));
    }
    note.commit()?;
    step(WriteStep::HistoryWritten)?;
    next.commit()?;
    Ok(change)
}

fn absolute(path: &Path) -> PathBuf {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn read_file(file: &Path) -> Result<Vec<u8>, PolicyFileError> {
    DiskFiles.read(file).map_err(|error| PolicyFileError::io("cannot read the file", file, error))
}

impl RuleSetting {
    /// A new mode.
    pub fn mode(rule: impl Into<String>, to: &RuleEnforcement) -> Self {
        Self { rule: rule.into(), key: MODE.to_owned(), value: to.to_string(), from: ExpectedValue::Any }
    }
}

#[cfg(test)]
mod tests;
