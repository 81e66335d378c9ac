//! Keys: the values that name a bucket, in memory or in a store.

use std::{
    fmt::{self, Write as _},
    hash::Hash,
};

/// A value that can name a bucket. It is hashed in memory, and formatted as text for a store.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be used as a rate limit key",
    label = "not a key",
    note = "a key is hashed in memory and formatted as text in a store, so it needs `Hash` and `Display`",
    note = "use a part of it, such as `user.id`, or a tuple of parts, such as `(tenant, user.id)`"
)]
pub trait LimitKey: Hash + fmt::Display {}

#[diagnostic::do_not_recommend]
impl<K: Hash + fmt::Display + ?Sized> LimitKey for K {}

/// Two keys in one. The text form is `a|b` with `|` and `\` escaped in both parts, so that different pairs have
/// different texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyPair<A, B>(pub A, pub B);

impl<A: fmt::Display, B: fmt::Display> fmt::Display for KeyPair<A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(EscapeWriter(f), "{}", self.0)?;
        f.write_char('|')?;
        write!(EscapeWriter(f), "{}", self.1)
    }
}

/// Writes one part of a key whose parts are separated by `|`, and escapes `|` and `\` in it.
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
