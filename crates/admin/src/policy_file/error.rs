//! What keeps a policy file from being changed.

use std::{
    io,
    path::{Path, PathBuf},
};
use tidegate_policy::edit::EditError;

/// What keeps a policy file from being changed; it is as it was then, unless this says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyFileError {
    /// The policy is wrong, has no such rule, or cannot say it there.
    #[error("{0}")]
    Edit(#[source] EditError),
    /// A file says something else than was read of it, or than the last change left.
    #[error(
        "{0} has changed since, by hand or by somebody else: look at it, and change it there, or try again"
    )]
    ConcurrentChange(PathBuf),
    /// The policy comes from no file.
    #[error(
        "this policy comes from no file, in which a change could be kept; serve one: `tidegate serve policy.yaml`"
    )]
    NoFile,
    /// A file is a link to another.
    #[error(
        "{0} is a link, and to replace it would cut it off; change what it leads to (in Kubernetes, the ConfigMap), or \
         serve a plain file"
    )]
    SymbolicLink(PathBuf),
    /// A file may not be written.
    #[error("{0} is read-only; allow writing (`chmod u+w`), or change it where it comes from")]
    ReadOnly(PathBuf),
    /// There is nothing to take back.
    #[error("there is no change to take back; `tidegate changes` tells what there was")]
    NothingToUndo,
    /// Another change than the one that was meant is the last: this one.
    #[error("the last change is number {0} now; look at the changes, and take that one back first")]
    NotLastChange(u64),
    /// A line of the history says nothing that is understood.
    #[error("{file}:{line}: this line of the history is not understood; mend it, or move the file away")]
    History {
        /// The history.
        file: PathBuf,
        /// The line, counted from one.
        line: usize,
    },
    /// The gateway did not take the policy, and the file is again as it was.
    #[error("the gateway refused it, and the file is as it was: {0}")]
    Rejected(String),
    /// The gateway did not take the policy, and the file says it all the same.
    #[error(
        "the gateway refused it, and the file was not put back ({source}); put it back by hand, it says what is not in force: \
         {refused}"
    )]
    RestoreFailed {
        /// Why it was not taken.
        refused: String,
        /// What kept the file from being put back.
        source: Box<Self>,
    },
    /// The disk did not do what it was asked.
    #[error("{file}: {problem}: {source}; see that the folder is there and may be written")]
    Io {
        /// What.
        problem: &'static str,
        /// Where.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The gateway that was asked has ended.
    #[error("the gateway has ended")]
    GatewayStopped,
}

impl PolicyFileError {
    pub(super) fn io(problem: &'static str, file: &Path, source: io::Error) -> Self {
        Self::Io { problem, file: file.to_owned(), source }
    }
}
