//! Checks of a rule by name, without an HTTP request, for callers that provide the key.
//!
//! The key is converted to the one that a request would have, so that both use the same counter.

use super::{JsonValue, PolicyGate, PolicyGateInner};
use crate::model::{KeyPart, KeySpec, Quotas, RuleSpec};
use foldhash::fast::RandomState;
use std::{borrow::Cow, collections::HashMap};
use tidegate_core::{Quota, SettingError, suggest};
use tidegate_rule::{
    Mode, RequestLimit, Rule,
    request::{
        AddressKey, KeyValue,
        key::{MAX_KEY_BYTES, normalize_host},
    },
};

/// A rule with quotas, found by name.
#[derive(Clone, Copy)]
pub struct NamedRule<'a> {
    index: usize,
    limit: &'a RequestLimit,
    source: &'a RuleSpec,
    key_form: &'a KeyForm,
}

/// The rules with quotas by name, each with its index and the form of its keys.
pub(super) type RuleNames = HashMap<String, (usize, KeyForm), RandomState>;

/// The form of the keys of a rule, with the structure of [`tidegate_rule::request::RequestKey`].
#[derive(Clone, Debug, PartialEq)]
pub(super) enum KeyForm {
    All,
    Address {
        prefix_len: u8,
    },
    Host,
    /// A string.
    Text,
    /// The value of an expression: a string or an integer.
    Any,
    Composite(Vec<Self>),
    /// Each with its notation in the policy.
    First(Vec<(String, Self)>),
}

/// The kind of quotas of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaKind {
    /// Rates, which take tokens.
    Tokens,
    /// Concurrency limits, whose slots are released.
    Slots,
    /// Both.
    Both,
}

impl PolicyGate {
    /// The rule of this name, if it has quotas.
    pub fn rule_by_name(&self, name: &str) -> Option<NamedRule<'_>> {
        let PolicyGateInner { gate, rules, names, .. } = &*self.inner;
        let (index, form) = names.get(name)?;
        let rule = rules.get(*index)?;
        let limit = gate.limits().get(rule.limit?)?;
        Some(NamedRule { index: *index, limit, source: &rule.source, key_form: form })
    }

    /// The names of all rules with quotas, in the order of the policy.
    pub fn rule_names(&self) -> impl Iterator<Item = &str> {
        self.inner.gate.limits().iter().map(|limit| limit.rule().name())
    }
}

impl<'a> NamedRule<'a> {
    /// The index in the policy.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The rule.
    pub fn rule(&self) -> &'a Rule {
        self.limit.rule()
    }

    /// The rule in the policy.
    pub fn source(&self) -> &'a RuleSpec {
        self.source
    }

    /// The mode for this key.
    pub fn mode_for(&self, key: &KeyValue<'_>) -> Mode {
        match self.rule().mode() {
            Mode::Enforce if !self.limit.is_enforced_for(key) => Mode::Shadow,
            mode => mode,
        }
    }

    /// The kind of its quotas.
    pub fn quota_kind(&self) -> QuotaKind {
        let quotas = self.rule().quotas();
        match (quotas.iter().any(Quota::is_concurrency), quotas.iter().all(Quota::is_concurrency)) {
            (false, _) => QuotaKind::Tokens,
            (true, true) => QuotaKind::Slots,
            (true, false) => QuotaKind::Both,
        }
    }

    /// Parses a key: a string, a list for a key of several parts, `{"ip": "192.0.2.1"}` for one of several alternatives, and
    /// nothing if all requests are counted together.
    pub fn parse_key<'g>(&self, json: Option<&'g JsonValue<'_>>) -> Result<KeyValue<'g>, SettingError> {
        let key = self.key_form.parse(json.unwrap_or(&JsonValue::Null))?;
        match key_len(&key) > MAX_KEY_BYTES {
            true => Err(SettingError::new("key too long", format!("use at most {MAX_KEY_BYTES} bytes"))),
            false => Ok(key),
        }
    }

    /// The index of the tier of this name; that of the default tier for `None`.
    pub fn tier_index(&self, named: Option<&str>) -> Result<usize, SettingError> {
        let Quotas::Tiers(tiers) = &self.source.quotas else {
            return match named {
                None => Ok(0),
                Some(_) => Err(SettingError::new("the rule has no tiers", "omit `tier`")),
            };
        };
        let Some(named) = named else { return Ok(tiers.quotas.len()) };
        let known = tiers.quotas.iter().map(|(name, _)| name.as_str());
        known.clone().position(|name| name == named).ok_or_else(|| {
            let all = known.clone().collect::<Vec<_>>().join("`, `");
            let fix = match suggest::closest(named, known) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("use one of `{all}`, or omit it"),
            };
            SettingError::new(format!("unknown tier `{}`", truncate(named)), fix)
        })
    }
}

