//! All that a file says.

use super::{
    Reader,
    decisions::{ADMIN_SHAPE, DECISIONS_SHAPE, write_admin, write_decisions},
    key::{self, write_key},
    observe::{METRICS, METRICS_SHAPE, OBSERVE, TRACES, TRACES_SHAPE},
    rule::RULE,
    server::{CONNECTIONS, LISTEN, LOG, route_outline, write_listener, write_route},
    upstream::{UPSTREAM, UPSTREAM_SHAPE},
    values::{write_outage, write_path, write_time},
};
use crate::{
    model::{Introduce, Key, List, Part, Policy},
    source::{Node, Value},
    table::{Outline, Shape, Table, Written, field, key},
};
use tidegate_rule::Fields;

const FIELDS: [(&str, Fields); 4] = [
    ("ietf", Fields::Ietf),
    ("legacy", Fields::Legacy),
    ("draft-03", Fields::Draft03),
    ("none", Fields::None),
];
const INTRODUCE: [(&str, Introduce); 3] =
    [("full", Introduce::Full), ("x-forwarded", Introduce::XForwarded), ("none", Introduce::None)];
const PREFIX: Shape = Shape::Text(&["10.0.0.0/8", "2001:db8::/32"]);
const STORE: Shape = Shape::Text(&["memory", "redis://:$PASSWORD@db:6379"]);

pub(crate) static POLICY: Table<Policy> = Table {
    what: "policy",
    required: &[],
    keys: &[
        key(
            "include",
            "More files, relative to this one, of which everything is appended.",
            Shape::Several(&Shape::Text(&["more.yaml"])),
            |_, _, _| {},
            |_| None,
        ),
        field!("listen": LISTEN, [listen] = listener => write_listener, "Where requests come in."),
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
            Shape::Names(&UPSTREAM_SHAPE),
            |reader, node, it| {
                reader.names(node, "upstreams", |reader, name, node| {
                    let scope = format!("upstream `{}`", name.text);
                    let upstream = reader.within(scope, |reader| reader.upstream(node));
                    it.upstreams.insert(name.text.clone(), upstream);
                });
            },
            |it| Written::named(&it.upstreams, |upstream| UPSTREAM.write(upstream)),
        ),
        key(
            "routes",
            "Which requests go where; the first that matches.",
            Shape::Several(&Shape::Either(&[Shape::Text(&["app"]), Shape::Keys(route_outline)])),
            |reader, node, it| it.routes = reader.all(node, Reader::route),
            |it| Written::several(&it.routes, write_route),
        ),
        key(
            "log",
            "What is written of each request.",
            Shape::Either(&[Shape::Word(&["none", "json", "combined"]), Shape::Keys(|| LOG.outline())]),
            |reader, node, it| it.log = reader.log(node),
            |it| LOG.write_some(&it.log),
        ),
        field!("traces": TRACES_SHAPE, traces = traces => |traces| TRACES.write(traces),
            "Where spans of requests are sent, by OTLP over HTTP; a URL, or more."),
        field!("metrics": METRICS_SHAPE, metrics = metrics => |metrics| METRICS.write(metrics),
            "Where all numbers are sent, by OTLP over HTTP; a URL, or more."),
        field!("observe": observe { OBSERVE }, "What is kept of single requests, for operators."),
        field!("store": STORE, stores.default = address => Written::text,
            "Where counts are kept, unless a rule names another store; may name variables of the environment."),
        key(
            "stores",
            "Other stores, by name.",
            Shape::Names(&STORE),
            |reader, node, it| {
                reader.names(node, "stores", |reader, name, node| {
                    if let Some(address) = reader.address(node) {
                        it.stores.named.insert(name.text.clone(), address);
                    }
                });
            },
            |it| Written::named(&it.stores.named, Written::text),
        ),
        field!("prefix": Shape::Text(&["shop"]), stores.prefix = name => Written::text,
            "What all keys in a store start with, `tidegate` by default."),
        field!("deadline": Shape::Text(&["20ms"]), stores.deadline = length => write_time,
            "How long a decision waits for a store, `500ms` by default."),
        field!("on-outage": Shape::Text(&["open", "closed", "local 4"]),
            stores.on_outage = outage => write_outage,
            "What is decided while a store is unavailable: `open`, `closed`, or `local N` where N processes share the quota."),
        key(
            "trusted-proxies",
            "Whose word on addresses of clients counts.",
            Shape::Several(&PREFIX),
            |reader, node, it| it.trusted_proxies = reader.all(node, Reader::parse),
            |it| Written::texts(&it.trusted_proxies),
        ),
        field!("introduce": introduce in INTRODUCE, "What servers are told of clients."),
        field!("user": key::SHAPE, user = user => write_key,
            "Where the name of a user is found in a request."),
        field!("headers": headers in FIELDS, "How clients are told what is left."),
        key(
            "lists",
            "Addresses, by the name of their list.",
            Shape::Names(&Shape::Either(&[Shape::Several(&PREFIX), Shape::Keys(|| LIST.outline())])),
            |reader, node, it| {
                reader.names(node, "lists", |reader, name, node| {
                    if name.text == "all" || name.text.contains(['/', ':']) {
                        let problem = format!("a list cannot be called `{}`", name.text);
                        reader.blame(name.at, problem, "give it a name that is no network");
                    }
                    let scope = format!("list `{}`", name.text);
                    let list = reader.within(scope, |reader| reader.list(node));
                    it.lists.insert(name.text.clone(), list);
                });
            },
            |it| Written::named(&it.lists, |list| LIST.write(list)),
        ),
        key(
            "templates",
            "What several rules say alike, by name.",
            Shape::Names(&Shape::Keys(template_outline)),
            |reader, node, _| reader.templates(node),
            |_| None,
        ),
        key(
            "rules",
            "Which requests are limited, by what, and what happens then.",
            Shape::Several(&Shape::Keys(|| RULE.outline())),
            |reader, node, it| it.rules = reader.all(node, Reader::rule),
            |it| match it.rules.is_empty() {
                true => None,
                false => Some(Written::List(it.rules.iter().map(|rule| RULE.write(rule)).collect())),
            },
        ),
    ],
};

