//! Where requests go.

use super::{
    Mistake, Reader,
    server::TIME,
    terms::BREAKER,
    values::{differs, usual_word, write_time, write_word},
};
use crate::{
    model::{Balance, HealthCheck, Protocol, Retries, Timeouts, Upstream, UpstreamServer},
    source::{Node, Value, short},
    table::{Shape, Table, Written, key, key_with_default},
};
use std::net::Ipv6Addr;

const URL: Shape = Shape::Text(&["http://127.0.0.1:9000"]);
const BALANCES: [(&str, Balance); 3] = [
    ("round-robin", Balance::RoundRobin),
    ("least-requests", Balance::LeastRequests),
    ("client", Balance::Client),
];
/// What a server gets for one request that others get.
const USUAL_WEIGHT: u64 = 1;
pub(super) const SCHEMES: [&str; 2] = ["http://", "https://"];
const PROTOCOLS: [(&str, Protocol); 2] = [("http1", Protocol::Http1), ("http2", Protocol::Http2)];

pub(super) static UPSTREAM: Table<Upstream> = Table {
    what: "upstream",
    required: &["servers"],
    keys: &[
        key(
            "servers",
            "Where it is.",
            Shape::Several(&Shape::Either(&[URL, Shape::Keys(|| SERVER.outline())])),
            |reader, node, it| it.servers = reader.several(node, Reader::server),
            |it| Written::several(&it.servers, write_server),
        ),
        key_with_default(
            "balance",
            "Which server is next.",
            Shape::Word(&["round-robin", "least-requests", "client"]),
            |reader, node, it| it.balance = reader.word(node, &BALANCES).unwrap_or_default(),
            |it| write_word(&it.balance, &BALANCES),
            || usual_word(&BALANCES),
        ),
        key_with_default(
            "protocol",
            "How a server is spoken to.",
            Shape::Word(&["http1", "http2"]),
            |reader, node, it| it.protocol = reader.word(node, &PROTOCOLS).unwrap_or_default(),
            |it| write_word(&it.protocol, &PROTOCOLS),
            || usual_word(&PROTOCOLS),
        ),
        key(
            "timeouts",
            "How long each phase may take.",
            Shape::Keys(|| TIMEOUTS.outline()),
            |reader, node, it| reader.fill(node, &TIMEOUTS, &mut it.timeouts),
            |it| Some(TIMEOUTS.write(&it.timeouts)).filter(|written| !written.is_empty_map()),
        ),
        key_with_default(
            "keep-alive",
            "Idle connections that are kept for each server, by each worker.",
            Shape::Whole,
            |reader, node, it| it.keep_alive = reader.whole(node, 0..=1_000_000).unwrap_or_default(),
            |it| differs(it.keep_alive, Upstream::new(Vec::new()).keep_alive).map(Written::Number),
            || Written::Number(Upstream::new(Vec::new()).keep_alive),
        ),
        key_with_default(
            "max-fails",
            "Failures in a row after which a server is skipped while another one is available; 0: never.",
            Shape::Whole,
            |reader, node, it| it.max_fails = reader.whole(node, 0..=1_000_000).unwrap_or_default(),
            |it| differs(it.max_fails, Upstream::new(Vec::new()).max_fails).map(Written::Number),
            || Written::Number(Upstream::new(Vec::new()).max_fails),
        ),
        key_with_default(
            "fail-timeout",
            "For how long it is skipped.",
            TIME,
            |reader, node, it| it.fail_timeout = reader.length(node).unwrap_or_default(),
            |it| differs(it.fail_timeout, Upstream::new(Vec::new()).fail_timeout).map(write_time),
            || write_time(Upstream::new(Vec::new()).fail_timeout),
        ),
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
        key(
            "breaker",
            "A breaker for each server.",
            Shape::Keys(|| BREAKER.outline()),
            |reader, node, it| it.breaker = reader.breaker(node),
            |it| it.breaker.as_ref().map(|breaker| BREAKER.write(breaker)),
        ),
        key(
            "retries",
            "How often what is safe to be sent twice is sent again.",
            Shape::Either(&[Shape::Whole, Shape::Keys(|| RETRIES.outline())]),
            |reader, node, it| match &node.value {
                Value::Number(_) => it.retries.most = reader.whole(node, 0..=10).unwrap_or_default(),
                _ => reader.fill(node, &RETRIES, &mut it.retries),
            },
            |it| Some(RETRIES.write(&it.retries)).filter(|written| !written.is_empty_map()),
        ),
    ],
};

/// One of `upstreams` in a table.
pub(super) const UPSTREAM_SHAPE: Shape =
    Shape::Either(&[Shape::Several(&URL), Shape::Keys(|| UPSTREAM.outline())]);

#[derive(Default)]
struct ServerMap {
    url: Option<String>,
    weight: Option<u64>,
}

