//! Where requests go.

use super::{
    Mistake, Reader,
    server::TIME,
    terms::BREAKER,
    values::{write_number, write_time},
};
use crate::{
    model::{Balance, HealthCheck, Protocol, Retries, Timeouts, Upstream, UpstreamServer},
    source::{Node, Value, short},
    table::{Shape, Table, Written, field, key},
};
use std::net::Ipv6Addr;

const URL: Shape = Shape::Text(&["http://127.0.0.1:9000"]);
const BALANCES: [(&str, Balance); 3] = [
    ("round-robin", Balance::RoundRobin),
    ("least-requests", Balance::LeastRequests),
    ("client", Balance::Client),
];
pub(super) const SCHEMES: [&str; 2] = ["http://", "https://"];
const PROTOCOLS: [(&str, Protocol); 2] = [("http1", Protocol::Http1), ("http2", Protocol::Http2)];

pub(super) static UPSTREAM: Table<Upstream> = Table {
    what: "upstream",
    required: &["servers"],
    keys: &[
        field!("servers": Shape::Several(&Shape::Either(&[URL, Shape::Keys(|| SERVER.outline())])),
            [servers] = server => write_server, "Where it is."),
        field!("balance": balance in BALANCES, "Which server is next."),
        field!("protocol": protocol in PROTOCOLS, "How a server is spoken to."),
        field!("timeouts": timeouts { TIMEOUTS }, "How long each phase may take."),
        field!("keep-alive": Shape::Whole,
            keep_alive = whole(0..=1_000_000) => write_number, default usual(),
            "Idle connections that are kept for each server, by each worker."),
        field!("max-fails": Shape::Whole,
            max_fails = whole(0..=1_000_000) => write_number, default usual(),
            "Failures in a row after which a server is skipped while another one is available; 0: never."),
        field!("fail-timeout": TIME, fail_timeout = length => write_time, default usual(),
            "For how long it is skipped."),
        key(
            "health",
            "How its servers are asked whether they are well; a path, or more.",
            Shape::Either(&[Shape::Text(&["/healthz"]), Shape::Keys(|| HEALTH.outline())]),
            |reader, node, it| {
                let mut health = HealthCheck::default();
                match &node.value {
                    Value::Text(_) => health.path = reader.read(node, health_path).unwrap_or_default(),
                    _ => reader.fill(node, &HEALTH, &mut health),
                }
                it.health = Some(health);
            },
            |it| it.health.as_ref().map(|health| HEALTH.write(health)),
        ),
        field!("breaker": Shape::Keys(|| BREAKER.outline()),
            breaker = breaker => |breaker| BREAKER.write(breaker),
            "A breaker for each server."),
        key(
            "retries",
            "How often what is safe to be sent twice is sent again.",
            Shape::Either(&[Shape::Whole, Shape::Keys(|| RETRIES.outline())]),
            |reader, node, it| match &node.value {
                Value::Number(_) => it.retries.most = reader.whole(node, 0..=10).unwrap_or_default(),
                _ => reader.fill(node, &RETRIES, &mut it.retries),
            },
            |it| RETRIES.write_some(&it.retries),
        ),
    ],
};

/// One of `upstreams` in a table.
pub(super) const UPSTREAM_SHAPE: Shape =
    Shape::Either(&[Shape::Several(&URL), Shape::Keys(|| UPSTREAM.outline())]);

static SERVER: Table<UpstreamServer> = Table {
    what: "server",
    required: &["url"],
    keys: &[
        field!("url": URL, url = read(url) => Written::text, always, "A scheme, a host and a port."),
        field!("weight": Shape::Whole, weight = whole(1..=1_000) => write_number, default usual_server(),
            "How many requests it gets for one that others get; 1 where it is left out."),
    ],
};

static TIMEOUTS: Table<Timeouts> = Table {
    what: "timeouts",
    required: &[],
    keys: &[
        field!("connect": TIME, connect = length => write_time, default Timeouts::default(),
            "Until there is a connection."),
        field!("response": TIME, response = length => write_time, default Timeouts::default(),
            "From the last byte of the request until the head of the answer is there."),
        field!("idle": TIME, idle = length => write_time, default Timeouts::default(),
            "How long there may be nothing of a body that is on its way."),
    ],
};

