//! Parses TOML with positions.

use super::{
    DuplicateKeyCheck, MAX_DEPTH, SourceSpan, SpannedError, SyntaxKey, SyntaxNode, SyntaxValue,
    too_deep_error,
};
use std::ops::Range;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

pub(super) fn parse(file: usize, text: &str) -> Result<SyntaxNode, Vec<SpannedError>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let fault = |error: &toml::de::Error| {
            let at = to_span(file, &error.span().unwrap_or(0..0));
            let message = error.message().lines().next().unwrap_or_default();
            SpannedError::new(at, message, "write valid TOML, with strings in quotes: quota = \"5/min\"")
        };
        return Err(errors.iter().map(fault).collect());
    }
    let reader = TomlReader { file, text };
    let root = SyntaxValue::Map(reader.read_table(table.get_ref(), 0).map_err(|fault| vec![fault])?);
    Ok(SyntaxNode { value: root, span: SourceSpan { file, start: 0, end: 0 } })
}

struct TomlReader<'a> {
    file: usize,
    text: &'a str,
}

impl TomlReader<'_> {
    fn read_table(
        &self,
        table: &DeTable<'_>,
        depth: usize,
    ) -> Result<Vec<(SyntaxKey, SyntaxNode)>, SpannedError> {
        let mut keys = DuplicateKeyCheck::default();
        let mut entries = Vec::new();
        for (key, value) in table {
            let name = SyntaxKey { text: key.get_ref().to_string(), span: to_span(self.file, &key.span()) };
            keys.check(self.text, &entries, &name)?;
            entries.push((name, self.read_value(value, depth)?));
        }
        // The table does not keep the order of the source.
        entries.sort_by_key(|(name, _)| name.span.start);
        Ok(entries)
    }

    fn read_value(&self, value: &Spanned<DeValue<'_>>, depth: usize) -> Result<SyntaxNode, SpannedError> {
        let at = to_span(self.file, &value.span());
        if depth >= MAX_DEPTH {
            return Err(too_deep_error(at));
        }
        let value = match value.get_ref() {
            DeValue::String(text) => SyntaxValue::Text(text.to_string()),
            DeValue::Boolean(is) => SyntaxValue::Bool(*is),
            DeValue::Integer(number) => match number.radix() {
                10 => SyntaxValue::Number(number.as_str().replace('_', "")),
                radix => i64::from_str_radix(&number.as_str().replace('_', ""), radix)
                    .map(|number| SyntaxValue::Number(number.to_string()))
                    .map_err(|_| SpannedError::new(at, "number out of range", "use a smaller number"))?,
            },
            DeValue::Float(number) => SyntaxValue::Number(number.as_str().replace('_', "")),
            DeValue::Datetime(_) => {
                return Err(SpannedError::new(at, "date is not supported", "write a string in quotes"));
            }
            DeValue::Array(items) => SyntaxValue::List(
                items.iter().map(|item| self.read_value(item, depth + 1)).collect::<Result<_, _>>()?,
            ),
            DeValue::Table(table) => SyntaxValue::Map(self.read_table(table, depth + 1)?),
        };
        Ok(SyntaxNode { value, span: at })
    }
}

fn to_span(file: usize, range: &Range<usize>) -> SourceSpan {
    SourceSpan { file, start: range.start, end: range.end }
}
