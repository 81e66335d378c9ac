//! Standard output: its colours, its width, and readers who leave early.

use crate::error::CliError;
use std::{
    env, fmt,
    io::{self, IsTerminal, Write},
};

/// Whether text carries colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paint {
    /// Plain text: a file, a pipe, or a person who set `NO_COLOR`.
    Plain,
    /// ANSI codes.
    Ansi,
}

/// What a colour means; the codes are chosen here and nowhere else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// As the terminal prints by itself.
    Normal,
    /// A name.
    Strong,
    /// Said in passing.
    Faint,
    /// Passed at once.
    Passed,
    /// Passed after a wait.
    Waited,
    /// More than the rate suggests.
    Alarm,
}

impl Paint {
    /// What standard output wants.
    pub(crate) fn for_stdout() -> Self {
        let is_disabled = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if io::stdout().is_terminal() && !is_disabled { Self::Ansi } else { Self::Plain }
    }

    /// `text` in a tone.
    pub(crate) fn tone(self, tone: Tone, text: impl fmt::Display) -> String {
        let code = match tone {
            _ if self == Self::Plain => return text.to_string(),
            Tone::Normal => return text.to_string(),
            Tone::Strong => "1",
            Tone::Faint => "2",
            Tone::Passed => "36",
            Tone::Waited => "33",
            Tone::Alarm => "1;31",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// The width that the shell exports, or 80 columns.
pub(crate) fn width() -> usize {
    env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).unwrap_or(80)
}

/// `text` without what would steer the terminal: it may come from a file that nobody has looked at.
pub(crate) fn sanitize(text: &str) -> String {
    let replace = |c: char| match c {
        '\n' => c,
        '\t' => ' ',
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    text.chars().map(replace).collect()
}

/// Whether anybody still reads standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputState {
    /// Somebody may.
    Open,
    /// It was closed.
    Closed,
}

/// Writes `text` to standard output. A reader who has seen enough (`| head`) is no failure.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    try_print(text).map(|_| ())
}

/// The same, for who has more to tell.
pub(crate) fn try_print(text: &str) -> Result<OutputState, CliError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(OutputState::Open),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(OutputState::Closed),
        Err(error) => Err(CliError::Output(format!("cannot write to standard output: {error}"))),
    }
}
