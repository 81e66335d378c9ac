//! Where requests come in, and where they go.

use super::{
    Mistake, Reader,
    action::{RESPOND, write_respond},
    matching::MATCH,
    values::{differs, usual_word, write_size, write_time, write_word},
};
use crate::{
    model::{
        Connections, EscapedSlashes, Listener, Log, LogFormat, Match, Respond, Route, RouteAction, Tls,
        Underscores,
    },
    source::{Node, Value, short},
    table::{Outline, Shape, Table, Written, key, key_with_default},
};
use std::{net::SocketAddr, path::PathBuf};

pub(super) const TIME: Shape = Shape::Text(&["2s", "500ms"]);
const SIZE: Shape = Shape::Either(&[Shape::Whole, Shape::Text(&["32KiB", "10MB"])]);
const FORMATS: [(&str, LogFormat); 3] =
    [("none", LogFormat::None), ("json", LogFormat::Json), ("combined", LogFormat::Combined)];

const ESCAPED_SLASHES: [(&str, EscapedSlashes); 3] = [
    ("reject", EscapedSlashes::Reject),
    ("keep", EscapedSlashes::Keep),
    ("unescape", EscapedSlashes::Unescape),
];
const UNDERSCORES: [(&str, Underscores); 2] = [("drop", Underscores::Drop), ("allow", Underscores::Allow)];

#[derive(Default)]
struct ListenerMap {
    name: Option<String>,
    address: Option<SocketAddr>,
    tls: Option<Tls>,
}

static LISTENER: Table<ListenerMap> = Table {
    what: "listen",
    required: &["address"],
    keys: &[
        key(
            "name",
            "What `listener` in a `match` calls it; several may share a name.",
            Shape::Text(&["internal"]),
            |reader, node, it| it.name = reader.name(node),
            |it| it.name.as_ref().map(Written::text),
        ),
        key(
            "address",
            "An address and a port.",
            Shape::Text(&["127.0.0.1:8443"]),
            |reader, node, it| it.address = reader.socket(node),
            |it| it.address.map(Written::text),
        ),
        key(
            "tls",
            "In TLS; in plain text where it is left out.",
            Shape::Keys(|| TLS.outline()),
            |reader, node, it| it.tls = reader.tls(node),
            |it| it.tls.as_ref().map(|tls| TLS.write(&TlsMap::of(tls))),
        ),
    ],
};

/// `listen` in a table.
pub(super) const LISTEN: Shape =
    Shape::Several(&Shape::Either(&[Shape::Text(&["127.0.0.1:8080"]), Shape::Keys(|| LISTENER.outline())]));

#[derive(Default)]
pub(super) struct TlsMap {
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    clients: Option<PathBuf>,
}

pub(super) static TLS: Table<TlsMap> = Table {
    what: "tls",
    required: &["certificate", "key"],
    keys: &[
        key(
            "certificate",
            "A file with the chain, in PEM.",
            Shape::Text(&["server.pem"]),
            |reader, node, it| it.certificate = reader.path(node),
            |it| it.certificate.as_ref().map(|path| Written::text(path.display())),
        ),
        key(
            "key",
            "A file with the key, in PEM.",
            Shape::Text(&["server.key"]),
            |reader, node, it| it.key = reader.path(node),
            |it| it.key.as_ref().map(|path| Written::text(path.display())),
        ),
        key(
            "clients",
            "A file with authorities, in PEM: only clients with a certificate of one of them are let in.",
            Shape::Text(&["clients.pem"]),
            |reader, node, it| it.clients = reader.path(node),
            |it| it.clients.as_ref().map(|path| Written::text(path.display())),
        ),
    ],
};

impl TlsMap {
    pub(super) fn of(tls: &Tls) -> Self {
        let Tls { certificate, key, clients } = tls.clone();
        Self { certificate: Some(certificate), key: Some(key), clients }
    }
}

