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
    absent: Absent,
    /// The value in the documentation, if it is not the one of the shape.
    example: Option<fn() -> OutputValue>,
}

/// What applies without a key.
#[derive(Clone, Copy)]
enum Absent {
    /// A value.
    Default(fn() -> OutputValue),
    /// An effect that no value describes: a sentence.
    Effect(&'static str),
    /// An error, because the key is required.
    Error,
}

/// The schema of a value.
pub(crate) enum ValueSchema {
    /// A string, with examples.
    Text(TextKind, &'static [&'static str]),
    /// One of these keywords.
    Keyword(&'static [&'static str]),
    /// An integer, with its unit and an example.
    Integer(&'static str, u64),
    /// A string, a number or a boolean, read as a string, with an example.
    Scalar(&'static str),
    /// One of these, or a list of them.
    OneOrMany(&'static Self),
    /// A list of these.
    List(&'static Self),
    /// A map whose keys are names chosen by the user, with an example of a name.
    NamedMap(&'static str, &'static Self),
    /// A map with these keys.
    Map(fn() -> MapOutline),
    /// Any of these.
    AnyOf(&'static [Self]),
    /// A named definition, for a schema that contains itself.
    Reference(&'static str, fn() -> &'static Self),
}

/// The syntax of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TextKind {
    Address,
    Ban,
    ByteRate,
    Client,
    CredentialSource,
    Duration,
    Expression,
    Factor,
    FailureMode,
    File,
    Host,
    Key,
    Location,
    Method,
    Mode,
    Name,
    Network,
    Path,
    PathPattern,
    Percentage,
    Quota,
    Schedule,
    SettleSource,
    Size,
    StatusClass,
    Store,
    TimeWindows,
    Url,
    Variable,
}

impl TextKind {
    /// The name of the type in the JSON schema and in the documentation.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Ban => "ban",
            Self::ByteRate => "byte rate",
            Self::Client => "network/list",
            Self::CredentialSource => "credential source",
            Self::Duration => "duration",
            Self::Expression => "expression",
            Self::Factor => "factor",
            Self::FailureMode => "failure mode",
            Self::File => "file",
            Self::Host => "host",
            Self::Key => "key",
            Self::Location => "location",
            Self::Method => "method",
            Self::Mode => "mode",
            Self::Name => "name",
            Self::Network => "network",
            Self::Path => "path",
            Self::PathPattern => "path pattern",
            Self::Percentage => "percentage",
            Self::Quota => "quota",
            Self::Schedule => "schedule",
            Self::SettleSource => "cost source",
            Self::Size => "size",
            Self::StatusClass => "status class",
            Self::Store => "store",
            Self::TimeWindows => "times",
            Self::Url => "URL",
            Self::Variable => "environment variable",
        }
    }
}

/// A duration.
pub(crate) const fn duration(examples: &'static [&'static str]) -> ValueSchema {
    ValueSchema::Text(TextKind::Duration, examples)
}

/// A percentage.
pub(crate) const fn percentage(examples: &'static [&'static str]) -> ValueSchema {
    ValueSchema::Text(TextKind::Percentage, examples)
}

/// A map without the types of its Rust value, for the JSON schema and the documentation.
pub(crate) struct MapOutline {
    pub(crate) name: &'static str,
    pub(crate) required: &'static [&'static str],
    pub(crate) keys: Vec<KeyOutline>,
}

/// A key without the types of its Rust value, for the JSON schema and the documentation.
pub(crate) struct KeyOutline {
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    pub(crate) shape: &'static ValueSchema,
    pub(crate) default: Option<OutputValue>,
    /// What applies without the key, if no value describes it.
    pub(crate) without: Option<&'static str>,
    example: Option<fn() -> OutputValue>,
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
    KeySchema { name, description: about, shape, read, write, absent: Absent::Error, example: None }
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
    with_default(key(name, about, shape, read, write), default)
}

/// Declares the value that applies without a key.
pub(crate) const fn with_default<T>(key: KeySchema<T>, default: fn() -> OutputValue) -> KeySchema<T> {
    KeySchema { absent: Absent::Default(default), ..key }
}

/// Describes what applies without a key, for a key without a default value.
pub(crate) const fn without<T>(key: KeySchema<T>, effect: &'static str) -> KeySchema<T> {
    KeySchema { absent: Absent::Effect(effect), ..key }
}

/// Replaces the example of the shape.
pub(crate) const fn with_example<T>(key: KeySchema<T>, example: fn() -> OutputValue) -> KeySchema<T> {
    KeySchema { example: Some(example), ..key }
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
        let Self { name, description, shape, absent, example, .. } = self;
        let (default, without) = match absent {
            Absent::Default(default) => (Some(default()), None),
            Absent::Effect(effect) => (None, Some(*effect)),
            Absent::Error => (None, None),
        };
        KeyOutline { name, description, shape, default, without, example: *example }
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

impl ValueSchema {
    /// A value of this shape, for the documentation.
    pub(crate) fn example(&self) -> OutputValue {
        match self {
            Self::Text(_, examples) => OutputValue::text(examples.first().copied().unwrap_or_default()),
            // The first keyword is the default of most keys.
            Self::Keyword(words) => {
                OutputValue::text(words.get(1).or(words.first()).copied().unwrap_or_default())
            }
            Self::Integer(_, example) => OutputValue::Number(*example),
            Self::Scalar(example) => OutputValue::text(example),
            Self::List(each) => OutputValue::List(vec![each.example()]),
            Self::NamedMap(name, each) => OutputValue::Map(vec![((*name).to_owned(), each.example())]),
            Self::Map(outline) => outline().example(),
            Self::OneOrMany(each) => each.example(),
            Self::AnyOf(shapes) => shapes.first().map_or(OutputValue::Map(Vec::new()), Self::example),
            Self::Reference(_, shape) => shape().example(),
        }
    }
}

impl KeyOutline {
    /// A value for the documentation.
    pub(crate) fn example(&self) -> OutputValue {
        self.example.map_or_else(|| self.shape.example(), |example| example())
    }
}

impl MapOutline {
    /// A map with the required keys, or with the first key if none is required.
    fn example(&self) -> OutputValue {
        let is_shown = |(at, key): &(usize, &KeyOutline)| match self.required {
            [] => *at == 0,
            required => required.contains(&key.name),
        };
        let shown = self.keys.iter().enumerate().filter(is_shown);
        OutputValue::Map(shown.map(|(_, key)| (key.name.to_owned(), key.example())).collect())
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
