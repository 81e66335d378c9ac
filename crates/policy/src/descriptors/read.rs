//! Reads descriptor files: the YAML format of envoyproxy/ratelimit, with its error messages.
//!
//! All keys are checked before values are read. As in envoyproxy/ratelimit, any known key is accepted anywhere, and ignored
//! where it has no meaning. A file may have several documents, each with a domain.

use super::{
    DescriptorError, DescriptorFile, DescriptorFlags, RawDescriptor, RawDomain, RawLimit,
    set::MAX_DESCRIPTOR_DEPTH,
};
use crate::source::{
    self, SourceSpan, SyntaxValue, line_and_column, parse_documents, parse_plain_scalar, truncate,
};
use serde_json::{Map, Number};
use std::{borrow::Cow, collections::HashSet};

/// The maximum size of a descriptor file. A hundred thousand descriptors take less.
const MAX_DESCRIPTOR_FILE_BYTES: usize = 8 * 1024 * 1024;

/// The maximum nesting depth of maps and lists, with expanded aliases.
const MAX_NESTING: usize = 4 * MAX_DESCRIPTOR_DEPTH;

const KNOWN_KEYS: [&str; 16] = [
    "domain",
    "key",
    "value",
    "descriptors",
    "rate_limit",
    "unit",
    "requests_per_unit",
    "unlimited",
    "shadow_mode",
    "quota_mode",
    "name",
    "replaces",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];

/// Keys of `rate_limit` that envoyproxy/ratelimit does not have.
const EXTENSION_KEYS: [&str; 3] = ["quota", "quotas", "lease"];

/// The merge key of YAML 1.1.
const MERGE_KEY: &str = "<<";

/// Reads the domains of a file, one per document.
pub(super) fn read_domains(file: &DescriptorFile) -> Result<Vec<RawDomain<YamlText<'_>>>, DescriptorError> {
    // Some editors write a byte order mark.
    let text = file.text.strip_prefix('\u{feff}').unwrap_or(&file.text);
    let reader = DescriptorReader { file: &file.name, text };
    if text.len() > MAX_DESCRIPTOR_FILE_BYTES {
        return Err(reader.yaml_error(format!("{} bytes are more than 8 MiB; split the file", text.len())));
    }
    let mut roots: Vec<YamlNode<'_>> = parse_documents(text).map_err(|(line, fault)| {
        reader.yaml_error(format!("line {line}: {}; {}", fault.problem, fault.fix))
    })?;
    roots.retain(|root| root.value != SyntaxValue::Null);
    if roots.is_empty() {
        return Ok(vec![RawDomain { source: file.name.as_str().into(), ..RawDomain::default() }]);
    }
    roots.iter().map(|root| reader.read_domain(root)).collect()
}

struct DescriptorReader<'t> {
    file: &'t str,
    text: &'t str,
}

/// Text that borrows from the source where possible.
type YamlText<'t> = Cow<'t, str>;
type YamlNode<'t> = source::SyntaxNode<YamlText<'t>>;
type YamlKey<'t> = source::SyntaxKey<YamlText<'t>>;

/// The entries of a map, with merged ones.
struct MergedEntries<'n, 't> {
    own: &'n [(YamlKey<'t>, YamlNode<'t>)],
    merged: Vec<(&'n YamlKey<'t>, &'n YamlNode<'t>)>,
}

impl<'n, 't> MergedEntries<'n, 't> {
    fn iter(&self) -> impl Iterator<Item = (&'n YamlKey<'t>, &'n YamlNode<'t>)> {
        let own = self.own.iter().filter(|(name, _)| name.text != MERGE_KEY);
        own.map(|(name, node)| (name, node)).chain(self.merged.iter().copied())
    }
}

/// The kind of map that a key is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyContext {
    Limit,
    Other,
}

impl<'t> DescriptorReader<'t> {
    fn read_domain(&self, root: &YamlNode<'t>) -> Result<RawDomain<YamlText<'t>>, DescriptorError> {
        self.check_keys(root, KeyContext::Other, 0)?;
        let entries = self.map(root, "a descriptor file")?;
        Ok(RawDomain {
            source: self.file.into(),
            domain: self.string(&entries, "domain")?,
            descriptors: self.read_descriptors(&entries, 0)?,
        })
    }

    fn read_descriptors(
        &self,
        entries: &MergedEntries<'_, 't>,
        depth: usize,
    ) -> Result<Vec<RawDescriptor<YamlText<'t>>>, DescriptorError> {
        if depth > MAX_DESCRIPTOR_DEPTH {
            let problem = format!("descriptors are more than {MAX_DESCRIPTOR_DEPTH} levels deep; use fewer");
            return Err(DescriptorError::new(self.file, problem));
        }
        let items = self.list(entries, "descriptors")?;
        // There may be many: allocate once.
        let mut descriptors = Vec::with_capacity(items.len());
        for item in items {
            descriptors.push(self.read_descriptor(item, depth)?);
        }
        Ok(descriptors)
    }

