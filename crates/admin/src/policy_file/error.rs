//! The error of a failed change of a policy file.

use super::RuleChange;
use std::{
    io,
    path::{Path, PathBuf},
};
use tidegate_policy::edit::EditError;

/// A policy file cannot be changed. The file is unchanged, except for [`RestoreFailed`](Self::RestoreFailed).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyFileError {
    /// The policy is invalid, has no such rule or key, or cannot express the value.
    #[error("{0}")]
    Edit(#[source] EditError),
    /// The content of a file is not what was read, or not what the last change wrote.
    #[error("{0} was changed in the meantime; check it, then edit it manually or try again")]
    ConcurrentChange(PathBuf),
    /// The value is not the one that the caller expects.
    #[error(
        "`{key}` of rule `{rule}` is {}, not {}{}; check it, then set it again",
        format_value(.now), format_value(.expected), format_change(.last)
    )]
    Conflict {
        /// The rule.
        rule: String,
        /// The key.
        key: String,
        /// The current value; `None` for the default.
        now: Option<String>,
        /// The value that the caller expects.
        expected: Option<String>,
        /// The last recorded change of this value.
        last: Option<Box<RuleChange>>,
    },
    /// The policy was not read from a file.
    #[error("the policy has no file to write the change to; serve one: `tidegate serve policy.yaml`")]
    NoFile,
    /// A file is a symbolic link, which a rename would replace.
    #[error(
        "{0} is a symbolic link; change its target (in Kubernetes, the ConfigMap), or serve a regular file"
    )]
    SymbolicLink(PathBuf),
    /// A file is read-only.
    #[error("{0} is read-only; make it writable (`chmod u+w`), or change it at its source")]
    ReadOnly(PathBuf),
    /// No change can be reverted.
    #[error("no change to revert; `tidegate changes` lists the changes")]
    NothingToRevert,
    /// The last change has another id: this one.
    #[error("the last change is number {0}; revert that one first")]
    NotLastChange(u64),
    /// A line of the history is invalid.
    #[error("{file}:{line}: invalid line in the change history; fix it, or move the file away")]
    InvalidHistory {
        /// The history.
        file: PathBuf,
        /// The line, counted from one.
        line: usize,
    },
    /// The gateway rejected the policy, and the file is restored.
    #[error("the gateway rejected the change, and the file is restored: {0}")]
    Rejected(String),
    /// The gateway rejected the policy, and the file could not be restored.
    #[error(
        "the gateway rejected the change, and the file is not restored ({source}); restore it manually, its content is not \
         in force: {rejection}"
    )]
    RestoreFailed {
        /// The error of the gateway.
        rejection: String,
        /// The error of the restore.
        source: Box<Self>,
    },
    /// A file operation failed.
    #[error("{file}: {operation}: {source}; check that the directory exists and is writable")]
    Io {
        /// The operation that failed.
        operation: &'static str,
        /// The file.
        file: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The gateway has stopped.
    #[error("gateway stopped")]
    GatewayStopped,
}

impl PolicyFileError {
    pub(super) fn io(operation: &'static str, file: &Path, source: io::Error) -> Self {
        Self::Io { operation, file: file.to_owned(), source }
    }
}

fn format_value(value: &Option<String>) -> String {
    value.as_ref().map_or("the default".to_owned(), |value| format!("`{value}`"))
}

fn format_change(last: &Option<Box<RuleChange>>) -> String {
    let describe = |last: &RuleChange| format!(" (change {} of {}, by {})", last.id, last.time, last.author);
    last.as_deref().map(describe).unwrap_or_default()
}
