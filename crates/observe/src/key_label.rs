//! What operators see of a key, an address or a user.

use std::fmt::{self, Write as _};
use tidegate_policy::model::KeyDisplay;
use tidegate_rule::{key_hash, request::KeyValue};

/// What operators see of somebody: a text, or what stands for it. The text is not kept where only its hash is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyLabel {
    /// As it is.
    Plain(String),
    /// As a hash.
    Hashed(u64),
}

/// What is shown of keys, which are always hashed where they may be credentials.
pub fn effective_key_display(declared: KeyDisplay, is_credential: bool) -> KeyDisplay {
    if is_credential { KeyDisplay::Hashed } else { declared }
}

/// The bytes that are kept of a long text.
const MAX_LABEL_LENGTH: usize = 128;

impl KeyLabel {
    /// What is shown of this one, who is counted by a rule. The hash is the same as in the log.
    pub fn new(shown: KeyDisplay, rule: &str, who: &dyn fmt::Display) -> Self {
        match shown {
            KeyDisplay::Plain => Self::Plain(truncate(who)),
            KeyDisplay::Hashed => Self::Hashed(key_hash(rule, who)),
        }
    }

    /// The same of a key. That all are counted together is no secret.
    pub(crate) fn from_key(shown: KeyDisplay, rule: &str, key: &KeyValue<'_>) -> Self {
        match key {
            KeyValue::All => Self::Plain("all".to_owned()),
            key => Self::new(shown, rule, key),
        }
    }

    /// As operators read it.
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

/// The start of a text, of which no more is built than is kept.
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
        let who = KeyLabel::from_key(KeyDisplay::Hashed, "login", &key);
        assert!(!format!("{who:?}{}", who.text()).contains("alice"));
        assert_eq!(who.text(), format!("{:016x}", key_hash("login", &key)));
        assert_eq!(KeyLabel::from_key(KeyDisplay::Plain, "login", &key).text(), "alice@example.org");
        assert_eq!(KeyLabel::new(KeyDisplay::Plain, "", &"é".repeat(1_000)).text().len(), MAX_LABEL_LENGTH);
    }
}
