//! Prints policies. The output is deterministic, and parses to the same policy.

use crate::{
    map_schema::OutputValue,
    model::Policy,
    read::POLICY,
    source::{PolicyFormat, SyntaxValue, parse_plain_scalar},
};
use std::fmt;

impl Policy {
    /// Prints the policy without default values. Paths are relative to the working directory, and addresses of stores are not
    /// redacted.
    ///
    /// ```
    /// use tidegate_policy::{PolicyFormat, Policy};
    ///
    /// let policy: Policy = "rules: { name: a, quota: 5/min, wait: 0s }".parse()?;
    /// assert_eq!(policy.print(PolicyFormat::Yaml), "rules:\n  - name: a\n    quota: 5/min\n");
    /// assert_eq!(policy.print(PolicyFormat::Toml), "[[rules]]\nname = \"a\"\nquota = \"5/min\"\n");
    /// # Ok::<(), tidegate_policy::Problems>(())
    /// ```
    pub fn print(&self, format: PolicyFormat) -> String {
        let OutputValue::Map(entries) = POLICY.write(self) else { return String::new() };
        let mut text = String::new();
        match format {
            PolicyFormat::Yaml if entries.is_empty() => text.push_str("{}\n"),
            PolicyFormat::Yaml => write_yaml_map(&mut text, &entries, 0, MapStart::OwnLine),
            PolicyFormat::Toml => write_toml(&mut text, &entries),
            PolicyFormat::Json => {
                write_json(&mut text, &OutputValue::Map(entries), 0);
                text.push('\n');
            }
        }
        text
    }
}

/// Prints YAML.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.print(PolicyFormat::Yaml))
    }
}

/// Where the first entry of a map is written.
#[derive(Clone, Copy, PartialEq)]
enum MapStart {
    OwnLine,
    /// After the dash of a list item.
    AfterDash,
}

fn write_yaml_map(text: &mut String, entries: &[(String, OutputValue)], indent: usize, start: MapStart) {
    for (index, (name, value)) in entries.iter().enumerate() {
        if index > 0 || start == MapStart::OwnLine {
            text.push_str(&" ".repeat(indent));
        }
        write_yaml_text(text, name);
        text.push(':');
        match value {
            OutputValue::Map(entries) if !entries.is_empty() => {
                text.push('\n');
                write_yaml_map(text, entries, indent + 2, MapStart::OwnLine);
            }
            OutputValue::List(items) if items.iter().any(|item| matches!(item, OutputValue::Map(_))) => {
                text.push('\n');
                for item in items {
                    text.push_str(&" ".repeat(indent + 2));
                    text.push_str("- ");
                    match item {
                        OutputValue::Map(entries) if !entries.is_empty() => {
                            write_yaml_map(text, entries, indent + 4, MapStart::AfterDash);
                        }
                        item => {
                            write_yaml_flow(text, item);
                            text.push('\n');
                        }
                    }
                }
            }
            value => {
                text.push(' ');
                write_yaml_flow(text, value);
                text.push('\n');
            }
        }
    }
}

/// Writes a value on one line.
pub(crate) fn write_yaml_flow(text: &mut String, value: &OutputValue) {
    match value {
        OutputValue::Bool(is) => text.push_str(&is.to_string()),
        OutputValue::Number(number) => text.push_str(&number.to_string()),
        OutputValue::Text(value) => write_yaml_text(text, value),
        OutputValue::List(items) => write_separated(text, "[", items, "]", write_yaml_flow),
        OutputValue::Map(entries) => write_separated(text, "{ ", entries, " }", |text, (name, value)| {
            write_yaml_text(text, name);
            text.push_str(": ");
            write_yaml_flow(text, value);
        }),
    }
}

fn write_yaml_text(text: &mut String, value: &str) {
    match is_plain_scalar(value) {
        true => text.push_str(value),
        false => write_quoted(text, value, PolicyFormat::Yaml),
    }
}

/// Whether a string needs no quotes anywhere in YAML.
fn is_plain_scalar(text: &str) -> bool {
    let is_of_words = |c: char| c.is_ascii_alphanumeric() || " _./+%;=*$".contains(c);
    // `-` and `:` are not special between letters.
    let is_between =
        |c: char, next: char| matches!(c, '-' | ':') && (next.is_ascii_alphanumeric() || next == '/');
    let behind = text.chars().skip(1).chain([' ']);
    text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/')
        && text.chars().zip(behind).all(|(c, next)| is_of_words(c) || is_between(c, next))
        && !text.ends_with(' ')
        && matches!(parse_plain_scalar(text.to_owned()), SyntaxValue::Text(_))
}

