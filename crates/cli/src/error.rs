//! Why a verb did not finish.

use crate::terminal;
use std::{fmt, io, path::Path};

/// Why a verb did not finish, in words for a person.
#[derive(Debug)]
pub(crate) enum CliError {
    /// The arguments or a file make no sense.
    Input(String),
    /// A policy holds what is hardly meant, and that was not to be let through.
    Warnings(String),
    /// A gateway did not do what was expected of it.
    Mismatch(String),
    /// The result could not be written.
    Output(String),
}

impl CliError {
    /// What is wrong with the input, and how to put it right.
    pub(crate) fn input(text: impl Into<String>) -> Self {
        Self::Input(text.into())
    }

    /// `path` could not be written.
    pub(crate) fn cannot_write(path: &Path, error: &io::Error) -> Self {
        Self::Output(format!("cannot write {}: {error}", path.display()))
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(text) | Self::Warnings(text) | Self::Mismatch(text) | Self::Output(text) => {
                f.write_str(&terminal::sanitize(text))
            }
        }
    }
}
