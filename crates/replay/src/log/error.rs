//! Why a log could not be read.

use std::io;

/// Why a log could not be read, in words for a person.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A file could not be opened or read.
    #[error("cannot read {name}: {error}")]
    Read {
        /// What it is called.
        name: String,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// No line is of a format that is known.
    #[error(
        "{name}:{line}: this is in no format that was tried\n  {text}{}\nsay how lines look with --format, as in \
         '$remote_addr [$time_local] \"$request\" $status'",
        .attempts.iter().map(|(format, why)| format!("\n  {format}: {why}")).collect::<String>()
    )]
    UnknownFormat {
        /// What the file is called.
        name: String,
        /// The number of the first line.
        line: u64,
        /// The line, or the beginning of it.
        text: String,
        /// What was tried, and where each gave up.
        attempts: Vec<(String, String)>,
    },
    /// There is no request in it.
    #[error("{}: there is no request in it; give a log with at least one", .names.join(", "))]
    Empty {
        /// What the files are called.
        names: Vec<String>,
    },
}
