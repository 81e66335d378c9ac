//! Where requests come in, and where they go.

use super::{BreakerSpec, Match};
use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};
use tidegate_core::Percent;

/// One of `listen`: `127.0.0.1:8080`, or `{ address: 127.0.0.1:8443, tls: { certificate: a.pem, key: a.key } }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerSpec {
    /// `name`: what `match: { listener: … }` calls it. Several listeners may share a name.
    pub name: Option<String>,
    /// `address`.
    pub address: SocketAddr,
    /// `tls`; in plain text where it is left out.
    pub tls: Option<Tls>,
}

/// `tls`: both are read again when they change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// `certificate`: the chain, in PEM.
    pub certificate: PathBuf,
    /// `key`, in PEM.
    pub key: PathBuf,
    /// `clients`: authorities, in PEM; only clients with a certificate of one of them are let in. All where it is left out.
    pub client_ca: Option<PathBuf>,
}

/// `connections`: what a client may do before any rule is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connections {
    /// `most`: at the same time.
    pub max: u64,
    /// `per-client`: at the same time from one address, or one network of IPv6.
    pub per_client: u64,
    /// `header-timeout`: how long the head of a request may take to come.
    pub header_timeout: Duration,
    /// `body-timeout`: how long there may be nothing of a body that is on its way.
    pub body_timeout: Duration,
    /// `idle-timeout`: how long a connection may wait for the next request.
    pub idle_timeout: Duration,
    /// `tunnel-timeout`: how long there may be nothing either way after an upgrade, as of WebSocket.
    pub tunnel_timeout: Duration,
    /// `header-size`: bytes of the head of a request.
    pub header_size: u64,
    /// `body-size`: bytes of its body; without an end where it is `none`.
    pub body_size: Option<u64>,
    /// `drain`: how long requests in flight may take to end when the gateway does.
    pub drain_timeout: Duration,
    /// `escaped-slashes`: what happens to a path with `%2F`.
    pub escaped_slashes: EscapedSlashes,
    /// `underscores-in-headers`: what happens to headers with an underscore in their name.
    pub underscores: Underscores,
}

/// What happens to a path with an escaped slash, `%2F`: some servers read it as a slash, others as a part of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EscapedSlashes {
    /// `reject`: the request is answered with 400.
    #[default]
    Reject,
    /// `keep`: it is a part of its segment, for rules and for the server.
    Keep,
    /// `unescape`: it is a slash, for rules and for the server.
    Unescape,
}

/// What happens to headers with an underscore in their name. CGI, WSGI and PHP read `X_User` and `X-User` as the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Underscores {
    /// `drop`: neither rules nor servers see them.
    #[default]
    Drop,
    /// `allow`: they are headers like any other.
    Allow,
}

/// What servers are told of a client, and clients of the names of their requests.
///
/// What a client says of itself in such headers is taken out in any case, unless it is a trusted proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardedHeaders {
    /// `full`: `X-Forwarded-For`, `-Proto`, `-Host`, `Forwarded`, and `X-Request-Id`, which answers have, too.
    #[default]
    Full,
    /// `x-forwarded`: the same without `Forwarded`.
    XForwarded,
    /// `none`: nothing.
    None,
}

impl Default for Connections {
    fn default() -> Self {
        Self {
            max: 10_000,
            per_client: 1_000,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(75),
            tunnel_timeout: Duration::from_secs(3_600),
            header_size: 32 * 1_024,
            body_size: None,
            drain_timeout: Duration::from_secs(30),
            escaped_slashes: EscapedSlashes::default(),
            underscores: Underscores::default(),
        }
    }
}

/// One of `upstreams`: an address, several, or all that can be said of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Upstream {
    /// `servers`, each with its weight.
    pub servers: Vec<UpstreamServer>,
    /// `balance`.
    pub balance: Balance,
    /// `protocol`.
    pub protocol: Protocol,
    /// `timeouts`.
    pub timeouts: Timeouts,
    /// `keep-alive`: idle connections that are kept for each server, by each worker.
    pub keep_alive: u64,
    /// `max-fails`: failures in a row after which a server is skipped while another one is available; 0: never.
    pub max_fails: u64,
    /// `fail-timeout`: for how long it is skipped.
    pub fail_timeout: Duration,
    /// `health`.
    pub health: Option<HealthCheck>,
    /// `breaker`, one for each server.
    pub breaker: Option<BreakerSpec>,
    /// `retries`.
    pub retries: Retries,
}

impl Upstream {
    /// These servers, with all else as usual.
    pub fn new(servers: Vec<UpstreamServer>) -> Self {
        Self {
            servers,
            balance: Balance::default(),
            protocol: Protocol::default(),
            timeouts: Timeouts::default(),
            keep_alive: 64,
            max_fails: 3,
            fail_timeout: Duration::from_secs(10),
            health: None,
            breaker: None,
            retries: Retries::default(),
        }
    }
}

/// `http://127.0.0.1:9000`, or `{ url: https://app.internal, weight: 2 }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamServer {
    /// `url`: a scheme, a host and a port.
    pub url: String,
    /// `weight`: one unless told otherwise.
    pub weight: u64,
}

