//! Reads listeners, connection limits, routes and the access log.

use super::{
    PolicyReader, ValueError,
    action::{RESPOND, write_respond},
    matching::MATCH,
    values::{parse_size, write_duration, write_number, write_path, write_size},
};
use crate::{
    map_schema::{
        MapOutline, MapSchema, OutputValue, TextKind, ValueSchema, duration, field, key, key_with_default,
        without,
    },
    model::{
        AccessLogFormat, AccessLogSpec, Connections, EscapedSlashes, ListenerSpec, Match, Respond,
        RouteAction, RouteSpec, Tls, Underscores,
    },
    source::{SyntaxNode, SyntaxValue, truncate},
};
use std::net::SocketAddr;

const SIZE: ValueSchema = ValueSchema::AnyOf(&[
    ValueSchema::Text(TextKind::Size, &["16KiB", "1MB"]),
    ValueSchema::Integer("bytes", 16_384),
]);
const LOG_FORMATS: [(&str, AccessLogFormat); 3] = [
    ("none", AccessLogFormat::None),
    ("json", AccessLogFormat::Json),
    ("combined", AccessLogFormat::Combined),
];

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

static LISTENER: MapSchema<ListenerMap> = MapSchema {
    name: "listen",
    required: &["address"],
    keys: &[
        without(
            field!("name": ValueSchema::Text(TextKind::Name, &["internal"]), name = name => OutputValue::text,
            "The name that `listener` in a `match` refers to. Several listeners may share a name."),
            "No `match` can refer to the listener.",
        ),
        field!("address": ValueSchema::Text(TextKind::Address, &["127.0.0.1:8443"]), address = socket => OutputValue::text,
            "An address and a port."),
        without(
            field!("tls": ValueSchema::Map(|| TLS.outline()), tls = tls => |tls| TLS.write(tls),
            "The TLS certificate and key."),
            "Connections are plain text.",
        ),
    ],
};

/// The value of `listen`.
pub(super) const LISTEN_SHAPE: ValueSchema = ValueSchema::OneOrMany(&ValueSchema::AnyOf(&[
    ValueSchema::Text(TextKind::Address, &["0.0.0.0:8080"]),
    ValueSchema::Map(|| LISTENER.outline()),
]));

pub(super) static TLS: MapSchema<Tls> = MapSchema {
    name: "tls",
    required: &["certificate", "key"],
    keys: &[
        field!("certificate": ValueSchema::Text(TextKind::File, &["server.pem"]), certificate = path => write_path, always,
            "The file with the certificate chain (PEM)."),
        field!("key": ValueSchema::Text(TextKind::File, &["server.key"]), key = path => write_path, always,
            "The file with the private key (PEM)."),
        without(
            field!("client-ca": ValueSchema::Text(TextKind::File, &["clients.pem"]), client_ca = path => write_path,
            "The file with CA certificates (PEM). Clients must present a certificate that one of them has issued."),
            "Clients need no certificate.",
        ),
    ],
};

