//! The OTLP messages for traces, with the field numbers of the protocol.

use prost::{Message, Oneof};
use std::sync::OnceLock;

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportTraceRequest {
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
    pub(super) spans: Vec<OtlpSpan>,
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
pub(super) struct OtlpSpan {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    pub(super) trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    pub(super) parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub(super) name: String,
    #[prost(enumeration = "SpanKind", tag = "6")]
    pub(super) kind: i32,
    /// Nanoseconds since 1970, like `end`.
    #[prost(fixed64, tag = "7")]
    pub start: u64,
    #[prost(fixed64, tag = "8")]
    pub end: u64,
    #[prost(message, repeated, tag = "9")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    pub(super) status: Option<SpanStatus>,
    #[prost(fixed32, tag = "16")]
    pub(super) flags: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub(super) enum SpanKind {
    Unspecified = 0,
    Server = 2,
    Client = 3,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SpanStatus {
    #[prost(enumeration = "SpanStatusCode", tag = "3")]
    pub(super) code: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub(super) enum SpanStatusCode {
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
    #[prost(oneof = "AttributeValue", tags = "1, 3")]
    pub(super) value: Option<AttributeValue>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum AttributeValue {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Integer(i64),
}

/// The response of a collector.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportTraceResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PartialSuccess {
    #[prost(int64, tag = "1")]
    pub(super) rejected_spans: i64,
    #[prost(string, tag = "2")]
    pub(super) error_message: String,
}

impl Resource {
    /// The resource of a service.
    pub(crate) fn new(service: &str) -> Self {
        Self {
            attributes: vec![
                KeyValue::text("service.name", service),
                KeyValue::text("service.instance.id", instance_id()),
                KeyValue::text("telemetry.sdk.name", "tidegate"),
                KeyValue::text("telemetry.sdk.language", "rust"),
                KeyValue::text("telemetry.sdk.version", env!("CARGO_PKG_VERSION")),
            ],
        }
    }
}

/// The id of this process: a random UUID, as the semantic conventions recommend.
fn instance_id() -> &'static str {
    static ID: OnceLock<String> = OnceLock::new();
    ID.get_or_init(|| {
        // The version 4 and the variant of RFC 9562.
        let bits = fastrand::u128(..) & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
        let text = format!("{bits:032x}");
        let parts = [(0, 8), (8, 12), (12, 16), (16, 20), (20, 32)];
        parts.map(|(start, end)| text.get(start..end).unwrap_or_default()).join("-")
    })
}

impl Scope {
    /// The instrumentation scope of Tidegate.
    pub(crate) fn tidegate() -> Self {
        Self { name: "tidegate".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
    }
}

impl KeyValue {
    pub(crate) fn text(key: &str, value: impl Into<String>) -> Self {
        Self::new(key, AttributeValue::Text(value.into()))
    }

    pub(super) fn integer(key: &str, value: impl Into<i64>) -> Self {
        Self::new(key, AttributeValue::Integer(value.into()))
    }

    fn new(key: &str, value: AttributeValue) -> Self {
        Self { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
    }
}
