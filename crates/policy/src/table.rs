//! What can be said, as tables: each key with what it says, how its value looks, how it is read and how it is written.
//!
//! The reader, the printer and the schema all go by the same line of a table, so that none of them can forget a key.

use crate::{read::Reader, source::Node};

/// The keys of one kind of map.
pub(crate) struct Table<T: 'static> {
    /// What the map is, as errors and the schema call it.
    pub(crate) what: &'static str,
    /// Without these it says nothing.
    pub(crate) required: &'static [&'static str],
    pub(crate) keys: &'static [Key<T>],
}

/// One key.
pub(crate) struct Key<T: 'static> {
    pub(crate) name: &'static str,
    /// What it says, in a line.
    about: &'static str,
    shape: Shape,
    pub(crate) read: fn(&mut Reader<'_>, &Node, &mut T),
    /// `None` where the file need not say it.
    write: fn(&T) -> Option<Written>,
    /// What holds where the file does not say it, if that is a value.
    default: Option<fn() -> Written>,
}

/// How a value looks.
pub(crate) enum Shape {
    /// A text, with examples.
    Text(&'static [&'static str]),
    /// One of these words.
    Word(&'static [&'static str]),
    /// A whole number.
    Whole,
    /// A text, or what looks like a number or like `true` and is one.
    Scalar,
    /// One of these, or a list of them.
    Several(&'static Self),
    /// A list of these.
    List(&'static Self),
    /// A map with names that the file chooses.
    Names(&'static Self),
    /// A map with these keys.
    Keys(fn() -> Outline),
    /// Any of these.
    Either(&'static [Self]),
    /// What is defined under this name, since it holds itself.
    Named(&'static str, fn() -> &'static Self),
}

/// A table, as the schema sees it.
pub(crate) struct Outline {
    pub(crate) what: &'static str,
    pub(crate) required: &'static [&'static str],
    pub(crate) keys: Vec<KeyOutline>,
}

/// One key, as the schema sees it.
pub(crate) struct KeyOutline {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) shape: &'static Shape,
    pub(crate) default: Option<Written>,
}

/// A value to be printed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Written {
    Bool(bool),
    Number(u64),
    Text(String),
    List(Vec<Self>),
    Map(Vec<(String, Self)>),
}

