//! Key values found in a request.

use super::AddressKey;
use crate::key_hash;
use std::{
    borrow::Cow,
    fmt::{self, Write as _},
    hash::{Hash, Hasher},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};
use tidegate_limiter::EscapeWriter;

/// A key value found in a request.
///
/// It hashes and formats like its content, so that an attribute whose key is a `&str`, a `u64`, an
/// [`AddressKey`] or a pair of these refers to the same bucket of the same rule, in memory and in a store:
///
/// ```
/// use tidegate_rule::{KeyPair, request::KeyValue};
///
/// let found = KeyValue::from("acme").and(KeyValue::from("a|b"));
/// assert_eq!(found.to_string(), KeyPair("acme", "a|b").to_string());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyValue<'a> {
    /// The same key for all requests. It hashes and formats as the empty string.
    All,
    /// A client, by its address.
    Address(AddressKey),
    /// A number, which hashes as a `u64`.
    Number(u64),
    /// Text.
    Text(Cow<'a, str>),
    /// Bytes that are not UTF-8. Their format differs from that of any text.
    Bytes(Cow<'a, [u8]>),
    /// Several values, like a right-nested [`KeyPair`](crate::KeyPair): `(a, (b, c))`.
    Joined(Vec<Self>),
    /// The value of an alternative key, by its index among the alternatives. A client that chooses a name
    /// must not be able to select the bucket of an address, so its format is distinct from all others.
    Fallback(u8, Box<Self>),
}

/// No text in its usual format starts with it: it is followed by another one, by `x` and hexadecimal bytes,
/// by an index, `?` and a value, or by `|` and parts of which the first is such a value.
const ESCAPE_CHAR: char = '\u{1}';

impl<'a> KeyValue<'a> {
    /// Creates text if the bytes are UTF-8, otherwise bytes.
    pub fn from_bytes(bytes: impl Into<Cow<'a, [u8]>>) -> Self {
        match bytes.into() {
            Cow::Borrowed(bytes) => match str::from_utf8(bytes) {
                Ok(text) => Self::Text(text.into()),
                Err(_) => Self::Bytes(bytes.into()),
            },
            Cow::Owned(bytes) => match String::from_utf8(bytes) {
                Ok(text) => Self::Text(text.into()),
                Err(error) => Self::Bytes(error.into_bytes().into()),
            },
        }
    }

    /// Combines both values.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match self {
            Self::Joined(mut parts) => {
                parts.push(other);
                Self::Joined(parts)
            }
            first => Self::Joined(vec![first, other]),
        }
    }

    /// Converts it into a value that borrows nothing.
    pub fn into_owned(self) -> KeyValue<'static> {
        match self {
            Self::All => KeyValue::All,
            Self::Address(address) => KeyValue::Address(address),
            Self::Number(number) => KeyValue::Number(number),
            Self::Text(text) => KeyValue::Text(text.into_owned().into()),
            Self::Bytes(bytes) => KeyValue::Bytes(bytes.into_owned().into()),
            Self::Joined(parts) => KeyValue::Joined(parts.into_iter().map(Self::into_owned).collect()),
            Self::Fallback(index, value) => KeyValue::Fallback(index, Box::new(value.into_owned())),
        }
    }

    /// A hash of the value, which no client can choose as a key.
    pub(crate) fn to_hashed(&self) -> KeyValue<'static> {
        KeyValue::Fallback(u8::MAX, Box::new(KeyValue::Number(key_hash("", self))))
    }

    /// The approximate number of bytes of text.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::All => 0,
            Self::Address(_) | Self::Number(_) => 16,
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::Joined(parts) => parts.iter().map(Self::len).fold(0, usize::saturating_add),
            Self::Fallback(_, value) => value.len(),
        }
    }
}

impl Hash for KeyValue<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::All => "".hash(state),
            Self::Address(address) => address.hash(state),
            Self::Number(number) => number.hash(state),
            Self::Text(text) => text.hash(state),
            Self::Bytes(bytes) => bytes.hash(state),
            // Not as a vector, which hashes its length first.
            Self::Joined(parts) => parts.iter().for_each(|part| part.hash(state)),
            Self::Fallback(index, value) => {
                // A byte that no text contains, so that text cannot imitate the index.
                state.write_u8(u8::MAX);
                index.hash(state);
                value.hash(state);
            }
        }
    }
}

