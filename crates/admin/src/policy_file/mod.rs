//! Changes rule modes in the policy file while it is served, with a history beside it.
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
pub use history::ModeChange;
pub(crate) use history::mode_json;
pub use write::replace_file;

use history::{ChangeHistory, HistoryRecord};
use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};
use tidegate_core::Utc;
use tidegate_limiter::Clock;
use tidegate_policy::{
    DiskFiles, FileSource as _, Policy,
    edit::{EditError, ModeEdit},
    model::RuleEnforcement,
};
use write::PendingFile;

/// Changes the modes of rules in a policy file.
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

/// The result of a change.
#[derive(Clone, Debug, PartialEq)]
pub enum ChangeResult {
    /// The file was changed.
    Changed(ModeChange),
    /// The rule was in that mode already.
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
        let policy = Policy::read(&self.path, &DiskFiles)
            .map_err(|problems| PolicyFileError::Edit(EditError::Policy(problems)))?;
        Ok(policy.rules.into_iter().find(|known| known.name == rule).map(|known| known.enforcement))
    }

    /// Sets the mode of a rule.
    pub fn set_mode(&self, rule: &str, to: &RuleEnforcement) -> Result<ChangeResult, PolicyFileError> {
        self.set_mode_in_steps(rule, to, |_| Ok(()))
    }

    fn set_mode_in_steps(
        &self,
        rule: &str,
        to: &RuleEnforcement,
        step: impl FnMut(WriteStep) -> Result<(), PolicyFileError>,
    ) -> Result<ChangeResult, PolicyFileError> {
        let _lock = self.lock()?;
        let edit = ModeEdit::prepare(&self.path, &DiskFiles, rule, to).map_err(PolicyFileError::Edit)?;
        self.check_unchanged(&edit.policy)?;
        let Some(splice) = &edit.splice else { return Ok(ChangeResult::Unchanged) };
        let history = ChangeHistory::read(&self.path)?;
        let entry = HistoryRecord {
            change: ModeChange {
                id: history.next_id(),
                time: Utc::from(self.clock.now()).to_string(),
                author: self.author.clone(),
                rule: rule.to_owned(),
                from: edit.old_mode.clone(),
                to: edit.new_mode.clone(),
                file: self.relative_path(&edit.file),
                reverts: None,
            },
            splice: splice.clone(),
            digest_before: history::digest(&edit.old_content),
            digest_after: history::digest(&edit.new_content()),
        };
        apply_change(history, entry, (&edit.file, &edit.old_content, &edit.new_content()), step)
            .map(ChangeResult::Changed)
    }

    /// Reverts the last change that is not reverted yet; with an id, only if that change has this id.
    pub fn roll_back(&self, id: Option<u64>) -> Result<ModeChange, PolicyFileError> {
        self.roll_back_in_steps(id, |_| Ok(()))
    }

    fn roll_back_in_steps(
        &self,
        id: Option<u64>,
        step: impl FnMut(WriteStep) -> Result<(), PolicyFileError>,
    ) -> Result<ModeChange, PolicyFileError> {
        let _lock = self.lock()?;
        let history = ChangeHistory::read(&self.path)?;
        let last = self.find_last_change(&history)?;
        if id.is_some_and(|id| id != last.change.id) {
            return Err(PolicyFileError::NotLastChange(last.change.id));
        }
        let file = self.folder().join(&last.change.file);
        let before = read_file(&file)?;
        let now = Policy::read(&self.path, &DiskFiles)
            .map_err(|problems| PolicyFileError::Edit(EditError::Policy(problems)))?;
        self.check_unchanged(&now)?;
        let splice = last.splice.inverse();
        let after = splice.apply(&before).ok_or_else(|| PolicyFileError::ConcurrentChange(file.clone()))?;
        self.validate(&file, &after)?;
        let entry = HistoryRecord {
            change: ModeChange {
                id: history.next_id(),
                time: Utc::from(self.clock.now()).to_string(),
                author: self.author.clone(),
                from: last.change.to.clone(),
                to: last.change.from.clone(),
                reverts: Some(last.change.id),
                ..last.change.clone()
            },
            splice,
            digest_before: history::digest(&before),
            digest_after: history::digest(&after),
        };
        apply_change(history, entry, (&file, &before, &after), step)
    }

    /// Reverts a change that the gateway rejected, and returns the error to report.
    pub fn restore(&self, change: &ModeChange, rejection: String) -> PolicyFileError {
        let reverted = match change.reverts {
            None => self.roll_back(Some(change.id)).map(drop),
            Some(_) => self.set_mode(&change.rule, &change.from).map(drop),
        };
        match reverted {
            Ok(()) => PolicyFileError::Rejected(rejection),
            Err(error) => PolicyFileError::RestoreFailed { rejection, source: Box::new(error) },
        }
    }

    /// The recorded changes, newest first.
    pub fn changes(&self) -> Result<Vec<ModeChange>, PolicyFileError> {
        Ok(ChangeHistory::read(&self.path)?.newest_first())
    }

    /// The change that a rollback would revert.
    pub fn last_change(&self) -> Result<ModeChange, PolicyFileError> {
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
    entry: HistoryRecord,
    (file, before, after): (&Path, &[u8], &[u8]),
    mut step: impl FnMut(WriteStep) -> Result<(), PolicyFileError>,
) -> Result<ModeChange, PolicyFileError> {
    let change = entry.change.clone();
    history.push(entry);
    let next = PendingFile::write(file, after)?;
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

#[cfg(test)]
mod tests;