pub(crate) const fn key<T>(
    name: &'static str,
    about: &'static str,
    shape: Shape,
    read: fn(&mut Reader<'_>, &Node, &mut T),
    write: fn(&T) -> Option<Written>,
) -> Key<T> {
    Key { name, about, shape, read, write, default: None }
}

/// The same, with what holds where the file does not say it.
pub(crate) const fn key_with_default<T>(
    name: &'static str,
    about: &'static str,
    shape: Shape,
    read: fn(&mut Reader<'_>, &Node, &mut T),
    write: fn(&T) -> Option<Written>,
    default: fn() -> Written,
) -> Key<T> {
    Key { name, about, shape, read, write, default: Some(default) }
}

/// A key whose value is a field: `NAME: SHAPE, FIELD = READ => WRITE, ABOUT`, where `READ` is a method of the reader, with
/// its arguments behind the node, and `WRITE` takes a reference.
///
/// The field is an option. It is not where `always` or `default USUAL` follows: then it is always written, or where it differs
/// from that field of `USUAL`. `[FIELD]` is a list, `FIELD in WORDS` one of a few words, and `FIELD { TABLE }` a map.
macro_rules! field {
    ($name:literal: $($field:ident).+ in $words:ident, $about:literal) => {
        $crate::table::key_with_default(
            $name,
            $about,
            $crate::table::Shape::Word(const { &$crate::read::word_names(&$words) }),
            |reader, node, it| it.$($field).+ = reader.word(node, &$words).unwrap_or_default(),
            |it| $crate::read::write_word(&it.$($field).+, &$words),
            || $crate::read::usual_word(&$words),
        )
    };
    ($name:literal: $($field:ident).+ { $table:ident }, $about:literal) => {
        $crate::table::key(
            $name,
            $about,
            $crate::table::Shape::Keys(|| $table.outline()),
            |reader, node, it| reader.fill(node, &$table, &mut it.$($field).+),
            |it| $table.write_some(&it.$($field).+),
        )
    };
    ($name:literal: $shape:expr, [$($field:ident).+] = $read:ident$(($($arg:expr),*))?, $about:literal) => {
        $crate::table::key(
            $name,
            $about,
            $shape,
            |reader, node, it| {
                it.$($field).+ = reader.several(node, |reader, node| reader.$read(node $($(, $arg)*)?));
            },
            |it| $crate::table::Written::texts(&it.$($field).+),
        )
    };
    (
        $name:literal: $shape:expr,
        [$($field:ident).+] = $read:ident$(($($arg:expr),*))? => $write:expr,
        $about:literal
    ) => {
        $crate::table::key(
            $name,
            $about,
            $shape,
            |reader, node, it| {
                it.$($field).+ = reader.several(node, |reader, node| reader.$read(node $($(, $arg)*)?));
            },
            |it| $crate::table::Written::several(&it.$($field).+, $write),
        )
    };
    (
        $name:literal: $shape:expr,
        $($field:ident).+ = $read:ident$(($($arg:expr),*))? => $write:expr,
        $about:literal
    ) => {
        $crate::table::key(
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
        $crate::table::key(
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
        default $usual:expr,
        $about:literal
    ) => {
        $crate::table::key_with_default(
            $name,
            $about,
            $shape,
            |reader, node, it| it.$($field).+ = reader.$read(node $($(, $arg)*)?).unwrap_or_default(),
            |it| (it.$($field).+ != $usual.$($field).+).then(|| $write(&it.$($field).+)),
            || $write(&$usual.$($field).+),
        )
    };
}
pub(crate) use field;

impl<T> Key<T> {
    fn outline(&'static self) -> KeyOutline {
        let Self { name, about, shape, default, .. } = self;
        KeyOutline { name, about, shape, default: default.map(|default| default()) }
    }
}

impl<T> Table<T> {
    pub(crate) fn key(&self, name: &str) -> Option<&'static Key<T>> {
        self.keys.iter().find(|key| key.name == name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> + Clone {
        self.keys.iter().map(|key| key.name)
    }

    pub(crate) fn outline(&self) -> Outline {
        let keys = self.keys.iter().map(Key::outline).collect();
        Outline { what: self.what, required: self.required, keys }
    }

    /// The keys that a value needs to be written.
    pub(crate) fn written(&self, value: &T) -> impl Iterator<Item = &'static str> {
        self.keys.iter().filter(|key| (key.write)(value).is_some()).map(|key| key.name)
    }

    /// The same as [`write`](Self::write), unless there is nothing to be said.
    pub(crate) fn write_some(&self, value: &T) -> Option<Written> {
        Some(self.write(value)).filter(|written| !written.is_empty_map())
    }

    /// All that need be said.
    pub(crate) fn write(&self, value: &T) -> Written {
        let said = |key: &'static Key<T>| Some((key.name.to_owned(), (key.write)(value)?));
        Written::Map(self.keys.iter().filter_map(said).collect())
    }
}

impl Written {
    #[allow(clippy::needless_pass_by_value, reason = "whatever prints can be given, by reference or not")]
    pub(crate) fn text(text: impl ToString) -> Self {
        Self::Text(text.to_string())
    }

    /// A list; the only one of a list stands for it.
    pub(crate) fn several<T>(items: &[T], write: impl Fn(&T) -> Self) -> Option<Self> {
        match items {
            [] => None,
            [only] => Some(write(only)),
            items => Some(Self::List(items.iter().map(write).collect())),
        }
    }

    /// The same, of what prints as it is read.
    pub(crate) fn texts<T: ToString>(items: &[T]) -> Option<Self> {
        Self::several(items, |item| Self::text(item.to_string()))
    }

    /// A map with names, unless it is empty.
    pub(crate) fn named<N: ToString, T>(
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
