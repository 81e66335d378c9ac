//! Reads files of descriptors: YAML as envoyproxy/ratelimit takes it, with its words for mistakes.
//!
//! Keys are checked first, all of them, then values are looked at. Any known key may stand anywhere, as it may there; what it
//! says where nobody asks for it is not heard. A file may have several documents, each a domain.

use super::{
    DescriptorError, DescriptorFile, DescriptorFlags, RawDescriptor, RawDomain, RawLimit, set::DEEPEST,
};
use crate::source::{self, Span, Value, documents, plain, position, short};
use serde_json::{Map, Number};
use std::{borrow::Cow, collections::HashSet};

/// A larger file is a mistake: a hundred thousand descriptors take less.
const MOST_BYTES: usize = 8 * 1024 * 1024;

/// How deep maps and lists may be in each other, with what aliases stand for.
const MOST_NESTED: usize = 4 * DEEPEST;

const KEYS: [&str; 16] = [
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

/// What only we know, and only in a `rate_limit`.
const OWN_KEYS: [&str; 3] = ["quota", "quotas", "lease"];

/// The key of maps that a map is merged with.
const MERGE: &str = "<<";

/// The domains of a file, one for each document.
pub(super) fn domains(file: &DescriptorFile) -> Result<Vec<RawDomain<Said<'_>>>, DescriptorError> {
    // The byte order mark of some editors says nothing.
    let text = file.text.strip_prefix('\u{feff}').unwrap_or(&file.text);
    let reader = Reader { file: &file.name, text };
    if text.len() > MOST_BYTES {
        return Err(reader.yaml(format!("{} bytes are more than 8 MiB; split the file", text.len())));
    }
    let mut roots: Vec<Node<'_>> = documents(text)
        .map_err(|(line, fault)| reader.yaml(format!("line {line}: {}; {}", fault.problem, fault.fix)))?;
    roots.retain(|root| root.value != Value::Null);
    if roots.is_empty() {
        return Ok(vec![RawDomain { source: file.name.as_str().into(), ..RawDomain::default() }]);
    }
    roots.iter().map(|root| reader.domain(root)).collect()
}

struct Reader<'t> {
    file: &'t str,
    text: &'t str,
}

/// A piece of the text, where what is said stands there as it is.
type Said<'t> = Cow<'t, str>;
type Node<'t> = source::Node<Said<'t>>;
type Name<'t> = source::Name<Said<'t>>;

/// The entries of a map, with those that it is merged with.
struct Entries<'n, 't> {
    own: &'n [(Name<'t>, Node<'t>)],
    merged: Vec<(&'n Name<'t>, &'n Node<'t>)>,
}

impl<'n, 't> Entries<'n, 't> {
    fn iter(&self) -> impl Iterator<Item = (&'n Name<'t>, &'n Node<'t>)> {
        let own = self.own.iter().filter(|(name, _)| name.text != MERGE);
        own.map(|(name, node)| (name, node)).chain(self.merged.iter().copied())
    }
}

/// Where keys stand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Limit,
    Elsewhere,
}

impl<'t> Reader<'t> {
    fn domain(&self, root: &Node<'t>) -> Result<RawDomain<Said<'t>>, DescriptorError> {
        self.check(root, Place::Elsewhere, 0)?;
        let entries = self.map(root, "a file of descriptors")?;
        Ok(RawDomain {
            source: self.file.into(),
            domain: self.string(&entries, "domain")?,
            descriptors: self.descriptors(&entries, 0)?,
        })
    }

    fn descriptors(
        &self,
        entries: &Entries<'_, 't>,
        depth: usize,
    ) -> Result<Vec<RawDescriptor<Said<'t>>>, DescriptorError> {
        if depth > DEEPEST {
            let problem = format!("descriptors are more than {DEEPEST} levels deep; use fewer");
            return Err(DescriptorError::new(self.file, problem));
        }
        let items = self.list(entries, "descriptors")?;
        // There may be many: they are put where they stay.
        let mut descriptors = Vec::with_capacity(items.len());
        for item in items {
            descriptors.push(self.descriptor(item, depth)?);
        }
        Ok(descriptors)
    }

    fn descriptor(&self, node: &Node<'t>, depth: usize) -> Result<RawDescriptor<Said<'t>>, DescriptorError> {
        let entries = self.map(node, "a descriptor")?;
        let rate_limit = match find(&entries, "rate_limit") {
            None => None,
            Some(node) => Some(self.limit(&self.map(node, "a rate_limit")?)?),
        };
        let metadata = match find(&entries, "metadata") {
            None => None,
            Some(node) => {
                self.map(node, "metadata")?;
                Some(self.json(node, 0)?)
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
            descriptors: self.descriptors(&entries, depth + 1)?,
        })
    }

    fn limit(&self, entries: &Entries<'_, 't>) -> Result<RawLimit<Said<'t>>, DescriptorError> {
        let replaces = self.list(entries, "replaces")?.iter().map(|item| {
            let entries = self.map(item, "replaces")?;
            self.string(&entries, "name")
        });
        Ok(RawLimit {
            unit: self.string(entries, "unit")?,
            requests_per_unit: self.whole(entries, "requests_per_unit")?,
            unlimited: self.flag(entries, "unlimited")?,
            name: self.string(entries, "name")?,
            replaces: replaces.collect::<Result<_, _>>()?,
            quotas: self.quotas(entries)?,
            lease: self.string(entries, "lease")?,
        })
    }

