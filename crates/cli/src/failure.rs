//! Why a verb did not finish.

use crate::terminal;
use std::{fmt, io, path::Path};

/// Why a verb did not finish, in words for a person.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The arguments or a file make no sense.
    Input(String),
    /// A policy holds what is hardly meant, and that was not to be let through.
    Advice(String),
    /// A gateway did not do what was expected of it.
    Differs(String),
    /// The result could not be written.
    Output(String),
}

impl Failure {
    /// What is wrong with the input, and how to put it right.
    pub(crate) fn input(text: impl Into<String>) -> Self {
        Self::Input(text.into())
    }

    /// `path` could not be written.
    pub(crate) fn write(path: &Path, error: &io::Error) -> Self {
        Self::Output(format!("cannot write {}: {error}", path.display()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(text) | Self::Advice(text) | Self::Differs(text) | Self::Output(text) => {
                f.write_str(&terminal::harmless(text))
            }
        }
    }
}
