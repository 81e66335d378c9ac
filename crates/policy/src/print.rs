//! Prints policies: the same policy always gives the same text, and the text gives the policy.

use crate::{
    model::Policy,
    read::POLICY,
    source::{Format, Value, plain},
    table::Written,
};
use std::fmt;

impl Policy {
    /// The policy as a text, with nothing that is usual anyway. Paths are those that were read, relative to where the program
    /// runs, and addresses of stores are told as they are.
    ///
    /// ```
    /// use tidegate_policy::{Format, Policy};
    ///
    /// let policy: Policy = "rules: { name: a, quota: 5/min, wait: 0s }".parse()?;
    /// assert_eq!(policy.print(Format::Yaml), "rules:\n  - name: a\n    quota: 5/min\n");
    /// assert_eq!(policy.print(Format::Toml), "[[rules]]\nname = \"a\"\nquota = \"5/min\"\n");
    /// # Ok::<(), tidegate_policy::Problems>(())
    /// ```
    pub fn print(&self, format: Format) -> String {
        let Written::Map(entries) = POLICY.write(self) else { return String::new() };
        let mut text = String::new();
        match format {
            Format::Yaml if entries.is_empty() => text.push_str("{}\n"),
            Format::Yaml => yaml_map(&mut text, &entries, 0, Start::OnItsOwnLine),
            Format::Toml => toml(&mut text, &entries),
            Format::Json => {
                json(&mut text, &Written::Map(entries), 0);
                text.push('\n');
            }
        }
        text
    }
}

/// In YAML.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.print(Format::Yaml))
    }
}

/// Where the first entry of a map is written.
#[derive(Clone, Copy, PartialEq)]
enum Start {
    OnItsOwnLine,
    /// Behind the dash of a list.
    BehindDash,
}

fn yaml_map(text: &mut String, entries: &[(String, Written)], indent: usize, start: Start) {
    for (index, (name, value)) in entries.iter().enumerate() {
        if index > 0 || start == Start::OnItsOwnLine {
            text.push_str(&" ".repeat(indent));
        }
        yaml_text(text, name);
        text.push(':');
        match value {
            Written::Map(entries) if !entries.is_empty() => {
                text.push('\n');
                yaml_map(text, entries, indent + 2, Start::OnItsOwnLine);
            }
            Written::List(items) if items.iter().any(|item| matches!(item, Written::Map(_))) => {
                text.push('\n');
                for item in items {
                    text.push_str(&" ".repeat(indent + 2));
                    text.push_str("- ");
                    match item {
                        Written::Map(entries) if !entries.is_empty() => {
                            yaml_map(text, entries, indent + 4, Start::BehindDash);
                        }
                        item => {
                            yaml_flow(text, item);
                            text.push('\n');
                        }
                    }
                }
            }
            value => {
                text.push(' ');
                yaml_flow(text, value);
                text.push('\n');
            }
        }
    }
}

/// A value on one line.
fn yaml_flow(text: &mut String, value: &Written) {
    match value {
        Written::Bool(is) => text.push_str(&is.to_string()),
        Written::Number(number) => text.push_str(&number.to_string()),
        Written::Text(value) => yaml_text(text, value),
        Written::List(items) => separated(text, "[", items, "]", yaml_flow),
        Written::Map(entries) => separated(text, "{ ", entries, " }", |text, (name, value)| {
            yaml_text(text, name);
            text.push_str(": ");
            yaml_flow(text, value);
        }),
    }
}

fn yaml_text(text: &mut String, value: &str) {
    match is_plain(value) {
        true => text.push_str(value),
        false => quoted(text, value, Format::Yaml),
    }
}

/// Whether a text can stand in YAML without quotes, anywhere.
fn is_plain(text: &str) -> bool {
    let is_of_words = |c: char| c.is_ascii_alphanumeric() || " _./+%;=*$".contains(c);
    // Signs with a meaning have none between letters.
    let is_between =
        |c: char, next: char| matches!(c, '-' | ':') && (next.is_ascii_alphanumeric() || next == '/');
    let behind = text.chars().skip(1).chain([' ']);
    text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/')
        && text.chars().zip(behind).all(|(c, next)| is_of_words(c) || is_between(c, next))
        && !text.ends_with(' ')
        && matches!(plain(text.to_owned()), Value::Text(_))
}

fn toml(text: &mut String, entries: &[(String, Written)]) {
    let are_tables = |value: &Written| matches!(value, Written::List(items) if items.iter().all(|item| matches!(item, Written::Map(_))));
    let (tables, values): (Vec<_>, Vec<_>) = entries.iter().partition(|(_, value)| are_tables(value));
    for (name, value) in values {
        toml_entry(text, name, value);
        text.push('\n');
    }
    for (name, value) in tables {
        let Written::List(items) = value else { continue };
        for item in items {
            let Written::Map(entries) = item else { continue };
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str("[[");
            toml_key(text, name);
            text.push_str("]]\n");
            for (name, value) in entries {
                toml_entry(text, name, value);
                text.push('\n');
            }
        }
    }
}

fn toml_entry(text: &mut String, name: &str, value: &Written) {
    toml_key(text, name);
    text.push_str(" = ");
    toml_value(text, value);
}

fn toml_key(text: &mut String, name: &str) {
    let is_bare = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    match is_bare {
        true => text.push_str(name),
        false => quoted(text, name, Format::Toml),
    }
}

fn toml_value(text: &mut String, value: &Written) {
    match value {
        Written::Bool(is) => text.push_str(&is.to_string()),
        Written::Number(number) => text.push_str(&number.to_string()),
        Written::Text(value) => quoted(text, value, Format::Toml),
        Written::List(items) => separated(text, "[", items, "]", toml_value),
        Written::Map(entries) => {
            separated(text, "{ ", entries, " }", |text, (name, value)| toml_entry(text, name, value));
        }
    }
}

/// JSON, a key on each line.
pub(crate) fn json(text: &mut String, value: &Written, indent: usize) {
    let line = |text: &mut String, indent: usize| {
        text.push('\n');
        text.push_str(&" ".repeat(indent));
    };
    match value {
        Written::Bool(is) => text.push_str(&is.to_string()),
        Written::Number(number) => text.push_str(&number.to_string()),
        Written::Text(value) => quoted(text, value, Format::Json),
        Written::List(items) if items.iter().any(|item| matches!(item, Written::Map(_))) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                text.push_str(if index > 0 { "," } else { "" });
                line(text, indent + 2);
                json(text, item, indent + 2);
            }
            line(text, indent);
            text.push(']');
        }
        Written::List(items) => separated(text, "[", items, "]", |text, item| json(text, item, indent)),
        Written::Map(entries) if entries.is_empty() => text.push_str("{}"),
        Written::Map(entries) => {
            text.push('{');
            for (index, (name, value)) in entries.iter().enumerate() {
                text.push_str(if index > 0 { "," } else { "" });
                line(text, indent + 2);
                quoted(text, name, Format::Json);
                text.push_str(": ");
                json(text, value, indent + 2);
            }
            line(text, indent);
            text.push('}');
        }
    }
}

fn separated<T>(text: &mut String, start: &str, items: &[T], end: &str, write: impl Fn(&mut String, &T)) {
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

/// A text in double quotes, with the escapes that all three languages know.
fn quoted(text: &mut String, value: &str, format: Format) {
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
            // JSON has no escape for all of these, and needs none.
            c if format == Format::Json => text.push(c),
            c => text.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    text.push('"');
}
