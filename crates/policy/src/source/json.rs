//! Parses JSON (RFC 8259) with positions. `serde_json` parses; a `RawValue` borrows from the source, so its address gives its
//! position.

use super::{
    DuplicateKeyCheck, MAX_DEPTH, SourceSpan, SpannedError, SyntaxKey, SyntaxNode, SyntaxValue,
    floor_char_boundary, too_deep_error,
};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;
use std::fmt;

const JSON_FIX: &str = "write valid JSON, or use the extension .yaml";

pub(super) fn parse(file: usize, text: &str) -> Result<SyntaxNode, SpannedError> {
    let source = JsonReader { file, text };
    source.read_node(source.parse_piece(text)?, 0)
}

#[derive(Clone, Copy)]
struct JsonReader<'a> {
    file: usize,
    text: &'a str,
}

impl<'a> JsonReader<'a> {
    fn read_node(self, raw: &'a RawValue, depth: usize) -> Result<SyntaxNode, SpannedError> {
        let text = raw.get();
        let at = self.span_of(text);
        if depth >= MAX_DEPTH && text.starts_with(['[', '{']) {
            return Err(too_deep_error(SourceSpan { end: at.start + 1, ..at }));
        }
        let value = match text.as_bytes().first() {
            Some(b'{') => self.read_map(text, depth)?,
            Some(b'[') => {
                let items: Vec<&RawValue> = self.parse_piece(text)?;
                SyntaxValue::List(
                    items
                        .into_iter()
                        .map(|item| self.read_node(item, depth + 1))
                        .collect::<Result<_, _>>()?,
                )
            }
            Some(b'"') => SyntaxValue::Text(self.parse_piece(text)?),
            Some(b'n') => SyntaxValue::Null,
            Some(b't' | b'f') => SyntaxValue::Bool(text == "true"),
            _ => SyntaxValue::Number(text.to_owned()),
        };
        Ok(SyntaxNode { value, span: at })
    }

    fn read_map(self, text: &'a str, depth: usize) -> Result<SyntaxValue, SpannedError> {
        let JsonEntries(raw) = self.parse_piece(text)?;
        let (mut entries, mut keys) = (Vec::new(), DuplicateKeyCheck::default());
        // A key starts at the first quote after the previous value.
        let mut end = self.span_of(text).start;
        for (key, value) in raw {
            let start = end + self.text[end..].find('"').unwrap_or_default();
            let value_start = self.span_of(value.get()).start;
            let written = self.text[start..value_start].trim_end().trim_end_matches(':').trim_end();
            let name = SyntaxKey { text: key, span: self.span_of(written) };
            keys.check(self.text, &entries, &name)?;
            end = value_start + value.get().len();
            entries.push((name, self.read_node(value, depth + 1)?));
        }
        Ok(SyntaxValue::Map(entries))
    }

    /// Parses a part of the source.
    fn parse_piece<T: Deserialize<'a>>(self, piece: &'a str) -> Result<T, SpannedError> {
        serde_json::from_str(piece).map_err(|error| {
            let lines = piece.split_inclusive('\n').take(error.line().saturating_sub(1));
            let column = error.column().saturating_sub(1);
            let start = lines.map(str::len).sum::<usize>().saturating_add(column).min(piece.len());
            let start = self.span_of(piece).start + floor_char_boundary(piece, start);
            let at = SourceSpan { file: self.file, start, end: start + 1 };
            let problem = error.to_string();
            SpannedError::new(at, problem.split(" at line ").next().unwrap_or_default(), JSON_FIX)
        })
    }

    /// The span of a part of the source.
    fn span_of(self, piece: &str) -> SourceSpan {
        let start = piece.as_ptr().addr() - self.text.as_ptr().addr();
        SourceSpan { file: self.file, start, end: start + piece.len() }
    }
}

/// The entries of a map in order, including duplicate keys.
struct JsonEntries<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for JsonEntries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct JsonEntriesReader;

        impl<'de> Visitor<'de> for JsonEntriesReader {
            type Value = JsonEntries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonEntries<'de>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(JsonEntries(entries))
            }
        }

        deserializer.deserialize_map(JsonEntriesReader)
    }
}
