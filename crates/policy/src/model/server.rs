//! Listeners, connection limits, upstreams, routes, the access log and traces.

use super::{BreakerSpec, Match};
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};
use tidegate_core::Percent;

/// An item of `listen`: `127.0.0.1:8080`, or `{ address: 127.0.0.1:8443, tls: { certificate: a.pem, key: a.key } }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerSpec {
    /// `name`: the name that `match: { listener: … }` refers to. Several listeners may share a name.
    pub name: Option<String>,
    /// `address`.
    pub address: SocketAddr,
    /// `tls`; plain text if `None`.
    pub tls: Option<Tls>,
}

impl ListenerSpec {
    /// The address of the gateway if the policy declares none.
    pub const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
}

/// `tls`. The files are reloaded when they change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// `certificate`: the certificate chain (PEM).
    pub certificate: PathBuf,
    /// `key`: the private key (PEM).
    pub key: PathBuf,
    /// `client-ca`: CA certificates (PEM) used to verify client certificates. No client certificate is required if `None`.
    pub client_ca: Option<PathBuf>,
}

/// `connections`: limits of connections and requests that apply before any rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connections {
    /// `max`: the maximum number of concurrent connections.
    pub max: u64,
    /// `max-per-client`: the maximum number of concurrent connections from one IPv4 address or one IPv6 network.
    pub per_client: u64,
    /// `header-timeout`: the timeout for receiving the head of a request.
    pub header_timeout: Duration,
    /// `body-timeout`: the timeout between two reads of a request body, or two writes of a response.
    pub body_timeout: Duration,
    /// `min-body-rate`: the least bytes per second of a body while its sender or its receiver is waited for; `none` for no limit.
    pub min_body_rate: Option<u64>,
    /// `idle-timeout`: the timeout of an idle connection.
    pub idle_timeout: Duration,
    /// `tunnel-timeout`: the idle timeout of an upgraded connection, such as a WebSocket.
    pub tunnel_timeout: Duration,
    /// `max-header-size`: the maximum size of the head of a request, in bytes.
    pub header_size: u64,
    /// `max-body-size`: the maximum size of the body of a request, in bytes; `none` for no limit.
    pub body_size: Option<u64>,
    /// `max-parsed-body-size`: the maximum size of the body of a request that rules read, in bytes.
    pub parsed_body_size: u64,
    /// `drain-timeout`: the time that requests in flight get to finish at shutdown.
    pub drain_timeout: Duration,
    /// `escaped-slashes`: what happens to a path with `%2F`.
    pub escaped_slashes: EscapedSlashes,
    /// `underscores-in-headers`: what happens to headers with an underscore in their name.
    pub underscores: Underscores,
}

/// What happens to a path with an escaped slash, `%2F`. Some servers read it as a slash, others as part of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EscapedSlashes {
    /// `reject`: the request is rejected with 400.
    #[default]
    Reject,
    /// `keep`: it is part of its segment, for rules and for the server.
    Keep,
    /// `unescape`: it is a slash, for rules and for the server.
    Unescape,
}

/// What happens to headers with an underscore in their name. CGI, WSGI and PHP read `X_User` and `X-User` as the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Underscores {
    /// `drop`: they are removed from the request.
    #[default]
    Drop,
    /// `allow`: they stay in the request.
    Allow,
}

/// The headers that describe the client to upstream servers, and the request id.
///
/// Such headers in a request are removed, unless a trusted proxy sent it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardedHeaders {
    /// `all`: `X-Forwarded-For`, `-Proto`, `-Host`, `Forwarded`, and `X-Request-Id`, which responses have, too.
    #[default]
    All,
    /// `x-forwarded`: like `all`, without `Forwarded`.
    XForwarded,
    /// `none`: no such headers.
    None,
}

impl Default for Connections {
    fn default() -> Self {
        Self {
            max: 10_000,
            per_client: 1_000,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            min_body_rate: Some(100),
            idle_timeout: Duration::from_secs(75),
            tunnel_timeout: Duration::from_secs(3_600),
            header_size: 32 * 1_024,
            body_size: None,
            parsed_body_size: 256 * 1_024,
            drain_timeout: Duration::from_secs(30),
            escaped_slashes: EscapedSlashes::default(),
            underscores: Underscores::default(),
        }
    }
}

/// An item of `upstreams`: a URL, a list of URLs, or a map.
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
    /// `keep-alive`: the maximum number of idle connections to each server, per worker.
    pub keep_alive: u64,
    /// `max-fails`: consecutive failures after which a server is skipped while another one is available; 0 for never.
    pub max_fails: u64,
    /// `fail-timeout`: the time that a failed server is skipped.
    pub fail_timeout: Duration,
    /// `health`.
    pub health: Option<HealthCheck>,
    /// `breaker`, one for each server.
    pub breaker: Option<BreakerSpec>,
    /// `retries`.
    pub retries: Retries,
}

