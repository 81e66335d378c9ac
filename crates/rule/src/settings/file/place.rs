//! Where in a file something is, and how that may be shown.

use crate::settings::text::looks_like_address;
use std::{fmt, ops::Range};

/// Where in a file something is. Prints the line, with carets under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Counted from one.
    pub(crate) line: usize,
    /// In characters, counted from one.
    pub(crate) column: usize,
    /// The line as it may be shown.
    shown: String,
    /// The characters of it to point at.
    carets: Range<usize>,
}

/// Whether a place may be shown as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Secrecy {
    /// Whatever looks like a secret is hidden.
    Plain,
    /// Nobody knows what its value is, so that this is not shown.
    Unknown,
    /// It holds the address of a store.
    Address,
}

impl Place {
    pub(super) fn of(text: &str, span: Range<usize>, secrecy: Secrecy) -> Self {
        let start = floor(text, span.start);
        let from = text[..start].rfind('\n').map_or(0, |end| end + 1);
        let line = text[from..].split('\n').next().unwrap_or_default().trim_end_matches('\r');
        let until = floor(text, span.end).min(from + line.len()).max(start);
        let before = text[from..start].chars().count();
        let width = text[start..until].chars().count().max(1);
        let (shown, carets) = shown(line, before..before + width, secrecy);
        Self { line: text[..from].matches('\n').count() + 1, column: before + 1, shown, carets }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {}", self.shown)?;
        write!(f, "  {:2$}{}", "", "^".repeat(self.carets.len()), self.carets.start)
    }
}

/// Nobody reads more of a line than this.
const LONGEST: usize = 160;

/// A line as it may be shown: one with an address loses its value, since that may hold a password, and so does a password.
fn shown(line: &str, carets: Range<usize>, secrecy: Secrecy) -> (String, Range<usize>) {
    let may_hold_secret = match secrecy {
        Secrecy::Address => true,
        // The head of a table has no value.
        Secrecy::Unknown => line.contains('=') || looks_secret(line),
        Secrecy::Plain => looks_secret(line),
    };
    let (kept, hidden) = match may_hold_secret {
        false => (line.chars().count().min(LONGEST), line.chars().count() > LONGEST),
        true => {
            let key = line.split_once('=').map(|(key, _)| key).filter(|key| key.chars().all(is_of_key));
            (key.map_or(0, |key| key.chars().count() + 1).min(LONGEST), true)
        }
    };
    let mut shown: String = line.chars().take(kept).collect();
    let mut end = kept;
    if hidden {
        let space = if kept > 0 { " " } else { "" };
        shown.push_str(space);
        shown.push('…');
        end = kept + space.len();
    }
    // What is not shown is pointed at as one.
    let start = carets.start.min(end);
    (shown, start..carets.end.min(end.max(start + 1)).max(start + 1))
}

/// What a key may be made of: on a broken line, what stands before an equals sign may be half of an address.
fn is_of_key(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ' ' | '\t')
}

/// Whether a line has an address in it, or names what is not to be told.
fn looks_secret(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    let names = ["pass", "secret", "token", "credential", "auth"];
    looks_like_address(&line) || names.iter().any(|name| line.contains(name))
}

/// The nearest place at or before `at` where a character starts.
fn floor(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::{Place, Secrecy};

    #[test]
    fn lines_are_shown_and_secrets_are_not() {
        let text = "mode = \"of\"\nstore = \"redis://:hunter2@db\"\nschlüssel = 1\r\n\"a@b\nhunter2";
        let table = [
            (8..10, Secrecy::Plain, "1:9\n  mode = \"of\"\n          ^^"),
            (12..17, Secrecy::Plain, "2:1\n  store = …\n  ^^^^^"),
            (20..41, Secrecy::Plain, "2:9\n  store = …\n          ^"),
            (55..56, Secrecy::Plain, "3:13\n  schlüssel = 1\n              ^"),
            (59..62, Secrecy::Plain, "4:2\n  …\n  ^"),
            (63..70, Secrecy::Address, "5:1\n  …\n  ^"),
            (70..70, Secrecy::Plain, "5:8\n  hunter2\n         ^"),
            (900..999, Secrecy::Plain, "5:8\n  hunter2\n         ^"),
        ];
        for (span, secrecy, expected) in table {
            let place = Place::of(text, span.clone(), secrecy);
            assert_eq!(format!("{}:{}\n{place}", place.line, place.column), expected, "{span:?}");
        }
    }
}
