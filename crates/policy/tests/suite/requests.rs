//! Helpers: a request head, and a builder of matches.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use std::{any::Any, net::IpAddr};
use tidegate_policy::model::{Expression, Glob, Match, Network, PathPattern, PathTail, Segment, ValueGlobs};
use tidegate_rule::request::{RequestHead, ResponseHead};

/// A request, written as `POST example.com/login?next=1`.
#[derive(Clone, Debug)]
pub(crate) struct PolicyTestRequest {
    pub(crate) method: String,
    pub(crate) host: Option<String>,
    pub(crate) path: String,
    pub(crate) query: Option<String>,
    pub(crate) peer: Option<IpAddr>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) listener: Option<String>,
}

impl PolicyTestRequest {
    pub(crate) fn new(line: &str) -> Self {
        let (method, address) = line.split_once(' ').unwrap();
        let slash = address.find('/').unwrap();
        let (path, query) = match address[slash..].split_once('?') {
            Some((path, query)) => (path, Some(query.to_owned())),
            None => (&address[slash..], None),
        };
        Self {
            method: method.to_owned(),
            host: Some(address[..slash].to_owned()).filter(|host| !host.is_empty()),
            path: path.to_owned(),
            query,
            peer: Some([192, 0, 2, 1].into()),
            headers: Vec::new(),
            listener: None,
        }
    }

    pub(crate) fn with_peer(self, peer: &str) -> Self {
        Self { peer: Some(peer.parse().unwrap()), ..self }
    }

    pub(crate) fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }
}

impl RequestHead for PolicyTestRequest {
    fn method(&self) -> &str {
        &self.method
    }

    fn path(&self) -> &str {
        &self.path
    }

    fn query(&self) -> Option<&str> {
        self.query.as_deref()
    }

    fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    fn route(&self) -> Option<&str> {
        None
    }

    fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    fn listener(&self) -> Option<&str> {
        self.listener.as_deref()
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_bytes())
    }

    fn for_each_header<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        self.headers.iter().filter(|(known, _)| known == name).for_each(|(_, value)| each(value.as_bytes()));
    }

    fn extensions(&self) -> Option<&dyn Any> {
        None
    }
}

/// Parses a path pattern.
pub(crate) fn path(text: &str) -> PathPattern {
    let (mut segments, mut rest) = (Vec::new(), None);
    for part in text.split('/').filter(|part| !part.is_empty()) {
        match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
            Some(name) => match name.strip_suffix("**") {
                Some(name) => rest = Some(PathTail::Capture(name.to_owned())),
                None => segments.push(Segment::Capture(name.to_owned())),
            },
            None if part == "**" => rest = Some(PathTail::Any),
            None if part.contains('*') => segments.push(Segment::Glob(Glob(part.to_owned()))),
            None => segments.push(Segment::Text(part.to_owned())),
        }
    }
    PathPattern { segments, tail: rest }
}

/// A builder for matches.
pub(crate) trait MatchExt {
    fn method(self, method: &str) -> Self;
    fn path(self, path: &str) -> Self;
    fn host(self, host: &str) -> Self;
    fn header(self, name: &str, value: &str) -> Self;
    fn query(self, name: &str, value: &str) -> Self;
    fn cookie(self, name: &str, value: &str) -> Self;
    fn client(self, network: &str) -> Self;
    fn without(self, not: Match) -> Self;
    fn or(self, each: Match) -> Self;
    fn when(self, expression: &str) -> Self;
}

fn values(value: &str) -> ValueGlobs {
    ValueGlobs(value.split('|').map(|value| Glob(value.to_owned())).collect())
}

impl MatchExt for Match {
    fn method(mut self, method: &str) -> Self {
        self.methods.push(method.to_owned());
        self
    }

    fn path(mut self, text: &str) -> Self {
        self.paths.push(path(text));
        self
    }

    fn host(mut self, host: &str) -> Self {
        self.hosts.push(Glob(host.to_owned()));
        self
    }

    fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.insert(name.to_owned(), values(value));
        self
    }

    fn query(mut self, name: &str, value: &str) -> Self {
        self.queries.insert(name.to_owned(), values(value));
        self
    }

    fn cookie(mut self, name: &str, value: &str) -> Self {
        self.cookies.insert(name.to_owned(), values(value));
        self
    }

    fn client(mut self, network: &str) -> Self {
        self.clients.push(match network.parse() {
            Ok(prefix) => Network::Prefix(prefix),
            Err(_) => Network::List(network.to_owned()),
        });
        self
    }

    fn without(self, not: Match) -> Self {
        Self { not: Some(Box::new(not)), ..self }
    }

    fn or(mut self, each: Match) -> Self {
        self.any.push(each);
        self
    }

    fn when(self, expression: &str) -> Self {
        Self { when: Some(Expression(expression.into())), ..self }
    }
}

/// A match of all requests.
pub(crate) fn any_request() -> Match {
    Match::default()
}

pub(crate) struct StatusResponse(pub(crate) u16);

impl ResponseHead for StatusResponse {
    fn status(&self) -> u16 {
        self.0
    }
    fn header(&self, _: &str) -> Option<&[u8]> {
        None
    }
}
