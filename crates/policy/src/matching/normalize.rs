//! Normalizes the path of a request once, for rules and for forwarding.
//!
//! Servers interpret `/a/../b`, `/a/..;/b`, `/a%2f..%2fb`, `//a` and `/a\b` differently. A client could choose a spelling that
//! rules and the server interpret differently. Unambiguous paths are normalized; ambiguous ones are rejected.

use crate::model::EscapedSlashes;
use std::{borrow::Cow, fmt};

/// The reason for rejecting a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathError {
    /// `%` without two hexadecimal digits.
    Escape,
    /// `%00`.
    Nul,
    /// `\`, which some servers read as a slash.
    Backslash,
    /// `..` above the root.
    AboveRoot,
    /// A dot segment that is escaped, has parameters, or is next to an escaped slash: `%2e%2e`, `..;`, `%2f..`.
    DotSegment,
    /// A segment with parameters and no name: `/;a/`.
    EmptySegmentName,
    /// `%2F`, if the policy rejects it.
    EscapedSlash,
    /// The path does not start with a slash.
    Relative,
}

impl PathError {
    /// The problem, in one line.
    pub fn message(self) -> &'static str {
        match self {
            Self::Escape => "invalid path: `%` without two hexadecimal digits",
            Self::Nul => "invalid path: `%00`",
            Self::Backslash => "invalid path: backslash; write it as `%5C`",
            Self::AboveRoot => "invalid path: `..` above the root",
            Self::DotSegment => "ambiguous path: dot segment with escapes or parameters",
            Self::EmptySegmentName => "ambiguous path: segment with parameters and no name",
            Self::EscapedSlash => "ambiguous path: escaped slash, `%2F`",
            Self::Relative => "invalid path: no leading slash",
        }
    }
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for PathError {}

/// Normalizes the path of a request (without its query) by RFC 3986: resolves dot segments, decodes escapes of unreserved
/// characters, and converts other escapes to upper case. Adjacent slashes are merged. `*` is a valid path.
pub fn normalize_path(path: &str, slashes: EscapedSlashes) -> Result<Cow<'_, str>, PathError> {
    if is_normal(path.as_bytes()) || path == "*" {
        return Ok(path.into());
    }
    if !path.starts_with('/') {
        return Err(PathError::Relative);
    }
    if path.contains('\\') {
        return Err(PathError::Backslash);
    }
    let mut normal = String::with_capacity(path.len());
    let mut is_open = false;
    for raw in path.split('/').skip(1) {
        is_open = true;
        match raw {
            "" | "." => {}
            ".." => {
                let slash = normal.rfind('/').ok_or(PathError::AboveRoot)?;
                normal.truncate(slash);
            }
            raw => {
                let segment = unescape(raw)?;
                check_segment(&segment, slashes)?;
                let segment = match slashes {
                    EscapedSlashes::Unescape => Cow::from(segment.replace("%2F", "/")),
                    EscapedSlashes::Reject | EscapedSlashes::Keep => segment,
                };
                for part in segment.split('/').filter(|part| !part.is_empty()) {
                    normal.push('/');
                    normal.push_str(part);
                }
                is_open = segment.ends_with('/');
            }
        }
    }
    if is_open || normal.is_empty() {
        normal.push('/');
    }
    Ok(normal.into())
}

/// Whether a path needs no change and no check.
fn is_normal(path: &[u8]) -> bool {
    let Some((b'/', rest)) = path.split_first() else { return false };
    let mut before = b'/';
    for byte in rest {
        match (before, byte) {
            (_, b'%' | b';' | b'\\') | (b'/', b'/' | b'.') => return false,
            _ => before = *byte,
        }
    }
    true
}

/// Decodes escapes of unreserved characters, and converts other escapes to upper case.
fn unescape(raw: &str) -> Result<Cow<'_, str>, PathError> {
    if !raw.contains('%') {
        return Ok(raw.into());
    }
    let mut pieces = raw.split('%');
    let mut segment = String::with_capacity(raw.len());
    segment.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        let (Some(digits), Some(rest)) = (piece.get(..2), piece.get(2..)) else {
            return Err(PathError::Escape);
        };
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(PathError::Escape);
        }
        let byte = u8::from_str_radix(digits, 16).map_err(|_| PathError::Escape)?;
        match byte {
            0 => return Err(PathError::Nul),
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => segment.push(byte.into()),
            _ => {
                segment.push('%');
                segment.push_str(&digits.to_ascii_uppercase());
            }
        }
        segment.push_str(rest);
    }
    Ok(segment.into())
}

