//! Rules asked by their names, without a request: by a program that knows for whom it asks.
//!
//! What it says is made into the very key that a request would have had, so that both count together.

use super::{Inner, JsonValue, PolicyGate};
use crate::model::{Key as Said, Part, Quotas, Rule as Source};
use foldhash::fast::RandomState;
use std::{borrow::Cow, collections::HashMap};
use tidegate_core::{Kind, SettingError, spelling};
use tidegate_rule::{
    Mode, RequestLimit, Rule,
    request::{
        Address, KeyValue,
        key::{LONGEST, host_name},
    },
};

/// A rule that is asked by its name.
#[derive(Clone, Copy)]
pub struct NamedRule<'a> {
    place: usize,
    limit: &'a RequestLimit,
    source: &'a Source,
    form: &'a KeyForm,
}

/// By the name of a rule with quotas, its place, and what its keys look like.
pub(super) type Names = HashMap<String, (usize, KeyForm), RandomState>;

/// What the keys of a rule look like, put together as [`tidegate_rule::request::Key`] is.
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
    Every(Vec<Self>),
    /// Each with what the policy calls it.
    First(Vec<(String, Self)>),
}

/// What a rule is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Tokens, which are spent.
    Tokens,
    /// Slots, which are given back.
    Slots,
    /// Both.
    Both,
}

impl PolicyGate {
    /// The rule of this name, if it has quotas.
    pub fn named(&self, name: &str) -> Option<NamedRule<'_>> {
        let Inner { gate, rules, names, .. } = &*self.inner;
        let (place, form) = names.get(name)?;
        let rule = rules.get(*place)?;
        let limit = gate.limits().get(rule.limit?)?;
        Some(NamedRule { place: *place, limit, source: &rule.source, form })
    }

    /// The names of all rules with quotas, in the order of the policy.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.inner.gate.limits().iter().map(|limit| limit.rule().name())
    }
}

impl<'a> NamedRule<'a> {
    /// Its place in the policy.
    pub fn place(&self) -> usize {
        self.place
    }

    /// The rule.
    pub fn rule(&self) -> &'a Rule {
        self.limit.rule()
    }

    /// What it does with what it decides for this key.
    pub fn mode_for(&self, key: &KeyValue<'_>) -> Mode {
        match self.rule().mode() {
            Mode::Enforce if !self.limit.chooses(key) => Mode::Shadow,
            mode => mode,
        }
    }

    /// What its quotas are of.
    pub fn holds(&self) -> Holds {
        let is_slots = |quota: &tidegate_core::Quota| matches!(quota.kind(), Kind::Concurrency(_));
        let quotas = self.rule().quotas();
        match (quotas.iter().any(is_slots), quotas.iter().all(is_slots)) {
            (false, _) => Holds::Tokens,
            (true, true) => Holds::Slots,
            (true, false) => Holds::Both,
        }
    }

    /// The key that a request would have had: a text, a list where there are several parts, `{"ip": "192.0.2.1"}` for one of
    /// several choices, and nothing where all are counted together.
    pub fn key<'g>(&self, given: Option<&'g JsonValue<'_>>) -> Result<KeyValue<'g>, SettingError> {
        let key = self.form.key(given.unwrap_or(&JsonValue::Null))?;
        match length(&key) > LONGEST {
            true => Err(SettingError::new("the key is too long", format!("give {LONGEST} bytes at most"))),
            false => Ok(key),
        }
    }

    /// The place of the tier of this name; that of all others where none is named.
    pub fn tier(&self, named: Option<&str>) -> Result<usize, SettingError> {
        let Quotas::Tiers(tiers) = &self.source.quotas else {
            return match named {
                None => Ok(0),
                Some(_) => Err(SettingError::new("this rule has no tiers", "leave `tier` out")),
            };
        };
        let Some(named) = named else { return Ok(tiers.each.len()) };
        let known = tiers.each.iter().map(|(name, _)| name.as_str());
        known.clone().position(|name| name == named).ok_or_else(|| {
            let all = known.clone().collect::<Vec<_>>().join("`, `");
            let fix = match spelling::meant(named, known) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("use one of `{all}`, or leave it out"),
            };
            SettingError::new(format!("there is no tier `{}`", shortened(named)), fix)
        })
    }
}

/// What the keys of all rules with quotas look like.
pub(super) fn names<'a>(rules: impl Iterator<Item = (usize, &'a Source)>, user: Option<&Said>) -> Names {
    rules.map(|(place, rule)| (rule.name.clone(), (place, KeyForm::of(&rule.key, user)))).collect()
}

