//! Formats of fields with fixed text between them, such as `$remote_addr - [$time_local] "$request"`.

use super::{
    batch::{Record, Span},
    field::Field,
};

/// Fields with fixed text between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TextFormat {
    /// What a line starts with.
    start: Box<[u8]>,
    parts: Vec<Part>,
}

/// A field, and what follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    field: Field,
    name: String,
    behind: Box<[u8]>,
}

/// A piece of a format while it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Text(Vec<u8>),
    Field(Field, String),
}

impl TextFormat {
    /// Of these pieces; `Err` tells what is wrong with them.
    pub(super) fn of(pieces: Vec<Piece>) -> Result<Self, String> {
        let mut format = Self { start: Box::default(), parts: Vec::new() };
        for piece in pieces {
            match (piece, format.parts.last_mut()) {
                (Piece::Text(text), Some(part)) => part.behind = [&part.behind, &*text].concat().into(),
                (Piece::Text(text), None) => format.start = [&format.start, &*text].concat().into(),
                (Piece::Field(_, name), Some(part)) if part.behind.is_empty() => {
                    return Err(format!(
                        "nobody can tell where `{}` ends and `{name}` begins; put something between them",
                        part.name
                    ));
                }
                (Piece::Field(field, name), _) => {
                    format.parts.push(Part { field, name, behind: Box::default() });
                }
            }
        }
        let has = |is: fn(&Field) -> bool| format.parts.iter().any(|part| is(&part.field));
        if !has(|field| matches!(field, Field::Time(_) | Field::Answered(_))) {
            return Err("there is no time in it".to_owned());
        }
        if !has(|field| matches!(field, Field::Request | Field::Target)) {
            return Err("there is no request in it, and no path".to_owned());
        }
        Ok(format)
    }

    /// Reads a line that starts at `at`. `Err` names the field that it does not have.
    #[inline]
    pub(super) fn read<'f>(&'f self, line: &[u8], at: usize, record: &mut Record) -> Result<(), &'f str> {
        if !line.starts_with(&self.start) {
            return Err(self.parts.first().map_or("", |part| &part.name));
        }
        let mut from = self.start.len();
        for (place, Part { field, name, behind }) in self.parts.iter().enumerate() {
            let rest = &line[from..];
            let end = match find(rest, behind) {
                Some(end) => end,
                // A line that was cut off within its last field is a request all the same.
                None if place + 1 == self.parts.len() && field.is_text() => {
                    field.put(rest, Span::new(at + from, rest.len()), record);
                    return Ok(());
                }
                None => return Err(name),
            };
            // What is not in quotes has no blanks, or one format would be taken for another.
            if behind.first() == Some(&b' ')
                && field.is_word()
                && memchr::memchr(b' ', &rest[..end]).is_some()
            {
                return Err(name);
            }
            if field.put(&rest[..end], Span::new(at + from, end), record).is_none() {
                return Err(name);
            }
            from += end + behind.len();
        }
        match from == line.len() {
            true => Ok(()),
            false => Err("the end of the line"),
        }
    }
}

/// Where this text is. A quote behind a backslash does not end anything.
#[inline]
fn find(line: &[u8], text: &[u8]) -> Option<usize> {
    let Some((first, rest)) = text.split_first() else { return Some(line.len()) };
    let mut from = 0;
    loop {
        let at = from + memchr::memchr(*first, &line[from..])?;
        let is_escaped = *first == b'"' && is_escaped(&line[..at]);
        if !is_escaped && line[at + 1..].starts_with(rest) {
            return Some(at);
        }
        from = at + 1;
    }
}

#[inline]
fn is_escaped(before: &[u8]) -> bool {
    let backslashes = before.iter().rev().take_while(|byte| **byte == b'\\').count();
    backslashes % 2 == 1
}
