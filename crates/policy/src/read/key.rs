//! Reads the key and the cost of a rule.

use super::{
    PolicyReader, ValueError,
    matching::header_name,
    references::ReferenceTarget,
    settle::parse_pointer,
    values::{unknown_word_error, write_number},
};
use crate::{
    map_schema::{
        MapSchema, OutputValue, TextKind, ValueSchema, field, key, with_default, with_example, without,
    },
    matching::check_key,
    model::{CostSpec, DEFAULT_COST, Expression, KeyPart, KeySpec},
    source::{SyntaxNode, SyntaxValue, truncate},
};
use std::fmt;
use tidegate_identity::api_key::ApiKeyPart;
use tidegate_rule::{body::JsonPointer, request::CertificateName};

/// The default prefix length by which IPv6 addresses are grouped to one client.
const DEFAULT_IPV6_PREFIX_LEN: u8 = 64;

pub(super) static KEY_SCHEMA: ValueSchema = ValueSchema::AnyOf(&[
    ValueSchema::Text(
        TextKind::Key,
        &[
            "ip",
            "ip/56",
            "user",
            "header x-tenant",
            "cookie session",
            "query id",
            "descriptor remote_address",
            "body /model",
            "jwt sub",
            "api-key",
            "client-cert san",
            "capture id",
            "all",
        ],
    ),
    ValueSchema::List(&ValueSchema::Reference("any-key", || &KEY_SCHEMA)),
    ValueSchema::Map(|| KEY_MAP.outline()),
]);

/// The value of `key`.
pub(super) const KEY_SHAPE: ValueSchema = ValueSchema::Reference("any-key", || &KEY_SCHEMA);

/// The keys of a `key` map, before they are converted to a [`KeySpec`].
#[derive(Default)]
struct KeyMap {
    first: Option<KeySpec>,
    cel: Option<Expression>,
}

static KEY_MAP: MapSchema<KeyMap> = MapSchema {
    name: "key",
    required: &[],
    keys: &[
        with_example(
            without(
                key(
                    "first",
                    "The first of these keys that a request has.",
                    ValueSchema::List(&KEY_SHAPE),
                    |reader, node, it| it.first = reader.several_keys(node, KeySpec::First),
                    |it| match &it.first {
                        Some(KeySpec::First(keys)) => {
                            Some(OutputValue::List(keys.iter().map(write_key).collect()))
                        }
                        _ => None,
                    },
                ),
                "The map needs `cel`.",
            ),
            || OutputValue::List(vec![OutputValue::text("header x-user"), OutputValue::text("ip")]),
        ),
        without(
            field!("cel": ValueSchema::Text(TextKind::Expression, &["request.path"]),
            cel = expression(check_key) => |cel| OutputValue::text(&cel.0),
            "A CEL expression that returns a string or an integer."),
            "The map needs `first`.",
        ),
    ],
};

#[derive(Default)]
pub(super) struct CostMap {
    source: Option<KeySpec>,
    default: Option<u64>,
    max: u64,
}

static COST: MapSchema<CostMap> = MapSchema {
    name: "cost",
    required: &["from", "max"],
    keys: &[
        with_example(
            field!("from": KEY_SHAPE, source = number_source => write_key, "The part of the request that contains the number, or with `first` several of them."),
            || OutputValue::text("header x-cost"),
        ),
        with_default(
            key(
                "default",
                "The cost of a request without the number.",
                ValueSchema::Integer("tokens", 5),
                |reader, node, it| it.default = reader.integer(node, 0..=u64::MAX),
                |it| it.default.filter(|cost| *cost != DEFAULT_COST).map(OutputValue::Number),
            ),
            || OutputValue::Number(DEFAULT_COST),
        ),
        field!("max": ValueSchema::Integer("tokens", 100), max = integer(1..=u64::MAX) => write_number, always,
            "The maximum cost of a request."),
    ],
};

/// The value of `cost`.
pub(super) const COST_SHAPE: ValueSchema =
    ValueSchema::AnyOf(&[ValueSchema::Integer("tokens", 5), ValueSchema::Map(|| COST.outline())]);