static LIST: Table<List> = Table {
    what: "list",
    required: &[],
    keys: &[
        field!("networks": Shape::Several(&PREFIX), [networks] = parse, "Networks that are said here."),
        field!("files": Shape::Several(&Shape::Text(&["deny.txt"])), [files] = path => write_path,
            "Files with one network on each line, which are read again when they change."),
    ],
};

/// A rule without what only a rule can say.
fn template_outline() -> Outline {
    let mut outline = RULE.outline();
    outline.what = "template";
    outline.keys.retain(|key| !matches!(key.name, "name" | "use"));
    outline
}

impl Reader<'_> {
    /// Each of one or several, or of none.
    fn all<T>(&mut self, node: &Node, read: impl FnMut(&mut Self, &Node) -> Option<T>) -> Vec<T> {
        match &node.value {
            Value::List(items) if items.is_empty() => Vec::new(),
            _ => self.several(node, read),
        }
    }

    fn list(&mut self, node: &Node) -> List {
        let mut list = List::default();
        match &node.value {
            Value::Map(_) => self.fill(node, &LIST, &mut list),
            _ => list.networks = self.several(node, Reader::parse),
        }
        list
    }

    /// The address of a store, which is never told: it may hold a password.
    fn address(&mut self, node: &Node) -> Option<String> {
        let text = self.text(node)?;
        match text == "memory" || text.contains("://") || text.starts_with('$') {
            true => Some(text.to_owned()),
            false => {
                let fix = "write `memory`, or an address as in `redis://127.0.0.1:6379`";
                self.blame_hidden(node.at, "not an address of a store", fix);
                None
            }
        }
    }

    fn user(&mut self, node: &Node) -> Option<Key> {
        let since = self.references_so_far();
        let key = self.key(node)?;
        if holds_user(&key) {
            self.forget_references(since);
            self.blame(node.at, "`user` cannot be found by `user`", "say where it is, as in `header x-user`");
            return None;
        }
        Some(key)
    }
}

fn holds_user(key: &Key) -> bool {
    match key {
        Key::Part(Part::User) => true,
        Key::All | Key::Part(_) => false,
        Key::Every(keys) | Key::First(keys) => keys.iter().any(holds_user),
    }
}
