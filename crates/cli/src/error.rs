//! The error of a command.

use crate::terminal;
use std::{fmt, io, path::Path};

/// The error of a command. Each kind has its exit code.
#[derive(Debug)]
pub(crate) enum CliError {
    /// Invalid arguments or files.
    Input(String),
    /// A policy with warnings, in strict mode.
    Warnings(String),
    /// Decisions of a gateway that differ from its policy.
    Mismatch(String),
    /// The result could not be written.
    Output(String),
}

impl CliError {
    /// The exit code of the process.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Output(_) => 1,
            Self::Input(_) => 2,
            Self::Warnings(_) | Self::Mismatch(_) => 3,
        }
    }

    /// An input error, with the problem and the fix.
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