/// Builds the index of all rules with quotas.
pub(super) fn index_names<'a>(
    rules: impl Iterator<Item = (usize, &'a RuleSpec)>,
    user: Option<&KeySpec>,
) -> RuleNames {
    rules.map(|(index, rule)| (rule.name.clone(), (index, KeyForm::new(&rule.key, user)))).collect()
}

impl KeyForm {
    fn new(spec: &KeySpec, user: Option<&KeySpec>) -> Self {
        match spec {
            KeySpec::All => Self::All,
            KeySpec::Part(part) => Self::from_part(part, user),
            KeySpec::Composite(parts) => {
                parts.iter().map(|part| Self::new(part, user)).reduce(Self::append).unwrap_or(Self::All)
            }
            KeySpec::First(parts) => {
                let named = parts.iter().map(|part| Self::choices(part, user));
                let mut choices: Vec<_> = named.flatten().collect();
                match choices.len() {
                    0 => Self::All,
                    1 => choices.remove(0).1,
                    _ => Self::First(choices),
                }
            }
        }
    }

    fn from_part(part: &KeyPart, user: Option<&KeySpec>) -> Self {
        match part {
            KeyPart::Ip { prefix_len } => Self::Address { prefix_len: *prefix_len },
            // The compiler rejects a `user` that refers to itself.
            KeyPart::User => user.map_or(Self::Text, |user| Self::new(user, None)),
            KeyPart::Host => Self::Host,
            KeyPart::Cel(_) => Self::Any,
            KeyPart::Request
            | KeyPart::Method
            | KeyPart::Path
            | KeyPart::Route
            | KeyPart::Upstream
            | KeyPart::Header(_)
            | KeyPart::Cookie(_)
            | KeyPart::Query(_)
            | KeyPart::Descriptor(_)
            | KeyPart::Body(_)
            | KeyPart::Jwt(_)
            | KeyPart::ApiKey(_)
            | KeyPart::ClientCertificate(_)
            | KeyPart::Capture(_) => Self::Text,
        }
    }

    /// Returns the alternatives of a key; nested alternatives are flattened.
    fn choices(spec: &KeySpec, user: Option<&KeySpec>) -> Vec<(String, Self)> {
        match Self::new(spec, user) {
            Self::First(choices) => choices,
            form => vec![(key_label(spec), form)],
        }
    }

    fn append(self, other: Self) -> Self {
        match self {
            Self::Composite(mut parts) => {
                parts.push(other);
                Self::Composite(parts)
            }
            first => Self::Composite(vec![first, other]),
        }
    }

