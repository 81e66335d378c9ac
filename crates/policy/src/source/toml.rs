//! Reads TOML, and keeps the places.

use super::{DEEPEST, Fault, Keys, Name, Node, Span, Value, too_deep};
use std::ops::Range;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

pub(super) fn parse(file: usize, text: &str) -> Result<Node, Vec<Fault>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let fault = |error: &toml::de::Error| {
            let at = span(file, &error.span().unwrap_or(0..0));
            let message = error.message().lines().next().unwrap_or_default();
            Fault::new(at, message, "write TOML, with text in quotes: quota = \"5/min\"")
        };
        return Err(errors.iter().map(fault).collect());
    }
    let reader = Reader { file, text };
    let root = Value::Map(reader.table(table.get_ref(), 0).map_err(|fault| vec![fault])?);
    Ok(Node { value: root, at: Span { file, start: 0, end: 0 } })
}

struct Reader<'a> {
    file: usize,
    text: &'a str,
}

impl Reader<'_> {
    fn table(&self, table: &DeTable<'_>, depth: usize) -> Result<Vec<(Name, Node)>, Fault> {
        let mut keys = Keys::default();
        let mut entries = Vec::new();
        for (key, value) in table {
            let name = Name { text: key.get_ref().to_string(), at: span(self.file, &key.span()) };
            keys.take(self.text, &entries, &name)?;
            entries.push((name, self.value(value, depth)?));
        }
        // In the order in which they are written, which the table does not keep.
        entries.sort_by_key(|(name, _)| name.at.start);
        Ok(entries)
    }

    fn value(&self, value: &Spanned<DeValue<'_>>, depth: usize) -> Result<Node, Fault> {
        let at = span(self.file, &value.span());
        if depth >= DEEPEST {
            return Err(too_deep(at));
        }
        let value = match value.get_ref() {
            DeValue::String(text) => Value::Text(text.to_string()),
            DeValue::Boolean(is) => Value::Bool(*is),
            DeValue::Integer(number) => match number.radix() {
                10 => Value::Number(number.as_str().replace('_', "")),
                radix => i64::from_str_radix(&number.as_str().replace('_', ""), radix)
                    .map(|number| Value::Number(number.to_string()))
                    .map_err(|_| Fault::new(at, "a number with too many digits", "write fewer"))?,
            },
            DeValue::Float(number) => Value::Number(number.as_str().replace('_', "")),
            DeValue::Datetime(_) => return Err(Fault::new(at, "a date", "write a text in quotes")),
            DeValue::Array(items) => {
                Value::List(items.iter().map(|item| self.value(item, depth + 1)).collect::<Result<_, _>>()?)
            }
            DeValue::Table(table) => Value::Map(self.table(table, depth + 1)?),
        };
        Ok(Node { value, at })
    }
}

fn span(file: usize, range: &Range<usize>) -> Span {
    Span { file, start: range.start, end: range.end }
}
