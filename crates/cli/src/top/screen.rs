//! The terminal: keys at once, a screen of its own, and as it was before when that is over.

use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use std::{
    io::{self, Read as _, Stdout, Write as _},
    thread,
};
use tokio::sync::mpsc::{Receiver, channel};

/// A screen beside the one that was there. Dropping it brings that back, whatever has happened.
pub(crate) struct Screen {
    saved: Termios,
    out: Stdout,
}

/// The other screen, no cursor, long lines cut off.
const ENTER_SEQUENCE: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE_SEQUENCE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

impl Screen {
    /// Takes the terminal. Keys are read one by one and not shown; Ctrl-C is a signal as ever, and nothing stops the process
    /// while the screen is its own.
    pub(crate) fn open() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut now = before.clone();
        now.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        now.special_codes[SpecialCodeIndex::VMIN] = 1;
        now.special_codes[SpecialCodeIndex::VTIME] = 0;
        now.special_codes[SpecialCodeIndex::VSUSP] = 0;
        tcsetattr(io::stdin(), OptionalActions::Now, &now)?;
        let screen = Self { saved: before, out: io::stdout() };
        screen.write(ENTER_SEQUENCE)?;
        Ok(screen)
    }

    /// Columns and lines.
    pub(crate) fn size() -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
            _ => (80, 24),
        }
    }

    /// Shows lines in place of what was there, without a moment of nothing between them.
    pub(crate) fn show(&self, text: &str) -> io::Result<()> {
        let lines: Vec<&str> = text.trim_end_matches('\n').split('\n').collect();
        self.write(&format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n")))
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let mut out = self.out.lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nobody is left to tell when the terminal is gone.
        let _ = self.write(LEAVE_SEQUENCE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.saved);
    }
}

/// What is typed. The thread that waits for it ends with the process.
pub(crate) fn read_keys() -> io::Result<Receiver<u8>> {
    let (sender, receiver) = channel(16);
    thread::Builder::new().name("keys".to_owned()).spawn(move || {
        for key in io::stdin().lock().bytes().map_while(Result::ok) {
            if sender.blocking_send(key).is_err() {
                return;
            }
        }
    })?;
    Ok(receiver)
}