static HEALTH: Table<HealthCheck> = Table {
    what: "health",
    required: &["path"],
    keys: &[
        field!("path": Shape::Text(&["/healthz"]), path = read(health_path) => Written::text, always,
            "What is asked for."),
        field!("every": TIME, every = length => write_time, default HealthCheck::default(), "How often."),
        field!("timeout": TIME, timeout = length => write_time, default HealthCheck::default(),
            "How long an answer may take."),
        field!("failures": Shape::Whole,
            failures = whole(1..=1_000) => write_number, default HealthCheck::default(),
            "So many in a row until a server gets nothing more."),
        field!("successes": Shape::Whole,
            successes = whole(1..=1_000) => write_number, default HealthCheck::default(),
            "So many in a row until it does again."),
    ],
};

static RETRIES: Table<Retries> = Table {
    what: "retries",
    required: &[],
    keys: &[
        field!("most": Shape::Whole, most = whole(0..=10) => write_number, default Retries::default(),
            "For one request."),
        field!("budget": Shape::Text(&["20%"]), budget = share => Written::text, default Retries::default(),
            "Of all requests."),
    ],
};

impl Reader<'_> {
    pub(super) fn upstream(&mut self, node: &Node) -> Upstream {
        let mut upstream = Upstream::new(Vec::new());
        match &node.value {
            Value::Map(_) => self.fill(node, &UPSTREAM, &mut upstream),
            _ => upstream.servers = self.several(node, Reader::server),
        }
        upstream
    }

    fn server(&mut self, node: &Node) -> Option<UpstreamServer> {
        let mut server = usual_server();
        match &node.value {
            Value::Map(_) => self.fill(node, &SERVER, &mut server),
            _ => server.url = self.read(node, url)?,
        }
        Some(server)
    }
}

fn write_server(server: &UpstreamServer) -> Written {
    match server.weight == usual_server().weight {
        true => Written::text(&server.url),
        false => SERVER.write(server),
    }
}

/// A server that gets as many requests as others.
fn usual_server() -> UpstreamServer {
    UpstreamServer { url: String::new(), weight: 1 }
}

fn usual() -> Upstream {
    Upstream::new(Vec::new())
}

fn health_path(text: &str) -> Result<String, Mistake> {
    match text.starts_with('/') && !text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        true => Ok(text.to_owned()),
        false => Err(Mistake::new(format!("`{}` is not a path", short(text)), "write one, as in `/healthz`")),
    }
}

/// Whether an address can be written down and read again.
pub fn is_upstream_url(text: &str) -> bool {
    url(text).is_ok_and(|read| read == text)
}

/// `http://127.0.0.1:9000`, `https://app.internal`, `http://[::1]:80`
fn url(text: &str) -> Result<String, Mistake> {
    let fix = "write it as in `http://127.0.0.1:9000`";
    let scheme = SCHEMES.into_iter().find(|scheme| text.starts_with(scheme));
    if text.contains('@') {
        return Err(Mistake::new("an upstream has no user and no password", fix));
    }
    let scheme = scheme.map_or(0, str::len);
    let place = &text[scheme..];
    let place = place.strip_suffix('/').unwrap_or(place);
    if let Some(at) = place.find(['/', '?', '#']).filter(|_| scheme > 0) {
        let problem = "an upstream has no path";
        return Err(Mistake::new(problem, "leave it out: requests keep theirs").at(scheme + at..text.len()));
    }
    check_place(text, scheme, place, fix)?;
    Ok(format!("{}{place}", &text[..scheme]))
}

/// Checks the host and the port of a URL, which stand behind so many bytes of its scheme; none where that is none of HTTP.
pub(super) fn check_place(text: &str, scheme: usize, place: &str, fix: &str) -> Result<(), Mistake> {
    if scheme == 0 {
        let problem = format!("`{}` does not start with http:// or https://", short(text));
        return Err(Mistake::new(problem, fix));
    }
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (place, None),
    };
    if port.is_some_and(|port| !matches!(port.parse::<u16>(), Ok(1..))) {
        let from = scheme + host.len() + 1;
        let problem = "not a port";
        return Err(Mistake::new(problem, "write a number from 1 to 65535").at(from..scheme + place.len()));
    }
    let is_v6 = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .is_some_and(|host| host.parse::<Ipv6Addr>().is_ok());
    let is_name =
        !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'));
    match is_v6 || is_name {
        true => Ok(()),
        false => {
            Err(Mistake::new(format!("`{}` is not a host", short(host)), fix).at(scheme..scheme + host.len()))
        }
    }
}
