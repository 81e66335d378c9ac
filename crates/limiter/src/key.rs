//! What names a bucket, wherever it is counted.

use std::{
    fmt::{self, Write as _},
    hash::Hash,
};

/// What can name a bucket: it is hashed where it is counted in memory, and written out where it is counted in a store.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the key of a limit",
    label = "not a key",
    note = "a key is hashed in memory and written out in a store: it needs `Hash` and `Display`",
    note = "give a part of it, such as `user.id`, or a tuple of parts, such as `(tenant, user.id)`"
)]
pub trait LimitKey: Hash + fmt::Display {}

#[diagnostic::do_not_recommend]
impl<K: Hash + fmt::Display + ?Sized> LimitKey for K {}

/// Two keys in one. Written out as `a|b`, with what would be mistaken for the bar escaped, so that different pairs never
/// look the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyPair<A, B>(pub A, pub B);

impl<A: fmt::Display, B: fmt::Display> fmt::Display for KeyPair<A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(EscapeWriter(f), "{}", self.0)?;
        f.write_char('|')?;
        write!(EscapeWriter(f), "{}", self.1)
    }
}

/// Writes one part of several that a `|` separates: what would be mistaken for it is escaped.
pub struct EscapeWriter<'a, 'f>(pub &'a mut fmt::Formatter<'f>);

impl fmt::Write for EscapeWriter<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for part in text.split_inclusive(['|', '\\']) {
            match part.strip_suffix(['|', '\\']) {
                Some(plain) => {
                    self.0.write_str(plain)?;
                    self.0.write_char('\\')?;
                    self.0.write_str(&part[plain.len()..])?;
                }
                None => self.0.write_str(part)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::KeyPair;

    #[test]
    fn key_pair_text_is_unambiguous() {
        let shown = [
            (KeyPair("a", "b"), "a|b"),
            (KeyPair("a|b", ""), r"a\|b|"),
            (KeyPair("a", "|b"), r"a|\|b"),
            (KeyPair(r"a\", "b"), r"a\\|b"),
        ];
        for (key, text) in shown {
            assert_eq!(key.to_string(), text);
        }
    }
}
