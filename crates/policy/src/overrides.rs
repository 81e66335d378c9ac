//! Overrides of quotas: the changes that operators make, and their lines in a file or a store.

use crate::{
    compile::{JsonValue, PolicyError},
    document::Diagnostic,
    model::{OverrideLocation, Policy},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashSet},
    fs, io,
    sync::Arc,
};
use tidegate_core::{Micros, Quota, Utc};
use tidegate_rule::key_hash;

/// A change of the override of a key.
#[derive(Clone, Debug, PartialEq)]
pub struct OverrideRecord {
    /// The number of the change. Later changes have larger numbers.
    pub change: u64,
    /// The time of the change.
    pub time: Micros,
    /// Who made it.
    pub author: Arc<str>,
    /// The rule.
    pub rule: Arc<str>,
    /// The key.
    pub key: OverriddenKey,
    /// What it sets.
    /// `None` if the override was removed.
    pub value: Option<OverrideValue>,
}

/// A key with an override.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverriddenKey {
    /// The key as operators see it. It identifies the key in its rule.
    pub text: Box<str>,
    /// The key as JSON; `None` if that is the string `text`.
    json: Option<Box<str>>,
}

/// What an override sets.
#[derive(Clone, Debug, PartialEq)]
pub struct OverrideValue {
    /// The quota.
    pub quota: Arc<OverrideQuota>,
    /// The end.
    pub until: Micros,
    /// The reason.
    pub reason: Option<Arc<str>>,
}

/// A quota, and its text.
#[derive(Debug, PartialEq)]
pub struct OverrideQuota {
    /// The quota.
    pub quota: Quota,
    /// Its text.
    pub text: Box<str>,
}

/// Shares equal texts and quotas: a million overrides have few rules, authors and quotas.
#[derive(Default)]
pub struct OverrideInterner {
    texts: HashSet<Arc<str>>,
    quotas: Vec<Arc<OverrideQuota>>,
}

impl OverrideInterner {
    /// The shared copy of a text.
    pub fn text(&mut self, text: &str) -> Arc<str> {
        match self.texts.get(text) {
            Some(known) => known.clone(),
            None => {
                let new: Arc<str> = text.into();
                self.texts.insert(new.clone());
                new
            }
        }
    }

    /// The shared copy of a quota; `None` if the text is invalid.
    pub fn quota(&mut self, text: &str) -> Option<Arc<OverrideQuota>> {
        if let Some(known) = self.quotas.iter().rev().find(|known| &*known.text == text) {
            return Some(known.clone());
        }
        let new = Arc::new(OverrideQuota::new(text.parse().ok()?));
        self.quotas.push(new.clone());
        Some(new)
    }
}

impl OverrideQuota {
    /// A quota with its text.
    pub fn new(quota: Quota) -> Self {
        Self { quota, text: quota.to_string().into() }
    }
}

impl OverriddenKey {
    /// The key with this text, from this JSON.
    pub fn new(text: String, json: &JsonValue<'_>) -> Self {
        let json = match json {
            JsonValue::Str(plain) if **plain == text => None,
            other => Some(Value::from(other.clone()).to_string().into()),
        };
        Self { text: text.into(), json }
    }

