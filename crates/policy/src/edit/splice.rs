//! Finds the replacement that sets a value: of the existing value, or after the name of the rule.

use super::{
    Splice,
    value::{find_node, first_key, scalar},
};
use crate::source::{PolicyFormat, SyntaxKey, SyntaxNode, SyntaxValue, line_and_column};

/// Returns candidate replacements, best first. The caller must check that the result parses to the expected policy.
pub(super) fn find_splices(
    text: &str,
    format: PolicyFormat,
    rule: &SyntaxNode,
    key: &str,
    value: &str,
) -> Vec<Splice> {
    let SyntaxValue::Map(entries) = &rule.value else { return Vec::new() };
    let name = entries.iter().find(|(name, _)| name.text == "name");
    match (find_node(rule, key), name) {
        (Some(node), _) => replace_value(text, format, node, value),
        (None, Some(name)) if first_key(key) == key => {
            let notations: &[Notation] = match is_number(value) {
                true => &[Notation::Plain],
                false => &[Notation::Text, Notation::Plain, Notation::Quoted],
            };
            let insert =
                |notation: &Notation| insert_after_name(text, format, rule, name, (key, value, *notation));
            notations.iter().flat_map(insert).collect()
        }
        (None, _) => Vec::new(),
    }
}

/// Whether a value is a number. It is written without quotes, because the same digits in quotes may have another unit:
/// `capacity: 100000` is keys, and `capacity: "100000"` bytes.
fn is_number(value: &str) -> bool {
    value.parse::<f64>().is_ok()
}

/// How an inserted value is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Notation {
    /// As the texts of the rule are.
    Text,
    /// Without quotes: a number, or a text of YAML.
    Plain,
    /// In double quotes.
    Quoted,
}

/// Replaces the existing value, and keeps its quotes if it can.
fn replace_value(text: &str, format: PolicyFormat, node: &SyntaxNode, value: &str) -> Vec<Splice> {
    let whole = text.get(node.span.start..node.span.end).unwrap_or_default().trim_end();
    let Some(old_value) = scalar(node) else { return Vec::new() };
    let splice = |removed: &str, inserted: String| Splice {
        offset: node.span.start,
        removed: removed.to_owned(),
        inserted,
    };
    let Some(quote) = whole.chars().next().filter(|first| matches!(first, '"' | '\'')) else {
        // The notation of a number may differ from its value, as `1_000` in TOML.
        let is_digit = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_');
        let has_digits = matches!(node.value, SyntaxValue::Number(_)) && whole.chars().all(is_digit);
        let is_alias = format == PolicyFormat::Yaml && whole.starts_with('*');
        if whole != old_value && !has_digits && !is_alias {
            return Vec::new();
        }
        let quoted = Some(format!("\"{value}\"")).filter(|_| !is_number(value));
        return [value.to_owned()].into_iter().chain(quoted).map(|new| splice(whole, new)).collect();
    };
    // The span of the value may include a comment after it.
    let closed = whole.get(1..).and_then(|rest| whole.get(..rest.find(quote)? + 2));
    let candidates = closed.into_iter().chain(Some(whole).filter(|whole| whole.ends_with(quote)));
    let new_values = match is_number(value) && !is_number(old_value) {
        true => vec![value.to_owned()],
        false => [quote, '"'].map(|quote| format!("{quote}{value}{quote}")).to_vec(),
    };
    candidates.flat_map(|removed| new_values.iter().map(move |new| splice(removed, new.clone()))).collect()
}

/// Inserts a key after the name, in the same style.
fn insert_after_name(
    text: &str,
    format: PolicyFormat,
    rule: &SyntaxNode,
    name: &(SyntaxKey, SyntaxNode),
    new: (&str, &str, Notation),
) -> Vec<Splice> {
    let (key, value) = name;
    let end =
        text.get(value.span.start..value.span.end).map_or(0, |text| value.span.start + text.trim_end().len());
    let Some(from) = text.get(..key.span.start).map(|before| before.rfind('\n').map_or(0, |at| at + 1))
    else {
        return Vec::new();
    };
    let lead = text.get(from..key.span.start).unwrap_or_default();
    let entry = format_entry(text, format, name, new);
    let put = |at: usize, put: String| Splice { offset: at, removed: String::new(), inserted: put };
    if !text.get(rule.span.start..).unwrap_or_default().starts_with('{') {
        // A new line after that of the name.
        let indent = match format {
            PolicyFormat::Yaml => " ".repeat(line_and_column(text, key.span.start).1 - 1),
            PolicyFormat::Toml | PolicyFormat::Json => lead.to_owned(),
        };
        let (at, newline) = line_end(text, end);
        return vec![put(at, format!("{newline}{indent}{entry}"))];
    }
    if !lead.trim().is_empty() {
        let is_close = !text.get(key.span.end..value.span.start).unwrap_or_default().contains(' ');
        let comma = if is_close { "," } else { ", " };
        return vec![put(end, format!("{comma}{entry}"))];
    }
    let (at, newline) = line_end(text, end);
    let behind = put(end, format!(",{newline}{lead}{entry}"));
    // After a comment on the name, if another entry follows on the next line.
    let rest = text.get(end..at).unwrap_or_default().trim_start();
    match rest.strip_prefix(',').map(str::trim_start) {
        Some(rest) if rest.is_empty() || rest.starts_with('#') => {
            vec![put(at, format!("{newline}{lead}{entry},")), behind]
        }
        _ => vec![behind],
    }
}

/// Formats `quota: 5/min` in the style of the name.
fn format_entry(
    text: &str,
    format: PolicyFormat,
    (key, value): &(SyntaxKey, SyntaxNode),
    (new_key, new_value, notation): (&str, &str, Notation),
) -> String {
    let first = |at: usize| text.get(at..).and_then(|text| text.chars().next());
    let quote = |at: usize| first(at).filter(|first| matches!(first, '"' | '\''));
    let name = match quote(key.span.start) {
        Some(quote) => format!("{quote}{new_key}{quote}"),
        None => new_key.to_owned(),
    };
    let between = text.get(key.span.end..value.span.start).unwrap_or_default();
    let sign = if format == PolicyFormat::Toml { '=' } else { ':' };
    let is_plain =
        between.matches(sign).count() == 1 && between.chars().all(|c| matches!(c, ' ' | '\t') || c == sign);
    let between = match (is_plain, format) {
        (true, _) => between,
        (false, PolicyFormat::Toml) => " = ",
        (false, PolicyFormat::Yaml | PolicyFormat::Json) => ": ",
    };
    let quote = match (notation, format, quote(value.span.start)) {
        (Notation::Plain, _, _) => String::new(),
        (Notation::Quoted, _, _) => '"'.to_string(),
        (Notation::Text, PolicyFormat::Yaml, quote) if name == new_key || quote.is_none() => String::new(),
        (Notation::Text, _, quote) => quote.unwrap_or('"').to_string(),
    };
    format!("{name}{between}{quote}{new_value}{quote}")
}

/// Returns the end of the line of this byte, and the line ending of the text.
fn line_end(text: &str, from: usize) -> (usize, &'static str) {
    let rest = text.get(from..).unwrap_or_default();
    match rest.find('\n') {
        Some(at) if rest[..at].ends_with('\r') => (from + at - 1, "\r\n"),
        Some(at) => (from + at, "\n"),
        None => (text.len(), if text.contains("\r\n") { "\r\n" } else { "\n" }),
    }
}
