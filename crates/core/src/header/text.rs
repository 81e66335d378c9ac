//! A short text that needs no memory of its own.

use alloc::string::String;
use core::fmt;

/// A text to write a header into: without allocating as long as it is short, which nearly all are.
///
/// ```
/// use std::fmt::Write as _;
/// use tidegate_core::header::Text;
///
/// let mut text = Text::default();
/// write!(text, "r={}", 3)?;
/// assert_eq!(text.as_str(), "r=3");
/// # Ok::<(), std::fmt::Error>(())
/// ```
#[derive(Clone)]
pub struct Text {
    short: [u8; SHORT],
    used: usize,
    /// All of it, once it did not fit any more.
    long: String,
}

const SHORT: usize = 96;

impl Text {
    /// What was written.
    pub fn as_str(&self) -> &str {
        match self.long.is_empty() {
            // Only whole strings are ever copied in.
            true => core::str::from_utf8(&self.short[..self.used]).unwrap_or_default(),
            false => &self.long,
        }
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.used == 0 && self.long.is_empty()
    }

    /// Starts anew.
    pub fn clear(&mut self) {
        self.used = 0;
        self.long.clear();
    }
}

impl Default for Text {
    fn default() -> Self {
        Self { short: [0; SHORT], used: 0, long: String::new() }
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.long.is_empty() {
            let end = self.used.saturating_add(text.len());
            if let Some(room) = self.short.get_mut(self.used..end) {
                room.copy_from_slice(text.as_bytes());
                self.used = end;
                return Ok(());
            }
            let short = core::str::from_utf8(&self.short[..self.used]).unwrap_or_default();
            self.long.reserve(short.len() + text.len());
            self.long.push_str(short);
        }
        self.long.push_str(text);
        Ok(())
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}