/// The format in the keys of a store.
impl fmt::Display for KeyValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => Ok(()),
            Self::Address(address) => address.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => {
                if text.starts_with(ESCAPE_CHAR) {
                    f.write_char(ESCAPE_CHAR)?;
                }
                f.write_str(text)
            }
            Self::Bytes(bytes) => {
                write!(f, "{ESCAPE_CHAR}x")?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Self::Joined(parts) => NestedParts(parts).fmt(f),
            Self::Fallback(index, value) => write!(f, "{ESCAPE_CHAR}{index}?{value}"),
        }
    }
}

/// Formats parts like a right-nested [`KeyPair`](crate::KeyPair).
struct NestedParts<'v, 'a>(&'v [KeyValue<'a>]);

impl fmt::Display for NestedParts<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => Ok(()),
            [only] => only.fmt(f),
            [first, rest @ ..] => {
                // Otherwise it would read as an alternative whose value is everything after it.
                if matches!(first, KeyValue::Fallback(..)) {
                    write!(f, "{ESCAPE_CHAR}|")?;
                }
                write!(EscapeWriter(f), "{first}")?;
                f.write_char('|')?;
                write!(EscapeWriter(f), "{}", Self(rest))
            }
        }
    }
}

/// The text.
impl<'a> From<&'a str> for KeyValue<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text.into())
    }
}

/// The text.
impl From<String> for KeyValue<'_> {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

/// The text.
impl<'a> From<Cow<'a, str>> for KeyValue<'a> {
    fn from(text: Cow<'a, str>) -> Self {
        Self::Text(text)
    }
}

/// The text.
impl From<Arc<str>> for KeyValue<'_> {
    fn from(text: Arc<str>) -> Self {
        Self::Text(text.as_ref().to_owned().into())
    }
}

/// Text if the bytes are UTF-8, otherwise bytes.
impl<'a> From<&'a [u8]> for KeyValue<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::from_bytes(bytes)
    }
}

/// The number.
impl From<u64> for KeyValue<'_> {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

/// The address.
impl From<AddressKey> for KeyValue<'_> {
    fn from(address: AddressKey) -> Self {
        Self::Address(address)
    }
}

/// The address, as the key of [`AddressKey::new`].
impl From<IpAddr> for KeyValue<'_> {
    fn from(address: IpAddr) -> Self {
        Self::Address(AddressKey::new(address))
    }
}

/// The address.
impl From<Ipv4Addr> for KeyValue<'_> {
    fn from(address: Ipv4Addr) -> Self {
        IpAddr::from(address).into()
    }
}

