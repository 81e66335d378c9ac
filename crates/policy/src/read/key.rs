//! For whom, and at what cost.

use super::{
    Mistake, Reader,
    matching::header_name,
    references::Target,
    values::{unknown_word, write_number},
};
use crate::{
    matching::check_key,
    model::{Cost, Expression, Key, Part},
    source::{Node, Value},
    table::{Shape, Table, Written, field, key},
};
use std::fmt;

/// The bits of an address of IPv6 that are one client, unless a key says otherwise.
const BITS: u8 = 64;

pub(super) static KEY: Shape = Shape::Either(&[
    Shape::Text(&[
        "ip",
        "ip/56",
        "user",
        "header x-tenant",
        "cookie session",
        "query id",
        "capture id",
        "all",
    ]),
    Shape::List(&Shape::Named("any-key", || &KEY)),
    Shape::Keys(|| KEY_MAP.outline()),
]);

/// `key` in a table.
pub(super) const SHAPE: Shape = Shape::Named("any-key", || &KEY);

/// A key that needs a map.
#[derive(Default)]
struct KeyMap {
    first: Option<Key>,
    cel: Option<Expression>,
}

static KEY_MAP: Table<KeyMap> = Table {
    what: "key",
    required: &[],
    keys: &[
        key(
            "first",
            "The first of these that a request has.",
            Shape::List(&SHAPE),
            |reader, node, it| it.first = reader.together(node, Key::First),
            |it| match &it.first {
                Some(Key::First(keys)) => Some(Written::List(keys.iter().map(write_key).collect())),
                _ => None,
            },
        ),
        field!("cel": Shape::Text(&["request.path"]),
            cel = expression(check_key) => |cel| Written::text(&cel.0),
            "An expression in CEL that gives a text or a number."),
    ],
};

#[derive(Default)]
pub(super) struct FoundCost {
    of: Option<Part>,
    otherwise: Option<u64>,
    most: u64,
}

static COST: Table<FoundCost> = Table {
    what: "cost",
    required: &["of", "most"],
    keys: &[
        field!("of": SHAPE, of = part => write_part, "Where the number is found."),
        key(
            "else",
            "What a request costs in which there is no number; 1 unless told otherwise.",
            Shape::Whole,
            |reader, node, it| it.otherwise = reader.whole(node, 0..=u64::MAX),
            |it| it.otherwise.filter(|cost| *cost != 1).map(Written::Number),
        ),
        field!("most": Shape::Whole, most = whole(1..=u64::MAX) => write_number, always,
            "The most that a request can be made to cost."),
    ],
};

/// `cost` in a table.
pub(super) const COST_SHAPE: Shape = Shape::Either(&[Shape::Whole, Shape::Keys(|| COST.outline())]);

impl Reader<'_> {
    pub(super) fn key(&mut self, node: &Node) -> Option<Key> {
        match &node.value {
            Value::List(_) => self.together(node, Key::Every),
            Value::Map(_) => {
                let mut map = KeyMap::default();
                let before = self.faults.len();
                self.fill(node, &KEY_MAP, &mut map);
                match map {
                    KeyMap { first: Some(first), cel: None } => Some(first),
                    KeyMap { first: None, cel: Some(cel) } => Some(Key::Part(Part::Cel(cel))),
                    _ => {
                        if self.faults.len() == before {
                            let fix = "write `first: [user, ip]` or `cel: …`";
                            self.blame(node.at, "a key is one thing", fix);
                        }
                        None
                    }
                }
            }
            _ => {
                let read = self.read(node, word)?;
                match &read {
                    Key::Part(Part::User) => self.refer(Target::User, "user", node.at),
                    Key::Part(Part::Capture(name)) => self.refer(Target::Capture, name, node.at),
                    Key::Part(Part::Route) => self.refer(Target::Path, "route", node.at),
                    _ => {}
                }
                Some(read)
            }
        }
    }

    /// Several keys; the only one of a list stands for it.
    fn together(&mut self, node: &Node, make: fn(Vec<Key>) -> Key) -> Option<Key> {
        let is_all = |node: &Node| matches!(&node.value, Value::Text(text) if text == "all");
        if let Value::List(items) = &node.value
            && let Some(all) = items.iter().find(|item| is_all(item))
            && matches!(make(Vec::new()), Key::Every(_))
        {
            self.blame(all.at, "`all` beside other keys", "leave it out: it adds nothing to them");
        }
        let mut keys = self.several(node, Self::key);
        match keys.len() {
            0 => None,
            1 => keys.pop(),
            _ => Some(make(keys)),
        }
    }

    /// A key that is one thing.
    fn part(&mut self, node: &Node) -> Option<Part> {
        match self.key(node)? {
            Key::Part(part) => Some(part),
            _ => {
                self.blame(
                    node.at,
                    "one thing is needed here, not several",
                    "write it as in `header x-cost`",
                );
                None
            }
        }
    }

    pub(super) fn cost(&mut self, node: &Node) -> Option<Cost> {
        match &node.value {
            Value::Map(_) => {
                let mut found = FoundCost::default();
                self.fill(node, &COST, &mut found);
                let FoundCost { of, otherwise, most } = found;
                Some(Cost::Found { part: of?, otherwise: otherwise.unwrap_or(1), most })
            }
            _ => self.whole(node, 0..=u64::MAX).map(Cost::Fixed),
        }
    }
}

