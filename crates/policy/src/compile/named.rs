//! Rules asked by their names, without a request: by a program that knows for whom it asks.
//!
//! What it says is made into the very key that a request would have had, so that both count together.

use super::{JsonValue, PolicyGate, PolicyGateInner};
use crate::model::{KeyPart, KeySpec, Quotas, RuleSpec};
use foldhash::fast::RandomState;
use std::{borrow::Cow, collections::HashMap};
use tidegate_core::{AlgorithmKind, SettingError, suggest};
use tidegate_rule::{
    Mode, RequestLimit, Rule,
    request::{
        AddressKey, KeyValue,
        key::{MAX_KEY_BYTES, normalize_host},
    },
};

/// A rule that is asked by its name.
#[derive(Clone, Copy)]
pub struct NamedRule<'a> {
    index: usize,
    limit: &'a RequestLimit,
    source: &'a RuleSpec,
    key_form: &'a KeyForm,
}

/// By the name of a rule with quotas, its place, and what its keys look like.
pub(super) type RuleNames = HashMap<String, (usize, KeyForm), RandomState>;

/// What the keys of a rule look like, put together as [`tidegate_rule::request::RequestKey`] is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum KeyForm {
    All,
    Address {
        bits: u8,
    },
    Host,
    /// What is text in a request.
    Text,
    /// What an expression gives: a text or a number.
    Any,
    Composite(Vec<Self>),
    /// Each with what the policy calls it.
    First(Vec<(String, Self)>),
}

/// What a rule is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaKind {
    /// Tokens, which are spent.
    Tokens,
    /// Slots, which are given back.
    Slots,
    /// Both.
    Both,
}

impl PolicyGate {
    /// The rule of this name, if it has quotas.
    pub fn rule_by_name(&self, name: &str) -> Option<NamedRule<'_>> {
        let PolicyGateInner { gate, rules, names, .. } = &*self.inner;
        let (place, form) = names.get(name)?;
        let rule = rules.get(*place)?;
        let limit = gate.limits().get(rule.limit?)?;
        Some(NamedRule { index: *place, limit, source: &rule.source, key_form: form })
    }

    /// The names of all rules with quotas, in the order of the policy.
    pub fn rule_names(&self) -> impl Iterator<Item = &str> {
        self.inner.gate.limits().iter().map(|limit| limit.rule().name())
    }
}

impl<'a> NamedRule<'a> {
    /// Its place in the policy.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The rule.
    pub fn rule(&self) -> &'a Rule {
        self.limit.rule()
    }

    /// What it does with what it decides for this key.
    pub fn mode_for(&self, key: &KeyValue<'_>) -> Mode {
        match self.rule().mode() {
            Mode::Enforce if !self.limit.is_enforced_for(key) => Mode::Shadow,
            mode => mode,
        }
    }

    /// What its quotas are of.
    pub fn quota_kind(&self) -> QuotaKind {
        let is_slots = |quota: &tidegate_core::Quota| matches!(quota.kind(), AlgorithmKind::Concurrency(_));
        let quotas = self.rule().quotas();
        match (quotas.iter().any(is_slots), quotas.iter().all(is_slots)) {
            (false, _) => QuotaKind::Tokens,
            (true, true) => QuotaKind::Slots,
            (true, false) => QuotaKind::Both,
        }
    }

    /// The key that a request would have had: a text, a list where there are several parts, `{"ip": "192.0.2.1"}` for one of
    /// several choices, and nothing where all are counted together.
    pub fn parse_key<'g>(&self, json: Option<&'g JsonValue<'_>>) -> Result<KeyValue<'g>, SettingError> {
        let key = self.key_form.parse(json.unwrap_or(&JsonValue::Null))?;
        match key_len(&key) > MAX_KEY_BYTES {
            true => {
                Err(SettingError::new("the key is too long", format!("give {MAX_KEY_BYTES} bytes at most")))
            }
            false => Ok(key),
        }
    }

    /// The place of the tier of this name; that of all others where none is named.
    pub fn tier_index(&self, named: Option<&str>) -> Result<usize, SettingError> {
        let Quotas::Tiers(tiers) = &self.source.quotas else {
            return match named {
                None => Ok(0),
                Some(_) => Err(SettingError::new("this rule has no tiers", "leave `tier` out")),
            };
        };
        let Some(named) = named else { return Ok(tiers.quotas.len()) };
        let known = tiers.quotas.iter().map(|(name, _)| name.as_str());
        known.clone().position(|name| name == named).ok_or_else(|| {
            let all = known.clone().collect::<Vec<_>>().join("`, `");
            let fix = match suggest::closest(named, known) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("use one of `{all}`, or leave it out"),
            };
            SettingError::new(format!("there is no tier `{}`", truncate(named)), fix)
        })
    }
}