/// Rejects segments that servers interpret differently. Some of them treat `%2F` and `%5C` as slashes.
fn check_segment(segment: &str, slashes: EscapedSlashes) -> Result<(), PathError> {
    if segment.contains("%2F") && slashes == EscapedSlashes::Reject {
        return Err(PathError::EscapedSlash);
    }
    for part in segment.split("%2F").flat_map(|part| part.split("%5C")) {
        match part.split(';').next() {
            Some("." | "..") => return Err(PathError::DotSegment),
            Some("") if !part.is_empty() => return Err(PathError::EmptySegmentName),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_are_normalized_or_rejected() {
        use EscapedSlashes::{Keep, Reject, Unescape};
        for (path, slashes, expected) in [
            ("/", Reject, Ok("/")),
            ("*", Reject, Ok("*")),
            ("/login", Reject, Ok("/login")),
            ("/login/", Reject, Ok("/login/")),
            ("//login//x//", Reject, Ok("/login/x/")),
            ("/./login/.", Reject, Ok("/login/")),
            ("/a/b/../c", Reject, Ok("/a/c")),
            ("/a/b/..", Reject, Ok("/a/")),
            ("/a/..", Reject, Ok("/")),
            ("/%6Cogin/%7e%2D", Reject, Ok("/login/~-")),
            ("/a%20b%3b%c3%a9", Reject, Ok("/a%20b%3B%C3%A9")),
            ("/%2561", Reject, Ok("/%2561")),
            ("/a%2Eb/...", Reject, Ok("/a.b/...")),
            ("/login;v=1/x", Reject, Ok("/login;v=1/x")),
            ("/a%5Cb", Reject, Ok("/a%5Cb")),
            ("/a%2fb", Keep, Ok("/a%2Fb")),
            ("/a%2fb%2F", Unescape, Ok("/a/b/")),
            ("/%2f%2fa", Unescape, Ok("/a")),
            ("/a%2fb", Reject, Err(PathError::EscapedSlash)),
            ("/../x", Reject, Err(PathError::AboveRoot)),
            ("/a/../../x", Reject, Err(PathError::AboveRoot)),
            ("/a/%2e%2e/x", Reject, Err(PathError::DotSegment)),
            ("/a/.%2E/x", Reject, Err(PathError::DotSegment)),
            ("/a/%2e/x", Reject, Err(PathError::DotSegment)),
            ("/a/..;/x", Reject, Err(PathError::DotSegment)),
            ("/a/.;v=1/x", Reject, Err(PathError::DotSegment)),
            ("/a/%2e%2e;/x", Reject, Err(PathError::DotSegment)),
            ("/a%2f..%2fx", Keep, Err(PathError::DotSegment)),
            ("/a%2f..%2fx", Unescape, Err(PathError::DotSegment)),
            ("/a/..%5cx", Reject, Err(PathError::DotSegment)),
            ("/;a/login", Reject, Err(PathError::EmptySegmentName)),
            ("/a\\..\\x", Reject, Err(PathError::Backslash)),
            ("/%zz", Reject, Err(PathError::Escape)),
            ("/%4", Reject, Err(PathError::Escape)),
            ("/%+1", Reject, Err(PathError::Escape)),
            ("/%é", Reject, Err(PathError::Escape)),
            ("/login%00", Reject, Err(PathError::Nul)),
            ("x", Reject, Err(PathError::Relative)),
            ("", Reject, Err(PathError::Relative)),
        ] {
            assert_eq!(normalize_path(path, slashes).as_deref(), expected.as_ref().copied(), "{path}");
        }
    }

    #[test]
    fn path_errors_have_messages() {
        for (path, message) in [
            ("/%zz", "invalid path: `%` without two hexadecimal digits"),
            ("/%00", "invalid path: `%00`"),
            ("/a\\b", "invalid path: backslash; write it as `%5C`"),
            ("/..", "invalid path: `..` above the root"),
            ("/..;", "ambiguous path: dot segment with escapes or parameters"),
            ("/;a", "ambiguous path: segment with parameters and no name"),
            ("/%2f", "ambiguous path: escaped slash, `%2F`"),
            ("a", "invalid path: no leading slash"),
        ] {
            assert_eq!(normalize_path(path, EscapedSlashes::Reject).unwrap_err().to_string(), message);
        }
    }

    fn escaped_slash_modes() -> impl Strategy<Value = EscapedSlashes> {
        prop_oneof![Just(EscapedSlashes::Reject), Just(EscapedSlashes::Keep), Just(EscapedSlashes::Unescape)]
    }

    proptest! {
        /// Normalization is idempotent, and leaves no segment that servers resolve.
        #[test]
        fn normalized_paths_are_stable(path in "/([/.;%2eEfF5cC6a]|%2e|%2f|%5c|\\.\\.){0,12}", slashes in escaped_slash_modes()) {
            if let Ok(normal) = normalize_path(&path, slashes) {
                prop_assert!(normal.starts_with('/'), "{path} -> {normal}");
                let again = normalize_path(&normal, slashes);
                prop_assert_eq!(again.as_deref(), Ok(&*normal));
                prop_assert!(normal.split('/').all(|segment| segment != "." && segment != ".."));
                prop_assert!(!normal.contains("//"));
            }
        }
    }
}
