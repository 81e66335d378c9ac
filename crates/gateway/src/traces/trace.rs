//! The spans of a traced request: a server span, and a client span for each attempt.
//!
//! Attribute names follow the semantic conventions for HTTP. The query is omitted, because it may contain secrets.

use super::{
    context::{TRACEPARENT, TRACESTATE, TraceContext},
    otlp::{KeyValue, OtlpSpan, SpanKind, SpanStatus, SpanStatusCode},
};
use crate::{telemetry::RequestRecord, upstream::UpstreamEndpoint};
use http::{HeaderValue, Method, Uri, Version};
use tidegate_core::Micros;
use tidegate_http_server::Scheme;
use tidegate_policy::head::HeaderFields;

/// The trace context of a request, and its attempts.
pub(crate) struct Trace {
    context: TraceContext,
    /// The span of the client; 0 without a parent.
    parent_span: u64,
    trace_state: String,
    attempts: Vec<AttemptSpan>,
}

/// An attempt to send the request to a server.
struct AttemptSpan {
    span: u64,
    start: Micros,
    end: Option<Micros>,
    scheme: &'static str,
    host: String,
    port: u16,
    result: AttemptResult,
}

enum AttemptResult {
    /// The request was canceled.
    Abandoned,
    Response(u16),
    Failed(&'static str),
}

/// The maximum length of a text from a client, which bounds the memory of queued traces.
const MAX_TEXT_LENGTH: usize = 1_024;

const KNOWN_METHODS: [Method; 8] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::DELETE,
    Method::OPTIONS,
    Method::TRACE,
    Method::PATCH,
];

impl Trace {
    pub(super) fn new(context: TraceContext, parent: u64, fields: &HeaderFields) -> Self {
        let states: Vec<_> =
            fields.get_all(TRACESTATE).filter_map(|state| str::from_utf8(state).ok()).collect();
        // A truncated `tracestate` would be wrong, so a long one is omitted from the span. Servers receive it unchanged.
        let state = Some(states.join(",")).filter(|state| state.len() <= MAX_TEXT_LENGTH).unwrap_or_default();
        Self { context, parent_span: parent, trace_state: state, attempts: Vec::new() }
    }

    /// Starts the span of an attempt, and propagates it to the server.
    pub(crate) fn begin_attempt(
        &mut self,
        server: &UpstreamEndpoint,
        fields: &mut HeaderFields,
        now: Micros,
    ) {
        let context = self.context.child();
        fields.set(TRACEPARENT, context.to_header().as_bytes());
        let (scheme, host, port) = server.endpoint();
        let host = host.to_owned();
        let ended = AttemptResult::Abandoned;
        self.attempts.push(AttemptSpan {
            span: context.span_id,
            start: now,
            end: None,
            scheme,
            host,
            port,
            result: ended,
        });
    }

    /// Ends the span with a response.
    pub(crate) fn on_response(&mut self, status: u16, now: Micros) {
        self.end_attempt(AttemptResult::Response(status), now);
    }

    /// Ends the span with an error.
    pub(crate) fn on_failure(&mut self, reason: &'static str, now: Micros) {
        self.end_attempt(AttemptResult::Failed(reason), now);
    }

    fn end_attempt(&mut self, ended: AttemptResult, now: Micros) {
        if let Some(attempt) = self.attempts.last_mut() {
            (attempt.result, attempt.end) = (ended, Some(now));
        }
    }

    /// The number of spans.
    pub(super) fn span_count(&self) -> u64 {
        1 + self.attempts.len() as u64
    }
}

/// Writes the spans of a traced request.
pub(super) fn write_spans(record: &RequestRecord, into: &mut Vec<OtlpSpan>) {
    let Some(trace) = &record.trace else { return };
    into.push(server_span(record, trace));
    let attempts = trace.attempts.iter().enumerate();
    into.extend(attempts.map(|(resent, attempt)| client_span(record, trace, attempt, resent)));
}

fn server_span(record: &RequestRecord, trace: &Trace) -> OtlpSpan {
    let mut attributes = method_attributes(&record.method);
    let mut add = |key: &str, value: Option<&str>| {
        attributes.extend(value.map(|value| KeyValue::text(key, value)));
    };
    let authority = record.uri.as_ref().and_then(Uri::authority);
    let authority = authority.map(|authority| truncate(authority.as_str().as_bytes()));
    let host = authority.or_else(|| header_text(&record.host));
    let (host, port) = host.as_deref().map_or((None, None), split_host_port);
    add("url.path", path(record).as_deref());
    add("url.scheme", Some(scheme_name(record.connection.scheme)));
    add("server.address", host);
    add("client.address", Some(&record.connection.client.to_string()));
    add("network.peer.address", Some(&record.connection.peer.ip().to_canonical().to_string()));
    add("network.protocol.version", Some(version_name(record.version)));
    add("user_agent.original", header_text(&record.user_agent).as_deref());
    add("tidegate.request.id", Some(&truncate(record.id.as_bytes())));
    add("tidegate.rule", record.note.rule.as_deref());
    add("tidegate.decision", record.note.decision.as_deref());
    attributes.extend(port.map(|port| KeyValue::integer("server.port", port)));
    attributes.extend(status_attribute(record.status));
    let error = match record.status {
        0 => Some("dropped".to_owned()),
        500.. => Some(record.status.to_string()),
        _ => None,
    };
    let ids = (trace.context.span_id, trace.parent_span);
    span(record, trace, (SpanKind::Server, ids), (record.start, record.end), attributes, error)
}