/// The address, as the key of [`AddressKey::new`].
impl From<Ipv6Addr> for KeyValue<'_> {
    fn from(address: Ipv6Addr) -> Self {
        IpAddr::from(address).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeyPair;
    use proptest::prelude::*;
    use std::hash::BuildHasher;

    fn values() -> impl Strategy<Value = KeyValue<'static>> {
        let text = prop_oneof!["[a|\\\\1?x\u{1}]{0,4}", "\\PC{0,8}"];
        let simple = prop_oneof![
            any::<u64>().prop_map(KeyValue::Number),
            any::<IpAddr>().prop_map(KeyValue::from),
            text.prop_map(KeyValue::from),
            proptest::collection::vec(any::<u8>(), 0..6).prop_map(KeyValue::from_bytes),
        ];
        simple.prop_recursive(2, 8, 3, |part| {
            prop_oneof![
                (part.clone(), part.clone()).prop_map(|(a, b)| a.and(b)),
                (0_u8..3, part).prop_map(|(index, value)| KeyValue::Fallback(index, Box::new(value))),
            ]
        })
    }

    #[test]
    fn request_key_matches_attribute_key() {
        let seed = std::hash::RandomState::new();
        let same = |found: &KeyValue<'_>, hash: u64, text: &str| {
            assert_eq!(seed.hash_one(found), hash, "{found:?}");
            assert_eq!(found.to_string(), text, "{found:?}");
        };
        let four: IpAddr = [192, 0, 2, 7].into();
        let six: IpAddr = "2001:db8:1:2:3::4".parse().unwrap();
        let owned = String::from("a|b");

        same(&KeyValue::All, seed.hash_one(""), "");
        same(&"alice".into(), seed.hash_one("alice"), "alice");
        same(&owned.clone().into(), seed.hash_one(&owned), "a|b");
        same(&Arc::<str>::from("alice").into(), seed.hash_one("alice"), "alice");
        same(&b"alice".as_slice().into(), seed.hash_one("alice"), "alice");
        same(&7_u64.into(), seed.hash_one(7_u64), "7");
        same(&four.into(), seed.hash_one(AddressKey::new(four)), "192.0.2.7");
        same(&six.into(), seed.hash_one(AddressKey::new(six)), "2001:db8:1:2::");
        same(&b"\xff\x00".as_slice().into(), seed.hash_one(b"\xff\x00".as_slice()), "\u{1}xff00");

        let pair = KeyPair("a|b", 7_u64);
        same(&KeyValue::from("a|b").and(7.into()), seed.hash_one(pair), &pair.to_string());
        let three = KeyPair("a|b", KeyPair(AddressKey::new(four), r"c\"));
        let found = KeyValue::from("a|b").and(four.into()).and(r"c\".into());
        same(&found, seed.hash_one(three), &three.to_string());
        let four = KeyPair("a", KeyPair("b|", KeyPair(1_u64, "d")));
        let found = KeyValue::from("a").and("b|".into()).and(1.into()).and("d".into());
        same(&found, seed.hash_one(four), &four.to_string());
    }

    /// Values that can be alternatives.
    fn plain_values() -> impl Strategy<Value = KeyValue<'static>> {
        values().prop_filter("already an alternative", |value| !matches!(value, KeyValue::Fallback(..)))
    }

    proptest! {
        /// Alternatives have distinct formats: see [`super::super::RequestKey::or`].
        #[test]
        fn fallback_keys_have_distinct_text(a in plain_values(), b in plain_values(), i in 0_u8..4, step in 1_u8..4) {
            let j = (i + step) % 4;
            let at = |index: u8, value: &KeyValue<'static>| match index {
                0 => value.clone(),
                index => KeyValue::Fallback(index, Box::new(value.clone())),
            };
            prop_assert_ne!(at(i, &a).to_string(), at(j, &b).to_string());
        }

        /// Alternatives have distinct hashes: in memory, the hash identifies the bucket.
        #[test]
        fn fallback_keys_have_distinct_hashes(index in 1_u8..4, text in "[\u{1}-\u{3}a]{0,3}") {
            let seed = std::hash::RandomState::new();
            let chosen = KeyValue::from(format!("{}{text}", char::from(index)));
            let other = KeyValue::Fallback(index, Box::new(text.into()));
            prop_assert_ne!(seed.hash_one(&chosen), seed.hash_one(&other));
        }

        /// Text and bytes have distinct formats if their content differs.
        #[test]
        fn text_and_byte_keys_are_distinct(
            a in proptest::collection::vec(prop_oneof![Just(1_u8), Just(b'x'), any::<u8>()], 0..6),
            b in proptest::collection::vec(prop_oneof![Just(1_u8), Just(b'x'), any::<u8>()], 0..6),
        ) {
            let (one, other) = (KeyValue::from_bytes(a.clone()), KeyValue::from_bytes(b.clone()));
            prop_assert_eq!(one.to_string() == other.to_string(), a == b);
            prop_assert_eq!(one.clone().into_owned(), one);
        }

        /// Pairs of text have distinct formats if their parts differ.
        #[test]
        fn joined_keys_are_distinct(
            (a, b) in ("[a|\\\\\u{1}]{0,4}", "[a|\\\\]{0,4}"),
            (c, d) in ("[a|\\\\\u{1}]{0,4}", "[a|\\\\]{0,4}"),
        ) {
            let pair = |a: &str, b: &str| KeyValue::from(a.to_owned()).and(b.to_owned().into()).to_string();
            prop_assert_eq!(pair(&a, &b) == pair(&c, &d), (a, b) == (c, d));
        }
    }
}