    fn read_descriptor(
        &self,
        node: &YamlNode<'t>,
        depth: usize,
    ) -> Result<RawDescriptor<YamlText<'t>>, DescriptorError> {
        let entries = self.map(node, "a descriptor")?;
        let rate_limit = match find(&entries, "rate_limit") {
            None => None,
            Some(node) => Some(self.read_limit(&self.map(node, "a rate_limit")?)?),
        };
        let metadata = match find(&entries, "metadata") {
            None => None,
            Some(node) => {
                self.map(node, "metadata")?;
                Some(self.to_json(node, 0)?)
            }
        };
        Ok(RawDescriptor {
            key: self.string(&entries, "key")?,
            value: self.string(&entries, "value")?,
            rate_limit,
            flags: DescriptorFlags {
                shadow_mode: self.flag(&entries, "shadow_mode")?,
                quota_mode: self.flag(&entries, "quota_mode")?,
                detailed_metric: self.flag(&entries, "detailed_metric")?,
                value_to_metric: self.flag(&entries, "value_to_metric")?,
                share_threshold: self.flag(&entries, "share_threshold")?,
            },
            metadata,
            descriptors: self.read_descriptors(&entries, depth + 1)?,
        })
    }

    fn read_limit(&self, entries: &MergedEntries<'_, 't>) -> Result<RawLimit<YamlText<'t>>, DescriptorError> {
        let replaces = self.list(entries, "replaces")?.iter().map(|item| {
            let entries = self.map(item, "replaces")?;
            self.string(&entries, "name")
        });
        Ok(RawLimit {
            unit: self.string(entries, "unit")?,
            requests_per_unit: self.integer(entries, "requests_per_unit")?,
            unlimited: self.flag(entries, "unlimited")?,
            name: self.string(entries, "name")?,
            replaces: replaces.collect::<Result<_, _>>()?,
            quotas: self.read_quotas(entries)?,
            lease: self.string(entries, "lease")?,
        })
    }

    fn read_quotas(&self, entries: &MergedEntries<'_, 't>) -> Result<Vec<YamlText<'t>>, DescriptorError> {
        let error = |problem: &str| DescriptorError::new(self.file, problem);
        match (find(entries, "quota"), find(entries, "quotas")) {
            (None, None) => Ok(Vec::new()),
            (Some(_), Some(_)) => Err(error("should not specify both quota and quotas; use quotas")),
            (Some(_), None) => Ok(vec![self.string(entries, "quota")?]),
            (None, Some(node)) => match &node.value {
                SyntaxValue::List(items) if !items.is_empty() => {
                    items.iter().map(|item| self.scalar_text(item)).collect()
                }
                _ => Err(error("quotas should be a list such as [100/min burst 20, 1000/h]")),
            },
        }
    }

    /// Checks that all keys are known, and that all values have a possible kind.
    fn check_keys(
        &self,
        node: &YamlNode<'t>,
        context: KeyContext,
        depth: usize,
    ) -> Result<(), DescriptorError> {
        let error = |problem: String| DescriptorError::new(self.file, format!("config error, {problem}"));
        if depth > MAX_NESTING {
            return Err(error(format!("maps and lists are more than {MAX_NESTING} levels deep")));
        }
        for (name, node) in self.map(node, "a descriptor file")?.iter() {
            let key = &*name.text;
            let is_own = context == KeyContext::Limit && EXTENSION_KEYS.contains(&key);
            if !is_own && !KNOWN_KEYS.contains(&key) {
                return Err(error(match self.is_string_key(name) {
                    true => format!("unknown key '{}'", truncate(key)),
                    false => format!("key is not of type string: {}", truncate(key)),
                }));
            }
            let below = if key == "rate_limit" { KeyContext::Limit } else { KeyContext::Other };
            match &node.value {
                _ if is_own || key == "metadata" => {}
                SyntaxValue::List(items) => {
                    for item in items {
                        if !item.value.is_map() {
                            let shown = truncate(&format_value(item, 0));
                            let problem = format!("yaml file contains list of type other than map: {shown}");
                            return Err(error(problem));
                        }
                        self.check_keys(item, below, depth + 1)?;
                    }
                }
                SyntaxValue::Map(_) => self.check_keys(node, below, depth + 1)?,
                SyntaxValue::Number(number) if number.parse::<i64>().is_err() => {
                    let number = truncate(number);
                    let problem =
                        format!("error checking config: {number} is not an integer; put it into quotes");
                    return Err(DescriptorError::new(self.file, problem));
                }
                SyntaxValue::Null | SyntaxValue::Bool(_) | SyntaxValue::Number(_) | SyntaxValue::Text(_) => {}
            }
        }
        Ok(())
    }

    /// Whether a key is a string in YAML. The tree stores all keys as strings, also numbers and booleans without quotes.
    fn is_string_key(&self, name: &YamlKey<'t>) -> bool {
        let written = self.text.get(name.span.start..name.span.end).unwrap_or_default().trim();
        matches!(parse_plain_scalar(written), SyntaxValue::Text(_) | SyntaxValue::Null)
    }

    fn map<'n>(&self, node: &'n YamlNode<'t>, what: &str) -> Result<MergedEntries<'n, 't>, DescriptorError> {
        merge_entries(node).ok_or_else(|| self.kind_error(node, &format!("{what}, which must be a map")))
    }

    fn list<'n>(
        &self,
        entries: &MergedEntries<'n, 't>,
        key: &str,
    ) -> Result<&'n [YamlNode<'t>], DescriptorError> {
        match find(entries, key).map(|node| (node, &node.value)) {
            None => Ok(&[]),
            Some((_, SyntaxValue::List(items))) => Ok(items),
            Some((node, _)) => Err(self.kind_error(node, &format!("{key}, which must be a list"))),
        }
    }

    fn string(&self, entries: &MergedEntries<'_, 't>, key: &str) -> Result<YamlText<'t>, DescriptorError> {
        find(entries, key).map_or(Ok(YamlText::default()), |node| self.scalar_text(node))
    }

    /// A scalar as written in the source, whatever its type.
    fn scalar_text(&self, node: &YamlNode<'t>) -> Result<YamlText<'t>, DescriptorError> {
        match &node.value {
            SyntaxValue::Text(text) | SyntaxValue::Number(text) => Ok(text.clone()),
            SyntaxValue::Bool(is) => {
                let written = self.text.get(node.span.start..node.span.end).unwrap_or_default();
                let word = if *is { "true" } else { "false" };
                Ok(YamlText::from(if written.eq_ignore_ascii_case(word) { written } else { word }))
            }
            SyntaxValue::Null => Ok(YamlText::default()),
            SyntaxValue::List(_) | SyntaxValue::Map(_) => Err(self.kind_error(node, "string")),
        }
    }

    /// Reads a boolean. YAML 1.1 has more notations for it than 1.2.
    fn flag(&self, entries: &MergedEntries<'_, 't>, key: &str) -> Result<bool, DescriptorError> {
        let Some(node) = find(entries, key) else { return Ok(false) };
        match &node.value {
            SyntaxValue::Bool(is) => Ok(*is),
            SyntaxValue::Text(text) => match text.to_ascii_lowercase().as_str() {
                "y" | "yes" | "on" => Ok(true),
                "n" | "no" | "off" => Ok(false),
                _ => Err(self.kind_error(node, "bool")),
            },
            _ => Err(self.kind_error(node, "bool")),
        }
    }

    fn integer(&self, entries: &MergedEntries<'_, 't>, key: &str) -> Result<Option<u32>, DescriptorError> {
        let Some(node) = find(entries, key) else { return Ok(None) };
        let is_quoted = self.text.get(node.span.start..).is_some_and(|text| text.starts_with(['"', '\'']));
        let number = match &node.value {
            SyntaxValue::Number(text) | SyntaxValue::Text(text) if !is_quoted => parse_integer(text),
            _ => None,
        };
        number.map(Some).ok_or_else(|| self.kind_error(node, "uint32"))
    }

    fn to_json(&self, node: &YamlNode<'t>, depth: usize) -> Result<serde_json::Value, DescriptorError> {
        if depth > MAX_NESTING {
            let problem = format!("metadata is more than {MAX_NESTING} levels deep; use fewer");
            return Err(DescriptorError::new(self.file, problem));
        }
        Ok(match &node.value {
            SyntaxValue::Null => serde_json::Value::Null,
            SyntaxValue::Bool(is) => (*is).into(),
            SyntaxValue::Number(text) => {
                parse_number(text).map_or_else(|| (**text).into(), serde_json::Value::Number)
            }
            SyntaxValue::Text(text) => (**text).into(),
            SyntaxValue::List(items) => {
                let items: Result<_, _> = items.iter().map(|item| self.to_json(item, depth + 1)).collect();
                serde_json::Value::Array(items?)
            }
            SyntaxValue::Map(_) => {
                let mut map = Map::new();
                for (name, node) in self.map(node, "metadata")?.iter() {
                    map.insert(name.text.to_string(), self.to_json(node, depth + 1)?);
                }
                serde_json::Value::Object(map)
            }
        })
    }

    fn kind_error(&self, node: &YamlNode<'t>, wanted: &str) -> DescriptorError {
        let found = match &node.value {
            SyntaxValue::Null => "!!null".to_owned(),
            SyntaxValue::Bool(is) => format!("!!bool `{is}`"),
            SyntaxValue::Number(text) if text.parse::<i64>().is_err() => {
                format!("!!float `{}`", truncate(text))
            }
            SyntaxValue::Number(text) => format!("!!int `{}`", truncate(text)),
            SyntaxValue::Text(text) => format!("!!str `{}`", truncate(text)),
            SyntaxValue::List(_) => "!!seq".to_owned(),
            SyntaxValue::Map(_) => "!!map".to_owned(),
        };
        self.yaml_error(format!("line {}: cannot unmarshal {found} into {wanted}", self.line(node.span)))
    }

    fn line(&self, at: SourceSpan) -> usize {
        line_and_column(self.text, at.start).0
    }

    fn yaml_error(&self, problem: impl Into<Cow<'static, str>>) -> DescriptorError {
        DescriptorError::new(self.file, format!("error loading config file: yaml: {}", problem.into()))
    }
}

