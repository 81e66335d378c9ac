//! Parses path patterns: `/users/{id}/photos/*.jpg`, `/static/**`.
//!
//! Request paths are normalized before they are compared: empty segments are removed, and escapes are decoded. Patterns are
//! therefore stored in the same form: `/a%20b/` is `/a b`.

use super::ValueError;
use crate::{
    model::{Glob, PathPattern, PathTail, Segment},
    source::truncate,
};
use std::fmt::{self, Write as _};

/// The maximum number of segments in a pattern.
const MAX_SEGMENTS: usize = 128;

pub(super) fn parse_path(text: &str) -> Result<PathPattern, ValueError> {
    let Some(rest) = text.strip_prefix('/') else {
        return Err(ValueError::new(
            format!("path `{}` does not start with a slash", truncate(text)),
            "start it with a slash, as in `/users/{id}`",
        ));
    };
    if let Some(at) = text.find(['?', '#']) {
        let fix = "match query parameters with `query`";
        return Err(ValueError::new("query or fragment in a path", fix).with_span(at..text.len()));
    }
    if let Some(at) = text.find(|c: char| c == ';' || c.is_control()) {
        let fix = "remove it: text after `;` is ignored in comparisons; or write %3B";
        return Err(
            ValueError::new("semicolon or control character in a path", fix).with_span(at..text.len())
        );
    }
    if rest.split('/').count() > MAX_SEGMENTS {
        let problem = format!("path with more than {MAX_SEGMENTS} segments");
        return Err(ValueError::new(problem, "shorten it, and end it with `/**`"));
    }
    let mut pattern = PathPattern { segments: Vec::new(), tail: None };
    let mut from = 1;
    for part in rest.split('/') {
        let span = from..from + part.len();
        from = span.end + 1;
        if pattern.tail.is_some() && !part.is_empty() {
            let problem = "segment after `**`";
            return Err(ValueError::new(problem, "write `**` only at the end of the path").with_span(span));
        }
        add_segment(&mut pattern, part).map_err(|mistake| mistake.with_span(span))?;
    }
    Ok(pattern)
}

/// Whether a pattern can be printed in a policy and parsed again.
pub fn is_path(pattern: &PathPattern) -> bool {
    parse_path(&pattern.to_string()).is_ok_and(|read| read == *pattern)
}

/// Parses the text between two slashes, and adds it to the pattern.
fn add_segment(pattern: &mut PathPattern, part: &str) -> Result<(), ValueError> {
    match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
        Some(name) => {
            let (name, is_rest) = name.strip_suffix("**").map_or((name, false), |name| (name, true));
            if !is_capture_name(name) {
                let problem = format!("invalid name of a path segment `{}`", truncate(part));
                return Err(ValueError::new(
                    problem,
                    "use letters, digits, hyphens and underscores, as in `{user-id}`",
                ));
            }
            if pattern.captures().any(|known| known == name) {
                let problem = format!("duplicate name `{name}` in a path");
                return Err(ValueError::new(problem, "give each segment its own name"));
            }
            match is_rest {
                true => pattern.tail = Some(PathTail::Capture(name.to_owned())),
                false => pattern.segments.push(Segment::Capture(name.to_owned())),
            }
        }
        None if part.is_empty() => {}
        None if part == "**" => pattern.tail = Some(PathTail::Any),
        None if part.contains(['{', '}']) => {
            let problem = "braces within a path segment";
            return Err(ValueError::new(problem, "put a whole segment into braces, as in `/{name}/`"));
        }
        None if part.contains("**") => {
            let problem = "`**` within a path segment";
            return Err(ValueError::new(
                problem,
                "write `*` for any text within a segment, or `/**` at the end",
            ));
        }
        None => {
            let plain = unescape(part)?;
            pattern.segments.push(match part.contains('*') {
                true if plain.matches('*').count() > part.matches('*').count() => {
                    let fix = "use `*` (any text) or %2A (a literal star), not both in one segment";
                    return Err(ValueError::new("both `*` and %2A in a path segment", fix));
                }
                true => Segment::Glob(Glob(plain)),
                false => Segment::Text(plain),
            });
        }
    }
    Ok(())
}

/// Decodes the escapes of a segment.
fn unescape(part: &str) -> Result<String, ValueError> {
    let fix = "write `%` and two hexadecimal digits, or %25 for a percent sign";
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part;
    while let Some((before, behind)) = rest.split_once('%') {
        bytes.extend_from_slice(before.as_bytes());
        let digits = behind.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or_else(|| ValueError::new("incomplete escape in a path", fix))?);
        rest = behind.get(2..).unwrap_or_default();
    }
    bytes.extend_from_slice(rest.as_bytes());
    match String::from_utf8(bytes) {
        Ok(dots) if matches!(dots.as_str(), "." | "..") => {
            Err(ValueError::new("`.` or `..` in a path", "write the resolved path"))
        }
        Ok(plain) if plain.contains('/') => Err(ValueError::new(
            "escaped slash in a path",
            "write a slash: the gateway rejects or decodes escaped ones",
        )),
        Ok(plain) => Ok(plain),
        Err(_) => Err(ValueError::new(
            "path segment is not valid UTF-8 after decoding",
            "write `*` for that segment",
        )),
    }
}

fn is_capture_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
}

impl PathPattern {
    /// The names of the captured segments.
    pub fn captures(&self) -> impl Iterator<Item = &str> {
        let segments = self.segments.iter().filter_map(|segment| match segment {
            Segment::Capture(name) => Some(name.as_str()),
            Segment::Text(_) | Segment::Glob(_) => None,
        });
        let rest = match &self.tail {
            Some(PathTail::Capture(name)) => Some(name.as_str()),
            Some(PathTail::Any) | None => None,
        };
        segments.chain(rest)
    }
}

/// Writes the notation that the parser accepts, such as `/users/{id}/**`.
impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in &self.segments {
            f.write_str("/")?;
            match segment {
                Segment::Text(text) => write_escaped(f, text, "%?#;{}*")?,
                Segment::Glob(Glob(text)) => write_escaped(f, text, "%?#;{}")?,
                Segment::Capture(name) => write!(f, "{{{name}}}")?,
            }
        }
        match &self.tail {
            None if self.segments.is_empty() => f.write_str("/"),
            None => Ok(()),
            Some(PathTail::Any) => f.write_str("/**"),
            Some(PathTail::Capture(name)) => write!(f, "/{{{name}**}}"),
        }
    }
}

/// Writes a segment, and escapes characters that have a special meaning in patterns.
fn write_escaped(f: &mut fmt::Formatter<'_>, text: &str, signs: &str) -> fmt::Result {
    for c in text.chars() {
        match c.is_control() || signs.contains(c) {
            false => f.write_char(c)?,
            true => {
                let mut bytes = [0; 4];
                c.encode_utf8(&mut bytes).bytes().try_for_each(|byte| write!(f, "%{byte:02X}"))?;
            }
        }
    }
    Ok(())
}
