//! All that a file says.

use super::{
    PolicyReader,
    decisions::{ADMIN_SHAPE, DECISIONS_SHAPE, write_admin, write_decisions},
    key::{self, write_key},
    observe::{METRICS, METRICS_SHAPE, OBSERVE, TRACES, TRACES_SHAPE},
    rule::RULE,
    server::{CONNECTIONS, LISTEN_SHAPE, LOG, route_outline, write_listener, write_route},
    upstream::{UPSTREAM, UPSTREAM_SHAPE},
    values::{write_duration, write_failure_mode, write_path},
};
use crate::{
    map_schema::{MapOutline, MapSchema, OutputValue, ValueSchema, field, key},
    model::{AddressList, ForwardedHeaders, KeyPart, KeySpec, Policy},
    source::{SyntaxNode, SyntaxValue},
};
use tidegate_rule::HeaderStyle;

const HEADER_STYLES: [(&str, HeaderStyle); 4] = [
    ("ietf", HeaderStyle::Ietf),
    ("legacy", HeaderStyle::Legacy),
    ("draft-03", HeaderStyle::Draft03),
    ("none", HeaderStyle::None),
];
const FORWARDED_HEADERS: [(&str, ForwardedHeaders); 3] = [
    ("full", ForwardedHeaders::Full),
    ("x-forwarded", ForwardedHeaders::XForwarded),
    ("none", ForwardedHeaders::None),
];
const PREFIX: ValueSchema = ValueSchema::Text(&["10.0.0.0/8", "2001:db8::/32"]);
const STORE: ValueSchema = ValueSchema::Text(&["memory", "redis://:$PASSWORD@db:6379"]);

pub(crate) static POLICY: MapSchema<Policy> = MapSchema {
    name: "policy",
    required: &[],
    keys: &[
        key(
            "include",
            "More files, relative to this one, of which everything is appended.",
            ValueSchema::OneOrMany(&ValueSchema::Text(&["more.yaml"])),
            |_, _, _| {},
            |_| None,
        ),
        field!("listen": LISTEN_SHAPE, [listen] = listener => write_listener, "Where requests come in."),
        key(
            "admin",
            "Where operators come in.",
            ADMIN_SHAPE,
            |reader, node, it| it.admin = reader.admin(node),
            |it| write_admin(&it.admin),
        ),
        field!("decisions": DECISIONS_SHAPE, decisions = decisions => write_decisions,
            "Where programs ask for decisions, over HTTP."),
        field!("connections": connections { CONNECTIONS }, "What a client may do before any rule is asked."),
        key(
            "upstreams",
            "Where requests go, by name.",
            ValueSchema::NamedMap(&UPSTREAM_SHAPE),
            |reader, node, it| {
                reader.named_entries(node, "upstreams", |reader, name, node| {
                    let scope = format!("upstream `{}`", name.text);
                    let upstream = reader.with_scope(scope, |reader| reader.upstream(node));
                    it.upstreams.insert(name.text.clone(), upstream);
                });
            },
            |it| OutputValue::named_map(&it.upstreams, |upstream| UPSTREAM.write(upstream)),
        ),
        key(
            "routes",
            "Which requests go where; the first that matches.",
            ValueSchema::OneOrMany(&ValueSchema::AnyOf(&[
                ValueSchema::Text(&["app"]),
                ValueSchema::Map(route_outline),
            ])),
            |reader, node, it| it.routes = reader.zero_or_more(node, PolicyReader::route),
            |it| OutputValue::one_or_many(&it.routes, write_route),
        ),
        key(
            "log",
            "What is written of each request.",
            ValueSchema::AnyOf(&[
                ValueSchema::Keyword(&["none", "json", "combined"]),
                ValueSchema::Map(|| LOG.outline()),
            ]),
            |reader, node, it| it.log = reader.log(node),
            |it| LOG.write_non_empty(&it.log),
        ),
        field!("traces": TRACES_SHAPE, traces = traces => |traces| TRACES.write(traces),
            "Where spans of requests are sent, by OTLP over HTTP; a URL, or more."),
        field!("metrics": METRICS_SHAPE, metrics = metrics => |metrics| METRICS.write(metrics),
            "Where all numbers are sent, by OTLP over HTTP; a URL, or more."),
        field!("observe": observe { OBSERVE }, "What is kept of single requests, for operators."),
        field!("store": STORE, stores.default = address => OutputValue::text,
            "Where counts are kept, unless a rule names another store; may name variables of the environment."),
        key(
            "stores",
            "Other stores, by name.",
            ValueSchema::NamedMap(&STORE),
            |reader, node, it| {
                reader.named_entries(node, "stores", |reader, name, node| {
                    if let Some(address) = reader.address(node) {
                        it.stores.named.insert(name.text.clone(), address);
                    }
                });
            },
            |it| OutputValue::named_map(&it.stores.named, OutputValue::text),
        ),
        field!("prefix": ValueSchema::Text(&["shop"]), stores.prefix = name => OutputValue::text,
            "What all keys in a store start with, `tidegate` by default."),
        field!("deadline": ValueSchema::Text(&["20ms"]), stores.deadline = positive_duration => write_duration,
            "How long a decision waits for a store, `500ms` by default."),
        field!("on-outage": ValueSchema::Text(&["open", "closed", "local 4"]),
            stores.on_outage = failure_mode => write_failure_mode,
            "What is decided while a store is unavailable: `open`, `closed`, or `local N` where N processes share the quota."),
        key(
            "trusted-proxies",
            "Whose word on addresses of clients counts.",
            ValueSchema::OneOrMany(&PREFIX),
            |reader, node, it| it.trusted_proxies = reader.zero_or_more(node, PolicyReader::parse),
            |it| OutputValue::text_list(&it.trusted_proxies),
        ),
        field!("introduce": forwarded_headers in FORWARDED_HEADERS, "What servers are told of clients."),
        field!("user": key::KEY_SHAPE, user = user_key => write_key,
            "Where the name of a user is found in a request."),
        field!("headers": headers in HEADER_STYLES, "How clients are told what is left."),
        key(
            "lists",
            "Addresses, by the name of their list.",
            ValueSchema::NamedMap(&ValueSchema::AnyOf(&[
                ValueSchema::OneOrMany(&PREFIX),
                ValueSchema::Map(|| LIST.outline()),
            ])),
            |reader, node, it| {
                reader.named_entries(node, "lists", |reader, name, node| {
                    if name.text == "all" || name.text.contains(['/', ':']) {
                        let problem = format!("a list cannot be called `{}`", name.text);
                        reader.report_error(name.span, problem, "give it a name that is no network");
                    }
                    let scope = format!("list `{}`", name.text);
                    let list = reader.with_scope(scope, |reader| reader.list(node));
                    it.lists.insert(name.text.clone(), list);
                });
            },
            |it| OutputValue::named_map(&it.lists, |list| LIST.write(list)),
        ),
        key(
            "templates",
            "What several rules say alike, by name.",
            ValueSchema::NamedMap(&ValueSchema::Map(template_outline)),
            |reader, node, _| reader.check_templates(node),
            |_| None,
        ),
        key(
            "rules",
            "Which requests are limited, by what, and what happens then.",
            ValueSchema::OneOrMany(&ValueSchema::Map(|| RULE.outline())),
            |reader, node, it| it.rules = reader.zero_or_more(node, PolicyReader::rule),
            |it| match it.rules.is_empty() {
                true => None,
                false => Some(OutputValue::List(it.rules.iter().map(|rule| RULE.write(rule)).collect())),
            },
        ),
    ],
};