impl PolicyReader<'_> {
    pub(super) fn key(&mut self, node: &SyntaxNode) -> Option<KeySpec> {
        match &node.value {
            SyntaxValue::List(_) => self.several_keys(node, KeySpec::Composite),
            SyntaxValue::Map(_) => {
                let mut map = KeyMap::default();
                let before = self.errors.len();
                self.read_map(node, &KEY_MAP, &mut map);
                match map {
                    KeyMap { first: Some(first), cel: None } => Some(first),
                    KeyMap { first: None, cel: Some(cel) } => Some(KeySpec::Part(KeyPart::Cel(cel))),
                    _ => {
                        if self.errors.len() == before {
                            let fix = "write `first: [user, ip]` or `cel: …`";
                            self.report_error(node.span, "expected either `first` or `cel`", fix);
                        }
                        None
                    }
                }
            }
            _ => {
                let read = self.read(node, parse_key)?;
                match &read {
                    KeySpec::Part(KeyPart::User) => {
                        self.add_reference(ReferenceTarget::User, "user", node.span);
                    }
                    KeySpec::Part(KeyPart::Capture(name)) => {
                        self.add_reference(ReferenceTarget::Capture, name, node.span);
                    }
                    KeySpec::Part(KeyPart::Jwt(_)) => {
                        self.add_reference(ReferenceTarget::Identity, "jwt", node.span);
                    }
                    KeySpec::Part(KeyPart::ApiKey(_)) => {
                        self.add_reference(ReferenceTarget::Identity, "api-keys", node.span);
                    }
                    KeySpec::Part(KeyPart::Route) => {
                        self.add_reference(ReferenceTarget::Path, "route", node.span);
                    }
                    _ => {}
                }
                Some(read)
            }
        }
    }

    /// Reads a list of keys. A list of one item is read as that item.
    fn several_keys(&mut self, node: &SyntaxNode, make: fn(Vec<KeySpec>) -> KeySpec) -> Option<KeySpec> {
        let is_all = |node: &SyntaxNode| matches!(&node.value, SyntaxValue::Text(text) if text == "all");
        if let SyntaxValue::List(items) = &node.value
            && let Some(all) = items.iter().find(|item| is_all(item))
            && matches!(make(Vec::new()), KeySpec::Composite(_))
        {
            self.report_error(all.span, "`all` combined with other keys", "remove it: it has no effect");
        }
        let mut keys = self.one_or_many(node, Self::key);
        match keys.len() {
            0 => None,
            1 => keys.pop(),
            _ => Some(make(keys)),
        }
    }

    /// Reads a key with a single value.
    fn number_source(&mut self, node: &SyntaxNode) -> Option<KeySpec> {
        let is_part = |key: &KeySpec| matches!(key, KeySpec::Part(_));
        match self.key(node)? {
            KeySpec::First(keys) if keys.iter().all(is_part) => Some(KeySpec::First(keys)),
            part @ KeySpec::Part(_) => Some(part),
            _ => {
                self.report_error(
                    node.span,
                    "expected a single key, found several",
                    "write one, as in `header x-cost`",
                );
                None
            }
        }
    }

    pub(super) fn cost(&mut self, node: &SyntaxNode) -> Option<CostSpec> {
        match &node.value {
            SyntaxValue::Map(_) => {
                let mut found = CostMap::default();
                self.read_map(node, &COST, &mut found);
                let CostMap { source, default, max } = found;
                Some(CostSpec::FromRequest { from: source?, default: default.unwrap_or(DEFAULT_COST), max })
            }
            _ => self.integer(node, 0..=u64::MAX).map(CostSpec::Fixed),
        }
    }
}

pub(super) fn write_key(key: &KeySpec) -> OutputValue {
    match key {
        KeySpec::All => OutputValue::text("all"),
        KeySpec::Part(part) => write_part(part),
        KeySpec::Composite(keys) => OutputValue::List(keys.iter().map(write_key).collect()),
        KeySpec::First(_) => KEY_MAP.write(&KeyMap { first: Some(key.clone()), cel: None }),
    }
}

fn write_part(part: &KeyPart) -> OutputValue {
    match part {
        KeyPart::Cel(cel) => KEY_MAP.write(&KeyMap { first: None, cel: Some(cel.clone()) }),
        part => OutputValue::text(part),
    }
}

pub(super) fn write_cost(cost: &CostSpec) -> Option<OutputValue> {
    match cost {
        CostSpec::Fixed(DEFAULT_COST) => None,
        CostSpec::Fixed(cost) => Some(OutputValue::Number(*cost)),
        CostSpec::FromRequest { from, default, max } => {
            Some(COST.write(&CostMap { source: Some(from.clone()), default: Some(*default), max: *max }))
        }
    }
}

const PLAIN_KEYS: [&str; 10] =
    ["ip", "user", "method", "host", "path", "route", "upstream", "api-key", "request", "all"];
const NAMED_KEYS: [&str; 8] =
    ["header", "cookie", "query", "body", "jwt", "client-cert", "capture", "descriptor"];

