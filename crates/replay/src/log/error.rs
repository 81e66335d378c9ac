//! Errors of reading a log.

use super::{Displacement, SortWindow};
use crate::report::HumanDuration;
use std::io;
use tidegate_core::Micros;

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
    /// Too many lines are out of order.
    #[error(
        "{file}:{line}: out of order: its time is {} {}; {displaced} of {requests} requests are out of order by more \
         than the sort window of {window}\nsort the log by time, or use a larger --sort-window{}",
        HumanDuration(*.distance),
        match .direction {
            Displacement::Behind => "before that of a line before it",
            Displacement::Ahead => "after that of the lines after it",
        },
        .command.iter().map(|command| format!("; this command sorts it:\n  {command} > sorted.log")).collect::<String>()
    )]
    OutOfOrder {
        /// The file of the line that is farthest from its place.
        file: String,
        /// The number of that line.
        line: u64,
        /// How far it is from its place.
        distance: Micros,
        /// The direction.
        direction: Displacement,
        /// The number of lines that could not be sorted.
        displaced: u64,
        /// The number of requests.
        requests: u64,
        /// The window in which lines are sorted.
        window: SortWindow,
        /// A command that sorts the file.
        command: Option<String>,
    },
    /// The log has no requests.
    #[error("{}: no requests found; use a log with at least one request", .names.join(", "))]
    Empty {
        /// The names of the files.
        names: Vec<String>,
    },
}