    fn quotas(&self, entries: &Entries<'_, 't>) -> Result<Vec<Said<'t>>, DescriptorError> {
        let error = |problem: &str| DescriptorError::new(self.file, problem);
        match (find(entries, "quota"), find(entries, "quotas")) {
            (None, None) => Ok(Vec::new()),
            (Some(_), Some(_)) => Err(error("should not specify both quota and quotas; use quotas")),
            (Some(_), None) => Ok(vec![self.string(entries, "quota")?]),
            (None, Some(node)) => match &node.value {
                Value::List(items) if !items.is_empty() => items.iter().map(|item| self.word(item)).collect(),
                _ => Err(error("quotas should be a list such as [100/min burst 20, 1000/h]")),
            },
        }
    }

    /// Whether all keys are known, and everything is of a kind that can be.
    fn check(&self, node: &Node<'t>, place: Place, depth: usize) -> Result<(), DescriptorError> {
        let error = |problem: String| DescriptorError::new(self.file, format!("config error, {problem}"));
        if depth > MOST_NESTED {
            return Err(error(format!("maps and lists are more than {MOST_NESTED} levels deep")));
        }
        for (name, node) in self.map(node, "a file of descriptors")?.iter() {
            let key = &*name.text;
            let is_own = place == Place::Limit && OWN_KEYS.contains(&key);
            if !is_own && !KEYS.contains(&key) {
                return Err(error(match self.is_string(name) {
                    true => format!("unknown key '{}'", short(key)),
                    false => format!("key is not of type string: {}", short(key)),
                }));
            }
            let below = if key == "rate_limit" { Place::Limit } else { Place::Elsewhere };
            match &node.value {
                _ if is_own || key == "metadata" => {}
                Value::List(items) => {
                    for item in items {
                        if !item.value.is_map() {
                            let shown = short(&shown(item, 0));
                            let problem = format!("yaml file contains list of type other than map: {shown}");
                            return Err(error(problem));
                        }
                        self.check(item, below, depth + 1)?;
                    }
                }
                Value::Map(_) => self.check(node, below, depth + 1)?,
                Value::Number(number) if number.parse::<i64>().is_err() => {
                    let number = short(number);
                    let problem =
                        format!("error checking config: {number} is no whole number; put it into quotes");
                    return Err(DescriptorError::new(self.file, problem));
                }
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) => {}
            }
        }
        Ok(())
    }

    /// The tree keeps keys as texts: one that was written without quotes and means something else is none.
    fn is_string(&self, name: &Name<'t>) -> bool {
        let written = self.text.get(name.at.start..name.at.end).unwrap_or_default().trim();
        matches!(plain(written), Value::Text(_) | Value::Null)
    }

    fn map<'n>(&self, node: &'n Node<'t>, what: &str) -> Result<Entries<'n, 't>, DescriptorError> {
        merged(node).ok_or_else(|| self.kind(node, &format!("{what}, which is a map")))
    }

    fn list<'n>(&self, entries: &Entries<'n, 't>, key: &str) -> Result<&'n [Node<'t>], DescriptorError> {
        match find(entries, key).map(|node| (node, &node.value)) {
            None => Ok(&[]),
            Some((_, Value::List(items))) => Ok(items),
            Some((node, _)) => Err(self.kind(node, &format!("{key}, which is a list"))),
        }
    }

    fn string(&self, entries: &Entries<'_, 't>, key: &str) -> Result<Said<'t>, DescriptorError> {
        find(entries, key).map_or(Ok(Said::default()), |node| self.word(node))
    }

    /// A word as it was written, whatever it means.
    fn word(&self, node: &Node<'t>) -> Result<Said<'t>, DescriptorError> {
        match &node.value {
            Value::Text(text) | Value::Number(text) => Ok(text.clone()),
            Value::Bool(is) => {
                let written = self.text.get(node.at.start..node.at.end).unwrap_or_default();
                let word = if *is { "true" } else { "false" };
                Ok(Said::from(if written.eq_ignore_ascii_case(word) { written } else { word }))
            }
            Value::Null => Ok(Said::default()),
            Value::List(_) | Value::Map(_) => Err(self.kind(node, "string")),
        }
    }

    /// YAML 1.1 has more words for it than 1.2.
    fn flag(&self, entries: &Entries<'_, 't>, key: &str) -> Result<bool, DescriptorError> {
        let Some(node) = find(entries, key) else { return Ok(false) };
        match &node.value {
            Value::Bool(is) => Ok(*is),
            Value::Text(text) => match text.to_ascii_lowercase().as_str() {
                "y" | "yes" | "on" => Ok(true),
                "n" | "no" | "off" => Ok(false),
                _ => Err(self.kind(node, "bool")),
            },
            _ => Err(self.kind(node, "bool")),
        }
    }

    fn whole(&self, entries: &Entries<'_, 't>, key: &str) -> Result<Option<u32>, DescriptorError> {
        let Some(node) = find(entries, key) else { return Ok(None) };
        let is_quoted = self.text.get(node.at.start..).is_some_and(|text| text.starts_with(['"', '\'']));
        let number = match &node.value {
            Value::Number(text) | Value::Text(text) if !is_quoted => whole(text),
            _ => None,
        };
        number.map(Some).ok_or_else(|| self.kind(node, "uint32"))
    }

    fn json(&self, node: &Node<'t>, depth: usize) -> Result<serde_json::Value, DescriptorError> {
        if depth > MOST_NESTED {
            let problem = format!("metadata is more than {MOST_NESTED} levels deep; use fewer");
            return Err(DescriptorError::new(self.file, problem));
        }
        Ok(match &node.value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(is) => (*is).into(),
            Value::Number(text) => number(text).map_or_else(|| (**text).into(), serde_json::Value::Number),
            Value::Text(text) => (**text).into(),
            Value::List(items) => {
                let items: Result<_, _> = items.iter().map(|item| self.json(item, depth + 1)).collect();
                serde_json::Value::Array(items?)
            }
            Value::Map(_) => {
                let mut map = Map::new();
                for (name, node) in self.map(node, "metadata")?.iter() {
                    map.insert(name.text.to_string(), self.json(node, depth + 1)?);
                }
                serde_json::Value::Object(map)
            }
        })
    }

    fn kind(&self, node: &Node<'t>, wanted: &str) -> DescriptorError {
        let found = match &node.value {
            Value::Null => "!!null".to_owned(),
            Value::Bool(is) => format!("!!bool `{is}`"),
            Value::Number(text) if text.parse::<i64>().is_err() => format!("!!float `{}`", short(text)),
            Value::Number(text) => format!("!!int `{}`", short(text)),
            Value::Text(text) => format!("!!str `{}`", short(text)),
            Value::List(_) => "!!seq".to_owned(),
            Value::Map(_) => "!!map".to_owned(),
        };
        self.yaml(format!("line {}: cannot unmarshal {found} into {wanted}", self.line(node.at)))
    }

    fn line(&self, at: Span) -> usize {
        position(self.text, at.start).0
    }

    fn yaml(&self, problem: impl Into<Cow<'static, str>>) -> DescriptorError {
        DescriptorError::new(self.file, format!("error loading config file: yaml: {}", problem.into()))
    }
}

