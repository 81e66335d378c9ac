//! The position of an error in a text.

use alloc::string::{String, ToString};
use core::{fmt, ops::Range};

/// A byte range of a text. Prints its line with a caret under each character of the range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextSpan {
    text: String,
    range: Range<usize>,
}

impl TextSpan {
    pub fn new(text: &str, span: Range<usize>) -> Self {
        Self { text: text.to_string(), range: span }
    }

    pub fn span(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl fmt::Display for TextSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, range: span } = self;
        // Only the line with the error is shown; the carets count characters, not bytes.
        let from = text[..span.start].rfind('\n').map_or(0, |end| end + 1);
        let line = text[from..].split('\n').next().unwrap_or_default();
        let before = text[from..span.start].chars().count();
        let width = text[span.clone()].chars().count().max(1);
        writeln!(f, "  {line}")?;
        write!(f, "  {:before$}{}", "", "^".repeat(width))
    }
}
