//! How lines are read: formats that are known, or one that somebody has written down.

use super::{
    json::JsonFormat,
    known::{self, Place},
    text::{Piece, TextFormat},
};
use crate::log::{Field, MOST_HEADERS};

/// One way to read a line.
#[derive(Clone, Debug)]
pub struct Format {
    pub(super) name: String,
    pub(super) shape: Shape,
}

#[derive(Clone, Debug)]
pub(super) enum Shape {
    Text(TextFormat),
    Json(JsonFormat),
}

impl Format {
    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// All formats that are tried on a line, and the headers that they name.
#[derive(Clone, Debug)]
pub struct Formats {
    pub(super) list: Vec<Format>,
    pub(super) headers: Vec<String>,
}

/// What is wrong with a format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FormatError(String);

impl Formats {
    /// Whatever is known: combined, common, both with the name of a host in front, Envoy's, and lines of JSON.
    ///
    /// `fields` name members of JSON, as in `("ip", "client.address")`.
    pub fn known(fields: &[(String, String)]) -> Result<Self, FormatError> {
        let mut formats = Self { list: Vec::new(), headers: Vec::new() };
        for name in ["combined", "main", "vhost", "common", "envoy"] {
            formats.add(name, name)?;
        }
        formats.add_json(fields)?;
        Ok(formats)
    }

    /// One format, by its name or written down as nginx, Apache or Envoy do.
    pub fn one(text: &str, fields: &[(String, String)]) -> Result<Self, FormatError> {
        let mut formats = Self { list: Vec::new(), headers: Vec::new() };
        match text {
            "json" | "envoy-json" => formats.add_json(fields)?,
            text => formats.add(text, text)?,
        }
        Ok(formats)
    }

    /// The names of all headers that lines may tell.
    pub fn headers(&self) -> &[String] {
        &self.headers
    }

    /// The formats, in the order in which they are tried.
    pub fn list(&self) -> &[Format] {
        &self.list
    }

    fn add(&mut self, name: &str, text: &str) -> Result<(), FormatError> {
        let text = match text {
            "combined" => known::COMBINED,
            "main" => known::MAIN,
            "common" => known::COMMON,
            "vhost" => known::VHOST,
            "envoy" => known::ENVOY,
            text => text,
        };
        let headers = &mut self.headers;
        let mut place = |name: &str| place(headers, name);
        let pieces = if text.contains('$') {
            nginx(text, &mut place)
        } else if text.contains("%REQ(") || text.contains("%START_TIME") {
            envoy(text, &mut place)?
        } else if text.contains('%') {
            apache(text, &mut place)?
        } else {
            return Err(FormatError(format!(
                "unknown format `{text}`; use combined, main, common, vhost, envoy, json, or write it down as nginx ($…), \
                 Apache (%…) or Envoy (%…%) do"
            )));
        };
        let shape =
            TextFormat::of(pieces).map_err(|wrong| FormatError(format!("format `{text}`: {wrong}")))?;
        self.list.push(Format { name: name.to_owned(), shape: Shape::Text(shape) });
        Ok(())
    }

    fn add_json(&mut self, fields: &[(String, String)]) -> Result<(), FormatError> {
        let headers = &mut self.headers;
        let mut place = |name: &str| place(headers, name);
        let mut members = Vec::new();
        for (name, path) in fields {
            let field = known::named(name, &mut place)
                .ok_or_else(|| FormatError(format!("unknown field `{name}`; use one of {}", known::NAMES)))?;
            members.push((path.clone(), field));
        }
        for (path, name) in known::JSON {
            // There is one time, whatever it is the time of.
            let are_times = |said: &str| [said, name].iter().all(|name| matches!(*name, "time" | "answered"));
            let is_named = |(said, _): &(String, String)| said == name || are_times(said);
            let field = known::named(name, &mut place).filter(|_| !fields.iter().any(is_named));
            members.extend(field.map(|field| ((*path).to_owned(), field)));
        }
        self.list.push(Format { name: "json".to_owned(), shape: Shape::Json(JsonFormat::new(members)) });
        Ok(())
    }
}

fn place(headers: &mut Vec<String>, name: &str) -> Option<usize> {
    if let Some(place) = headers.iter().position(|known| known == name) {
        return Some(place);
    }
    if headers.len() == MOST_HEADERS {
        return None;
    }
    headers.push(name.to_owned());
    Some(headers.len() - 1)
}

/// `$name` and `${name}`, as in nginx's `log_format`.
fn nginx(text: &str, place: &mut Place<'_>) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        pieces.push(Piece::Text(rest.as_bytes()[..dollar].to_vec()));
        let behind = &rest[dollar + 1..];
        let is_of_names = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let (name, end) = match behind.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some((name, end)) => (name, end),
            None => behind.split_at(behind.find(|c| !is_of_names(c)).unwrap_or(behind.len())),
        };
        pieces.push(Piece::Field(known::nginx(name, place), format!("${name}")));
        rest = end;
    }
    pieces.push(Piece::Text(rest.as_bytes().to_vec()));
    pieces
}

