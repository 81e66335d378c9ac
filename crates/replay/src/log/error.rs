//! Errors of reading a log.

use std::io;

/// An error of reading a log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A file could not be opened or read.
    #[error("cannot read {name}: {error}")]
    Read {
        /// The name of the file.
        name: String,
        /// The cause.
        #[source]
        error: io::Error,
    },
    /// No format matches the first lines.
    #[error(
        "{name}:{line}: unknown log format\n  {text}{}\nwrite the format with --format, for example \
         '$remote_addr [$time_local] \"$request\" $status'",
        .attempts.iter().map(|(format, why)| format!("\n  {format}: {why}")).collect::<String>()
    )]
    UnknownFormat {
        /// The name of the file.
        name: String,
        /// The number of the first line.
        line: u64,
        /// The line, possibly truncated.
        text: String,
        /// The formats that were tried, with the reason why each does not match.
        attempts: Vec<(String, String)>,
    },
    /// The log has no requests.
    #[error("{}: no requests found; use a log with at least one request", .names.join(", "))]
    Empty {
        /// The names of the files.
        names: Vec<String>,
    },
}
