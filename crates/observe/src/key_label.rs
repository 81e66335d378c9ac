//! The display of keys, addresses and users.

use std::fmt::{self, Write as _};
use tidegate_policy::model::KeyDisplay;
use tidegate_rule::{key_hash, request::KeyValue};

/// The displayed form of a key, address or user: the text, or only its hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyLabel {
    /// The text.
    Plain(String),
    /// The hash of the text; the text is not stored.
    Hashed(u64),
}

/// How keys are displayed. Keys that may be credentials are always hashed.
pub fn effective_key_display(declared: KeyDisplay, is_credential: bool) -> KeyDisplay {
    if is_credential { KeyDisplay::Hashed } else { declared }
}

/// The maximum length of a label, in bytes.
const MAX_LABEL_LENGTH: usize = 128;

impl KeyLabel {
    /// The label of a key of a rule. The hash is the same as in the access log.
    pub fn new(shown: KeyDisplay, rule: &str, value: &dyn fmt::Display) -> Self {
        match shown {
            KeyDisplay::Plain => Self::Plain(truncate(value)),
            KeyDisplay::Hashed => Self::Hashed(key_hash(rule, value)),
        }
    }

    /// The label of a key. The shared key of all requests is never hashed.
    pub(crate) fn from_key(shown: KeyDisplay, rule: &str, key: &KeyValue<'_>) -> Self {
        match key {
            KeyValue::All => Self::Plain("all".to_owned()),
            key => Self::new(shown, rule, key),
        }
    }

    /// The text that operators see.
    pub fn text(&self) -> String {
        match self {
            Self::Plain(text) => text.clone(),
            Self::Hashed(hash) => format!("{hash:016x}"),
        }
    }

    pub(crate) fn is_hashed(&self) -> bool {
        matches!(self, Self::Hashed(_))
    }
}

/// Formats at most the first `MAX_LABEL_LENGTH` bytes of a text.
pub(crate) fn truncate(text: &dyn fmt::Display) -> String {
    struct TruncatedText(String);
    impl fmt::Write for TruncatedText {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            for sign in text.chars() {
                if self.0.len() + sign.len_utf8() > MAX_LABEL_LENGTH {
                    return Err(fmt::Error);
                }
                self.0.push(sign);
            }
            Ok(())
        }
    }
    let mut short = TruncatedText(String::new());
    let _cut_short = write!(short, "{text}");
    short.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashed_key_label_drops_the_text() {
        let key = KeyValue::from("alice@example.org");
        let value = KeyLabel::from_key(KeyDisplay::Hashed, "login", &key);
        assert!(!format!("{value:?}{}", value.text()).contains("alice"));
        assert_eq!(value.text(), format!("{:016x}", key_hash("login", &key)));
        assert_eq!(KeyLabel::from_key(KeyDisplay::Plain, "login", &key).text(), "alice@example.org");
        assert_eq!(KeyLabel::new(KeyDisplay::Plain, "", &"é".repeat(1_000)).text().len(), MAX_LABEL_LENGTH);
    }
}