    /// Calls a function with the key as JSON.
    pub fn with_json<T>(&self, read: impl FnOnce(&JsonValue<'_>) -> T) -> T {
        let plain = || JsonValue::Str((&*self.text).into());
        let parsed = self.json.as_deref().map(serde_json::from_str::<JsonValue<'_>>);
        read(&parsed.and_then(Result::ok).unwrap_or_else(plain))
    }

    fn to_json(&self) -> Value {
        let parsed = self.json.as_deref().and_then(|json| serde_json::from_str(json).ok());
        parsed.unwrap_or_else(|| Value::from(&*self.text))
    }
}

/// The id of the override of a key.
pub fn override_id(rule: &str, key: &str) -> u64 {
    key_hash(rule, &key)
}

impl OverrideRecord {
    /// The id of the override: the same for each change of the same key.
    pub fn id(&self) -> u64 {
        override_id(&self.rule, &self.key.text)
    }

    /// One line of JSON without its end, with the members in reading order.
    pub fn to_line(&self) -> String {
        let value = self.value.as_ref();
        let members = [
            Some(("change", json!(self.change))),
            Some(("time", json!(Utc::from(self.time).to_string()))),
            Some(("by", json!(&*self.author))),
            Some(("rule", json!(&*self.rule))),
            Some(("key", self.key.to_json())),
            self.key.json.as_ref().map(|_| ("text", json!(&*self.key.text))),
            Some(("quota", json!(value.map(|value| &*value.quota.text)))),
            value.map(|value| ("until", json!(Utc::from(value.until).to_string()))),
            value.and_then(|value| value.reason.as_deref()).map(|reason| ("reason", json!(reason))),
        ];
        let members: Vec<_> =
            members.into_iter().flatten().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        format!("{{{}}}", members.join(","))
    }

    /// The line without its first member, the number of the change, which a store sets.
    pub fn to_members(&self) -> String {
        let line = self.to_line();
        line.split_once(',').map_or_else(String::new, |(_, members)| members.to_owned())
    }

    /// Parses a line; the error is the problem.
    pub fn parse(line: &[u8], interner: &mut OverrideInterner) -> Result<Self, &'static str> {
        let line: Value = serde_json::from_slice(line).map_err(|_| "no JSON object")?;
        let text = |member: &str| line[member].as_str();
        let time = |member: &str| text(member).and_then(Utc::parse_micros);
        let key = match (text("text"), &line["key"]) {
            (None, Value::String(text)) => OverriddenKey { text: text.as_str().into(), json: None },
            (Some(text), json) => OverriddenKey { text: text.into(), json: Some(json.to_string().into()) },
            _ => return Err("invalid `key`"),
        };
        let value = match &line["quota"] {
            Value::Null => None,
            Value::String(quota) => Some(OverrideValue {
                quota: interner.quota(quota).ok_or("invalid `quota`")?,
                until: time("until").ok_or("invalid `until`")?,
                reason: text("reason").map(|reason| interner.text(reason)),
            }),
            _ => return Err("invalid `quota`"),
        };
        Ok(Self {
            change: line["change"].as_u64().ok_or("invalid `change`")?,
            time: time("time").ok_or("invalid `time`")?,
            author: interner.text(text("by").ok_or("invalid `by`")?),
            rule: interner.text(text("rule").ok_or("invalid `rule`")?),
            key,
            value,
        })
    }
}

/// The overrides in the file of a policy at `now`, by id; none if the policy keeps none in a file, or if there is no file yet.
pub fn read_overrides(policy: &Policy, now: Micros) -> Result<BTreeMap<u64, OverrideRecord>, PolicyError> {
    let Some(OverrideLocation::File(path)) = &policy.overrides else { return Ok(BTreeMap::new()) };
    let failed = |problem: String, fix: &str| {
        let at = vec!["overrides".to_owned(), "file".to_owned()];
        PolicyError::from_diagnostics(vec![Diagnostic::new(at, problem, fix)])
    };
    let content = match fs::read(path) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => {
            return Err(failed(format!("cannot read {}: {error}", path.display()), "make it readable"));
        }
    };
    let (mut interner, mut overrides) = (OverrideInterner::default(), BTreeMap::new());
    for (index, line) in content.split_inclusive(|byte| *byte == b'\n').enumerate() {
        // A part of a line is a change that was not confirmed.
        if !line.ends_with(b"\n") {
            break;
        }
        let record = OverrideRecord::parse(line, &mut interner).map_err(|problem| {
            failed(
                format!("{}: line {}: {problem}", path.display(), index + 1),
                "correct the line, or remove it",
            )
        })?;
        match &record.value {
            Some(value) if value.until > now => drop(overrides.insert(record.id(), record)),
            _ => drop(overrides.remove(&record.id())),
        }
    }
    Ok(overrides)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_round_trip() {
        for (key, text) in [
            (JsonValue::Str("alice \"a\"\n".into()), "alice \"a\"\n"),
            (JsonValue::Str("2001:db8::1".into()), "2001:db8::/64"),
            (JsonValue::Null, "all"),
            (JsonValue::Array(vec![JsonValue::Str("a".into()), JsonValue::Str("b".into())]), "a|b"),
        ] {
            let value = OverrideValue {
                quota: Arc::new(OverrideQuota::new("200/min burst 7".parse().unwrap())),
                until: Micros::new(1_795_186_800_000_001),
                reason: Some("until Friday".into()),
            };
            for value in [Some(value.clone()), Some(OverrideValue { reason: None, ..value }), None] {
                let key = OverriddenKey::new(text.to_owned(), &key);
                let (author, rule) = ("ann".into(), "login".into());
                let record = OverrideRecord { change: 7, time: Micros::new(5), author, rule, key, value };
                let line = record.to_line();
                assert!(!line.contains('\n'), "{line}");
                let parsed =
                    OverrideRecord::parse(line.as_bytes(), &mut OverrideInterner::default()).unwrap();
                assert_eq!(parsed, record, "{line}");
                assert_eq!(parsed.key.with_json(|json| Value::from(json.clone())), record.key.to_json());
            }
        }
    }
}