pub(super) static CONNECTIONS: Table<Connections> = Table {
    what: "connections",
    required: &[],
    keys: &[
        key_with_default(
            "most",
            "Connections at the same time.",
            Shape::Whole,
            |reader, node, it| it.most = reader.whole(node, 1..=u64::MAX).unwrap_or(1),
            |it| differs(it.most, usual().most).map(Written::Number),
            || Written::Number(usual().most),
        ),
        key_with_default(
            "per-client",
            "Connections at the same time from one address, or one network of IPv6.",
            Shape::Whole,
            |reader, node, it| it.per_client = reader.whole(node, 1..=u64::MAX).unwrap_or(1),
            |it| differs(it.per_client, usual().per_client).map(Written::Number),
            || Written::Number(usual().per_client),
        ),
        key_with_default(
            "header-timeout",
            "How long the head of a request may take to come.",
            TIME,
            |reader, node, it| it.header_timeout = reader.length(node).unwrap_or_default(),
            |it| differs(it.header_timeout, usual().header_timeout).map(write_time),
            || write_time(usual().header_timeout),
        ),
        key_with_default(
            "body-timeout",
            "How long there may be nothing of a body that is on its way.",
            TIME,
            |reader, node, it| it.body_timeout = reader.length(node).unwrap_or_default(),
            |it| differs(it.body_timeout, usual().body_timeout).map(write_time),
            || write_time(usual().body_timeout),
        ),
        key_with_default(
            "idle-timeout",
            "How long a connection may wait for the next request.",
            TIME,
            |reader, node, it| it.idle_timeout = reader.length(node).unwrap_or_default(),
            |it| differs(it.idle_timeout, usual().idle_timeout).map(write_time),
            || write_time(usual().idle_timeout),
        ),
        key_with_default(
            "tunnel-timeout",
            "How long there may be nothing either way after an upgrade, as of WebSocket.",
            TIME,
            |reader, node, it| it.tunnel_timeout = reader.length(node).unwrap_or_default(),
            |it| differs(it.tunnel_timeout, usual().tunnel_timeout).map(write_time),
            || write_time(usual().tunnel_timeout),
        ),
        key_with_default(
            "header-size",
            "Bytes of the head of a request.",
            SIZE,
            |reader, node, it| it.header_size = reader.size(node).unwrap_or_default(),
            |it| differs(it.header_size, usual().header_size).map(write_size),
            || write_size(usual().header_size),
        ),
        key_with_default(
            "body-size",
            "Bytes of the body of a request; without an end where it is `none`.",
            Shape::Either(&[Shape::Whole, Shape::Text(&["none", "10MB"])]),
            |reader, node, it| {
                it.body_size = match &node.value {
                    Value::Text(none) if none == "none" => None,
                    _ => reader.size(node),
                };
            },
            |it| it.body_size.map(write_size),
            || usual().body_size.map_or_else(|| Written::text("none"), write_size),
        ),
        key_with_default(
            "drain",
            "How long requests in flight may take to end when the gateway does.",
            TIME,
            |reader, node, it| it.drain = reader.time(node).unwrap_or_default(),
            |it| differs(it.drain, usual().drain).map(write_time),
            || write_time(usual().drain),
        ),
        key_with_default(
            "escaped-slashes",
            "What happens to a path with an escaped slash (`%2F`): `reject` answers 400, `keep` takes it for a part of its segment, `unescape` for a slash.",
            Shape::Word(&["reject", "keep", "unescape"]),
            |reader, node, it| it.escaped_slashes = reader.word(node, &ESCAPED_SLASHES).unwrap_or_default(),
            |it| write_word(&it.escaped_slashes, &ESCAPED_SLASHES),
            || usual_word(&ESCAPED_SLASHES),
        ),
        key_with_default(
            "underscores-in-headers",
            "What happens to headers with an underscore in their name: `drop` hides them from rules and servers, `allow` does not.",
            Shape::Word(&["drop", "allow"]),
            |reader, node, it| it.underscores = reader.word(node, &UNDERSCORES).unwrap_or_default(),
            |it| write_word(&it.underscores, &UNDERSCORES),
            || usual_word(&UNDERSCORES),
        ),
    ],
};

fn usual() -> Connections {
    Connections::default()
}

/// A route, before it is known what happens to its requests.
#[derive(Default)]
pub(super) struct RouteMap {
    matching: Match,
    upstream: Option<String>,
    respond: Option<Respond>,
}

pub(super) static ROUTE: Table<RouteMap> = Table {
    what: "route",
    required: &[],
    keys: &[
        key(
            "upstream",
            "Where these requests go, by its name.",
            Shape::Text(&["app"]),
            |reader, node, it| it.upstream = Some(reader.upstream_name(node).unwrap_or_default()),
            |it| it.upstream.as_ref().map(Written::text),
        ),
        key(
            "respond",
            "What the gateway answers itself: a status, a redirection, or `drop`.",
            Shape::Either(&[Shape::Word(&["drop"]), Shape::Keys(|| RESPOND.outline())]),
            |reader, node, it| it.respond = reader.respond(node),
            |it| it.respond.as_ref().map(write_respond),
        ),
        key(
            "match",
            "Which requests; all where it is left out. Its keys may also stand here themselves.",
            Shape::Keys(|| MATCH.outline()),
            |reader, node, it| it.matching = reader.matching(node),
            |it| Some(MATCH.write(&it.matching)).filter(|matching| !matching.is_empty_map()),
        ),
    ],
};

