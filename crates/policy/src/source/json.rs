//! Reads JSON as in RFC 8259, and keeps the places. `serde_json` parses; a value that is kept raw is a piece of the text, which says where
//! it stands.

use super::{DEEPEST, Fault, Keys, Name, Node, Span, Value, too_deep};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;
use std::fmt;

const FIX: &str = "write JSON, or name the file .yaml";

pub(super) fn parse(file: usize, text: &str) -> Result<Node, Fault> {
    let source = Source { file, text };
    source.node(source.read(text)?, 0)
}

#[derive(Clone, Copy)]
struct Source<'a> {
    file: usize,
    text: &'a str,
}

impl<'a> Source<'a> {
    fn node(self, raw: &'a RawValue, depth: usize) -> Result<Node, Fault> {
        let text = raw.get();
        let at = self.span(text);
        if depth >= DEEPEST && text.starts_with(['[', '{']) {
            return Err(too_deep(Span { end: at.start + 1, ..at }));
        }
        let value = match text.as_bytes().first() {
            Some(b'{') => self.map(text, depth)?,
            Some(b'[') => {
                let items: Vec<&RawValue> = self.read(text)?;
                Value::List(
                    items.into_iter().map(|item| self.node(item, depth + 1)).collect::<Result<_, _>>()?,
                )
            }
            Some(b'"') => Value::Text(self.read(text)?),
            Some(b'n') => Value::Null,
            Some(b't' | b'f') => Value::Bool(text == "true"),
            _ => Value::Number(text.to_owned()),
        };
        Ok(Node { value, at })
    }

    fn map(self, text: &'a str, depth: usize) -> Result<Value, Fault> {
        let Entries(raw) = self.read(text)?;
        let (mut entries, mut keys) = (Vec::new(), Keys::default());
        // A key starts at the first quote behind the value before it.
        let mut end = self.span(text).start;
        for (key, value) in raw {
            let start = end + self.text[end..].find('"').unwrap_or_default();
            let value_start = self.span(value.get()).start;
            let written = self.text[start..value_start].trim_end().trim_end_matches(':').trim_end();
            let name = Name { text: key, at: self.span(written) };
            keys.take(self.text, &entries, &name)?;
            end = value_start + value.get().len();
            entries.push((name, self.node(value, depth + 1)?));
        }
        Ok(Value::Map(entries))
    }

    /// Reads a piece of the text.
    fn read<T: Deserialize<'a>>(self, piece: &'a str) -> Result<T, Fault> {
        serde_json::from_str(piece).map_err(|error| {
            let lines = piece.split_inclusive('\n').take(error.line().saturating_sub(1));
            let column = error.column().saturating_sub(1);
            let start = lines.map(str::len).sum::<usize>().saturating_add(column).min(piece.len());
            let start = self.span(piece).start + piece.floor_char_boundary(start);
            let at = Span { file: self.file, start, end: start + 1 };
            let problem = error.to_string();
            Fault::new(at, problem.split(" at line ").next().unwrap_or_default(), FIX)
        })
    }

    /// Where a piece of the text stands in it.
    fn span(self, piece: &str) -> Span {
        let start = piece.as_ptr().addr() - self.text.as_ptr().addr();
        Span { file: self.file, start, end: start + piece.len() }
    }
}

/// The entries of a map in their order, also where a key is there twice.
struct Entries<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;

        impl<'de> Visitor<'de> for All {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<'de>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(All)
    }
}