static LIST: MapSchema<AddressList> = MapSchema {
    name: "list",
    required: &[],
    keys: &[
        field!("networks": ValueSchema::OneOrMany(&PREFIX), [networks] = parse, "Networks that are said here."),
        field!("files": ValueSchema::OneOrMany(&ValueSchema::Text(&["deny.txt"])), [files] = path => write_path,
            "Files with one network on each line, which are read again when they change."),
    ],
};

/// A rule without what only a rule can say.
fn template_outline() -> MapOutline {
    let mut outline = RULE.outline();
    outline.name = "template";
    outline.keys.retain(|key| !matches!(key.name, "name" | "use"));
    outline
}

impl PolicyReader<'_> {
    /// Each of one or several, or of none.
    fn zero_or_more<T>(
        &mut self,
        node: &SyntaxNode,
        read: impl FnMut(&mut Self, &SyntaxNode) -> Option<T>,
    ) -> Vec<T> {
        match &node.value {
            SyntaxValue::List(items) if items.is_empty() => Vec::new(),
            _ => self.one_or_many(node, read),
        }
    }

    fn list(&mut self, node: &SyntaxNode) -> AddressList {
        let mut list = AddressList::default();
        match &node.value {
            SyntaxValue::Map(_) => self.read_map(node, &LIST, &mut list),
            _ => list.networks = self.one_or_many(node, PolicyReader::parse),
        }
        list
    }

    /// The address of a store, which is never told: it may hold a password.
    fn address(&mut self, node: &SyntaxNode) -> Option<String> {
        let text = self.text(node)?;
        match text == "memory" || text.contains("://") || text.starts_with('$') {
            true => Some(text.to_owned()),
            false => {
                let fix = "write `memory`, or an address as in `redis://127.0.0.1:6379`";
                self.report_secret_error(node.span, "not an address of a store", fix);
                None
            }
        }
    }

    fn user_key(&mut self, node: &SyntaxNode) -> Option<KeySpec> {
        let since = self.reference_count();
        let key = self.key(node)?;
        if contains_user(&key) {
            self.drop_path_references(since);
            self.report_error(
                node.span,
                "`user` cannot be found by `user`",
                "say where it is, as in `header x-user`",
            );
            return None;
        }
        Some(key)
    }
}

fn contains_user(key: &KeySpec) -> bool {
    match key {
        KeySpec::Part(KeyPart::User) => true,
        KeySpec::All | KeySpec::Part(_) => false,
        KeySpec::Composite(keys) | KeySpec::First(keys) => keys.iter().any(contains_user),
    }
}