    fn parse<'g>(&self, json: &'g JsonValue<'_>) -> Result<KeyValue<'g>, SettingError> {
        match self {
            Self::All => match json {
                JsonValue::Null => Ok(KeyValue::All),
                _ => Err(SettingError::new("the rule counts all requests together", "omit `key`")),
            },
            Self::Address { prefix_len } => {
                let text = require_text(json, "an address")?;
                let address: std::net::IpAddr = text.parse().map_err(|_| {
                    let problem = format!("invalid address `{}`", truncate(&text));
                    SettingError::new(problem, "write one, as in `192.0.2.1` or `2001:db8::1`")
                })?;
                Ok(KeyValue::Address(AddressKey::with_prefix(address.to_canonical(), *prefix_len)))
            }
            Self::Host => {
                let text = require_text(json, "a host")?;
                let host = normalize_host(&text).map(Cow::into_owned);
                let missing = || SettingError::new("key without a host", "write one, as in `example.com`");
                Ok(KeyValue::Text(host.ok_or_else(missing)?.into()))
            }
            Self::Text => Ok(KeyValue::Text(require_text(json, "a string")?)),
            Self::Any => match json.as_u64() {
                Some(number) => Ok(KeyValue::Number(number)),
                None => Ok(KeyValue::Text(require_text(json, "a string or an integer")?)),
            },
            Self::Composite(parts) => Self::parse_composite(parts, json),
            Self::First(choices) => parse_choice(choices, json),
        }
    }

    fn parse_composite<'g>(parts: &[Self], json: &'g JsonValue<'_>) -> Result<KeyValue<'g>, SettingError> {
        let json = match json {
            JsonValue::Array(json) if json.len() == parts.len() => json,
            _ => {
                let problem = format!("the key of the rule has {} parts", parts.len());
                return Err(SettingError::new(problem, format!("use a list of {} as `key`", parts.len())));
            }
        };
        let keys = parts.iter().zip(json).map(|(part, json)| part.parse(json));
        keys.collect::<Result<_, _>>().map(KeyValue::Joined)
    }
}

/// Parses one of several alternatives: the named one, or the first.
fn parse_choice<'g>(
    choices: &[(String, KeyForm)],
    json: &'g JsonValue<'_>,
) -> Result<KeyValue<'g>, SettingError> {
    let (index, json) = match json {
        JsonValue::Object(named) => match &named.as_vec()[..] {
            [(name, json)] => (choices.iter().position(|(known, _)| *known == **name), json),
            _ => (None, json),
        },
        json => (Some(0), json),
    };
    let form = index.and_then(|index| Some((index, &choices.get(index)?.1)));
    let Some((index, form)) = form else {
        let all = choices.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join("`, `");
        return Err(SettingError::new(
            "the key of the rule has several alternatives",
            format!(
                "name one of `{all}`, as in {{\"{}\": \"…\"}}",
                choices.last().map_or("", |last| &last.0)
            ),
        ));
    };
    let key = form.parse(json)?;
    Ok(match u8::try_from(index) {
        Ok(0) | Err(_) => key,
        Ok(index) => KeyValue::Fallback(index, Box::new(key)),
    })
}

/// The notation of a key in a policy.
fn key_label(spec: &KeySpec) -> String {
    match spec {
        KeySpec::All => "all".to_owned(),
        KeySpec::Part(part) => part.to_string(),
        KeySpec::Composite(parts) | KeySpec::First(parts) => {
            parts.iter().map(key_label).collect::<Vec<_>>().join(" + ")
        }
    }
}

/// Reads a non-empty string. A number is converted to its notation.
fn require_text<'g>(json: &'g JsonValue<'_>, what: &str) -> Result<Cow<'g, str>, SettingError> {
    match json {
        JsonValue::Str(text) if !text.is_empty() => Ok(Cow::Borrowed(text)),
        // `Display` of the borrowed number writes 1.0 as 1, which is another key.
        JsonValue::Number(number) => Ok(serde_json::Number::from(*number).to_string().into()),
        JsonValue::Null => Err(SettingError::new("missing key", format!("use {what} as `key`"))),
        JsonValue::Str(_) => Err(SettingError::new("empty key", format!("use {what} as `key`"))),
        _ => Err(SettingError::new("invalid type of the key", format!("use {what}"))),
    }
}

fn key_len(key: &KeyValue<'_>) -> usize {
    match key {
        KeyValue::Text(text) => text.len(),
        KeyValue::Joined(parts) => parts.iter().map(key_len).sum(),
        KeyValue::Fallback(_, key) => key_len(key),
        _ => 0,
    }
}

/// Truncates a value of the client for an error message.
fn truncate(text: &str) -> String {
    const MAX_SHOWN_CHARS: usize = 60;
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
