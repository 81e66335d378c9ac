//! How servers escape the text of requests in their logs. Undoing it returns the text that the server received.

use super::{
    batch::{BatchSpan, LogRecord},
    field::LogField,
};

/// The escapes of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Escape {
    /// The text is written as it was received.
    None,
    /// `\"`, `\\`, `\n` and the like, `\x22` and `\u0022`: nginx, Apache, load balancers of AWS, and JSON.
    Backslash,
    /// `#22`: HAProxy.
    Hash,
    /// `%22`: CloudFront.
    Percent,
}

impl Escape {
    /// Returns this, or [`Escape::None`] if the text contains no escape.
    #[inline]
    pub(super) fn if_in(self, text: &[u8]) -> Self {
        match self.sign() {
            Some(sign) if memchr::memchr(sign, text).is_some() => self,
            _ => Self::None,
        }
    }

    /// The first byte of each escape.
    fn sign(self) -> Option<u8> {
        match self {
            Self::None => None,
            Self::Backslash => Some(b'\\'),
            Self::Hash => Some(b'#'),
            Self::Percent => Some(b'%'),
        }
    }

    /// Undoes the escapes of a value, and parses it into the record. `None` if the value is invalid. `at` is the offset of
    /// the value in the batch; values with escapes are appended to `unescaped`.
    #[inline]
    pub(super) fn parse_field(
        self,
        field: LogField,
        value: &[u8],
        at: usize,
        record: &mut LogRecord,
        unescaped: &mut String,
    ) -> Option<()> {
        if self == Self::None || !field.is_request_text() || self.if_in(value) == Self::None {
            return field.parse_into(value, BatchSpan::new(at, value.len()), record);
        }
        let start = unescaped.len();
        self.undo(value, unescaped);
        if self == Self::Percent && matches!(field, LogField::Header(_)) {
            undo_second_encoding(start, unescaped);
        }
        let value = unescaped.as_bytes().get(start..)?;
        field.parse_into(value, BatchSpan::unescaped(start, value.len()), record)
    }

    /// Appends a value without its escapes. Text that is no valid escape is left as it is.
    pub(super) fn undo(self, value: &[u8], into: &mut String) {
        let Some(sign) = self.sign() else { return into.push_str(&String::from_utf8_lossy(value)) };
        // Bytes are collected first, because a character may consist of several escapes.
        let mut bytes = Vec::with_capacity(value.len());
        let mut rest = value;
        while let Some(at) = memchr::memchr(sign, rest) {
            bytes.extend_from_slice(&rest[..at]);
            let behind = &rest[at + 1..];
            let used = match self {
                Self::Backslash => undo_backslash(behind, &mut bytes),
                _ => parse_hex(behind).map(|byte| {
                    bytes.push(byte);
                    2
                }),
            };
            rest = match used {
                Some(used) => &behind[used..],
                None => {
                    bytes.push(sign);
                    behind
                }
            };
        }
        bytes.extend_from_slice(rest);
        into.push_str(&String::from_utf8_lossy(&bytes));
    }
}

/// CloudFront encodes a user agent twice in some logs: a space is `%2520`. A referer is a URL, which has its own encoding.
fn undo_second_encoding(start: usize, unescaped: &mut String) {
    let value = &unescaped[start..];
    if value.contains("%20") && !value.contains(' ') && !value.starts_with("http") {
        let value = value.as_bytes().to_vec();
        unescaped.truncate(start);
        Escape::Percent.undo(&value, unescaped);
    }
}

/// Appends the character of an escape, and returns the length of the escape after the backslash. `None` if it is no escape.
fn undo_backslash(text: &[u8], into: &mut Vec<u8>) -> Option<usize> {
    let byte = match text.first()? {
        sign @ (b'"' | b'\\' | b'/') => *sign,
        b'b' => 8,
        b't' => b'\t',
        b'n' => b'\n',
        b'v' => 11,
        b'f' => 12,
        b'r' => b'\r',
        b'x' => {
            into.push(parse_hex(&text[1..])?);
            return Some(3);
        }
        b'u' => {
            let (sign, len) = parse_unicode_escape(&text[1..])?;
            into.extend_from_slice(sign.encode_utf8(&mut [0; 4]).as_bytes());
            return Some(1 + len);
        }
        _ => return None,
    };
    into.push(byte);
    Some(1)
}

/// Parses two hexadecimal digits.
fn parse_hex(text: &[u8]) -> Option<u8> {
    let [high, low, ..] = text else { return None };
    let digit = |digit: &u8| char::from(*digit).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

/// Parses the digits of `\uXXXX`, or of a surrogate pair. Returns their length too.
fn parse_unicode_escape(text: &[u8]) -> Option<(char, usize)> {
    let four = |text: &[u8]| Some(u32::from(parse_hex(text)?) << 8 | u32::from(parse_hex(text.get(2..)?)?));
    let high = four(text)?;
    if (0xd800..0xdc00).contains(&high)
        && let Some(low) = text.get(4..).and_then(|behind| behind.strip_prefix(b"\\u")).and_then(four)
        && (0xdc00..0xe000).contains(&low)
    {
        return Some((char::from_u32(0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00))?, 10));
    }
    Some((char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER), 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_undone() {
        let cases = [
            (Escape::Backslash, r"/a\x22b\xC3\xA9\x5Cn", "/a\"bé\\n"),
            (Escape::Backslash, r#"\"a\\b\"\t\n\r\b\v\f\/"#, "\"a\\b\"\t\n\r\u{8}\u{b}\u{c}/"),
            (Escape::Backslash, r"\u00e9\ud83d\ude00\ud83d", "é😀\u{fffd}"),
            (Escape::Backslash, r"a\q\xZZ\u12\", r"a\q\xZZ\u12\"),
            (Escape::Backslash, r"\xff", "\u{fffd}"),
            (Escape::Hash, "/a#22#23#7Cb#", "/a\"#|b#"),
            (Escape::Hash, "#C3#A9#G0", "é#G0"),
            (Escape::Percent, "/a%2520b%22%", "/a%20b\"%"),
            (Escape::None, r"a\x22#22%22", r"a\x22#22%22"),
        ];
        for (escape, escaped, expected) in cases {
            let mut text = "before ".to_owned();
            escape.undo(escaped.as_bytes(), &mut text);
            assert_eq!(text, format!("before {expected}"), "{escaped}");
        }
    }
}
