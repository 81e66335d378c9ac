//! JSON pointers (RFC 6901).

use std::{fmt, str::FromStr};
use tidegate_core::SettingError;

/// A JSON pointer (RFC 6901), such as `/usage/total_tokens`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JsonPointer {
    tokens: Vec<String>,
}

/// The maximum number of names in a pointer.
const MAX_TOKENS: usize = 16;
/// The maximum length of a name, in bytes.
pub(super) const MAX_TOKEN_BYTES: usize = 128;

impl JsonPointer {
    /// The names of members and the indexes of items, from the outermost value.
    pub fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// A pointer to the member of this name in the value of this one.
    #[must_use]
    pub fn member(&self, name: &str) -> Self {
        let tokens = self.tokens.iter().cloned().chain([name.to_owned()]);
        Self { tokens: tokens.collect() }
    }

    /// A pointer of these names.
    pub fn from_tokens(tokens: impl IntoIterator<Item = String>) -> Result<Self, SettingError> {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let is_too_long = |token: &String| token.len() > MAX_TOKEN_BYTES;
        if tokens.len() > MAX_TOKENS || tokens.iter().any(is_too_long) {
            let fix = format!("use at most {MAX_TOKENS} names of at most {MAX_TOKEN_BYTES} bytes");
            return Err(SettingError::new("JSON pointer too long", fix));
        }
        Ok(Self { tokens })
    }
}

impl FromStr for JsonPointer {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let fix = "write the names from the outermost value, as in `/usage/total_tokens`";
        let Some(rest) = text.strip_prefix('/') else {
            return Err(SettingError::new(format!("`{text}` is not a JSON pointer"), fix));
        };
        let tokens: Option<Vec<_>> = rest.split('/').map(unescape).collect();
        let tokens = tokens.ok_or_else(|| {
            let problem = format!("invalid escape in the JSON pointer `{text}`");
            SettingError::new(problem, "write `~0` for `~` and `~1` for `/`")
        })?;
        Self::from_tokens(tokens)
    }
}

/// Resolves `~0` and `~1`. `None` for any other escape.
fn unescape(token: &str) -> Option<String> {
    let mut parts = token.split('~');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = match part.as_bytes().first() {
            Some(b'0') => {
                text.push('~');
                part.get(1..)
            }
            Some(b'1') => {
                text.push('/');
                part.get(1..)
            }
            _ => None,
        };
        text.push_str(rest?);
    }
    Some(text)
}

/// Writes the notation of RFC 6901.
impl fmt::Display for JsonPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tokens.iter().try_for_each(|token| write!(f, "/{}", token.replace('~', "~0").replace('/', "~1")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_parsed_and_printed() {
        for (text, tokens) in [
            ("/usage/total_tokens", &["usage", "total_tokens"][..]),
            ("/a~1b/m~0n/0", &["a/b", "m~n", "0"]),
            ("/~01", &["~1"]),
            ("/", &[""]),
        ] {
            let pointer: JsonPointer = text.parse().unwrap();
            assert_eq!(
                (pointer.tokens(), pointer.to_string().as_str()),
                (&*tokens.iter().map(|token| (*token).to_owned()).collect::<Vec<_>>(), text)
            );
        }
        for (text, problem) in [
            ("", "`` is not a JSON pointer"),
            ("usage", "`usage` is not a JSON pointer"),
            ("/a~2", "invalid escape in the JSON pointer `/a~2`"),
            ("/a~", "invalid escape in the JSON pointer `/a~`"),
        ] {
            assert_eq!(text.parse::<JsonPointer>().unwrap_err().problem(), problem);
        }
        assert_eq!("/a".repeat(17).parse::<JsonPointer>().unwrap_err().problem(), "JSON pointer too long");
        assert!(format!("/{}", "a".repeat(129)).parse::<JsonPointer>().is_err());
    }
}
