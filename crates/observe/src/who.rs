//! What operators see of a key, an address or a user.

use std::fmt::{self, Write as _};
use tidegate_policy::model::KeyDisplay;
use tidegate_rule::{key_hash, request::KeyValue};

/// What operators see of somebody: a text, or what stands for it. The text is not kept where only its hash is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// As it is.
    Plain(String),
    /// As a hash.
    Hashed(u64),
}

/// What is shown of keys, which are always hashed where they may be credentials.
pub fn shown_keys(declared: KeyDisplay, is_credential: bool) -> KeyDisplay {
    if is_credential { KeyDisplay::Hashed } else { declared }
}

/// The bytes that are kept of a long text.
const LONGEST: usize = 128;

impl Who {
    /// What is shown of this one, who is counted by a rule. The hash is the same as in the log.
    pub fn of(shown: KeyDisplay, rule: &str, who: &dyn fmt::Display) -> Self {
        match shown {
            KeyDisplay::Plain => Self::Plain(short(who)),
            KeyDisplay::Hashed => Self::Hashed(key_hash(rule, who)),
        }
    }

    /// The same of a key. That all are counted together is no secret.
    pub(crate) fn of_key(shown: KeyDisplay, rule: &str, key: &KeyValue<'_>) -> Self {
        match key {
            KeyValue::All => Self::Plain("all".to_owned()),
            key => Self::of(shown, rule, key),
        }
    }

    /// As operators read it.
    pub fn shown(&self) -> String {
        match self {
            Self::Plain(text) => text.clone(),
            Self::Hashed(hash) => format!("{hash:016x}"),
        }
    }

    pub(crate) fn is_hashed(&self) -> bool {
        matches!(self, Self::Hashed(_))
    }
}

/// The start of a text, of which no more is built than is kept.
pub(crate) fn short(text: &dyn fmt::Display) -> String {
    struct Short(String);
    impl fmt::Write for Short {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            for sign in text.chars() {
                if self.0.len() + sign.len_utf8() > LONGEST {
                    return Err(fmt::Error);
                }
                self.0.push(sign);
            }
            Ok(())
        }
    }
    let mut short = Short(String::new());
    let _cut_short = write!(short, "{text}");
    short.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_hashed_key_is_kept() {
        let key = KeyValue::from("alice@example.org");
        let who = Who::of_key(KeyDisplay::Hashed, "login", &key);
        assert!(!format!("{who:?}{}", who.shown()).contains("alice"));
        assert_eq!(who.shown(), format!("{:016x}", key_hash("login", &key)));
        assert_eq!(Who::of_key(KeyDisplay::Plain, "login", &key).shown(), "alice@example.org");
        assert_eq!(Who::of(KeyDisplay::Plain, "", &"é".repeat(1_000)).shown().len(), LONGEST);
    }
}