fn parse_key(text: &str) -> Result<KeySpec, ValueError> {
    let (first, rest) = text.split_once(' ').map_or((text, ""), |(first, rest)| (first, rest.trim()));
    let named = || match rest {
        "" => Err(ValueError::new(format!("missing name after `{first}`"), format!("write `{first} NAME`"))),
        name if name.contains(|c: char| c.is_whitespace() || c.is_control()) => {
            Err(ValueError::new("name with a space", format!("write `{first} NAME`"))
                .with_span(first.len() + 1..text.len()))
        }
        name => Ok(name.to_owned()),
    };
    Ok(KeySpec::Part(match (first, rest) {
        ("all", "") => return Ok(KeySpec::All),
        ("ip", "") => KeyPart::Ip { prefix_len: DEFAULT_IPV6_PREFIX_LEN },
        ("user", "") => KeyPart::User,
        ("method", "") => KeyPart::Method,
        ("host", "") => KeyPart::Host,
        ("path", "") => KeyPart::Path,
        ("request", "") => KeyPart::Request,
        ("route", "") => KeyPart::Route,
        ("upstream", "") => KeyPart::Upstream,
        ("header", _) => KeyPart::Header(header_name(&named()?)?),
        ("cookie", _) => KeyPart::Cookie(named()?),
        ("query", _) => KeyPart::Query(named()?),
        ("body", _) => KeyPart::Body(parse_pointer(&named()?)?),
        ("jwt", _) => KeyPart::Jwt(parse_claim(&named()?)?),
        ("api-key", "") => KeyPart::ApiKey(ApiKeyPart::Name),
        ("api-key", "tier") => KeyPart::ApiKey(ApiKeyPart::Tier),
        ("api-key", other) => {
            let problem = format!("unknown part `{}` of an API key", truncate(other));
            return Err(ValueError::new(problem, "write `api-key` for its name, or `api-key tier`"));
        }
        ("client-cert", "subject") => KeyPart::ClientCertificate(CertificateName::Subject),
        ("client-cert", "san") => KeyPart::ClientCertificate(CertificateName::San),
        ("client-cert", _) => {
            let problem = "expected `subject` or `san` after `client-cert`";
            let fix = "write `client-cert subject`, or `client-cert san` for its subject alternative name";
            return Err(ValueError::new(problem, fix));
        }
        ("capture", _) => KeyPart::Capture(named()?),
        ("descriptor", _) => KeyPart::Descriptor(named()?),
        (first, "") if first.starts_with("ip/") => match first["ip/".len()..].parse() {
            Ok(prefix_len @ 1..=128) => KeyPart::Ip { prefix_len },
            _ => {
                let fix = "write an IPv6 prefix length from 1 to 128, as in `ip/56`";
                return Err(ValueError::new(format!("invalid prefix length in `{first}`"), fix)
                    .with_span(3..first.len()));
            }
        },
        _ => {
            let (problem, fix) = unknown_word_error(first, &[&PLAIN_KEYS[..], &NAMED_KEYS].concat());
            let (problem, fix) = match PLAIN_KEYS.contains(&first) {
                true => (format!("`{first}` takes no name"), format!("write only `{first}`")),
                false => (problem.replacen("value", "key", 1), fix),
            };
            return Err(ValueError::new(problem, fix));
        }
    }))
}

/// Parses the name of a claim, or a JSON pointer.
pub(super) fn parse_claim(text: &str) -> Result<JsonPointer, ValueError> {
    match text.starts_with('/') {
        true => parse_pointer(text),
        false if text.is_empty() => Err(ValueError::new("empty name", "write a name")),
        false => Ok(JsonPointer::from_tokens([text.to_owned()])?),
    }
}

/// The notation of a claim that [`parse_claim`] accepts.
pub(super) fn claim_text(claim: &JsonPointer) -> String {
    match claim.tokens() {
        [name] if !name.is_empty() && !name.starts_with('/') && !name.contains(char::is_whitespace) => {
            name.clone()
        }
        _ => claim.to_string(),
    }
}

/// Writes the notation that the parser accepts; for an expression, its text.
impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip { prefix_len: DEFAULT_IPV6_PREFIX_LEN } => f.write_str("ip"),
            Self::Ip { prefix_len } => write!(f, "ip/{prefix_len}"),
            Self::User => f.write_str("user"),
            Self::Method => f.write_str("method"),
            Self::Host => f.write_str("host"),
            Self::Path => f.write_str("path"),
            Self::Request => f.write_str("request"),
            Self::Route => f.write_str("route"),
            Self::Upstream => f.write_str("upstream"),
            Self::Header(name) => write!(f, "header {name}"),
            Self::Cookie(name) => write!(f, "cookie {name}"),
            Self::Query(name) => write!(f, "query {name}"),
            Self::Body(pointer) => write!(f, "body {pointer}"),
            Self::Jwt(claim) => write!(f, "jwt {}", claim_text(claim)),
            Self::ApiKey(ApiKeyPart::Name) => f.write_str("api-key"),
            Self::ApiKey(ApiKeyPart::Tier) => f.write_str("api-key tier"),
            Self::ClientCertificate(CertificateName::Subject) => f.write_str("client-cert subject"),
            Self::ClientCertificate(CertificateName::San) => f.write_str("client-cert san"),
            Self::Capture(name) => write!(f, "capture {name}"),
            Self::Descriptor(name) => write!(f, "descriptor {name}"),
            Self::Cel(cel) => f.write_str(&cel.0),
        }
    }
}
