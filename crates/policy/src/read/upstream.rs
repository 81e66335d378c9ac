//! Reads upstreams.

use super::{
    PolicyReader, ValueError,
    admission::BREAKER,
    values::{write_duration, write_number},
};
use crate::{
    map_schema::{MapSchema, OutputValue, TextKind, ValueSchema, duration, field, key, percentage, without},
    model::{Balance, HealthCheck, Protocol, Retries, Timeouts, Upstream, UpstreamServer},
    source::{SyntaxNode, SyntaxValue, truncate},
};
use std::net::Ipv6Addr;

const URL: ValueSchema = ValueSchema::Text(TextKind::Url, &["http://127.0.0.1:9000", UpstreamServer::ECHO]);
const BALANCES: [(&str, Balance); 3] = [
    ("round-robin", Balance::RoundRobin),
    ("least-requests", Balance::LeastRequests),
    ("client", Balance::Client),
];
pub(super) const SCHEMES: [&str; 2] = ["http://", "https://"];
const PROTOCOLS: [(&str, Protocol); 2] = [("http1", Protocol::Http1), ("http2", Protocol::Http2)];

pub(super) static UPSTREAM: MapSchema<Upstream> = MapSchema {
    name: "upstream",
    required: &["servers"],
    keys: &[
        field!("servers": ValueSchema::OneOrMany(&ValueSchema::AnyOf(&[URL, ValueSchema::Map(|| SERVER.outline())])),
            [servers] = server => write_server, "The servers of the upstream."),
        field!("balance": balance in BALANCES, "How a server is selected: `round-robin` by weight, `least-requests` of two random servers, or `client`, the same server for each client."),
        field!("protocol": protocol in PROTOCOLS, "The protocol to the servers. Without TLS, `http2` is used with prior knowledge."),
        without(
            field!("timeouts": timeouts { TIMEOUTS }, "The timeout of each phase."),
            "The defaults of its keys apply.",
        ),
        field!("keep-alive": ValueSchema::Integer("connections", 32),
            keep_alive = integer(0..=1_000_000) => write_number, default default_upstream(),
            "The maximum number of idle connections to each server, per worker."),
        field!("max-fails": ValueSchema::Integer("failures", 5),
            max_fails = integer(0..=1_000_000) => write_number, default default_upstream(),
            "The number of consecutive failures after which a server is skipped while another one is available; 0 for never."),
        field!("fail-timeout": duration(&["30s"]), fail_timeout = positive_duration => write_duration, default default_upstream(),
            "The time that a failed server is skipped."),
        without(
            key(
                "health",
                "The active health check: a path, or a map.",
                ValueSchema::AnyOf(&[
                    ValueSchema::Text(TextKind::Path, &["/healthz"]),
                    ValueSchema::Map(|| HEALTH.outline()),
                ]),
                |reader, node, it| {
                    let mut health = HealthCheck::default();
                    match &node.value {
                        SyntaxValue::Text(_) => {
                            health.path = reader.read(node, parse_health_path).unwrap_or_default();
                        }
                        _ => reader.read_map(node, &HEALTH, &mut health),
                    }
                    it.health = Some(health);
                },
                |it| it.health.as_ref().map(|health| HEALTH.write(health)),
            ),
            "There are no health checks.",
        ),
        without(
            field!("breaker": ValueSchema::Map(|| BREAKER.outline()),
            breaker = breaker => |breaker| BREAKER.write(breaker),
            "A circuit breaker for each server."),
            "There are no circuit breakers.",
        ),
        without(
            key(
                "retries",
                "Retries of requests that are safe to repeat: a number, or a map.",
                ValueSchema::AnyOf(&[
                    ValueSchema::Integer("retries", 2),
                    ValueSchema::Map(|| RETRIES.outline()),
                ]),
                |reader, node, it| match &node.value {
                    SyntaxValue::Number(_) => {
                        it.retries.max = reader.integer(node, 0..=10).unwrap_or_default();
                    }
                    _ => reader.read_map(node, &RETRIES, &mut it.retries),
                },
                |it| RETRIES.write_non_empty(&it.retries),
            ),
            "The defaults of its keys apply.",
        ),
    ],
};

/// An item of `upstreams`.
pub(super) const UPSTREAM_SHAPE: ValueSchema =
    ValueSchema::AnyOf(&[ValueSchema::OneOrMany(&URL), ValueSchema::Map(|| UPSTREAM.outline())]);

static SERVER: MapSchema<UpstreamServer> = MapSchema {
    name: "server",
    required: &["url"],
    keys: &[
        field!("url": URL, url = read(parse_url) => OutputValue::text, always,
            "A scheme, a host and a port; or `echo`, a built-in server that responds with the head of each request."),
        field!("weight": ValueSchema::Integer("weight", 2), weight = integer(1..=1_000) => write_number, default default_server(),
            "The weight of the server, relative to the others."),
    ],
};

static TIMEOUTS: MapSchema<Timeouts> = MapSchema {
    name: "timeouts",
    required: &[],
    keys: &[
        field!("connect": duration(&["1s"]), connect = positive_duration => write_duration, default Timeouts::default(),
            "The timeout for establishing a connection."),
        field!("response": duration(&["30s"]), response = positive_duration => write_duration, default Timeouts::default(),
            "The timeout from the last byte of the request to the head of the response; then the response is 504."),
        field!("idle": duration(&["20s"]), idle = positive_duration => write_duration, default Timeouts::default(),
            "The timeout between two reads of a response body."),
    ],
};