fn write_toml(text: &mut String, entries: &[(String, OutputValue)]) {
    let are_tables = |value: &OutputValue| matches!(value, OutputValue::List(items) if items.iter().all(|item| matches!(item, OutputValue::Map(_))));
    let (tables, values): (Vec<_>, Vec<_>) = entries.iter().partition(|(_, value)| are_tables(value));
    for (name, value) in values {
        write_toml_entry(text, name, value);
        text.push('\n');
    }
    for (name, value) in tables {
        let OutputValue::List(items) = value else { continue };
        for item in items {
            let OutputValue::Map(entries) = item else { continue };
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str("[[");
            write_toml_key(text, name);
            text.push_str("]]\n");
            for (name, value) in entries {
                write_toml_entry(text, name, value);
                text.push('\n');
            }
        }
    }
}

fn write_toml_entry(text: &mut String, name: &str, value: &OutputValue) {
    write_toml_key(text, name);
    text.push_str(" = ");
    write_toml_value(text, value);
}

fn write_toml_key(text: &mut String, name: &str) {
    let is_bare = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    match is_bare {
        true => text.push_str(name),
        false => write_quoted(text, name, PolicyFormat::Toml),
    }
}

fn write_toml_value(text: &mut String, value: &OutputValue) {
    match value {
        OutputValue::Bool(is) => text.push_str(&is.to_string()),
        OutputValue::Number(number) => text.push_str(&number.to_string()),
        OutputValue::Text(value) => write_quoted(text, value, PolicyFormat::Toml),
        OutputValue::List(items) => write_separated(text, "[", items, "]", write_toml_value),
        OutputValue::Map(entries) => {
            write_separated(text, "{ ", entries, " }", |text, (name, value)| {
                write_toml_entry(text, name, value);
            });
        }
    }
}

/// Writes JSON with one key per line.
pub(crate) fn write_json(text: &mut String, value: &OutputValue, indent: usize) {
    let line = |text: &mut String, indent: usize| {
        text.push('\n');
        text.push_str(&" ".repeat(indent));
    };
    match value {
        OutputValue::Bool(is) => text.push_str(&is.to_string()),
        OutputValue::Number(number) => text.push_str(&number.to_string()),
        OutputValue::Text(value) => write_quoted(text, value, PolicyFormat::Json),
        OutputValue::List(items) if items.iter().any(|item| matches!(item, OutputValue::Map(_))) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                text.push_str(if index > 0 { "," } else { "" });
                line(text, indent + 2);
                write_json(text, item, indent + 2);
            }
            line(text, indent);
            text.push(']');
        }
        OutputValue::List(items) => {
            write_separated(text, "[", items, "]", |text, item| write_json(text, item, indent));
        }
        OutputValue::Map(entries) if entries.is_empty() => text.push_str("{}"),
        OutputValue::Map(entries) => {
            text.push('{');
            for (index, (name, value)) in entries.iter().enumerate() {
                text.push_str(if index > 0 { "," } else { "" });
                line(text, indent + 2);
                write_quoted(text, name, PolicyFormat::Json);
                text.push_str(": ");
                write_json(text, value, indent + 2);
            }
            line(text, indent);
            text.push('}');
        }
    }
}

fn write_separated<T>(
    text: &mut String,
    start: &str,
    items: &[T],
    end: &str,
    write: impl Fn(&mut String, &T),
) {
    if items.is_empty() {
        text.push_str(start.trim_end());
        text.push_str(end.trim_start());
        return;
    }
    text.push_str(start);
    for (index, item) in items.iter().enumerate() {
        text.push_str(if index > 0 { ", " } else { "" });
        write(text, item);
    }
    text.push_str(end);
}

/// Writes a string in double quotes, with the escapes that all three formats support.
fn write_quoted(text: &mut String, value: &str, format: PolicyFormat) {
    text.push('"');
    for c in value.chars() {
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            ' '..='~' => text.push(c),
            c if c.is_alphanumeric() => text.push(c),
            c if u32::from(c) <= 0xffff => text.push_str(&format!("\\u{:04x}", u32::from(c))),
            // JSON has no single escape for these, and requires none.
            c if format == PolicyFormat::Json => text.push(c),
            c => text.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    text.push('"');
}
