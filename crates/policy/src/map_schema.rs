//! Tables of the policy keys: each key with its description, the schema of its value, its reader and its writer.
//!
//! The reader, the printer and the JSON schema use the same table, so that they always support the same keys.

use crate::{read::PolicyReader, source::SyntaxNode};

/// The keys of one kind of map.
pub(crate) struct MapSchema<T: 'static> {
    /// The name of the map in errors and in the JSON schema.
    pub(crate) name: &'static str,
    /// The required keys.
    pub(crate) required: &'static [&'static str],
    pub(crate) keys: &'static [KeySchema<T>],
}

/// One key.
pub(crate) struct KeySchema<T: 'static> {
    pub(crate) name: &'static str,
    /// One line for the JSON schema.
    description: &'static str,
    shape: ValueSchema,
    pub(crate) read: fn(&mut PolicyReader<'_>, &SyntaxNode, &mut T),
    /// Returns `None` if the key need not be printed.
    write: fn(&T) -> Option<OutputValue>,
    /// The default value, if there is one.
    default: Option<fn() -> OutputValue>,
}

/// The schema of a value.
pub(crate) enum ValueSchema {
    /// A string, with examples.
    Text(&'static [&'static str]),
    /// One of these keywords.
    Keyword(&'static [&'static str]),
    /// An integer.
    Integer,
    /// A string, a number or a boolean, read as a string.
    Scalar,
    /// One of these, or a list of them.
    OneOrMany(&'static Self),
    /// A list of these.
    List(&'static Self),
    /// A map whose keys are names chosen by the user.
    NamedMap(&'static Self),
    /// A map with these keys.
    Map(fn() -> MapOutline),
    /// Any of these.
    AnyOf(&'static [Self]),
    /// A named definition, for a schema that contains itself.
    Reference(&'static str, fn() -> &'static Self),
}

/// A map without the types of its Rust value, for the JSON schema.
pub(crate) struct MapOutline {
    pub(crate) name: &'static str,
    pub(crate) required: &'static [&'static str],
    pub(crate) keys: Vec<KeyOutline>,
}

/// A key without the types of its Rust value, for the JSON schema.
pub(crate) struct KeyOutline {
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    pub(crate) shape: &'static ValueSchema,
    pub(crate) default: Option<OutputValue>,
}

/// A value to be printed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum OutputValue {
    Bool(bool),
    Number(u64),
    Text(String),
    List(Vec<Self>),
    Map(Vec<(String, Self)>),
}

pub(crate) const fn key<T>(
    name: &'static str,
    about: &'static str,
    shape: ValueSchema,
    read: fn(&mut PolicyReader<'_>, &SyntaxNode, &mut T),
    write: fn(&T) -> Option<OutputValue>,
) -> KeySchema<T> {
    KeySchema { name, description: about, shape, read, write, default: None }
}

/// A key with a default value.
pub(crate) const fn key_with_default<T>(
    name: &'static str,
    about: &'static str,
    shape: ValueSchema,
    read: fn(&mut PolicyReader<'_>, &SyntaxNode, &mut T),
    write: fn(&T) -> Option<OutputValue>,
    default: fn() -> OutputValue,
) -> KeySchema<T> {
    KeySchema { name, description: about, shape, read, write, default: Some(default) }
}

/// Declares a key whose value is a field: `NAME: SHAPE, FIELD = READ => WRITE, DESCRIPTION`, where `READ` is a method of the
/// reader, with its arguments after the node, and `WRITE` takes a reference.
///
/// The field is an `Option`, except with `always`, which always prints it, or `default VALUE`, which prints it if it differs
/// from that field of `VALUE`. `[FIELD]` is a list, `FIELD in WORDS` a keyword, and `FIELD { TABLE }` a map.
macro_rules! field {
    ($name:literal: $($field:ident).+ in $words:ident, $about:literal) => {
        $crate::map_schema::key_with_default(
            $name,
            $about,
            $crate::map_schema::ValueSchema::Keyword(const { &$crate::read::keyword_names(&$words) }),
            |reader, node, it| it.$($field).+ = reader.keyword(node, &$words).unwrap_or_default(),
            |it| $crate::read::write_keyword(&it.$($field).+, &$words),
            || $crate::read::default_keyword(&$words),
        )
    };
    ($name:literal: $($field:ident).+ { $table:ident }, $about:literal) => {
        $crate::map_schema::key(
            $name,
            $about,
            $crate::map_schema::ValueSchema::Map(|| $table.outline()),
            |reader, node, it| reader.read_map(node, &$table, &mut it.$($field).+),
            |it| $table.write_non_empty(&it.$($field).+),
        )
    };
    ($name:literal: $shape:expr, [$($field:ident).+] = $read:ident$(($($arg:expr),*))?, $about:literal) => {
        $crate::map_schema::key(
            $name,
            $about,
            $shape,
            |reader, node, it| {
                it.$($field).+ = reader.one_or_many(node, |reader, node| reader.$read(node $($(, $arg)*)?));
            },
            |it| $crate::map_schema::OutputValue::text_list(&it.$($field).+),
        )
    };
    (
        $name:literal: $shape:expr,
        [$($field:ident).+] = $read:ident$(($($arg:expr),*))? => $write:expr,
        $about:literal
    ) => {
        $crate::map_schema::key(
            $name,
            $about,
            $shape,
            |reader, node, it| {
                it.$($field).+ = reader.one_or_many(node, |reader, node| reader.$read(node $($(, $arg)*)?));
            },
            |it| $crate::map_schema::OutputValue::one_or_many(&it.$($field).+, $write),
        )
    };
    (
        $name:literal: $shape:expr,
        $($field:ident).+ = $read:ident$(($($arg:expr),*))? => $write:expr,
        $about:literal
    ) => {
        $crate::map_schema::key(
            $name,
            $about,
            $shape,
            |reader, node, it| it.$($field).+ = reader.$read(node $($(, $arg)*)?),
            |it| it.$($field).+.as_ref().map($write),
        )
    };
    (
        $name:literal: $shape:expr,
        $($field:ident).+ = $read:ident$(($($arg:expr),*))? => $write:expr,
        always,
        $about:literal
    ) => {
        $crate::map_schema::key(
            $name,
            $about,
            $shape,
            |reader, node, it| it.$($field).+ = reader.$read(node $($(, $arg)*)?).unwrap_or_default(),
            |it| Some($write(&it.$($field).+)),
        )
    };
    (
        $name:literal: $shape:expr,
        $($field:ident).+ = $read:ident$(($($arg:expr),*))? => $write:expr,
        default $default:expr,
        $about:literal
    ) => {
        $crate::map_schema::key_with_default(
            $name,
            $about,
            $shape,
            |reader, node, it| it.$($field).+ = reader.$read(node $($(, $arg)*)?).unwrap_or_default(),
            |it| (it.$($field).+ != $default.$($field).+).then(|| $write(&it.$($field).+)),
            || $write(&$default.$($field).+),
        )
    };
}
pub(crate) use field;

impl<T> KeySchema<T> {
    fn outline(&'static self) -> KeyOutline {
        let Self { name, description: about, shape, default, .. } = self;
        KeyOutline { name, description: about, shape, default: default.map(|default| default()) }
    }
}

impl<T> MapSchema<T> {
    pub(crate) fn key(&self, name: &str) -> Option<&'static KeySchema<T>> {
        self.keys.iter().find(|key| key.name == name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> + Clone {
        self.keys.iter().map(|key| key.name)
    }

    pub(crate) fn outline(&self) -> MapOutline {
        let keys = self.keys.iter().map(KeySchema::outline).collect();
        MapOutline { name: self.name, required: self.required, keys }
    }

    /// The keys that are printed for a value.
    pub(crate) fn present_keys(&self, value: &T) -> impl Iterator<Item = &'static str> {
        self.keys.iter().filter(|key| (key.write)(value).is_some()).map(|key| key.name)
    }

    /// Like [`write`](Self::write), but returns `None` for an empty map.
    pub(crate) fn write_non_empty(&self, value: &T) -> Option<OutputValue> {
        Some(self.write(value)).filter(|written| !written.is_empty_map())
    }

    /// Writes all keys whose values differ from their defaults.
    pub(crate) fn write(&self, value: &T) -> OutputValue {
        let write_entry = |key: &'static KeySchema<T>| Some((key.name.to_owned(), (key.write)(value)?));
        OutputValue::Map(self.keys.iter().filter_map(write_entry).collect())
    }
}

impl OutputValue {
    #[allow(clippy::needless_pass_by_value, reason = "callers pass values or references")]
    pub(crate) fn text(text: impl ToString) -> Self {
        Self::Text(text.to_string())
    }

    /// A list; a list of one item is written as that item.
    pub(crate) fn one_or_many<T>(items: &[T], write: impl Fn(&T) -> Self) -> Option<Self> {
        match items {
            [] => None,
            [only] => Some(write(only)),
            items => Some(Self::List(items.iter().map(write).collect())),
        }
    }

    /// Like [`one_or_many`](Self::one_or_many), for items that print as strings.
    pub(crate) fn text_list<T: ToString>(items: &[T]) -> Option<Self> {
        Self::one_or_many(items, |item| Self::text(item.to_string()))
    }

    /// A map with user-chosen names; `None` if it is empty.
    pub(crate) fn named_map<N: ToString, T>(
        entries: impl IntoIterator<Item = (N, T)>,
        write: impl Fn(T) -> Self,
    ) -> Option<Self> {
        let entries: Vec<_> =
            entries.into_iter().map(|(name, value)| (name.to_string(), write(value))).collect();
        (!entries.is_empty()).then_some(Self::Map(entries))
    }

    pub(crate) fn is_empty_map(&self) -> bool {
        matches!(self, Self::Map(entries) if entries.is_empty())
    }
}
