//! Modes of rules, changed in the policy file while it is served, with a history beside it.
//!
//! ```text
//!   lock ──▶ read ──▶ edit ──▶ new files, synced ──▶ still what was read? ──▶ renamed: first the history, then the policy
//!  (folder)                    .policy.yaml.new                              policy.yaml.changes, policy.yaml
//! ```
//!
//! Whoever is killed in between leaves the old file or the new one, never a part of one. The history is written first, so that
//! no change is ever without its line; a line whose change was never made is told from the file itself.

mod error;
mod history;
mod write;

pub use error::AmendError;
pub use history::Change;
pub(crate) use history::mode_json;

use history::{Entry, History};
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
use write::Prepared;

/// The file of a policy, in which modes of rules are changed.
///
/// ```no_run
/// use tidegate_admin::{Amended, PolicyFile};
///
/// let file = PolicyFile::at("policy.yaml");
/// if let Amended::Changed(change) = file.set_mode("login", &"enforce 10%".parse()?)? {
///     println!("{change}");
/// }
/// file.roll_back(None)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct PolicyFile {
    path: PathBuf,
    by: String,
    clock: Clock,
    /// What it said when it was read last, if that matters.
    loaded: Option<Box<Policy>>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Amended {
    /// It was written.
    Changed(Change),
    /// The rule was in that mode already.
    Same,
}

/// What is done one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The new files are there, under other names.
    Prepared,
    /// The history tells of it.
    Noted,
}

