//! Standard output: colors, width, and closed pipes.

use crate::error::CliError;
use std::{
    env, fmt,
    io::{self, IsTerminal, Write},
};

/// Whether text has colors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paint {
    /// Plain text: for a file, a pipe, or with `NO_COLOR`.
    Plain,
    /// ANSI escape codes.
    Ansi,
}

/// The meaning of a color. Only this module chooses the codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// The default color.
    Normal,
    /// A name.
    Strong,
    /// Secondary text.
    Faint,
    /// Admitted at once.
    Admitted,
    /// Admitted after a wait.
    Delayed,
    /// A problem.
    Problem,
}

impl Paint {
    /// Detects whether standard output supports colors.
    pub(crate) fn for_stdout() -> Self {
        let is_disabled = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if io::stdout().is_terminal() && !is_disabled { Self::Ansi } else { Self::Plain }
    }

    /// Renders `text` in a tone.
    pub(crate) fn tone(self, tone: Tone, text: impl fmt::Display) -> String {
        let code = match tone {
            _ if self == Self::Plain => return text.to_string(),
            Tone::Normal => return text.to_string(),
            Tone::Strong => "1",
            Tone::Faint => "2",
            Tone::Admitted => "36",
            Tone::Delayed => "33",
            Tone::Problem => "1;31",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// The width in `$COLUMNS`, or 80.
pub(crate) fn width() -> usize {
    env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).unwrap_or(80)
}

/// Replaces control characters, since text may come from untrusted files or clients.
pub(crate) fn sanitize(text: &str) -> String {
    let replace = |c: char| match c {
        '\n' => c,
        '\t' => ' ',
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    text.chars().map(replace).collect()
}

/// Whether standard output is still open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputState {
    /// Open.
    Open,
    /// Closed by the reader.
    Closed,
}

/// Aligns the cells of rows in columns.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<_> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Writes `text` to standard output. A closed pipe (`| head`) is not an error.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    try_print(text).map(|_| ())
}

/// Writes `text` to standard output. Returns whether it is still open.
pub(crate) fn try_print(text: &str) -> Result<OutputState, CliError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(OutputState::Open),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(OutputState::Closed),
        Err(error) => Err(CliError::Output(format!("cannot write to standard output: {error}"))),
    }
}
