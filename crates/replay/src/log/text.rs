//! Formats of fields with fixed text between them, such as `$remote_addr - [$time_local] "$request"`.

use super::{batch::LogRecord, escape::Escape, field::LogField};

/// Fields with fixed text between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TextFormat {
    /// The fixed text at the start of a line.
    prefix: Box<[u8]>,
    fields: Vec<FormatField>,
    escape: Escape,
    /// The number of fields that every line has, if lines may have fewer or more fields than the format.
    required: Option<usize>,
}

/// A field and the delimiter after it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FormatField {
    field: LogField,
    name: String,
    delimiter: Box<[u8]>,
}

/// A token of a format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FormatToken {
    Text(Vec<u8>),
    Field(LogField, String),
}

impl TextFormat {
    /// Builds a format from its tokens; `Err` explains why it is invalid.
    pub(super) fn from_tokens(pieces: Vec<FormatToken>, escape: Escape) -> Result<Self, String> {
        let mut format = Self { prefix: Box::default(), fields: Vec::new(), escape, required: None };
        for piece in pieces {
            match (piece, format.fields.last_mut()) {
                (FormatToken::Text(text), Some(part)) => {
                    part.delimiter = [&part.delimiter, &*text].concat().into();
                }
                (FormatToken::Text(text), None) => format.prefix = [&format.prefix, &*text].concat().into(),
                (FormatToken::Field(_, name), Some(part)) if part.delimiter.is_empty() => {
                    return Err(format!(
                        "`{}` and `{name}` are not separated; put a delimiter between them",
                        part.name
                    ));
                }
                (FormatToken::Field(field, name), _) => {
                    format.fields.push(FormatField { field, name, delimiter: Box::default() });
                }
            }
        }
        let has = |is: fn(&LogField) -> bool| format.fields.iter().any(|part| is(&part.field));
        if !has(|field| matches!(field, LogField::Time(_) | LogField::CompletionTime(_))) {
            return Err("no time field".to_owned());
        }
        if !has(|field| matches!(field, LogField::Request | LogField::Target)) {
            return Err("no request field and no path field".to_owned());
        }
        Ok(format)
    }

    /// Accepts lines with fewer fields, but at least `required` ones, and with more fields.
    pub(super) fn with_required(self, required: usize) -> Self {
        Self { required: Some(required), ..self }
    }

    /// Parses a line that starts at `at`; unescaped values are appended to `unescaped`. `Err` names the field that does not
    /// match.
    #[inline]
    pub(super) fn parse<'f>(
        &'f self,
        line: &[u8],
        at: usize,
        record: &mut LogRecord,
        unescaped: &mut String,
    ) -> Result<(), &'f str> {
        if !line.starts_with(&self.prefix) {
            return Err(self.fields.first().map_or("", |part| &part.name));
        }
        let escape = self.escape.if_in(line);
        let mut from = self.prefix.len();
        for (place, FormatField { field, name, delimiter: behind }) in self.fields.iter().enumerate() {
            let rest = &line[from..];
            let end = find_delimiter(rest, behind).filter(|end| {
                // An unquoted word has no spaces; otherwise formats would be ambiguous.
                let is_word = behind.first() == Some(&b' ') && field.is_word();
                !is_word || memchr::memchr(b' ', &rest[..*end]).is_none()
            });
            let parsed = match end {
                Some(end) => escape.parse_field(*field, &rest[..end], at + from, record, unescaped),
                // Accept a line that was truncated within its last text field.
                None if place + 1 == self.fields.len() && field.is_text() => {
                    let _ = escape.parse_field(*field, rest, at + from, record, unescaped);
                    return Ok(());
                }
                None => None,
            };
            match (parsed, end) {
                (Some(()), Some(end)) => from += end + behind.len(),
                _ if self.required.is_some_and(|required| place >= required) => return Ok(()),
                _ => return Err(name),
            }
        }
        match from == line.len() || self.required.is_some() {
            true => Ok(()),
            false => Err("the end of the line"),
        }
    }
}

/// Finds the delimiter. An escaped quote does not match.
#[inline]
fn find_delimiter(line: &[u8], text: &[u8]) -> Option<usize> {
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
