//! What a program says in JSON.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Number;
use std::{borrow::Cow, fmt};

/// What a program says in JSON. Texts stay where they were sent, unless something in them is escaped.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Given<'a> {
    /// `null`
    #[default]
    Nothing,
    /// `true`
    Truth(bool),
    /// `3`
    Number(Number),
    /// `"text"`
    Text(Cow<'a, str>),
    /// `[3, "text"]`
    List(Vec<Self>),
    /// `{"name": 3}`
    Members(Vec<(Cow<'a, str>, Self)>),
}

impl Given<'_> {
    /// It as a whole number, if it is one that is not below zero.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Number(number) => number.as_u64(),
            _ => None,
        }
    }
}

impl From<&Given<'_>> for serde_json::Value {
    fn from(given: &Given<'_>) -> Self {
        match given {
            Given::Nothing => Self::Null,
            Given::Truth(truth) => Self::Bool(*truth),
            Given::Number(number) => Self::Number(number.clone()),
            Given::Text(text) => Self::String(text.clone().into_owned()),
            Given::List(list) => Self::Array(list.iter().map(Self::from).collect()),
            Given::Members(members) => {
                members.iter().map(|(name, given)| (name.clone().into_owned(), Self::from(given))).collect()
            }
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Given<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reading)
    }
}

struct Reading;

impl<'de> Visitor<'de> for Reading {
    type Value = Given<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Given<'de>, E> {
        Ok(Given::Nothing)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Given<'de>, E> {
        Ok(Given::Truth(truth))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Given<'de>, E> {
        Ok(Given::Number(number.into()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Given<'de>, E> {
        Ok(Given::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Given<'de>, E> {
        // JSON has no number without end.
        Ok(Number::from_f64(number).map_or(Given::Nothing, Given::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Given<'de>, E> {
        Ok(Given::Text(text.to_owned().into()))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Given<'de>, E> {
        Ok(Given::Text(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Given<'de>, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Given::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<Given<'de>, A::Error> {
        let mut members = Vec::with_capacity(4);
        while let Some(Name(name)) = items.next_key()? {
            members.push((name, items.next_value()?));
        }
        Ok(Given::Members(members))
    }
}

/// The name of a member.
struct Name<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Name<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reading;

        impl<'de> Visitor<'de> for Reading {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_str<E>(self, name: &str) -> Result<Name<'de>, E> {
                Ok(Name(name.to_owned().into()))
            }

            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(name.into()))
            }
        }

        deserializer.deserialize_str(Reading)
    }
}
