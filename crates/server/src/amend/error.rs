//! What keeps a policy file from being changed.

use std::{
    error::Error,
    fmt, io,
    path::{Path, PathBuf},
};
use tidegate_policy::edit::EditError;

/// What keeps a policy file from being changed; it is as it was then, unless this says otherwise.
#[derive(Debug)]
#[non_exhaustive]
pub enum AmendError {
    /// The policy is wrong, has no such rule, or cannot say it there.
    Edit(EditError),
    /// A file says something else than was read of it, or than the last change left.
    Changed(PathBuf),
    /// The policy comes from no file.
    NoFile,
    /// A file is a link to another.
    Link(PathBuf),
    /// A file may not be written.
    ReadOnly(PathBuf),
    /// There is nothing to take back.
    Nothing,
    /// Another change than the one that was meant is the last: this one.
    NotLast(u64),
    /// A line of the history says nothing that is understood.
    History {
        /// The history.
        file: PathBuf,
        /// The line, counted from one.
        line: usize,
    },
    /// The gateway did not take the policy, and the file is again as it was.
    Refused(String),
    /// The gateway did not take the policy, and the file says it all the same.
    Left {
        /// Why it was not taken.
        refused: String,
        /// What kept the file from being put back.
        source: Box<Self>,
    },
    /// The disk did not do what it was asked.
    Disk {
        /// What.
        problem: &'static str,
        /// Where.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The gateway that was asked has ended.
    Gone,
}

impl AmendError {
    pub(super) fn of(problem: &'static str, file: &Path, source: io::Error) -> Self {
        Self::Disk { problem, file: file.to_owned(), source }
    }
}

impl fmt::Display for AmendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Edit(error) => error.fmt(f),
            Self::Changed(file) => {
                let file = file.display();
                write!(f, "{file} has changed since, by hand or by somebody else: look at it, and change it there, or try again")
            }
            Self::NoFile => f.write_str(
                "this policy comes from no file, in which a change could be kept; serve one: `tidegate serve policy.yaml`",
            ),
            Self::Link(file) => write!(
                f,
                "{} is a link, and to replace it would cut it off; change what it leads to (in Kubernetes, the ConfigMap), \
                 or serve a plain file",
                file.display()
            ),
            Self::ReadOnly(file) => write!(
                f,
                "{} is read-only; allow writing (`chmod u+w`), or change it where it comes from",
                file.display()
            ),
            Self::Nothing => f.write_str("there is no change to take back; `tidegate changes` tells what there was"),
            Self::NotLast(id) => {
                write!(f, "the last change is number {id} now; look at the changes, and take that one back first")
            }
            Self::History { file, line } => write!(
                f,
                "{}:{line}: this line of the history is not understood; mend it, or move the file away",
                file.display()
            ),
            Self::Refused(why) => write!(f, "the gateway refused it, and the file is as it was: {why}"),
            Self::Left { refused, source } => write!(
                f,
                "the gateway refused it, and the file was not put back ({source}); put it back by hand, it says what is not in \
                 force: {refused}"
            ),
            Self::Disk { problem, file, source } => write!(
                f,
                "{}: {problem}: {source}; see that the folder is there and may be written",
                file.display()
            ),
            Self::Gone => f.write_str("the gateway has ended"),
        }
    }
}

impl Error for AmendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Edit(error) => Some(error),
            Self::Disk { source, .. } => Some(source),
            Self::Left { source, .. } => Some(source),
            _ => None,
        }
    }
}