fn client_span(record: &RequestRecord, trace: &Trace, attempt: &AttemptSpan, resent: usize) -> OtlpSpan {
    let mut attributes = method_attributes(&record.method);
    let host = match attempt.host.contains(':') {
        true => format!("[{}]", attempt.host),
        false => attempt.host.clone(),
    };
    let url = format!("{}://{host}:{}{}", attempt.scheme, attempt.port, path(record).unwrap_or_default());
    attributes.push(KeyValue::text("url.full", url));
    attributes.push(KeyValue::text("server.address", attempt.host.as_str()));
    attributes.push(KeyValue::integer("server.port", attempt.port));
    if resent > 0 {
        let resent = i64::try_from(resent).unwrap_or(i64::MAX);
        attributes.push(KeyValue::integer("http.request.resend_count", resent));
    }
    let error = match attempt.result {
        AttemptResult::Response(status) if status < 400 => None,
        AttemptResult::Response(status) => Some(status.to_string()),
        AttemptResult::Failed(why) => Some(why.to_owned()),
        AttemptResult::Abandoned => Some("cancelled".to_owned()),
    };
    if let AttemptResult::Response(code) = attempt.result {
        attributes.extend(status_attribute(code));
    }
    let times = (attempt.start, attempt.end.unwrap_or(record.end));
    span(record, trace, (SpanKind::Client, (attempt.span, trace.context.span_id)), times, attributes, error)
}

fn span(
    record: &RequestRecord,
    trace: &Trace,
    (kind, (id, parent)): (SpanKind, (u64, u64)),
    (start, end): (Micros, Micros),
    mut attributes: Vec<KeyValue>,
    error: Option<String>,
) -> OtlpSpan {
    let is_error = error.is_some();
    attributes.extend(error.map(|error| KeyValue::text("error.type", error)));
    let is_known = KNOWN_METHODS.contains(&record.method);
    OtlpSpan {
        trace_id: trace.context.trace_id.to_be_bytes().to_vec(),
        span_id: id.to_be_bytes().to_vec(),
        trace_state: trace.trace_state.clone(),
        parent_span_id: if parent == 0 { Vec::new() } else { parent.to_be_bytes().to_vec() },
        name: if is_known { record.method.to_string() } else { "HTTP".to_owned() },
        kind: kind.into(),
        start: nanoseconds(start),
        end: nanoseconds(end.max(start)),
        attributes,
        status: is_error.then(|| SpanStatus { code: SpanStatusCode::Error.into() }),
        flags: trace.context.flags.into(),
    }
}

/// Unknown methods share one value, to bound the cardinality.
fn method_attributes(method: &Method) -> Vec<KeyValue> {
    const METHOD: &str = "http.request.method";
    match KNOWN_METHODS.contains(method) {
        true => vec![KeyValue::text(METHOD, method.as_str())],
        false => vec![
            KeyValue::text(METHOD, "_OTHER"),
            KeyValue::text("http.request.method_original", truncate(method.as_str().as_bytes())),
        ],
    }
}

fn path(record: &RequestRecord) -> Option<String> {
    record.uri.as_ref().map(|uri| truncate(uri.path().as_bytes()))
}

fn header_text(value: &Option<HeaderValue>) -> Option<String> {
    value.as_ref().map(|value| truncate(value.as_bytes()))
}

fn status_attribute(code: u16) -> Option<KeyValue> {
    (code > 0).then(|| KeyValue::integer("http.response.status_code", code))
}

fn scheme_name(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::Http => "http",
        Scheme::Https => "https",
    }
}

fn version_name(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    }
}

/// A host without its port and its brackets, and the port.
fn split_host_port(host: &str) -> (Option<&str>, Option<u16>) {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port.parse().ok()),
        _ => (host, None),
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    (Some(name).filter(|name| !name.is_empty()), port)
}

fn nanoseconds(at: Micros) -> u64 {
    at.get().saturating_mul(1_000)
}

fn truncate(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_TEXT_LENGTH)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_is_split_from_port() {
        for (host, name, port) in [
            ("a.test", Some("a.test"), None),
            ("a.test:8080", Some("a.test"), Some(8080)),
            ("[::1]", Some("::1"), None),
            ("[::1]:80", Some("::1"), Some(80)),
            ("a.test:x", Some("a.test"), None),
            ("", None, None),
        ] {
            assert_eq!(split_host_port(host), (name, port), "{host}");
        }
    }
}
