//! Paths: `/users/{id}/photos/*.jpg`, `/static/**`.
//!
//! A request can spell a path in many ways, which are all compared as one: without empty segments, with escapes undone. So a
//! pattern is kept in that spelling too, whatever it was written as: `/a%20b/` is `/a b`.

use super::ValueError;
use crate::{
    model::{Glob, PathPattern, PathTail, Segment},
    source::truncate,
};
use std::fmt::{self, Write as _};

/// No path is longer.
const MAX_SEGMENTS: usize = 128;

pub(super) fn parse_path(text: &str) -> Result<PathPattern, ValueError> {
    let Some(rest) = text.strip_prefix('/') else {
        return Err(ValueError::new(
            format!("`{}` does not start with a slash", truncate(text)),
            "write a path, as in `/users/{id}`",
        ));
    };
    if let Some(at) = text.find(['?', '#']) {
        let fix = "match what is behind the question mark with `query`";
        return Err(ValueError::new("a path has no query", fix).with_span(at..text.len()));
    }
    if let Some(at) = text.find(|c: char| c == ';' || c.is_control()) {
        let fix = "leave it out: what is behind a `;` of a segment is not compared; or write %3B";
        return Err(
            ValueError::new("a semicolon or a control character in a path", fix).with_span(at..text.len())
        );
    }
    if rest.split('/').count() > MAX_SEGMENTS {
        let problem = format!("a path of more than {MAX_SEGMENTS} segments");
        return Err(ValueError::new(problem, "write `/**` for the rest of it"));
    }
    let mut pattern = PathPattern { segments: Vec::new(), tail: None };
    let mut from = 1;
    for part in rest.split('/') {
        let span = from..from + part.len();
        from = span.end + 1;
        if pattern.tail.is_some() && !part.is_empty() {
            let problem = "more segments behind what stands for the rest";
            return Err(ValueError::new(problem, "end the path with `**`").with_span(span));
        }
        add_segment(&mut pattern, part).map_err(|mistake| mistake.with_span(span))?;
    }
    Ok(pattern)
}

/// Whether a pattern can be written down and read again.
pub fn is_path(pattern: &PathPattern) -> bool {
    parse_path(&pattern.to_string()).is_ok_and(|read| read == *pattern)
}

/// Adds what stands between two slashes.
fn add_segment(pattern: &mut PathPattern, part: &str) -> Result<(), ValueError> {
    match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
        Some(name) => {
            let (name, is_rest) = name.strip_suffix("**").map_or((name, false), |name| (name, true));
            if !is_capture_name(name) {
                let problem = format!("`{}` is not a name for a part of a path", truncate(part));
                return Err(ValueError::new(problem, "write letters, digits and hyphens, as in `{user-id}`"));
            }
            if pattern.captures().any(|known| known == name) {
                let problem = format!("the name `{name}` is here twice");
                return Err(ValueError::new(problem, "give each part of the path its own"));
            }
            match is_rest {
                true => pattern.tail = Some(PathTail::Capture(name.to_owned())),
                false => pattern.segments.push(Segment::Capture(name.to_owned())),
            }
        }
        None if part.is_empty() => {}
        None if part == "**" => pattern.tail = Some(PathTail::Any),
        None if part.contains(['{', '}']) => {
            let problem = "braces that are not around a whole segment";
            return Err(ValueError::new(problem, "write `/{name}/`, from slash to slash"));
        }
        None if part.contains("**") => {
            let problem = "`**` inside a segment";
            return Err(ValueError::new(problem, "write `*` for any text in it, or `/**` at the end"));
        }
        None => {
            let plain = unescape(part)?;
            pattern.segments.push(match part.contains('*') {
                true if plain.matches('*').count() > part.matches('*').count() => {
                    let fix = "write `*` for any text, or %2A for a star, and not both in one segment";
                    return Err(ValueError::new("a star that is one beside a star that is not", fix));
                }
                true => Segment::Glob(Glob(plain)),
                false => Segment::Text(plain),
            });
        }
    }
    Ok(())
}

/// A segment with its escapes undone.
fn unescape(part: &str) -> Result<String, ValueError> {
    let fix = "write `%` and two hexadecimal digits, or %25 for a percent sign";
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part;
    while let Some((before, behind)) = rest.split_once('%') {
        bytes.extend_from_slice(before.as_bytes());
        let digits = behind.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or_else(|| ValueError::new("half of an escape", fix))?);
        rest = behind.get(2..).unwrap_or_default();
    }
    bytes.extend_from_slice(rest.as_bytes());
    match String::from_utf8(bytes) {
        Ok(dots) if matches!(dots.as_str(), "." | "..") => {
            Err(ValueError::new("dots instead of a segment", "write the path that they lead to"))
        }
        Ok(plain) if plain.contains('/') => Err(ValueError::new(
            "an escaped slash",
            "write a slash: a gateway refuses escaped ones, or decodes them",
        )),
        Ok(plain) => Ok(plain),
        Err(_) => Err(ValueError::new("escapes that are not UTF-8", "write `*` for that segment")),
    }
}

fn is_capture_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
}

impl PathPattern {
    /// The names of its parts.
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

/// `/users/{id}/**`, as it is read.
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

/// Writes a segment with escapes for what would mean something else.
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