pub(super) static CONNECTIONS: MapSchema<Connections> = MapSchema {
    name: "connections",
    required: &[],
    keys: &[
        field!("max": ValueSchema::Integer("connections", 5_000), max = integer(1..=u64::MAX) => write_number, default default_connections(),
            "The maximum number of concurrent connections."),
        field!("max-per-client": ValueSchema::Integer("connections", 50), per_client = integer(1..=u64::MAX) => write_number, default default_connections(),
            "The maximum number of concurrent connections from one IPv4 address or one /64 network of IPv6."),
        field!("header-timeout": duration(&["5s"]), header_timeout = positive_duration => write_duration, default default_connections(),
            "The timeout for receiving the head of a request, and for a TLS handshake."),
        field!("body-timeout": duration(&["10s"]), body_timeout = positive_duration => write_duration, default default_connections(),
            "The timeout between two reads of a request body, which then gets 408, or between two writes of a response."),
        key_with_default(
            "min-body-rate",
            "The least rate of a body. Whenever the gateway has waited `body-timeout` in total for a client that sends a request body or reads a response, this rate times `body-timeout` must have been transferred. `none` is without a limit, for streams of rare messages.",
            ValueSchema::AnyOf(&[
                ValueSchema::Text(TextKind::ByteRate, &["1kB/s"]),
                ValueSchema::Keyword(&["none"]),
            ]),
            |reader, node, it| {
                it.min_body_rate = match &node.value {
                    SyntaxValue::Text(none) if none == "none" => None,
                    _ => reader.read(node, parse_min_rate),
                };
            },
            |it| {
                (it.min_body_rate != default_connections().min_body_rate)
                    .then(|| write_min_rate(it.min_body_rate))
            },
            || write_min_rate(default_connections().min_body_rate),
        ),
        field!("idle-timeout": duration(&["60s"]), idle_timeout = positive_duration => write_duration, default default_connections(),
            "The timeout of a connection that waits for its next request."),
        field!("tunnel-timeout": duration(&["10min"]), tunnel_timeout = positive_duration => write_duration, default default_connections(),
            "The idle timeout of an upgraded connection, such as a WebSocket."),
        field!("max-header-size": SIZE, header_size = size => write_size, default default_connections(),
            "The maximum size of the head of a request; a larger one gets 431."),
        field!("max-parsed-body-size": SIZE, parsed_body_size = size => write_size, default default_connections(),
            "The maximum size of a body that rules with `body POINTER` read; a larger one is forwarded, and has none of the values."),
        key_with_default(
            "max-body-size",
            "The maximum size of the body of a request; a larger one gets 413. `none` is without a limit.",
            ValueSchema::AnyOf(&[
                ValueSchema::Text(TextKind::Size, &["10MB"]),
                ValueSchema::Integer("bytes", 10_000_000),
                ValueSchema::Keyword(&["none"]),
            ]),
            |reader, node, it| {
                it.body_size = match &node.value {
                    SyntaxValue::Text(none) if none == "none" => None,
                    _ => reader.size(node),
                };
            },
            |it| it.body_size.as_ref().map(write_size),
            || default_connections().body_size.as_ref().map_or_else(|| OutputValue::text("none"), write_size),
        ),
        field!("drain-timeout": duration(&["20s"]), drain_timeout = duration => write_duration, default default_connections(),
            "The time that requests in flight get to finish when the gateway stops, or when new workers take over."),
        field!("escaped-slashes": escaped_slashes in ESCAPED_SLASHES,
            "What happens to a path with an escaped slash (`%2F`): `reject` responds with 400, `keep` treats it as part of its segment, `unescape` as a slash."),
        field!("underscores-in-headers": underscores in UNDERSCORES,
            "What happens to headers with an underscore in their name: `drop` removes them from the request, `allow` keeps them."),
    ],
};

/// Parses bytes per second, such as `100B/s`.
fn parse_min_rate(text: &str) -> Result<u64, ValueError> {
    let rate = text.strip_suffix("/s").and_then(|size| parse_size(size).ok());
    rate.filter(|rate| *rate > 0).ok_or_else(|| {
        ValueError::new(
            format!("invalid minimum rate `{}`", truncate(text)),
            "write bytes per second, as in `100B/s`, or `none`",
        )
    })
}

fn write_min_rate(rate: Option<u64>) -> OutputValue {
    OutputValue::text(rate.map_or("none".to_owned(), |bytes| format!("{bytes}B/s")))
}

fn default_connections() -> Connections {
    Connections::default()
}

/// The keys of a route, before they are converted to a [`RouteSpec`].
#[derive(Default)]
pub(super) struct RouteMap {
    matching: Match,
    upstream: Option<String>,
    respond: Option<Respond>,
}

pub(super) static ROUTE: MapSchema<RouteMap> = MapSchema {
    name: "route",
    required: &[],
    keys: &[
        without(
            key(
                "upstream",
                "The name of the upstream that requests are forwarded to.",
                ValueSchema::Text(TextKind::Name, &["app"]),
                |reader, node, it| it.upstream = Some(reader.upstream_name(node).unwrap_or_default()),
                |it| it.upstream.as_ref().map(OutputValue::text),
            ),
            "The route needs `respond`.",
        ),
        without(
            field!("respond": ValueSchema::AnyOf(&[ValueSchema::Keyword(&["drop"]), ValueSchema::Map(|| RESPOND.outline())]),
            respond = respond => write_respond,
            "The response of the gateway itself: a status, a redirect, or `drop`."),
            "The route needs `upstream`.",
        ),
        without(
            key(
                "match",
                "Which requests the route matches. The keys of `match` may also be keys of the route.",
                ValueSchema::Map(|| MATCH.outline()),
                |reader, node, it| it.matching = reader.matching(node),
                |it| MATCH.write_non_empty(&it.matching),
            ),
            "The route matches all requests.",
        ),
    ],
};

