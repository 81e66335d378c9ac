//! Where requests come in, and where they go.

use super::{
    Mistake, Reader,
    action::{RESPOND, write_respond},
    matching::MATCH,
    values::{write_number, write_path, write_size, write_time},
};
use crate::{
    model::{
        Connections, EscapedSlashes, Listener, Log, LogFormat, Match, Respond, Route, RouteAction, Tls,
        Underscores,
    },
    source::{Node, Value, short},
    table::{Outline, Shape, Table, Written, field, key, key_with_default},
};
use std::net::SocketAddr;

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
        field!("name": Shape::Text(&["internal"]), name = name => Written::text,
            "What `listener` in a `match` calls it; several may share a name."),
        field!("address": Shape::Text(&["127.0.0.1:8443"]), address = socket => Written::text,
            "An address and a port."),
        field!("tls": Shape::Keys(|| TLS.outline()), tls = tls => |tls| TLS.write(tls),
            "In TLS; in plain text where it is left out."),
    ],
};

/// `listen` in a table.
pub(super) const LISTEN: Shape =
    Shape::Several(&Shape::Either(&[Shape::Text(&["127.0.0.1:8080"]), Shape::Keys(|| LISTENER.outline())]));

pub(super) static TLS: Table<Tls> = Table {
    what: "tls",
    required: &["certificate", "key"],
    keys: &[
        field!("certificate": Shape::Text(&["server.pem"]), certificate = path => write_path, always,
            "A file with the chain, in PEM."),
        field!("key": Shape::Text(&["server.key"]), key = path => write_path, always,
            "A file with the key, in PEM."),
        field!("clients": Shape::Text(&["clients.pem"]), clients = path => write_path,
            "A file with authorities, in PEM: only clients with a certificate of one of them are let in."),
    ],
};

pub(super) static CONNECTIONS: Table<Connections> = Table {
    what: "connections",
    required: &[],
    keys: &[
        field!("most": Shape::Whole, most = whole(1..=u64::MAX) => write_number, default usual(),
            "Connections at the same time."),
        field!("per-client": Shape::Whole, per_client = whole(1..=u64::MAX) => write_number, default usual(),
            "Connections at the same time from one address, or one network of IPv6."),
        field!("header-timeout": TIME, header_timeout = length => write_time, default usual(),
            "How long the head of a request may take to come."),
        field!("body-timeout": TIME, body_timeout = length => write_time, default usual(),
            "How long there may be nothing of a body that is on its way."),
        field!("idle-timeout": TIME, idle_timeout = length => write_time, default usual(),
            "How long a connection may wait for the next request."),
        field!("tunnel-timeout": TIME, tunnel_timeout = length => write_time, default usual(),
            "How long there may be nothing either way after an upgrade, as of WebSocket."),
        field!("header-size": SIZE, header_size = size => write_size, default usual(),
            "Bytes of the head of a request."),
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
            |it| it.body_size.as_ref().map(write_size),
            || usual().body_size.as_ref().map_or_else(|| Written::text("none"), write_size),
        ),
        field!("drain": TIME, drain = time => write_time, default usual(),
            "How long requests in flight may take to end when the gateway does."),
        field!("escaped-slashes": escaped_slashes in ESCAPED_SLASHES,
            "What happens to a path with an escaped slash (`%2F`): `reject` answers 400, `keep` takes it for a part of its segment, `unescape` for a slash."),
        field!("underscores-in-headers": underscores in UNDERSCORES,
            "What happens to headers with an underscore in their name: `drop` hides them from rules and servers, `allow` does not."),
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
        field!("respond": Shape::Either(&[Shape::Word(&["drop"]), Shape::Keys(|| RESPOND.outline())]),
            respond = respond => write_respond,
            "What the gateway answers itself: a status, a redirection, or `drop`."),
        key(
            "match",
            "Which requests; all where it is left out. Its keys may also stand here themselves.",
            Shape::Keys(|| MATCH.outline()),
            |reader, node, it| it.matching = reader.matching(node),
            |it| MATCH.write_some(&it.matching),
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
        field!("format": format in FORMATS, "How a request is written down."),
        field!("file": Shape::Text(&["access.log"]), file = path => write_path,
            "The file; standard output where it is left out."),
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
        let mut tls = Tls::default();
        self.fill(node, &TLS, &mut tls);
        Some(tls)
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
