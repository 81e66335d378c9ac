//! What can be said, as tables: each key with what it says, how its value looks, how it is read and how it is written.
//!
//! The reader, the printer and the schema all go by the same line of a table, so that none of them can forget a key.

use crate::{read::PolicyReader, source::SyntaxNode};

/// The keys of one kind of map.
pub(crate) struct MapSchema<T: 'static> {
    /// What the map is, as errors and the schema call it.
    pub(crate) name: &'static str,
    /// Without these it says nothing.
    pub(crate) required: &'static [&'static str],
    pub(crate) keys: &'static [KeySchema<T>],
}

/// One key.
pub(crate) struct KeySchema<T: 'static> {
    pub(crate) name: &'static str,
    /// What it says, in a line.
    description: &'static str,
    shape: ValueSchema,
    pub(crate) read: fn(&mut PolicyReader<'_>, &SyntaxNode, &mut T),
    /// `None` where the file need not say it.
    write: fn(&T) -> Option<OutputValue>,
    /// What holds where the file does not say it, if that is a value.
    default: Option<fn() -> OutputValue>,
}

/// How a value looks.
pub(crate) enum ValueSchema {
    /// A text, with examples.
    Text(&'static [&'static str]),
    /// One of these words.
    Keyword(&'static [&'static str]),
    /// A whole number.
    Integer,
    /// A text, or what looks like a number or like `true` and is one.
    Scalar,
    /// One of these, or a list of them.
    OneOrMany(&'static Self),
    /// A list of these.
    List(&'static Self),
    /// A map with names that the file chooses.
    NamedMap(&'static Self),
    /// A map with these keys.
    Map(fn() -> MapOutline),
    /// Any of these.
    AnyOf(&'static [Self]),
    /// What is defined under this name, since it holds itself.
    Reference(&'static str, fn() -> &'static Self),
}

/// A table, as the schema sees it.
pub(crate) struct MapOutline {
    pub(crate) name: &'static str,
    pub(crate) required: &'static [&'static str],
    pub(crate) keys: Vec<KeyOutline>,
}

/// One key, as the schema sees it.
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

/// The same, with what holds where the file does not say it.
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

/// A key whose value is a field: `NAME: SHAPE, FIELD = READ => WRITE, ABOUT`, where `READ` is a method of the reader, with
/// its arguments behind the node, and `WRITE` takes a reference.
///
/// The field is an option. It is not where `always` or `default USUAL` follows: then it is always written, or where it differs
/// from that field of `USUAL`. `[FIELD]` is a list, `FIELD in WORDS` one of a few words, and `FIELD { TABLE }` a map.
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

    /// The keys that a value needs to be written.
    pub(crate) fn present_keys(&self, value: &T) -> impl Iterator<Item = &'static str> {
        self.keys.iter().filter(|key| (key.write)(value).is_some()).map(|key| key.name)
    }

    /// The same as [`write`](Self::write), unless there is nothing to be said.
    pub(crate) fn write_non_empty(&self, value: &T) -> Option<OutputValue> {
        Some(self.write(value)).filter(|written| !written.is_empty_map())
    }

    /// All that need be said.
    pub(crate) fn write(&self, value: &T) -> OutputValue {
        let write_entry = |key: &'static KeySchema<T>| Some((key.name.to_owned(), (key.write)(value)?));
        OutputValue::Map(self.keys.iter().filter_map(write_entry).collect())
    }
}

impl OutputValue {
    #[allow(clippy::needless_pass_by_value, reason = "whatever prints can be given, by reference or not")]
    pub(crate) fn text(text: impl ToString) -> Self {
        Self::Text(text.to_string())
    }

    /// A list; the only one of a list stands for it.
    pub(crate) fn one_or_many<T>(items: &[T], write: impl Fn(&T) -> Self) -> Option<Self> {
        match items {
            [] => None,
            [only] => Some(write(only)),
            items => Some(Self::List(items.iter().map(write).collect())),
        }
    }

    /// The same, of what prints as it is read.
    pub(crate) fn text_list<T: ToString>(items: &[T]) -> Option<Self> {
        Self::one_or_many(items, |item| Self::text(item.to_string()))
    }

    /// A map with names, unless it is empty.
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