impl PolicyFile {
    /// This one, changed from the command line.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), by: "command line".to_owned(), clock: Clock::system(), loaded: None }
    }

    /// Changed by somebody else, as the history is to tell.
    #[must_use]
    pub fn by(self, who: impl Into<String>) -> Self {
        Self { by: who.into(), ..self }
    }

    /// Only if it still says this.
    #[must_use]
    pub fn if_still(self, loaded: Policy) -> Self {
        Self { loaded: Some(Box::new(loaded)), ..self }
    }

    /// The mode of a rule, as the file says it; `None` if there is no such rule.
    pub fn mode_of(&self, rule: &str) -> Result<Option<RuleEnforcement>, AmendError> {
        let policy = Policy::read(&self.path, &DiskFiles)
            .map_err(|problems| AmendError::Edit(EditError::Policy(problems)))?;
        Ok(policy.rules.into_iter().find(|known| known.name == rule).map(|known| known.enforcement))
    }

    /// Has a rule be in this mode.
    pub fn set_mode(&self, rule: &str, to: &RuleEnforcement) -> Result<Amended, AmendError> {
        self.set_mode_by_steps(rule, to, |_| Ok(()))
    }

    fn set_mode_by_steps(
        &self,
        rule: &str,
        to: &RuleEnforcement,
        step: impl FnMut(Step) -> Result<(), AmendError>,
    ) -> Result<Amended, AmendError> {
        let _lock = self.lock()?;
        let edit = ModeEdit::plan(&self.path, &DiskFiles, rule, to).map_err(AmendError::Edit)?;
        self.compare(&edit.policy)?;
        let Some(splice) = &edit.splice else { return Ok(Amended::Same) };
        let history = History::read(&self.path)?;
        let entry = Entry {
            change: Change {
                id: history.next_id(),
                time: Utc::from(self.clock.now()).to_string(),
                by: self.by.clone(),
                rule: rule.to_owned(),
                from: edit.old_mode.clone(),
                to: edit.new_mode.clone(),
                file: self.near(&edit.file),
                undoes: None,
            },
            splice: splice.clone(),
            before: history::digest(&edit.old_content),
            after: history::digest(&edit.new_content()),
        };
        carry_out(history, entry, (&edit.file, &edit.old_content, &edit.new_content()), step)
            .map(Amended::Changed)
    }

    /// Takes the last change back that has not been taken back yet: this one, where it matters which.
    pub fn roll_back(&self, id: Option<u64>) -> Result<Change, AmendError> {
        self.roll_back_by_steps(id, |_| Ok(()))
    }

    fn roll_back_by_steps(
        &self,
        id: Option<u64>,
        step: impl FnMut(Step) -> Result<(), AmendError>,
    ) -> Result<Change, AmendError> {
        let _lock = self.lock()?;
        let history = History::read(&self.path)?;
        let last = self.last_of(&history)?;
        if id.is_some_and(|id| id != last.change.id) {
            return Err(AmendError::NotLast(last.change.id));
        }
        let file = self.folder().join(&last.change.file);
        let before = read(&file)?;
        let now = Policy::read(&self.path, &DiskFiles)
            .map_err(|problems| AmendError::Edit(EditError::Policy(problems)))?;
        self.compare(&now)?;
        let splice = last.splice.inverse();
        let after = splice.apply(&before).ok_or_else(|| AmendError::Changed(file.clone()))?;
        self.try_out(&file, &after)?;
        let entry = Entry {
            change: Change {
                id: history.next_id(),
                time: Utc::from(self.clock.now()).to_string(),
                by: self.by.clone(),
                from: last.change.to.clone(),
                to: last.change.from.clone(),
                undoes: Some(last.change.id),
                ..last.change.clone()
            },
            splice,
            before: history::digest(&before),
            after: history::digest(&after),
        };
        carry_out(history, entry, (&file, &before, &after), step)
    }

    /// Puts back what a change has done that the gateway did not take, and says what came of both.
    pub fn take_back(&self, change: &Change, refused: String) -> AmendError {
        let taken_back = match change.undoes {
            None => self.roll_back(Some(change.id)).map(drop),
            Some(_) => self.set_mode(&change.rule, &change.from).map(drop),
        };
        match taken_back {
            Ok(()) => AmendError::Refused(refused),
            Err(left) => AmendError::Left { refused, source: Box::new(left) },
        }
    }

    /// What was changed, newest first.
    pub fn changes(&self) -> Result<Vec<Change>, AmendError> {
        Ok(History::read(&self.path)?.newest_first())
    }

    /// The change that a rollback would take back now.
    pub fn last_change(&self) -> Result<Change, AmendError> {
        self.last_of(&History::read(&self.path)?).map(|entry| entry.change)
    }

    /// The last change that is in its file: not taken back, neither by a rollback nor by hand.
    fn last_of(&self, history: &History) -> Result<Entry, AmendError> {
        let digest = |entry: &Entry| {
            let file = self.folder().join(&entry.change.file);
            read(&file).map(|bytes| (history::digest(&bytes), file))
        };
        let is_unmade = |entry: &Entry| digest(entry).map(|(now, _)| now == entry.before);
        for entry in history.standing(is_unmade)? {
            let (now, file) = digest(entry)?;
            if now == entry.after {
                return Ok(entry.clone());
            }
            // As if it had never been made.
            if now != entry.before {
                return Err(AmendError::Changed(file));
            }
        }
        Err(AmendError::Nothing)
    }

    /// Whether it is still what is in force.
    fn compare(&self, now: &Policy) -> Result<(), AmendError> {
        match self.loaded.as_deref().is_some_and(|loaded| loaded != now) {
            true => Err(AmendError::Changed(self.path.clone())),
            false => Ok(()),
        }
    }

    /// Whether the policy is one with this in the place of a file.
    fn try_out(&self, file: &Path, after: &[u8]) -> Result<(), AmendError> {
        let file = absolute(file);
        let files = |asked: &Path| match absolute(asked) == file {
            true => Ok(after.to_vec()),
            false => DiskFiles.read(asked),
        };
        let tried = Policy::read(&self.path, &files);
        tried.map(drop).map_err(|problems| AmendError::Edit(EditError::Policy(problems)))
    }

    /// One writer at a time, in all processes: the folder is locked until this is dropped.
    fn lock(&self) -> Result<File, AmendError> {
        let folder = self.folder();
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let lock = || -> io::Result<File> {
            let file = File::open(folder)?;
            file.lock()?;
            Ok(file)
        };
        lock().map_err(|error| AmendError::of("the folder cannot be locked", folder, error))
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// A file by its name as seen from the policy, whoever asks from wherever.
    fn near(&self, file: &Path) -> PathBuf {
        let file = absolute(file);
        file.strip_prefix(absolute(self.folder())).map(Path::to_owned).unwrap_or(file)
    }
}

/// Writes a change down and makes it, if the file is still what it was.
fn carry_out(
    mut history: History,
    entry: Entry,
    (file, before, after): (&Path, &[u8], &[u8]),
    mut step: impl FnMut(Step) -> Result<(), AmendError>,
) -> Result<Change, AmendError> {
    let change = entry.change.clone();
    history.push(entry);
    let next = Prepared::write(file, after)?;
    let note = history.prepare().inspect_err(|_| next.abandon())?;
    step(Step::Prepared)?;
    if read(file)? != before {
        next.abandon();
        note.abandon();
        return Err(AmendError::Changed(file.to_owned()));
    }
    note.put_in_place()?;
    step(Step::Noted)?;
    next.put_in_place()?;
    Ok(change)
}

fn absolute(path: &Path) -> PathBuf {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn read(file: &Path) -> Result<Vec<u8>, AmendError> {
    DiskFiles.read(file).map_err(|error| AmendError::of("it cannot be read", file, error))
}

#[cfg(test)]
mod tests;