/// The entries of a map, then those of the maps under `<<` with other keys; `None` if it is not a map.
fn merge_entries<'n, 't>(node: &'n YamlNode<'t>) -> Option<MergedEntries<'n, 't>> {
    let SyntaxValue::Map(own) = &node.value else { return None };
    let mut merged = Vec::new();
    let Some((_, merge)) = own.iter().find(|(name, _)| name.text == MERGE_KEY) else {
        return Some(MergedEntries { own, merged });
    };
    let mut known: HashSet<_> = own.iter().map(|(name, _)| &*name.text).collect();
    let mut pending = vec![&merge.value];
    while let Some(value) = pending.pop() {
        match value {
            // The first item is processed first.
            SyntaxValue::List(items) => pending.extend(items.iter().rev().map(|item| &item.value)),
            SyntaxValue::Map(other) => {
                for (name, node) in other {
                    match name.text == MERGE_KEY {
                        true => pending.push(&node.value),
                        false if known.insert(&name.text) => merged.push((name, node)),
                        false => {}
                    }
                }
            }
            _ => return None,
        }
    }
    Some(MergedEntries { own, merged })
}

/// Returns the value of a key; `None` for `null`.
fn find<'n, 't>(entries: &MergedEntries<'n, 't>, key: &str) -> Option<&'n YamlNode<'t>> {
    let own = entries.own.iter().find(|(name, _)| name.text == key).map(|(_, node)| node);
    let merged = || entries.merged.iter().find(|(name, _)| name.text == key).map(|(_, node)| *node);
    own.or_else(merged).filter(|node| !matches!(node.value, SyntaxValue::Null))
}

