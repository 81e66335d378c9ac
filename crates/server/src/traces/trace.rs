//! What is known of a request that is traced: its span, and one for each server that it was sent to.
//!
//! Names of attributes are those of the semantic conventions for HTTP. The query is left out: it may hold secrets.

use super::{
    context::{Context, TRACEPARENT, TRACESTATE},
    otlp::{Code, KeyValue, Kind, Span, Status},
};
use crate::{LogNote, Origin, Scheme, client::Client, upstream::Server};
use http::{HeaderMap, HeaderValue, Method, Version, header, request, response};
use tidegate_core::Micros;

/// A request that is traced.
pub(crate) struct Trace {
    context: Context,
    /// The span of whoever sent the request; 0 where there is none.
    parent: u64,
    state: String,
    start: Micros,
    end: Micros,
    method: Method,
    path: String,
    version: Version,
    host: Option<String>,
    agent: Option<String>,
    id: String,
    origin: Origin,
    /// 0 where there was none.
    status: u16,
    note: LogNote,
    visits: Vec<Visit>,
}

/// One server that the request was sent to.
struct Visit {
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
    pub(super) fn new(
        context: Context,
        parent: u64,
        head: &request::Parts,
        id: &HeaderValue,
        client: &Client,
        origin: &Origin,
    ) -> Box<Self> {
        let said = |name| head.headers.get(name).map(|value| short(value.as_bytes()));
        let states: Vec<_> =
            head.headers.get_all(TRACESTATE).iter().filter_map(|state| state.to_str().ok()).collect();
        let host = head.uri.authority().map(|authority| short(authority.as_str().as_bytes()));
        Box::new(Self {
            context,
            parent,
            // A part of one says something else; servers get it whole.
            state: Some(states.join(",")).filter(|state| state.len() <= LONGEST).unwrap_or_default(),
            start: client.worker.clock.now(),
            end: Micros::ZERO,
            method: head.method.clone(),
            path: short(head.uri.path().as_bytes()),
            version: head.version,
            host: host.or_else(|| said(header::HOST)),
            agent: said(header::USER_AGENT),
            id: short(id.as_bytes()),
            origin: origin.clone(),
            status: 0,
            note: LogNote::default(),
            visits: Vec::new(),
        })
    }

    /// It is sent to this server, which is told of the span that is about it.
    pub(crate) fn sent_to(&mut self, server: &Server, headers: &mut HeaderMap, now: Micros) {
        let context = self.context.child();
        headers.insert(TRACEPARENT, context.header());
        let (scheme, host, port) = server.place();
        let host = host.to_owned();
        let visit = Visit { span: context.span, start: now, end: None, scheme, host, port, ended: Ended::No };
        self.visits.push(visit);
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
        if let Some(visit) = self.visits.last_mut() {
            (visit.ended, visit.end) = (ended, Some(now));
        }
    }

    /// Notes down what the client is answered.
    pub(crate) fn note(&mut self, parts: &response::Parts) {
        self.status = parts.status.as_u16();
        self.note = parts.extensions.get().cloned().unwrap_or_default();
    }

    /// There is no answer, for this reason.
    pub(crate) fn dropped(&mut self, note: &LogNote) {
        self.note = note.clone();
    }

    pub(super) fn finish(&mut self, now: Micros) {
        self.end = now;
    }

    /// How many spans it is.
    pub(super) fn spans(&self) -> u64 {
        1 + self.visits.len() as u64
    }

    pub(super) fn write(&self, into: &mut Vec<Span>) {
        into.push(self.span());
        into.extend(self.visits.iter().enumerate().map(|(resent, visit)| self.visit(visit, resent)));
    }

    fn span(&self) -> Span {
        let mut attributes = self.method();
        let mut say = |key: &str, value: Option<&str>| {
            attributes.extend(value.map(|value| KeyValue::text(key, value)));
        };
        let (host, port) = self.host.as_deref().map_or((None, None), parted);
        say("url.path", Some(&self.path));
        say("url.scheme", Some(scheme(self.origin.scheme)));
        say("server.address", host);
        say("client.address", Some(&self.origin.client.to_string()));
        say("network.peer.address", Some(&self.origin.peer.ip().to_canonical().to_string()));
        say("network.protocol.version", Some(version(self.version)));
        say("user_agent.original", self.agent.as_deref());
        say("tidegate.request.id", Some(&self.id));
        say("tidegate.rule", self.note.rule.as_deref());
        say("tidegate.decision", self.note.decision.as_deref());
        attributes.extend(port.map(|port| KeyValue::number("server.port", port)));
        attributes.extend(status(self.status));
        let error = match self.status {
            0 => Some("dropped".to_owned()),
            500.. => Some(self.status.to_string()),
            _ => None,
        };
        let times = (self.start, self.end);
        self.made(Kind::Server, self.context.span, self.parent, times, attributes, error)
    }

    fn visit(&self, visit: &Visit, resent: usize) -> Span {
        let mut attributes = self.method();
        let host = match visit.host.contains(':') {
            true => format!("[{}]", visit.host),
            false => visit.host.clone(),
        };
        let url = format!("{}://{host}:{}{}", visit.scheme, visit.port, self.path);
        attributes.push(KeyValue::text("url.full", url));
        attributes.push(KeyValue::text("server.address", visit.host.as_str()));
        attributes.push(KeyValue::number("server.port", visit.port));
        if resent > 0 {
            let resent = i64::try_from(resent).unwrap_or(i64::MAX);
            attributes.push(KeyValue::number("http.request.resend_count", resent));
        }
        let error = match visit.ended {
            Ended::Answered(status) if status < 400 => None,
            Ended::Answered(status) => Some(status.to_string()),
            Ended::Missed(why) => Some(why.to_owned()),
            Ended::No => Some("cancelled".to_owned()),
        };
        if let Ended::Answered(code) = visit.ended {
            attributes.extend(status(code));
        }
        let times = (visit.start, visit.end.unwrap_or(self.end));
        self.made(Kind::Client, visit.span, self.context.span, times, attributes, error)
    }

    fn made(
        &self,
        kind: Kind,
        id: u64,
        parent: u64,
        (start, end): (Micros, Micros),
        mut attributes: Vec<KeyValue>,
        error: Option<String>,
    ) -> Span {
        let is_error = error.is_some();
        attributes.extend(error.map(|error| KeyValue::text("error.type", error)));
        Span {
            trace: self.context.trace.to_be_bytes().to_vec(),
            id: id.to_be_bytes().to_vec(),
            state: self.state.clone(),
            parent: if parent == 0 { Vec::new() } else { parent.to_be_bytes().to_vec() },
            name: if self.is_known() { self.method.to_string() } else { "HTTP".to_owned() },
            kind: kind.into(),
            start: nanoseconds(start),
            end: nanoseconds(end.max(start)),
            attributes,
            status: is_error.then(|| Status { code: Code::Error.into() }),
            flags: self.context.flags.into(),
        }
    }

    fn is_known(&self) -> bool {
        METHODS.contains(&self.method)
    }

    /// Names that a client makes up are not told apart.
    fn method(&self) -> Vec<KeyValue> {
        const METHOD: &str = "http.request.method";
        match self.is_known() {
            true => vec![KeyValue::text(METHOD, self.method.as_str())],
            false => vec![
                KeyValue::text(METHOD, "_OTHER"),
                KeyValue::text("http.request.method_original", short(self.method.as_str().as_bytes())),
            ],
        }
    }
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
