//! The few messages of OTLP that a gateway sends and reads, with the numbers that its protocol gives to their fields.

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(super) struct Export {
    #[prost(message, repeated, tag = "1")]
    pub(super) resources: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scopes: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(super) spans: Vec<Span>,
    #[prost(string, tag = "3")]
    pub(super) schema: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Scope {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Span {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) trace: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) id: Vec<u8>,
    #[prost(string, tag = "3")]
    pub(super) state: String,
    #[prost(bytes = "vec", tag = "4")]
    pub(super) parent: Vec<u8>,
    #[prost(string, tag = "5")]
    pub(super) name: String,
    #[prost(enumeration = "Kind", tag = "6")]
    pub(super) kind: i32,
    /// Nanoseconds since 1970, as is its end.
    #[prost(fixed64, tag = "7")]
    pub start: u64,
    #[prost(fixed64, tag = "8")]
    pub end: u64,
    #[prost(message, repeated, tag = "9")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    pub(super) status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    pub(super) flags: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub(super) enum Kind {
    Unspecified = 0,
    Server = 2,
    Client = 3,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    #[prost(enumeration = "Code", tag = "3")]
    pub(super) code: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub(super) enum Code {
    Unset = 0,
    Error = 2,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 3")]
    pub(super) value: Option<Value>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Number(i64),
}

/// What a collector answers.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Exported {
    #[prost(message, optional, tag = "1")]
    pub(super) partly: Option<Partly>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Partly {
    #[prost(int64, tag = "1")]
    pub(super) rejected: i64,
    #[prost(string, tag = "2")]
    pub(super) reason: String,
}

impl Resource {
    /// A gateway that is called so.
    pub(crate) fn of(service: &str) -> Self {
        Self {
            attributes: vec![
                KeyValue::text("service.name", service),
                KeyValue::text("telemetry.sdk.name", "tidegate"),
                KeyValue::text("telemetry.sdk.language", "rust"),
                KeyValue::text("telemetry.sdk.version", env!("CARGO_PKG_VERSION")),
            ],
        }
    }
}

impl Scope {
    /// What we tell comes from us.
    pub(crate) fn ours() -> Self {
        Self { name: "tidegate".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
    }
}

impl KeyValue {
    pub(crate) fn text(key: &str, value: impl Into<String>) -> Self {
        Self::of(key, Value::Text(value.into()))
    }

    pub(super) fn number(key: &str, value: impl Into<i64>) -> Self {
        Self::of(key, Value::Number(value.into()))
    }

    fn of(key: &str, value: Value) -> Self {
        Self { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
    }
}