pub(super) fn write_route(route: &Route) -> Written {
    let Route { matching, action } = route.clone();
    let map = match action {
        RouteAction::Forward(upstream) => RouteMap { matching, upstream: Some(upstream), respond: None },
        RouteAction::Respond(respond) => RouteMap { matching, upstream: None, respond: Some(respond) },
    };
    ROUTE.write(&map)
}

/// A route, with the keys of its `match` beside its own.
pub(super) fn route_outline() -> Outline {
    let mut outline = ROUTE.outline();
    outline.keys.extend(MATCH.outline().keys);
    outline
}

pub(super) static LOG: Table<Log> = Table {
    what: "log",
    required: &[],
    keys: &[
        key_with_default(
            "format",
            "How a request is written down.",
            Shape::Word(&["none", "json", "combined"]),
            |reader, node, it| it.format = reader.word(node, &FORMATS).unwrap_or_default(),
            |it| write_word(&it.format, &FORMATS),
            || usual_word(&FORMATS),
        ),
        key(
            "file",
            "The file; standard output where it is left out.",
            Shape::Text(&["access.log"]),
            |reader, node, it| it.file = reader.path(node),
            |it| it.file.as_ref().map(|path| Written::text(path.display())),
        ),
    ],
};

impl Reader<'_> {
    pub(super) fn listener(&mut self, node: &Node) -> Option<Listener> {
        let mut map = ListenerMap::default();
        match &node.value {
            Value::Map(_) => self.fill(node, &LISTENER, &mut map),
            _ => map.address = self.socket(node),
        }
        Some(Listener { name: map.name, address: map.address?, tls: map.tls })
    }

    pub(super) fn socket(&mut self, node: &Node) -> Option<SocketAddr> {
        self.read(node, |text| {
            text.parse().map_err(|_| {
                let problem = format!("`{}` is not an address and a port", short(text));
                Mistake::new(problem, "write them as in `127.0.0.1:8080` or `[::1]:8080`")
            })
        })
    }

    pub(super) fn tls(&mut self, node: &Node) -> Option<Tls> {
        let mut map = TlsMap::default();
        self.fill(node, &TLS, &mut map);
        Some(Tls { certificate: map.certificate?, key: map.key?, clients: map.clients })
    }

    pub(super) fn route(&mut self, node: &Node) -> Option<Route> {
        if let Value::Text(_) = &node.value {
            return Some(Route::forward(Match::default(), self.upstream_name(node)?));
        }
        let mut route = RouteMap::default();
        let before = self.faults.len();
        let entries = self.entries(node, "route")?;
        let is_part = |name: &str| MATCH.key(name).is_some();
        let parts: Vec<_> = entries.iter().filter(|(name, _)| is_part(&name.text)).collect();
        if let (Some((part, _)), true) = (parts.first(), entries.iter().any(|(name, _)| name.text == "match"))
        {
            self.blame(part.at, format!("`match`, and `{}` beside it", part.text), "put it into `match`");
        }
        self.within("a route".to_owned(), |reader| {
            reader.fill_from(
                parts.iter().map(|(name, node)| (name, node)),
                node.at,
                &MATCH,
                &mut route.matching,
            );
            let others = entries.iter().filter(|(name, _)| !is_part(&name.text));
            reader.fill_from(others.map(|(name, node)| (name, node)), node.at, &ROUTE, &mut route);
        });
        let action = match (route.upstream, route.respond) {
            (Some(upstream), None) => RouteAction::Forward(upstream),
            (None, Some(respond)) => RouteAction::Respond(respond),
            (upstream, _) => {
                if self.faults.len() == before {
                    let (problem, fix) = match upstream {
                        Some(_) => ("a route with `upstream` and `respond`", "leave one out"),
                        None => (
                            "a route that goes nowhere",
                            "write `upstream`, or `respond` for what the gateway answers itself",
                        ),
                    };
                    self.blame(node.at, problem, fix);
                }
                return None;
            }
        };
        Some(Route { matching: route.matching, action })
    }

    pub(super) fn log(&mut self, node: &Node) -> Log {
        let mut log = Log::default();
        match &node.value {
            Value::Map(_) => self.fill(node, &LOG, &mut log),
            _ => log.format = self.word(node, &FORMATS).unwrap_or_default(),
        }
        log
    }
}

pub(super) fn write_listener(listener: &Listener) -> Written {
    let Listener { name, address, tls } = listener;
    match (name, tls) {
        (None, None) => Written::text(address),
        _ => LISTENER.write(&ListenerMap { name: name.clone(), address: Some(*address), tls: tls.clone() }),
    }
}
