//! Paths: `/users/{id}/photos/*.jpg`, `/static/**`.
//!
//! A request can spell a path in many ways, which are all compared as one: without empty segments, with escapes undone. So a
//! pattern is kept in that spelling too, whatever it was written as: `/a%20b/` is `/a b`.

use super::Mistake;
use crate::{
    model::{Glob, PathPattern, Rest, Segment},
    source::short,
};
use std::fmt::{self, Write as _};

/// No path is longer.
const MOST_SEGMENTS: usize = 128;

pub(super) fn path(text: &str) -> Result<PathPattern, Mistake> {
    let Some(rest) = text.strip_prefix('/') else {
        return Err(Mistake::new(
            format!("`{}` does not start with a slash", short(text)),
            "write a path, as in `/users/{id}`",
        ));
    };
    if let Some(at) = text.find(['?', '#']) {
        let fix = "match what is behind the question mark with `query`";
        return Err(Mistake::new("a path has no query", fix).at(at..text.len()));
    }
    if let Some(at) = text.find(|c: char| c == ';' || c.is_control()) {
        let fix = "leave it out: what is behind a `;` of a segment is not compared; or write %3B";
        return Err(Mistake::new("a semicolon or a control character in a path", fix).at(at..text.len()));
    }
    if rest.split('/').count() > MOST_SEGMENTS {
        let problem = format!("a path of more than {MOST_SEGMENTS} segments");
        return Err(Mistake::new(problem, "write `/**` for the rest of it"));
    }
    let mut pattern = PathPattern { segments: Vec::new(), rest: None };
    let mut from = 1;
    for part in rest.split('/') {
        let span = from..from + part.len();
        from = span.end + 1;
        if pattern.rest.is_some() && !part.is_empty() {
            let problem = "more segments behind what stands for the rest";
            return Err(Mistake::new(problem, "end the path with `**`").at(span));
        }
        add(&mut pattern, part).map_err(|mistake| mistake.at(span))?;
    }
    Ok(pattern)
}

/// Whether a pattern can be written down and read again.
pub fn is_path(pattern: &PathPattern) -> bool {
    path(&pattern.to_string()).is_ok_and(|read| read == *pattern)
}

/// Adds what stands between two slashes.
fn add(pattern: &mut PathPattern, part: &str) -> Result<(), Mistake> {
    match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
        Some(name) => {
            let (name, is_rest) = name.strip_suffix("**").map_or((name, false), |name| (name, true));
            if !is_name(name) {
                let problem = format!("`{}` is not a name for a part of a path", short(part));
                return Err(Mistake::new(problem, "write letters, digits and hyphens, as in `{user-id}`"));
            }
            if pattern.captures().any(|known| known == name) {
                let problem = format!("the name `{name}` is here twice");
                return Err(Mistake::new(problem, "give each part of the path its own"));
            }
            match is_rest {
                true => pattern.rest = Some(Rest::Named(name.to_owned())),
                false => pattern.segments.push(Segment::Named(name.to_owned())),
            }
        }
        None if part.is_empty() => {}
        None if part == "**" => pattern.rest = Some(Rest::Any),
        None if part.contains(['{', '}']) => {
            let problem = "braces that are not around a whole segment";
            return Err(Mistake::new(problem, "write `/{name}/`, from slash to slash"));
        }
        None if part.contains("**") => {
            let problem = "`**` inside a segment";
            return Err(Mistake::new(problem, "write `*` for any text in it, or `/**` at the end"));
        }
        None => {
            let plain = unescaped(part)?;
            pattern.segments.push(match part.contains('*') {
                true if plain.matches('*').count() > part.matches('*').count() => {
                    let fix = "write `*` for any text, or %2A for a star, and not both in one segment";
                    return Err(Mistake::new("a star that is one beside a star that is not", fix));
                }
                true => Segment::Glob(Glob(plain)),
                false => Segment::Text(plain),
            });
        }
    }
    Ok(())
}

/// A segment with its escapes undone.
fn unescaped(part: &str) -> Result<String, Mistake> {
    let fix = "write `%` and two hexadecimal digits, or %25 for a percent sign";
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part;
    while let Some((before, behind)) = rest.split_once('%') {
        bytes.extend_from_slice(before.as_bytes());
        let digits = behind.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or_else(|| Mistake::new("half of an escape", fix))?);
        rest = behind.get(2..).unwrap_or_default();
    }
    bytes.extend_from_slice(rest.as_bytes());
    match String::from_utf8(bytes) {
        Ok(dots) if matches!(dots.as_str(), "." | "..") => {
            Err(Mistake::new("dots instead of a segment", "write the path that they lead to"))
        }
        Ok(plain) if plain.contains('/') => Err(Mistake::new(
            "an escaped slash",
            "write a slash: a gateway refuses escaped ones, or decodes them",
        )),
        Ok(plain) => Ok(plain),
        Err(_) => Err(Mistake::new("escapes that are not UTF-8", "write `*` for that segment")),
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
}

impl PathPattern {
    /// The names of its parts.
    pub fn captures(&self) -> impl Iterator<Item = &str> {
        let segments = self.segments.iter().filter_map(|segment| match segment {
            Segment::Named(name) => Some(name.as_str()),
            Segment::Text(_) | Segment::Glob(_) => None,
        });
        let rest = match &self.rest {
            Some(Rest::Named(name)) => Some(name.as_str()),
            Some(Rest::Any) | None => None,
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
                Segment::Text(text) => escape(f, text, "%?#;{}*")?,
                Segment::Glob(Glob(text)) => escape(f, text, "%?#;{}")?,
                Segment::Named(name) => write!(f, "{{{name}}}")?,
            }
        }
        match &self.rest {
            None if self.segments.is_empty() => f.write_str("/"),
            None => Ok(()),
            Some(Rest::Any) => f.write_str("/**"),
            Some(Rest::Named(name)) => write!(f, "/{{{name}**}}"),
        }
    }
}

/// Writes a segment with escapes for what would mean something else.
fn escape(f: &mut fmt::Formatter<'_>, text: &str, signs: &str) -> fmt::Result {
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