/// `%h`, `%>s`, `%{Referer}i`, `%400,501{Referer}i`, as in Apache's `LogFormat`.
fn apache(text: &str, place: &mut Place<'_>) -> Result<Vec<Piece>, FormatError> {
    let text = text.replace("\\\"", "\"");
    let mut pieces = Vec::new();
    let mut rest = &*text;
    while let Some(percent) = rest.find('%') {
        pieces.push(Piece::Text(rest.as_bytes()[..percent].to_vec()));
        let behind = &rest[percent + 1..];
        if let Some(after) = behind.strip_prefix('%') {
            pieces.push(Piece::Text(vec![b'%']));
            rest = after;
            continue;
        }
        let behind =
            behind.trim_start_matches(|c: char| c.is_ascii_digit() || matches!(c, ',' | '!' | '<' | '>'));
        let (argument, behind) = match behind.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some((argument, behind)) => (Some(argument), behind),
            None => (None, behind),
        };
        let end = behind.char_indices().nth(if behind.starts_with('^') { 3 } else { 1 });
        let (letter, after) = behind.split_at(end.map_or(behind.len(), |(at, _)| at));
        if letter.is_empty() {
            return Err(FormatError(format!(
                "format `{text}` ends with a `%`; write `%%` for a percent sign"
            )));
        }
        let field = known::apache(letter, argument, place);
        let name =
            argument.map_or_else(|| format!("%{letter}"), |argument| format!("%{{{argument}}}{letter}"));
        // Apache puts the moment in brackets by itself.
        let in_brackets = letter == "t" && argument.is_none();
        if in_brackets {
            pieces.push(Piece::Text(vec![b'[']));
        }
        pieces.push(Piece::Field(field, name));
        if in_brackets {
            pieces.push(Piece::Text(vec![b']']));
        }
        rest = after;
    }
    pieces.push(Piece::Text(rest.as_bytes().to_vec()));
    Ok(pieces)
}

/// `%START_TIME%`, `%REQ(:METHOD)%`, as Envoy writes them.
fn envoy(text: &str, place: &mut Place<'_>) -> Result<Vec<Piece>, FormatError> {
    let mut pieces = Vec::new();
    let mut rest = text.trim_end_matches("\\n");
    while let Some((front, behind)) = rest.split_once('%') {
        pieces.push(Piece::Text(front.as_bytes().to_vec()));
        // What is in parentheses may have percent signs of its own.
        let is_of_names = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let open = behind.find('(').filter(|open| behind[..*open].chars().all(is_of_names));
        let close = open.and_then(|open| Some(open + behind[open..].find(')')?)).unwrap_or(0);
        let end = behind[close..].find('%').map(|end| close + end);
        let Some(end) = end else {
            return Err(FormatError(format!("format `{text}`: `%{behind}` has no `%` behind it")));
        };
        let name = &behind[..end];
        let (operator, argument) = match name.split_once('(') {
            Some((operator, argument)) => (operator, argument.split(')').next()),
            None => (name, None),
        };
        let field: Field = known::envoy(operator, argument, place);
        pieces.push(Piece::Field(field, format!("%{name}%")));
        rest = &behind[end + 1..];
    }
    pieces.push(Piece::Text(rest.as_bytes().to_vec()));
    Ok(pieces)
}
