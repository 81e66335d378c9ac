//! Why settings were not taken.

#[cfg(feature = "file")]
use std::path::{Path, PathBuf};
use std::{error, fmt};
use tidegate_engine::BuildError;

/// Why settings were not taken. Names the place and the fix, and never a password.
#[derive(Debug)]
#[non_exhaustive]
pub enum SettingsError {
    /// A rule cannot be what it is to be.
    Rule {
        /// Which.
        rule: String,
        /// Why.
        error: BuildError,
    },
    /// A rule was given what does not fit how it is declared.
    Unfit {
        /// Which.
        rule: String,
        /// What does not fit.
        problem: String,
        /// What to give instead.
        fix: String,
    },
    /// A rule names a store that there is none of.
    UnknownStore {
        /// The rule.
        rule: String,
        /// What it names.
        store: String,
        /// What there is.
        known: Vec<String>,
    },
    /// A store cannot be what its address says.
    Store {
        /// Its name; `None` for the default one.
        name: Option<String>,
        /// Why.
        error: Box<dyn error::Error + Send + Sync>,
    },
    /// There is nothing that connects to stores.
    NoConnection,
    /// A variable of the environment says what cannot be.
    Variable {
        /// Which.
        name: String,
        /// What is wrong.
        problem: String,
        /// What to do about it.
        fix: String,
    },
    /// A file cannot be read.
    #[cfg(feature = "file")]
    Unreadable {
        /// Where it should be.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A file says what cannot be.
    #[cfg(feature = "file")]
    File(FileError),
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule { rule, error } => write!(f, "rule `{rule}`: {error}"),
            Self::Unfit { rule, problem, fix } => write!(f, "rule `{rule}`: {problem}; {fix}"),
            Self::UnknownStore { rule, store, known } => {
                write!(f, "rule `{rule}` names the store `{store}`, ")?;
                match known.is_empty() {
                    true => write!(f, "but there are none with names; declare it under `stores`"),
                    false => write!(f, "but there are only `{}`", known.join("`, `")),
                }
            }
            Self::Store { name: Some(name), error } => write!(f, "store `{name}`: {error}"),
            Self::Store { name: None, error } => write!(f, "store: {error}"),
            Self::NoConnection => f.write_str(
                "an address of a store, but nothing to connect to it; switch on the feature `redis`",
            ),
            Self::Variable { name, problem, fix } => write!(f, "{name}: {problem}; {fix}"),
            #[cfg(feature = "file")]
            Self::Unreadable { path, error } => {
                write!(f, "{}: cannot be read: {error}", path.display())
            }
            #[cfg(feature = "file")]
            Self::File(error) => error.fmt(f),
        }
    }
}

impl error::Error for SettingsError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Rule { error, .. } => Some(error),
            Self::Store { error, .. } => Some(&**error),
            #[cfg(feature = "file")]
            Self::Unreadable { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// Everything that is wrong with a file.
#[cfg(feature = "file")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    pub(super) path: PathBuf,
    /// In the order of their lines.
    pub(super) problems: Vec<FileProblem>,
}

#[cfg(feature = "file")]
impl FileError {
    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is wrong, in the order of the lines.
    pub fn problems(&self) -> &[FileProblem] {
        &self.problems
    }
}

#[cfg(feature = "file")]
impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n\n")?;
            }
            write!(f, "{}:{problem}", self.path.display())?;
        }
        Ok(())
    }
}

#[cfg(feature = "file")]
impl error::Error for FileError {}

/// One thing that is wrong with a file.
#[cfg(feature = "file")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileProblem {
    pub(super) place: super::file::Place,
    pub(super) problem: String,
    pub(super) fix: String,
}

#[cfg(feature = "file")]
impl FileProblem {
    /// The line, counted from one.
    pub fn line(&self) -> usize {
        self.place.line
    }

    /// The column in characters, counted from one.
    pub fn column(&self) -> usize {
        self.place.column
    }

    /// What is wrong.
    pub fn problem(&self) -> &str {
        &self.problem
    }

    /// What to do about it.
    pub fn fix(&self) -> &str {
        &self.fix
    }
}

/// `3:9: what is wrong`, the line, carets under the place, and what to do about it.
#[cfg(feature = "file")]
impl fmt::Display for FileProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, problem, fix } = self;
        write!(f, "{}:{}: {problem}\n{place}", place.line, place.column)?;
        match fix.is_empty() {
            true => Ok(()),
            false => write!(f, "\n{fix}"),
        }
    }
}