pub(super) fn write_key(key: &Key) -> Written {
    match key {
        Key::All => Written::text("all"),
        Key::Part(part) => write_part(part),
        Key::Every(keys) => Written::List(keys.iter().map(write_key).collect()),
        Key::First(_) => KEY_MAP.write(&KeyMap { first: Some(key.clone()), cel: None }),
    }
}

fn write_part(part: &Part) -> Written {
    match part {
        Part::Cel(cel) => KEY_MAP.write(&KeyMap { first: None, cel: Some(cel.clone()) }),
        part => Written::text(part),
    }
}

pub(super) fn write_cost(cost: &Cost) -> Option<Written> {
    match cost {
        Cost::Fixed(1) => None,
        Cost::Fixed(cost) => Some(Written::Number(*cost)),
        Cost::Found { part, otherwise, most } => {
            Some(COST.write(&FoundCost { of: Some(part.clone()), otherwise: Some(*otherwise), most: *most }))
        }
    }
}

const WORDS: [&str; 8] = ["ip", "user", "method", "host", "path", "route", "request", "all"];
const WITH_NAME: [&str; 4] = ["header", "cookie", "query", "capture"];

fn word(text: &str) -> Result<Key, Mistake> {
    let (first, rest) = text.split_once(' ').map_or((text, ""), |(first, rest)| (first, rest.trim()));
    let named = || match rest {
        "" => Err(Mistake::new(format!("`{first}` without a name"), format!("write `{first} NAME`"))),
        name if name.contains(|c: char| c.is_whitespace() || c.is_control()) => {
            Err(Mistake::new("a name with a space in it", format!("write `{first} NAME`"))
                .at(first.len() + 1..text.len()))
        }
        name => Ok(name.to_owned()),
    };
    Ok(Key::Part(match (first, rest) {
        ("all", "") => return Ok(Key::All),
        ("ip", "") => Part::Ip { bits: BITS },
        ("user", "") => Part::User,
        ("method", "") => Part::Method,
        ("host", "") => Part::Host,
        ("path", "") => Part::Path,
        ("request", "") => Part::Request,
        ("route", "") => Part::Route,
        ("header", _) => Part::Header(header_name(&named()?)?),
        ("cookie", _) => Part::Cookie(named()?),
        ("query", _) => Part::Query(named()?),
        ("capture", _) => Part::Capture(named()?),
        (first, "") if first.starts_with("ip/") => match first["ip/".len()..].parse() {
            Ok(bits @ 1..=128) => Part::Ip { bits },
            _ => {
                let fix =
                    "write how many bits of an address of IPv6 are one client, from 1 to 128, as in `ip/56`";
                return Err(Mistake::new(format!("`{first}` has no such bits"), fix).at(3..first.len()));
            }
        },
        _ => {
            let (problem, fix) = unknown_word(first, WORDS.into_iter().chain(WITH_NAME));
            let (problem, fix) = match WORDS.contains(&first) {
                true => (format!("`{first}` has no name"), format!("write `{first}` alone")),
                false => (problem.replace("word", "key"), fix),
            };
            return Err(Mistake::new(problem, fix));
        }
    }))
}

/// As it is read; an expression as it is.
impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip { bits: BITS } => f.write_str("ip"),
            Self::Ip { bits } => write!(f, "ip/{bits}"),
            Self::User => f.write_str("user"),
            Self::Method => f.write_str("method"),
            Self::Host => f.write_str("host"),
            Self::Path => f.write_str("path"),
            Self::Request => f.write_str("request"),
            Self::Route => f.write_str("route"),
            Self::Header(name) => write!(f, "header {name}"),
            Self::Cookie(name) => write!(f, "cookie {name}"),
            Self::Query(name) => write!(f, "query {name}"),
            Self::Capture(name) => write!(f, "capture {name}"),
            Self::Cel(cel) => f.write_str(&cel.0),
        }
    }
}
