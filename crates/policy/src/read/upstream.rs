//! Where requests go.

use super::{
    PolicyReader, ValueError,
    admission::BREAKER,
    server::TIME,
    values::{write_duration, write_number},
};
use crate::{
    map_schema::{MapSchema, OutputValue, ValueSchema, field, key},
    model::{Balance, HealthCheck, Protocol, Retries, Timeouts, Upstream, UpstreamServer},
    source::{SyntaxNode, SyntaxValue, truncate},
};
use std::net::Ipv6Addr;

const URL: ValueSchema = ValueSchema::Text(&["http://127.0.0.1:9000"]);
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
            [servers] = server => write_server, "Where it is."),
        field!("balance": balance in BALANCES, "Which server is next."),
        field!("protocol": protocol in PROTOCOLS, "How a server is spoken to."),
        field!("timeouts": timeouts { TIMEOUTS }, "How long each phase may take."),
        field!("keep-alive": ValueSchema::Integer,
            keep_alive = integer(0..=1_000_000) => write_number, default default_upstream(),
            "Idle connections that are kept for each server, by each worker."),
        field!("max-fails": ValueSchema::Integer,
            max_fails = integer(0..=1_000_000) => write_number, default default_upstream(),
            "Failures in a row after which a server is skipped while another one is available; 0: never."),
        field!("fail-timeout": TIME, fail_timeout = positive_duration => write_duration, default default_upstream(),
            "For how long it is skipped."),
        key(
            "health",
            "How its servers are asked whether they are well; a path, or more.",
            ValueSchema::AnyOf(&[ValueSchema::Text(&["/healthz"]), ValueSchema::Map(|| HEALTH.outline())]),
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
        field!("breaker": ValueSchema::Map(|| BREAKER.outline()),
            breaker = breaker => |breaker| BREAKER.write(breaker),
            "A breaker for each server."),
        key(
            "retries",
            "How often what is safe to be sent twice is sent again.",
            ValueSchema::AnyOf(&[ValueSchema::Integer, ValueSchema::Map(|| RETRIES.outline())]),
            |reader, node, it| match &node.value {
                SyntaxValue::Number(_) => it.retries.max = reader.integer(node, 0..=10).unwrap_or_default(),
                _ => reader.read_map(node, &RETRIES, &mut it.retries),
            },
            |it| RETRIES.write_non_empty(&it.retries),
        ),
    ],
};

/// One of `upstreams` in a table.
pub(super) const UPSTREAM_SHAPE: ValueSchema =
    ValueSchema::AnyOf(&[ValueSchema::OneOrMany(&URL), ValueSchema::Map(|| UPSTREAM.outline())]);

static SERVER: MapSchema<UpstreamServer> = MapSchema {
    name: "server",
    required: &["url"],
    keys: &[
        field!("url": URL, url = read(parse_url) => OutputValue::text, always, "A scheme, a host and a port."),
        field!("weight": ValueSchema::Integer, weight = integer(1..=1_000) => write_number, default default_server(),
            "How many requests it gets for one that others get; 1 where it is left out."),
    ],
};

static TIMEOUTS: MapSchema<Timeouts> = MapSchema {
    name: "timeouts",
    required: &[],
    keys: &[
        field!("connect": TIME, connect = positive_duration => write_duration, default Timeouts::default(),
            "Until there is a connection."),
        field!("response": TIME, response = positive_duration => write_duration, default Timeouts::default(),
            "From the last byte of the request until the head of the answer is there."),
        field!("idle": TIME, idle = positive_duration => write_duration, default Timeouts::default(),
            "How long there may be nothing of a body that is on its way."),
    ],
};

static HEALTH: MapSchema<HealthCheck> = MapSchema {
    name: "health",
    required: &["path"],
    keys: &[
        field!("path": ValueSchema::Text(&["/healthz"]), path = read(parse_health_path) => OutputValue::text, always,
            "What is asked for."),
        field!("every": TIME, interval = positive_duration => write_duration, default HealthCheck::default(), "How often."),
        field!("timeout": TIME, timeout = positive_duration => write_duration, default HealthCheck::default(),
            "How long an answer may take."),
        field!("failures": ValueSchema::Integer,
            unhealthy_threshold = integer(1..=1_000) => write_number, default HealthCheck::default(),
            "So many in a row until a server gets nothing more."),
        field!("successes": ValueSchema::Integer,
            healthy_threshold = integer(1..=1_000) => write_number, default HealthCheck::default(),
            "So many in a row until it does again."),
    ],
};

static RETRIES: MapSchema<Retries> = MapSchema {
    name: "retries",
    required: &[],
    keys: &[
        field!("most": ValueSchema::Integer, max = integer(0..=10) => write_number, default Retries::default(),
            "For one request."),
        field!("budget": ValueSchema::Text(&["20%"]), budget = percent => OutputValue::text, default Retries::default(),
            "Of all requests."),
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

/// A server that gets as many requests as others.
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
            Err(ValueError::new(format!("`{}` is not a path", truncate(text)), "write one, as in `/healthz`"))
        }
    }
}

/// Whether an address can be written down and read again.
pub fn is_upstream_url(text: &str) -> bool {
    parse_url(text).is_ok_and(|read| read == text)
}

/// `http://127.0.0.1:9000`, `https://app.internal`, `http://[::1]:80`
fn parse_url(text: &str) -> Result<String, ValueError> {
    let fix = "write it as in `http://127.0.0.1:9000`";
    let scheme = SCHEMES.into_iter().find(|scheme| text.starts_with(scheme));
    if text.contains('@') {
        return Err(ValueError::new("an upstream has no user and no password", fix));
    }
    let scheme = scheme.map_or(0, str::len);
    let place = &text[scheme..];
    let place = place.strip_suffix('/').unwrap_or(place);
    if let Some(at) = place.find(['/', '?', '#']).filter(|_| scheme > 0) {
        let problem = "an upstream has no path";
        return Err(
            ValueError::new(problem, "leave it out: requests keep theirs").with_span(scheme + at..text.len())
        );
    }
    check_authority(text, scheme, place, fix)?;
    Ok(format!("{}{place}", &text[..scheme]))
}

/// Checks the host and the port of a URL, which stand behind so many bytes of its scheme; none where that is none of HTTP.
pub(super) fn check_authority(text: &str, scheme: usize, place: &str, fix: &str) -> Result<(), ValueError> {
    if scheme == 0 {
        let problem = format!("`{}` does not start with http:// or https://", truncate(text));
        return Err(ValueError::new(problem, fix));
    }
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (place, None),
    };
    if port.is_some_and(|port| !matches!(port.parse::<u16>(), Ok(1..))) {
        let from = scheme + host.len() + 1;
        let problem = "not a port";
        return Err(
            ValueError::new(problem, "write a number from 1 to 65535").with_span(from..scheme + place.len())
        );
    }
    let is_v6 = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .is_some_and(|host| host.parse::<Ipv6Addr>().is_ok());
    let is_name =
        !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'));
    match is_v6 || is_name {
        true => Ok(()),
        false => Err(ValueError::new(format!("`{}` is not a host", truncate(host)), fix)
            .with_span(scheme..scheme + host.len())),
    }
}