pub(super) fn write_route(route: &RouteSpec) -> OutputValue {
    let RouteSpec { matching, action } = route.clone();
    let map = match action {
        RouteAction::Forward(upstream) => RouteMap { matching, upstream: Some(upstream), respond: None },
        RouteAction::Respond(respond) => RouteMap { matching, upstream: None, respond: Some(respond) },
    };
    ROUTE.write(&map)
}

/// The keys of a route, with those of its `match`.
pub(super) fn route_outline() -> MapOutline {
    let mut outline = ROUTE.outline();
    outline.keys.extend(MATCH.outline().keys);
    outline
}

pub(super) static LOG: MapSchema<AccessLogSpec> = MapSchema {
    name: "log",
    required: &[],
    keys: &[
        field!("format": format in LOG_FORMATS, "The format of an entry."),
        without(
            field!("file": ValueSchema::Text(TextKind::File, &["access.log"]), file = path => write_path,
            "The file of the log."),
            "Entries are written to standard output.",
        ),
    ],
};

impl PolicyReader<'_> {
    pub(super) fn listener(&mut self, node: &SyntaxNode) -> Option<ListenerSpec> {
        let mut map = ListenerMap::default();
        match &node.value {
            SyntaxValue::Map(_) => self.read_map(node, &LISTENER, &mut map),
            _ => map.address = self.socket(node),
        }
        Some(ListenerSpec { name: map.name, address: map.address?, tls: map.tls })
    }

    pub(super) fn socket(&mut self, node: &SyntaxNode) -> Option<SocketAddr> {
        self.read(node, |text| {
            text.parse().map_err(|_| {
                let problem = format!("invalid address `{}`", truncate(text));
                ValueError::new(
                    problem,
                    "write an IP address and a port, as in `127.0.0.1:8080` or `[::1]:8080`",
                )
            })
        })
    }

    pub(super) fn tls(&mut self, node: &SyntaxNode) -> Option<Tls> {
        let mut tls = Tls::default();
        self.read_map(node, &TLS, &mut tls);
        Some(tls)
    }

    pub(super) fn route(&mut self, node: &SyntaxNode) -> Option<RouteSpec> {
        if let SyntaxValue::Text(_) = &node.value {
            return Some(RouteSpec::forward(Match::default(), self.upstream_name(node)?));
        }
        let mut route = RouteMap::default();
        let before = self.errors.len();
        let entries = self.entries(node, "route")?;
        let is_part = |name: &str| MATCH.key(name).is_some();
        let parts: Vec<_> = entries.iter().filter(|(name, _)| is_part(&name.text)).collect();
        if let (Some((part, _)), true) = (parts.first(), entries.iter().any(|(name, _)| name.text == "match"))
        {
            self.report_error(
                part.span,
                format!("both `match` and `{}` in a route", part.text),
                "move it into `match`",
            );
        }
        self.with_scope("a route".to_owned(), |reader| {
            reader.read_entries(
                parts.iter().map(|(name, node)| (name, node)),
                node.span,
                &MATCH,
                &mut route.matching,
            );
            let others = entries.iter().filter(|(name, _)| !is_part(&name.text));
            reader.read_entries(others.map(|(name, node)| (name, node)), node.span, &ROUTE, &mut route);
        });
        let action = match (route.upstream, route.respond) {
            (Some(upstream), None) => RouteAction::Forward(upstream),
            (None, Some(respond)) => RouteAction::Respond(respond),
            (upstream, _) => {
                if self.errors.len() == before {
                    let (problem, fix) = match upstream {
                        Some(_) => ("route with both `upstream` and `respond`", "remove one of them"),
                        None => (
                            "route without a target",
                            "add `upstream`, or `respond` for a response of the gateway itself",
                        ),
                    };
                    self.report_error(node.span, problem, fix);
                }
                return None;
            }
        };
        Some(RouteSpec { matching: route.matching, action })
    }

    pub(super) fn log(&mut self, node: &SyntaxNode) -> AccessLogSpec {
        let mut log = AccessLogSpec::default();
        match &node.value {
            SyntaxValue::Map(_) => self.read_map(node, &LOG, &mut log),
            _ => log.format = self.keyword(node, &LOG_FORMATS).unwrap_or_default(),
        }
        log
    }
}

pub(super) fn write_listener(listener: &ListenerSpec) -> OutputValue {
    let ListenerSpec { name, address, tls } = listener;
    match (name, tls) {
        (None, None) => OutputValue::text(address),
        _ => LISTENER.write(&ListenerMap { name: name.clone(), address: Some(*address), tls: tls.clone() }),
    }
}