static HEALTH: MapSchema<HealthCheck> = MapSchema {
    name: "health",
    required: &["path"],
    keys: &[
        field!("path": ValueSchema::Text(TextKind::Path, &["/healthz"]), path = read(parse_health_path) => OutputValue::text, always,
            "The path to request."),
        field!("interval": duration(&["10s"]), interval = positive_duration => write_duration, default HealthCheck::default(), "The interval between two checks."),
        field!("timeout": duration(&["500ms"]), timeout = positive_duration => write_duration, default HealthCheck::default(),
            "The timeout of a check."),
        field!("unhealthy-threshold": ValueSchema::Integer("checks", 2),
            unhealthy_threshold = integer(1..=1_000) => write_number, default HealthCheck::default(),
            "The number of consecutive failures after which a server is unhealthy."),
        field!("healthy-threshold": ValueSchema::Integer("checks", 3),
            healthy_threshold = integer(1..=1_000) => write_number, default HealthCheck::default(),
            "The number of consecutive successes after which a server is healthy again."),
    ],
};

static RETRIES: MapSchema<Retries> = MapSchema {
    name: "retries",
    required: &[],
    keys: &[
        field!("max": ValueSchema::Integer("retries", 2), max = integer(0..=10) => write_number, default Retries::default(),
            "The maximum number of retries per request."),
        field!("budget": percentage(&["10%"]), budget = percent => OutputValue::text, default Retries::default(),
            "The maximum share of retries among all requests."),
    ],
};

impl PolicyReader<'_> {
    pub(super) fn upstream(&mut self, node: &SyntaxNode) -> Upstream {
        let mut upstream = Upstream::new(Vec::new());
        match &node.value {
            SyntaxValue::Map(_) => self.read_map(node, &UPSTREAM, &mut upstream),
            _ => upstream.servers = self.one_or_many(node, PolicyReader::server),
        }
        upstream
    }

    fn server(&mut self, node: &SyntaxNode) -> Option<UpstreamServer> {
        let mut server = default_server();
        match &node.value {
            SyntaxValue::Map(_) => self.read_map(node, &SERVER, &mut server),
            _ => server.url = self.read(node, parse_url)?,
        }
        Some(server)
    }
}

fn write_server(server: &UpstreamServer) -> OutputValue {
    match server.weight == default_server().weight {
        true => OutputValue::text(&server.url),
        false => SERVER.write(server),
    }
}

/// A server with the default weight.
fn default_server() -> UpstreamServer {
    UpstreamServer { url: String::new(), weight: 1 }
}

fn default_upstream() -> Upstream {
    Upstream::new(Vec::new())
}

fn parse_health_path(text: &str) -> Result<String, ValueError> {
    match text.starts_with('/') && !text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        true => Ok(text.to_owned()),
        false => {
            Err(ValueError::new(format!("invalid path `{}`", truncate(text)), "write one, as in `/healthz`"))
        }
    }
}

/// Whether the URL of a server can be printed in a policy and parsed again.
pub fn is_upstream_url(text: &str) -> bool {
    parse_url(text).is_ok_and(|read| read == text)
}

/// Parses `http://127.0.0.1:9000`, `https://app.internal`, `http://[::1]:80` or `echo`.
fn parse_url(text: &str) -> Result<String, ValueError> {
    if text == UpstreamServer::ECHO {
        return Ok(text.to_owned());
    }
    let fix = "write a URL, as in `http://127.0.0.1:9000`";
    let scheme = SCHEMES.into_iter().find(|scheme| text.starts_with(scheme));
    if text.contains('@') {
        return Err(ValueError::new("user or password in an upstream URL", fix));
    }
    let scheme = scheme.map_or(0, str::len);
    let authority = &text[scheme..];
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    if let Some(at) = authority.find(['/', '?', '#']).filter(|_| scheme > 0) {
        let problem = "path in an upstream URL";
        return Err(ValueError::new(problem, "remove it: requests keep their own path")
            .with_span(scheme + at..text.len()));
    }
    check_authority(text, scheme, authority, fix)?;
    Ok(format!("{}{authority}", &text[..scheme]))
}

/// Checks the host and the port of a URL. `scheme` is the length of its scheme; 0 if that is not `http://` or `https://`.
pub(super) fn check_authority(
    text: &str,
    scheme: usize,
    authority: &str,
    fix: &str,
) -> Result<(), ValueError> {
    if scheme == 0 {
        let problem = format!("URL `{}` does not start with http:// or https://", truncate(text));
        return Err(ValueError::new(problem, fix));
    }
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (authority, None),
    };
    if port.is_some_and(|port| !matches!(port.parse::<u16>(), Ok(1..))) {
        let from = scheme + host.len() + 1;
        let problem = "invalid port";
        return Err(ValueError::new(problem, "write a number from 1 to 65535")
            .with_span(from..scheme + authority.len()));
    }
    let is_v6 = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .is_some_and(|host| host.parse::<Ipv6Addr>().is_ok());
    let is_name =
        !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'));
    match is_v6 || is_name {
        true => Ok(()),
        false => Err(ValueError::new(format!("invalid host `{}`", truncate(host)), fix)
            .with_span(scheme..scheme + host.len())),
    }
}