impl Upstream {
    /// An upstream with these servers and default settings.
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

/// `http://127.0.0.1:9000`, `echo`, or `{ url: https://app.internal, weight: 2 }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamServer {
    /// `url`: a scheme, a host and a port; or [`ECHO`](Self::ECHO).
    pub url: String,
    /// `weight`: 1 by default.
    pub weight: u64,
}

impl UpstreamServer {
    /// The `url` of the built-in server, which responds with the head of each request.
    pub const ECHO: &str = "echo";
}

/// How a server is selected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// `round-robin`, by weight.
    #[default]
    RoundRobin,
    /// `least-requests`: of two random servers, the one with fewer requests in flight.
    LeastRequests,
    /// `client`: the same server for each client, as long as it is available.
    Client,
}

/// The protocol to the servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// `http1`
    #[default]
    Http1,
    /// `http2`: with prior knowledge in plain text, by ALPN over TLS.
    Http2,
}

/// `timeouts` of the phases of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// `connect`.
    pub connect: Duration,
    /// `response`: from the last byte of the request to the head of the response.
    pub response: Duration,
    /// `idle`: between two reads of a response body.
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

/// `health: { path: /healthz, interval: 5s, timeout: 1s, unhealthy-threshold: 3, healthy-threshold: 2 }`, or `health: /healthz`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// `path` to request.
    pub path: String,
    /// `interval`.
    pub interval: Duration,
    /// `timeout`.
    pub timeout: Duration,
    /// `unhealthy-threshold`: consecutive failures after which a server is unhealthy.
    pub unhealthy_threshold: u64,
    /// `healthy-threshold`: consecutive successes after which a server is healthy again.
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

/// `retries: { max: 1, budget: 20% }`, or `retries: 1`. Only requests that are safe to repeat are retried.
#[derive(Clone, Debug, PartialEq)]
pub struct Retries {
    /// `max`: the maximum number of retries per request.
    pub max: u64,
    /// `budget`: the maximum share of retries among all requests.
    pub budget: Percent,
}

impl Default for Retries {
    fn default() -> Self {
        Self { max: 1, budget: Percent::from_millionths(200_000) }
    }
}

/// An item of `routes`: `{ match: { path: /api/** }, upstream: app }`, `{ path: /api/**, upstream: app }`, or `app` alone;
/// with `{ path: /old/**, respond: { redirect: /new, status: 301 } }` the gateway itself responds.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteSpec {
    /// `match`, or its keys next to `upstream` or `respond`.
    pub matching: Match,
    /// `upstream` or `respond`.
    pub action: RouteAction,
}

/// What happens to the requests of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteAction {
    /// `upstream`: forwards requests to the upstream of this name.
    Forward(String),
    /// `respond`: the gateway itself responds.
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
        /// The body; empty by default.
        body: String,
    },
    /// `redirect`, with `status`: 301, 302, 303, 307 or 308; 302 by default.
    Redirect {
        /// A URL or a path. `{host}` is replaced by the host of the request without its port, `{path}` by its path and `{uri}`
        /// by its path and query, as they would be forwarded.
        location: String,
        /// The status.
        status: u16,
    },
    /// `drop`: the connection is closed without a response (in HTTP/2, the stream).
    Drop,
}

impl RouteSpec {
    /// A route that forwards matching requests to this upstream.
    pub fn forward(matching: Match, upstream: impl Into<String>) -> Self {
        Self { matching, action: RouteAction::Forward(upstream.into()) }
    }

    /// The upstream, if the route forwards requests.
    pub fn upstream(&self) -> Option<&str> {
        match &self.action {
            RouteAction::Forward(upstream) => Some(upstream),
            RouteAction::Respond(_) => None,
        }
    }
}

/// `log: { format: json, file: access.log }`, or `log: json`: the access log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessLogSpec {
    /// `format`.
    pub format: AccessLogFormat,
    /// `file`; standard output if `None`.
    pub file: Option<PathBuf>,
}

/// The format of an entry of the access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessLogFormat {
    /// `none`: no access log.
    #[default]
    None,
    /// `json`: one object per line.
    Json,
    /// `combined`: the combined log format of Apache and nginx.
    Combined,
}

/// `traces: { endpoint: http://127.0.0.1:4318, sample: 10%, service: shop }`, or `traces: http://127.0.0.1:4318`: the export
/// of spans to an OTLP collector over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traces {
    /// `endpoint`: a URL, to which `/v1/traces` is added.
    pub endpoint: String,
    /// `sample`: the share of requests to trace, for requests without a sampling decision of an earlier hop; all by default.
    pub sample: Percent,
    /// `service`: the service name of the gateway; `tidegate` by default.
    pub service: String,
}

impl Default for Traces {
    fn default() -> Self {
        Self { endpoint: String::new(), sample: Percent::FULL, service: "tidegate".to_owned() }
    }
}