/// The entries of a map, then those of the maps under `<<` that it does not have itself; `None` where it is no map.
fn merged<'n, 't>(node: &'n Node<'t>) -> Option<Entries<'n, 't>> {
    let Value::Map(own) = &node.value else { return None };
    let mut merged = Vec::new();
    let Some((_, merge)) = own.iter().find(|(name, _)| name.text == MERGE) else {
        return Some(Entries { own, merged });
    };
    let mut known: HashSet<_> = own.iter().map(|(name, _)| &*name.text).collect();
    let mut ahead = vec![&merge.value];
    while let Some(value) = ahead.pop() {
        match value {
            // The first of them is looked at first.
            Value::List(items) => ahead.extend(items.iter().rev().map(|item| &item.value)),
            Value::Map(other) => {
                for (name, node) in other {
                    match name.text == MERGE {
                        true => ahead.push(&node.value),
                        false if known.insert(&name.text) => merged.push((name, node)),
                        false => {}
                    }
                }
            }
            _ => return None,
        }
    }
    Some(Entries { own, merged })
}

/// What a key says; `null` says nothing.
fn find<'n, 't>(entries: &Entries<'n, 't>, key: &str) -> Option<&'n Node<'t>> {
    let own = entries.own.iter().find(|(name, _)| name.text == key).map(|(_, node)| node);
    let merged = || entries.merged.iter().find(|(name, _)| name.text == key).map(|(_, node)| *node);
    own.or_else(merged).filter(|node| !matches!(node.value, Value::Null))
}

/// A whole number in any of the forms of YAML 1.1.
fn whole(text: &str) -> Option<u32> {
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

fn number(text: &str) -> Option<Number> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let whole = text.parse::<u64>().map(Number::from).or_else(|_| text.parse::<i64>().map(Number::from));
    whole.ok().or_else(|| Number::from_f64(text.parse().ok()?))
}

/// A value in an error, as they show it.
fn shown(node: &Node<'_>, depth: usize) -> String {
    match &node.value {
        Value::Null => "<nil>".to_owned(),
        Value::Bool(is) => is.to_string(),
        Value::Number(text) | Value::Text(text) => text.to_string(),
        Value::Map(_) => "map[]".to_owned(),
        // Nobody reads more of it.
        Value::List(_) if depth > 2 => "[]".to_owned(),
        Value::List(items) => {
            let items: Vec<_> = items.iter().take(8).map(|item| shown(item, depth + 1)).collect();
            format!("[{}]", items.join(" "))
        }
    }
}