static SERVER: Table<ServerMap> = Table {
    what: "server",
    required: &["url"],
    keys: &[
        key(
            "url",
            "A scheme, a host and a port.",
            URL,
            |reader, node, it| it.url = reader.read(node, url),
            |it| it.url.as_ref().map(Written::text),
        ),
        key_with_default(
            "weight",
            "How many requests it gets for one that others get; 1 where it is left out.",
            Shape::Whole,
            |reader, node, it| it.weight = reader.whole(node, 1..=1_000),
            |it| it.weight.map(Written::Number),
            || Written::Number(USUAL_WEIGHT),
        ),
    ],
};

static TIMEOUTS: Table<Timeouts> = Table {
    what: "timeouts",
    required: &[],
    keys: &[
        key_with_default(
            "connect",
            "Until there is a connection.",
            TIME,
            |reader, node, it| it.connect = reader.length(node).unwrap_or_default(),
            |it| differs(it.connect, Timeouts::default().connect).map(write_time),
            || write_time(Timeouts::default().connect),
        ),
        key_with_default(
            "response",
            "From the last byte of the request until the head of the answer is there.",
            TIME,
            |reader, node, it| it.response = reader.length(node).unwrap_or_default(),
            |it| differs(it.response, Timeouts::default().response).map(write_time),
            || write_time(Timeouts::default().response),
        ),
        key_with_default(
            "idle",
            "How long there may be nothing of a body that is on its way.",
            TIME,
            |reader, node, it| it.idle = reader.length(node).unwrap_or_default(),
            |it| differs(it.idle, Timeouts::default().idle).map(write_time),
            || write_time(Timeouts::default().idle),
        ),
    ],
};

static HEALTH: Table<HealthCheck> = Table {
    what: "health",
    required: &["path"],
    keys: &[
        key(
            "path",
            "What is asked for.",
            Shape::Text(&["/healthz"]),
            |reader, node, it| it.path = reader.read(node, health_path).unwrap_or_default(),
            |it| Some(Written::text(&it.path)),
        ),
        key_with_default(
            "every",
            "How often.",
            TIME,
            |reader, node, it| it.every = reader.length(node).unwrap_or_default(),
            |it| differs(it.every, HealthCheck::default().every).map(write_time),
            || write_time(HealthCheck::default().every),
        ),
        key_with_default(
            "timeout",
            "How long an answer may take.",
            TIME,
            |reader, node, it| it.timeout = reader.length(node).unwrap_or_default(),
            |it| differs(it.timeout, HealthCheck::default().timeout).map(write_time),
            || write_time(HealthCheck::default().timeout),
        ),
        key_with_default(
            "failures",
            "So many in a row until a server gets nothing more.",
            Shape::Whole,
            |reader, node, it| it.failures = reader.whole(node, 1..=1_000).unwrap_or(1),
            |it| differs(it.failures, HealthCheck::default().failures).map(Written::Number),
            || Written::Number(HealthCheck::default().failures),
        ),
        key_with_default(
            "successes",
            "So many in a row until it does again.",
            Shape::Whole,
            |reader, node, it| it.successes = reader.whole(node, 1..=1_000).unwrap_or(1),
            |it| differs(it.successes, HealthCheck::default().successes).map(Written::Number),
            || Written::Number(HealthCheck::default().successes),
        ),
    ],
};

static RETRIES: Table<Retries> = Table {
    what: "retries",
    required: &[],
    keys: &[
        key_with_default(
            "most",
            "For one request.",
            Shape::Whole,
            |reader, node, it| it.most = reader.whole(node, 0..=10).unwrap_or_default(),
            |it| differs(it.most, Retries::default().most).map(Written::Number),
            || Written::Number(Retries::default().most),
        ),
        key_with_default(
            "budget",
            "Of all requests.",
            Shape::Text(&["20%"]),
            |reader, node, it| it.budget = reader.share(node).unwrap_or_default(),
            |it| differs(it.budget, Retries::default().budget).map(Written::text),
            || Written::text(Retries::default().budget),
        ),
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
        let mut map = ServerMap::default();
        match &node.value {
            Value::Map(_) => self.fill(node, &SERVER, &mut map),
            _ => map.url = self.read(node, url),
        }
        Some(UpstreamServer { url: map.url?, weight: map.weight.unwrap_or(USUAL_WEIGHT) })
    }
}

fn write_server(server: &UpstreamServer) -> Written {
    match server.weight {
        USUAL_WEIGHT => Written::text(&server.url),
        weight => SERVER.write(&ServerMap { url: Some(server.url.clone()), weight: Some(weight) }),
    }
}

fn health_path(text: &str) -> Result<String, Mistake> {
    match text.starts_with('/') && !text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        true => Ok(text.to_owned()),
        false => Err(Mistake::new(format!("`{}` is not a path", short(text)), "write one, as in `/healthz`")),
    }
}

/// Whether an address can be written down and read again.
pub(crate) fn is_upstream_url(text: &str) -> bool {
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
