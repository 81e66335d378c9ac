//! A string with inline storage.

use alloc::string::String;
use core::fmt;

/// A string buffer for a header value. It allocates only for long values, which are rare.
///
/// ```
/// use std::fmt::Write as _;
/// use tidegate_core::header::SmallString;
///
/// let mut text = SmallString::default();
/// write!(text, "r={}", 3)?;
/// assert_eq!(text.as_str(), "r=3");
/// # Ok::<(), std::fmt::Error>(())
/// ```
#[derive(Clone)]
pub struct SmallString {
    inline: [u8; INLINE_CAPACITY],
    len: usize,
    /// The whole text, once it exceeds the inline storage.
    heap: String,
}

const INLINE_CAPACITY: usize = 96;

impl SmallString {
    /// The text written so far.
    pub fn as_str(&self) -> &str {
        match self.heap.is_empty() {
            // Only whole strings are copied into `inline`.
            true => core::str::from_utf8(&self.inline[..self.len]).unwrap_or_default(),
            false => &self.heap,
        }
    }

    /// Whether the string is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0 && self.heap.is_empty()
    }

    /// Removes the text.
    pub fn clear(&mut self) {
        self.len = 0;
        self.heap.clear();
    }
}

impl Default for SmallString {
    fn default() -> Self {
        Self { inline: [0; INLINE_CAPACITY], len: 0, heap: String::new() }
    }
}

impl fmt::Write for SmallString {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.heap.is_empty() {
            let end = self.len.saturating_add(text.len());
            if let Some(room) = self.inline.get_mut(self.len..end) {
                room.copy_from_slice(text.as_bytes());
                self.len = end;
                return Ok(());
            }
            let short = core::str::from_utf8(&self.inline[..self.len]).unwrap_or_default();
            self.heap.reserve(short.len() + text.len());
            self.heap.push_str(short);
        }
        self.heap.push_str(text);
        Ok(())
    }
}

impl fmt::Debug for SmallString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}