impl KeyForm {
    fn of(said: &Said, user: Option<&Said>) -> Self {
        match said {
            Said::All => Self::All,
            Said::Part(part) => Self::of_part(part, user),
            Said::Every(parts) => {
                parts.iter().map(|part| Self::of(part, user)).reduce(Self::and).unwrap_or(Self::All)
            }
            Said::First(parts) => {
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

    fn of_part(part: &Part, user: Option<&Said>) -> Self {
        match part {
            Part::Ip { bits } => Self::Address { bits: *bits },
            // One that is found by itself is no policy.
            Part::User => user.map_or(Self::Text, |user| Self::of(user, None)),
            Part::Host => Self::Host,
            Part::Cel(_) => Self::Any,
            Part::Request
            | Part::Method
            | Part::Path
            | Part::Route
            | Part::Header(_)
            | Part::Cookie(_)
            | Part::Query(_)
            | Part::Capture(_) => Self::Text,
        }
    }

    /// Choices of choices are choices.
    fn choices(said: &Said, user: Option<&Said>) -> Vec<(String, Self)> {
        match Self::of(said, user) {
            Self::First(choices) => choices,
            form => vec![(called(said), form)],
        }
    }

    fn and(self, other: Self) -> Self {
        match self {
            Self::Every(mut parts) => {
                parts.push(other);
                Self::Every(parts)
            }
            first => Self::Every(vec![first, other]),
        }
    }

    fn key<'g>(&self, given: &'g JsonValue<'_>) -> Result<KeyValue<'g>, SettingError> {
        match self {
            Self::All => match given {
                JsonValue::Null => Ok(KeyValue::All),
                _ => Err(SettingError::new("this rule counts all together", "leave `key` out")),
            },
            Self::Address { bits } => {
                let text = text(given, "an address")?;
                let address: std::net::IpAddr = text.parse().map_err(|_| {
                    let problem = format!("`{}` is not an address", shortened(&text));
                    SettingError::new(problem, "write one, as in `192.0.2.1` or `2001:db8::1`")
                })?;
                Ok(KeyValue::Address(Address::of_prefix(address.to_canonical(), *bits)))
            }
            Self::Host => {
                let text = text(given, "a host")?;
                let host = host_name(&text).map(Cow::into_owned);
                let missing =
                    || SettingError::new("there is no host in it", "write one, as in `example.com`");
                Ok(KeyValue::Text(host.ok_or_else(missing)?.into()))
            }
            Self::Text => Ok(KeyValue::Text(text(given, "a text")?)),
            Self::Any => match given.as_u64() {
                Some(number) => Ok(KeyValue::Number(number)),
                None => Ok(KeyValue::Text(text(given, "a text or a number")?)),
            },
            Self::Every(parts) => Self::joined(parts, given),
            Self::First(choices) => chosen(choices, given),
        }
    }

    fn joined<'g>(parts: &[Self], given: &'g JsonValue<'_>) -> Result<KeyValue<'g>, SettingError> {
        let given = match given {
            JsonValue::Array(given) if given.len() == parts.len() => given,
            _ => {
                let problem = format!("this rule counts by {} parts", parts.len());
                return Err(SettingError::new(problem, format!("give a list of {} as `key`", parts.len())));
            }
        };
        let keys = parts.iter().zip(given).map(|(part, given)| part.key(given));
        keys.collect::<Result<_, _>>().map(KeyValue::Joined)
    }
}

/// One of several choices: the first, unless it is named.
fn chosen<'g>(choices: &[(String, KeyForm)], given: &'g JsonValue<'_>) -> Result<KeyValue<'g>, SettingError> {
    let (place, given) = match given {
        JsonValue::Object(named) => match &named.as_vec()[..] {
            [(name, given)] => (choices.iter().position(|(known, _)| *known == **name), given),
            _ => (None, given),
        },
        given => (Some(0), given),
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
    let key = form.key(given)?;
    Ok(match u8::try_from(place) {
        Ok(0) | Err(_) => key,
        Ok(place) => KeyValue::Instead(place, Box::new(key)),
    })
}

/// What a policy calls it.
fn called(said: &Said) -> String {
    match said {
        Said::All => "all".to_owned(),
        Said::Part(part) => part.to_string(),
        Said::Every(parts) | Said::First(parts) => parts.iter().map(called).collect::<Vec<_>>().join(" + "),
    }
}

/// A text that is not empty; a number is the text that it is written as.
fn text<'g>(given: &'g JsonValue<'_>, what: &str) -> Result<Cow<'g, str>, SettingError> {
    match given {
        JsonValue::Str(text) if !text.is_empty() => Ok(Cow::Borrowed(text)),
        // The display of the borrowed number writes 1.0 as 1, which is another key.
        JsonValue::Number(number) => Ok(serde_json::Number::from(*number).to_string().into()),
        JsonValue::Null => Err(SettingError::new("there is no key", format!("give {what} as `key`"))),
        JsonValue::Str(_) => Err(SettingError::new("the key is empty", format!("give {what} as `key`"))),
        _ => Err(SettingError::new("the key is not what this rule counts by", format!("give {what}"))),
    }
}

fn length(key: &KeyValue<'_>) -> usize {
    match key {
        KeyValue::Text(text) => text.len(),
        KeyValue::Joined(parts) => parts.iter().map(length).sum(),
        KeyValue::Instead(_, key) => length(key),
        _ => 0,
    }
}

/// What clients said is told to them, but not all of a megabyte.
fn shortened(text: &str) -> String {
    const MOST: usize = 60;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
