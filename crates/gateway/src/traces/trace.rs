//! What is known of a request that is traced: its span, and one for each server that it was sent to.
//!
//! Names of attributes are those of the semantic conventions for HTTP. The query is left out: it may hold secrets.

use super::{
    context::{Context, TRACEPARENT, TRACESTATE},
    otlp::{Code, KeyValue, Kind, Span, Status},
};
use crate::{telemetry::RequestRecord, upstream::Server};
use http::{HeaderMap, HeaderValue, Method, Version};
use tidegate_core::Micros;
use tidegate_http_server::Scheme;

/// The place of a request in a trace, and its attempts.
pub(crate) struct Trace {
    context: Context,
    /// The span of whoever sent the request; 0 where there is none.
    parent: u64,
    state: String,
    attempts: Vec<Attempt>,
}

/// One server that the request was sent to.
struct Attempt {
    span: u64,
    start: Micros,
    end: Option<Micros>,
    scheme: &'static str,
    host: String,
    port: u16,
    ended: Ended,
}

enum Ended {
    /// Nobody waited for it.
    No,
    Answered(u16),
    Missed(&'static str),
}

/// Characters of anything that a client says, so that what waits is bounded.
const LONGEST: usize = 1_024;

const METHODS: [Method; 8] = [
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
    pub(super) fn new(context: Context, parent: u64, headers: &HeaderMap) -> Self {
        let states: Vec<_> =
            headers.get_all(TRACESTATE).iter().filter_map(|state| state.to_str().ok()).collect();
        // A part of one says something else; servers get it whole.
        let state = Some(states.join(",")).filter(|state| state.len() <= LONGEST).unwrap_or_default();
        Self { context, parent, state, attempts: Vec::new() }
    }

    /// It is sent to this server, which is told of the span that is about it.
    pub(crate) fn sent_to(&mut self, server: &Server, headers: &mut HeaderMap, now: Micros) {
        let context = self.context.child();
        headers.insert(TRACEPARENT, context.header());
        let (scheme, host, port) = server.place();
        let host = host.to_owned();
        let ended = Ended::No;
        self.attempts.push(Attempt { span: context.span, start: now, end: None, scheme, host, port, ended });
    }

    /// The head of an answer has come.
    pub(crate) fn answered(&mut self, status: u16, now: Micros) {
        self.left(Ended::Answered(status), now);
    }

    /// No answer came from it, for this reason.
    pub(crate) fn missed(&mut self, why: &'static str, now: Micros) {
        self.left(Ended::Missed(why), now);
    }

    fn left(&mut self, ended: Ended, now: Micros) {
        if let Some(attempt) = self.attempts.last_mut() {
            (attempt.ended, attempt.end) = (ended, Some(now));
        }
    }

    /// How many spans it is.
    pub(super) fn spans(&self) -> u64 {
        1 + self.attempts.len() as u64
    }
}

/// The spans of a request that is traced.
pub(super) fn write(record: &RequestRecord, into: &mut Vec<Span>) {
    let Some(trace) = &record.trace else { return };
    into.push(server_span(record, trace));
    let attempts = trace.attempts.iter().enumerate();
    into.extend(attempts.map(|(resent, attempt)| client_span(record, trace, attempt, resent)));
}

fn server_span(record: &RequestRecord, trace: &Trace) -> Span {
    let mut attributes = method(&record.method);
    let mut say = |key: &str, value: Option<&str>| {
        attributes.extend(value.map(|value| KeyValue::text(key, value)));
    };
    let authority = record.uri.authority().map(|authority| short(authority.as_str().as_bytes()));
    let host = authority.or_else(|| header(&record.host));
    let (host, port) = host.as_deref().map_or((None, None), parted);
    say("url.path", Some(&path(record)));
    say("url.scheme", Some(scheme(record.origin.scheme)));
    say("server.address", host);
    say("client.address", Some(&record.origin.client.to_string()));
    say("network.peer.address", Some(&record.origin.peer.ip().to_canonical().to_string()));
    say("network.protocol.version", Some(version(record.version)));
    say("user_agent.original", header(&record.agent).as_deref());
    say("tidegate.request.id", Some(&short(record.id.as_bytes())));
    say("tidegate.rule", record.note.rule.as_deref());
    say("tidegate.decision", record.note.decision.as_deref());
    attributes.extend(port.map(|port| KeyValue::number("server.port", port)));
    attributes.extend(status(record.status));
    let error = match record.status {
        0 => Some("dropped".to_owned()),
        500.. => Some(record.status.to_string()),
        _ => None,
    };
    let ids = (trace.context.span, trace.parent);
    span(record, trace, (Kind::Server, ids), (record.start, record.end), attributes, error)
}

fn client_span(record: &RequestRecord, trace: &Trace, attempt: &Attempt, resent: usize) -> Span {
    let mut attributes = method(&record.method);
    let host = match attempt.host.contains(':') {
        true => format!("[{}]", attempt.host),
        false => attempt.host.clone(),
    };
    let url = format!("{}://{host}:{}{}", attempt.scheme, attempt.port, path(record));
    attributes.push(KeyValue::text("url.full", url));
    attributes.push(KeyValue::text("server.address", attempt.host.as_str()));
    attributes.push(KeyValue::number("server.port", attempt.port));
    if resent > 0 {
        let resent = i64::try_from(resent).unwrap_or(i64::MAX);
        attributes.push(KeyValue::number("http.request.resend_count", resent));
    }
    let error = match attempt.ended {
        Ended::Answered(status) if status < 400 => None,
        Ended::Answered(status) => Some(status.to_string()),
        Ended::Missed(why) => Some(why.to_owned()),
        Ended::No => Some("cancelled".to_owned()),
    };
    if let Ended::Answered(code) = attempt.ended {
        attributes.extend(status(code));
    }
    let times = (attempt.start, attempt.end.unwrap_or(record.end));
    span(record, trace, (Kind::Client, (attempt.span, trace.context.span)), times, attributes, error)
}

fn span(
    record: &RequestRecord,
    trace: &Trace,
    (kind, (id, parent)): (Kind, (u64, u64)),
    (start, end): (Micros, Micros),
    mut attributes: Vec<KeyValue>,
    error: Option<String>,
) -> Span {
    let is_error = error.is_some();
    attributes.extend(error.map(|error| KeyValue::text("error.type", error)));
    let is_known = METHODS.contains(&record.method);
    Span {
        trace: trace.context.trace.to_be_bytes().to_vec(),
        id: id.to_be_bytes().to_vec(),
        state: trace.state.clone(),
        parent: if parent == 0 { Vec::new() } else { parent.to_be_bytes().to_vec() },
        name: if is_known { record.method.to_string() } else { "HTTP".to_owned() },
        kind: kind.into(),
        start: nanoseconds(start),
        end: nanoseconds(end.max(start)),
        attributes,
        status: is_error.then(|| Status { code: Code::Error.into() }),
        flags: trace.context.flags.into(),
    }
}

/// Names that a client makes up are not told apart.
fn method(method: &Method) -> Vec<KeyValue> {
    const METHOD: &str = "http.request.method";
    match METHODS.contains(method) {
        true => vec![KeyValue::text(METHOD, method.as_str())],
        false => vec![
            KeyValue::text(METHOD, "_OTHER"),
            KeyValue::text("http.request.method_original", short(method.as_str().as_bytes())),
        ],
    }
}

fn path(record: &RequestRecord) -> String {
    short(record.uri.path().as_bytes())
}

fn header(value: &Option<HeaderValue>) -> Option<String> {
    value.as_ref().map(|value| short(value.as_bytes()))
}

fn status(code: u16) -> Option<KeyValue> {
    (code > 0).then(|| KeyValue::number("http.response.status_code", code))
}

fn scheme(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::Http => "http",
        Scheme::Https => "https",
    }
}

fn version(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    }
}

/// A host without its port and its brackets, and the port.
fn parted(host: &str) -> (Option<&str>, Option<u16>) {
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

fn short(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(LONGEST)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_parted_from_their_ports() {
        for (host, name, port) in [
            ("a.test", Some("a.test"), None),
            ("a.test:8080", Some("a.test"), Some(8080)),
            ("[::1]", Some("::1"), None),
            ("[::1]:80", Some("::1"), Some(80)),
            ("a.test:x", Some("a.test"), None),
            ("", None, None),
        ] {
            assert_eq!(parted(host), (name, port), "{host}");
        }
    }
}