/// Which server is next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// `round-robin`, by weight.
    #[default]
    RoundRobin,
    /// `least-requests`: the one of two random ones that has fewer in flight.
    LeastRequests,
    /// `client`: always the same one for a client, as long as it is there.
    Client,
}

/// How a server is spoken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// `http1`
    #[default]
    Http1,
    /// `http2`, from the first byte in plain text, by agreement in TLS.
    Http2,
}

/// `timeouts`: how long each phase may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// `connect`.
    pub connect: Duration,
    /// `response`: from the last byte of the request until the head of the answer is there.
    pub response: Duration,
    /// `idle`: how long there may be nothing of a body that is on its way.
    pub idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            response: Duration::from_secs(60),
            idle: Duration::from_secs(60),
        }
    }
}

/// `health: { path: /healthz, every: 5s, timeout: 1s, failures: 3, successes: 2 }`, or `health: /healthz`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// `path` that is asked for.
    pub path: String,
    /// `every`.
    pub interval: Duration,
    /// `timeout`.
    pub timeout: Duration,
    /// `failures` in a row until a server gets nothing more.
    pub unhealthy_threshold: u64,
    /// `successes` in a row until it does again.
    pub healthy_threshold: u64,
}

impl Default for HealthCheck {
    fn default() -> Self {
        Self {
            path: "/".to_owned(),
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(1),
            unhealthy_threshold: 3,
            healthy_threshold: 2,
        }
    }
}

/// `retries: { most: 1, budget: 20% }`, or `retries: 1`: only of what is safe to be sent twice, and only while they are few.
#[derive(Clone, Debug, PartialEq)]
pub struct Retries {
    /// `most`: for one request.
    pub max: u64,
    /// `budget`: of all requests.
    pub budget: Percent,
}

impl Default for Retries {
    fn default() -> Self {
        Self { max: 1, budget: Percent::from_millionths(200_000) }
    }
}

/// One of `routes`: `{ match: { path: /api/** }, upstream: app }`, `{ path: /api/**, upstream: app }`, or `app` alone;
/// `{ path: /old/**, respond: { redirect: /new, status: 301 } }` is answered by the gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteSpec {
    /// `match`, or its parts beside `upstream` or `respond`.
    pub matching: Match,
    /// `upstream` or `respond`.
    pub action: RouteAction,
}

/// What happens to the requests of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteAction {
    /// `upstream`: they are forwarded, to the upstream of this name.
    Forward(String),
    /// `respond`: the gateway answers them.
    Respond(Respond),
}

/// `respond: { status: 410, body: gone }`, `{ redirect: "https://{host}{uri}", status: 301 }` or `drop`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Respond {
    /// `status`, with `headers` and `body`.
    Status {
        /// The status, from 200 to 599.
        status: u16,
        /// Headers, by names in lower case.
        headers: BTreeMap<String, String>,
        /// The body; empty where it is left out.
        body: String,
    },
    /// `redirect`, with `status`: 301, 302, 303, 307 or 308; 302 where it is left out.
    Redirect {
        /// A URL or a path. `{host}` stands for the host of the request without its port, `{path}` for its path and `{uri}`
        /// for its path and query, as they would be forwarded.
        location: String,
        /// The status.
        status: u16,
    },
    /// `drop`: the connection is closed without an answer (in HTTP/2, the stream is).
    Drop,
}

impl RouteSpec {
    /// Requests of this match go to this upstream.
    pub fn forward(matching: Match, upstream: impl Into<String>) -> Self {
        Self { matching, action: RouteAction::Forward(upstream.into()) }
    }

    /// The upstream, if there is one.
    pub fn upstream(&self) -> Option<&str> {
        match &self.action {
            RouteAction::Forward(upstream) => Some(upstream),
            RouteAction::Respond(_) => None,
        }
    }
}

/// `log: { format: json, file: access.log }`, or `log: json`: what is written of each request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessLogSpec {
    /// `format`.
    pub format: AccessLogFormat,
    /// `file`; standard output where it is left out.
    pub file: Option<PathBuf>,
}

/// How a request is written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessLogFormat {
    /// `none`: nothing is.
    #[default]
    None,
    /// `json`, one object on a line.
    Json,
    /// `combined`, as web servers do.
    Combined,
}

/// `traces: { endpoint: http://127.0.0.1:4318, sample: 10%, service: shop }`, or `traces: http://127.0.0.1:4318`: spans of
/// requests, for a collector that speaks OTLP over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traces {
    /// `endpoint`: a URL, to which `/v1/traces` is added.
    pub endpoint: String,
    /// `sample`: of the requests of which nobody before has said whether they are traced; all unless told otherwise.
    pub sample: Percent,
    /// `service`: what the gateway is called in them; `tidegate` unless told otherwise.
    pub service: String,
}

impl Default for Traces {
    fn default() -> Self {
        Self { endpoint: String::new(), sample: Percent::FULL, service: "tidegate".to_owned() }
    }
}
