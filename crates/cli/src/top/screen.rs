//! The terminal: unbuffered keys and the alternate screen, restored at the end.

use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use std::{
    io::{self, Read as _, Stdout, Write as _},
    thread,
};
use tokio::sync::mpsc::{Receiver, channel};

/// The alternate screen. Dropping it restores the terminal.
pub(crate) struct Screen {
    saved: Termios,
    out: Stdout,
}

/// Alternate screen, no cursor, no line wrapping.
const ENTER_SEQUENCE: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE_SEQUENCE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

impl Screen {
    /// Opens the alternate screen. Keys are read unbuffered and not echoed; Ctrl-C stays a signal; Ctrl-Z is disabled, since a
    /// stopped process would leave the terminal in this state.
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

    /// Replaces the content of the screen without flicker.
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
        // Ignore a closed terminal.
        let _ = self.write(LEAVE_SEQUENCE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.saved);
    }
}

/// Reads key presses in a thread that ends with the process.
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
