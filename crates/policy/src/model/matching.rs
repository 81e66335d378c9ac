//! Conditions on requests.

use super::Expression;
use std::collections::BTreeMap;
use tidegate_access::Prefix;
use tidegate_rule::body::JsonPointer;

/// `match`: the requests that a rule or a route applies to. All conditions must hold.
///
/// ```yaml
/// match:
///   method: [GET, HEAD]                # one of these
///   path: /users/{id}/**               # * matches within a segment, {id} one segment, ** any number at the end
///   host: "*.example.com"
///   header: { x-plan: free }           # a value, with * for any text; "*" alone: the header is present
///   query: { debug: "*" }
///   cookie: { session: "*" }
///   descriptor: { remote_address: "*" }  # entries of a descriptor of Envoy; HTTP requests have none
///   jwt: { plan: gold }                # claims of the verified token
///   api-key: { tier: gold }            # the name and the tier of the API key
///   client-cert: { san: "*.example.org" }    # the subject and the names of the client certificate
///   client: [10.0.0.0/8, internal]       # networks, or names of lists
///   listener: internal                 # the name of the listener that received the request
///   not: { path: /users/me/** }        # and does not match this
///   any: [{ path: /a }, { host: b.example.com }]    # and one of these
///   when: request.size > 1000          # CEL, for other conditions
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Match {
    /// `method`: one of these, in upper case; empty: any.
    pub methods: Vec<String>,
    /// `path`: one of these; empty: any.
    pub paths: Vec<PathPattern>,
    /// `host`: one of these, in lower case, without a port; empty: any.
    pub hosts: Vec<Glob>,
    /// `header`: all of these, by names in lower case.
    pub headers: BTreeMap<String, ValueGlobs>,
    /// `query`: all of these.
    pub queries: BTreeMap<String, ValueGlobs>,
    /// `cookie`: all of these.
    pub cookies: BTreeMap<String, ValueGlobs>,
    /// `descriptor`: all of these entries of a descriptor.
    pub descriptor: BTreeMap<String, ValueGlobs>,
    /// `jwt`: all of these claims of the verified token.
    pub claims: BTreeMap<JsonPointer, ValueGlobs>,
    /// `api-key`: the API key.
    pub api_key: ApiKeyMatch,
    /// `client-cert`: the verified client certificate.
    pub client_certificate: ClientCertificateMatch,
    /// `client`: in one of these networks; empty: any.
    pub clients: Vec<Network>,
    /// `listener`: received by one of these; empty: any.
    pub listeners: Vec<String>,
    /// `not`: excludes requests that match this.
    pub not: Option<Box<Self>>,
    /// `any`: at least one of these matches; empty: any.
    pub any: Vec<Self>,
    /// `when`: this expression is true.
    pub when: Option<Expression>,
}

impl Match {
    /// A condition that only HTTP requests can meet, if there is one: its key.
    pub(crate) fn http_condition(&self) -> Option<&'static str> {
        let conditions = [
            ("method", !self.methods.is_empty()),
            ("path", !self.paths.is_empty()),
            ("host", !self.hosts.is_empty()),
            ("header", !self.headers.is_empty()),
            ("query", !self.queries.is_empty()),
            ("cookie", !self.cookies.is_empty()),
            ("client-cert", self.client_certificate != ClientCertificateMatch::default()),
            ("listener", !self.listeners.is_empty()),
            ("when", self.when.is_some()),
        ];
        conditions.into_iter().find(|(_, is_set)| *is_set).map(|(key, _)| key)
    }

    /// Whether it, or a match in it, has such a condition.
    pub(crate) fn contains(&self, has: fn(&Self) -> bool) -> bool {
        let mut parts = self.not.iter().map(|not| &**not).chain(&self.any);
        has(self) || parts.any(|part| part.contains(has))
    }
}

/// `api-key: { name: acme, tier: [gold, silver] }`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiKeyMatch {
    /// `name`: one of these; empty: any.
    pub names: Vec<Glob>,
    /// `tier`: one of these; empty: any.
    pub tiers: Vec<Glob>,
}

/// `client-cert: { subject: "CN=*,O=Example", san: spiffe://example.org/* }`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientCertificateMatch {
    /// `subject`: one of these; empty: any.
    pub subjects: Vec<Glob>,
    /// `san`: a subject alternative name is one of these; empty: any.
    pub sans: Vec<Glob>,
}

/// One of these values, with `*` for any text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueGlobs(pub Vec<Glob>);

/// A pattern with `*` for any text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(pub String);

/// A network, or the name of a list; `all` is the list of all addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// These addresses.
    Prefix(Prefix),
    /// The addresses of a list.
    List(String),
}

/// A path pattern, segment by segment: `/users/{id}/photos/*.jpg`, `/static/**`.
///
/// It is normalized as request paths are: escapes are decoded, no segment is empty, and `/` has no segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    /// The segments, without the tail.
    pub segments: Vec<Segment>,
    /// The tail `/**`, if the pattern has one. It matches any number of segments, also none.
    pub tail: Option<PathTail>,
}

/// The tail of a path pattern, which matches the remaining segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathTail {
    /// `**`
    Any,
    /// `{name**}`: like `**`, and captures the remaining path.
    Capture(String),
}

/// A segment of a path pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Exactly this.
    Text(String),
    /// This text, with `*` for any text; `*` alone matches any non-empty segment.
    Glob(Glob),
    /// `{name}`: matches any non-empty segment, and captures it.
    Capture(String),
}