/// Parses an integer in any notation of YAML 1.1.
fn parse_integer(text: &str) -> Option<u32> {
    let digits = text.replace('_', "");
    let digits = digits.strip_prefix('+').unwrap_or(&digits);
    let (digits, radix) = match digits.as_bytes() {
        [b'0', b'x', ..] => (&digits[2..], 16),
        [b'0', b'o', ..] => (&digits[2..], 8),
        [b'0', b'b', ..] => (&digits[2..], 2),
        [b'0', _, ..] => (&digits[1..], 8),
        _ => (digits, 10),
    };
    match digits.starts_with(['+', '-']) {
        true => None,
        false => u32::from_str_radix(digits, radix).ok(),
    }
}

fn parse_number(text: &str) -> Option<Number> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let whole = text.parse::<u64>().map(Number::from).or_else(|_| text.parse::<i64>().map(Number::from));
    whole.ok().or_else(|| Number::from_f64(text.parse().ok()?))
}

/// Formats a value for an error, as envoyproxy/ratelimit does.
fn format_value(node: &YamlNode<'_>, depth: usize) -> String {
    match &node.value {
        SyntaxValue::Null => "<nil>".to_owned(),
        SyntaxValue::Bool(is) => is.to_string(),
        SyntaxValue::Number(text) | SyntaxValue::Text(text) => text.to_string(),
        SyntaxValue::Map(_) => "map[]".to_owned(),
        // Bounds the length of the message.
        SyntaxValue::List(_) if depth > 2 => "[]".to_owned(),
        SyntaxValue::List(items) => {
            let items: Vec<_> = items.iter().take(8).map(|item| format_value(item, depth + 1)).collect();
            format!("[{}]", items.join(" "))
        }
    }
}