/// What the keys of all rules with quotas look like.
pub(super) fn index_names<'a>(
    rules: impl Iterator<Item = (usize, &'a RuleSpec)>,
    user: Option<&KeySpec>,
) -> RuleNames {
    rules.map(|(place, rule)| (rule.name.clone(), (place, KeyForm::new(&rule.key, user)))).collect()
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
            KeyPart::Ip { bits } => Self::Address { bits: *bits },
            // One that is found by itself is no policy.
            KeyPart::User => user.map_or(Self::Text, |user| Self::new(user, None)),
            KeyPart::Host => Self::Host,
            KeyPart::Cel(_) => Self::Any,
            KeyPart::Request
            | KeyPart::Method
            | KeyPart::Path
            | KeyPart::Route
            | KeyPart::Header(_)
            | KeyPart::Cookie(_)
            | KeyPart::Query(_)
            | KeyPart::Capture(_) => Self::Text,
        }
    }

    /// Choices of choices are choices.
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
                _ => Err(SettingError::new("this rule counts all together", "leave `key` out")),
            },
            Self::Address { bits } => {
                let text = require_text(json, "an address")?;
                let address: std::net::IpAddr = text.parse().map_err(|_| {
                    let problem = format!("`{}` is not an address", truncate(&text));
                    SettingError::new(problem, "write one, as in `192.0.2.1` or `2001:db8::1`")
                })?;
                Ok(KeyValue::Address(AddressKey::with_prefix(address.to_canonical(), *bits)))
            }
            Self::Host => {
                let text = require_text(json, "a host")?;
                let host = normalize_host(&text).map(Cow::into_owned);
                let missing =
                    || SettingError::new("there is no host in it", "write one, as in `example.com`");
                Ok(KeyValue::Text(host.ok_or_else(missing)?.into()))
            }
            Self::Text => Ok(KeyValue::Text(require_text(json, "a text")?)),
            Self::Any => match json.as_u64() {
                Some(number) => Ok(KeyValue::Number(number)),
                None => Ok(KeyValue::Text(require_text(json, "a text or a number")?)),
            },
            Self::Composite(parts) => Self::parse_composite(parts, json),
            Self::First(choices) => parse_choice(choices, json),
        }
    }

    fn parse_composite<'g>(parts: &[Self], json: &'g JsonValue<'_>) -> Result<KeyValue<'g>, SettingError> {
        let json = match json {
            JsonValue::Array(json) if json.len() == parts.len() => json,
            _ => {
                let problem = format!("this rule counts by {} parts", parts.len());
                return Err(SettingError::new(problem, format!("give a list of {} as `key`", parts.len())));
            }
        };
        let keys = parts.iter().zip(json).map(|(part, json)| part.parse(json));
        keys.collect::<Result<_, _>>().map(KeyValue::Joined)
    }
}

/// One of several choices: the first, unless it is named.
fn parse_choice<'g>(
    choices: &[(String, KeyForm)],
    json: &'g JsonValue<'_>,
) -> Result<KeyValue<'g>, SettingError> {
    let (place, json) = match json {
        JsonValue::Object(named) => match &named.as_vec()[..] {
            [(name, json)] => (choices.iter().position(|(known, _)| *known == **name), json),
            _ => (None, json),
        },
        json => (Some(0), json),
    };
    let form = place.and_then(|place| Some((place, &choices.get(place)?.1)));
    let Some((place, form)) = form else {
        let all = choices.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join("`, `");
        return Err(SettingError::new(
            "this rule counts by one of several things",
            format!(
                "name one of `{all}`, as in {{\"{}\": \"…\"}}",
                choices.last().map_or("", |last| &last.0)
            ),
        ));
    };
    let key = form.parse(json)?;
    Ok(match u8::try_from(place) {
        Ok(0) | Err(_) => key,
        Ok(place) => KeyValue::Fallback(place, Box::new(key)),
    })
}

/// What a policy calls it.
fn key_label(spec: &KeySpec) -> String {
    match spec {
        KeySpec::All => "all".to_owned(),
        KeySpec::Part(part) => part.to_string(),
        KeySpec::Composite(parts) | KeySpec::First(parts) => {
            parts.iter().map(key_label).collect::<Vec<_>>().join(" + ")
        }
    }
}

/// A text that is not empty; a number is the text that it is written as.
fn require_text<'g>(json: &'g JsonValue<'_>, what: &str) -> Result<Cow<'g, str>, SettingError> {
    match json {
        JsonValue::Str(text) if !text.is_empty() => Ok(Cow::Borrowed(text)),
        // The display of the borrowed number writes 1.0 as 1, which is another key.
        JsonValue::Number(number) => Ok(serde_json::Number::from(*number).to_string().into()),
        JsonValue::Null => Err(SettingError::new("there is no key", format!("give {what} as `key`"))),
        JsonValue::Str(_) => Err(SettingError::new("the key is empty", format!("give {what} as `key`"))),
        _ => Err(SettingError::new("the key is not what this rule counts by", format!("give {what}"))),
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

/// What clients said is told to them, but not all of a megabyte.
fn truncate(text: &str) -> String {
    const MAX_SHOWN_CHARS: usize = 60;
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
