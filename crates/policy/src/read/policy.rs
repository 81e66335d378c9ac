//! All that a file says.

use super::{
    Reader,
    decisions::{ADMIN_SHAPE, DECISIONS_SHAPE, write_admin, write_decisions},
    key::{self, write_key},
    metrics::{METRICS, METRICS_SHAPE},
    observe::OBSERVE,
    rule::RULE,
    server::{CONNECTIONS, LISTEN, LOG, route_outline, write_listener, write_route},
    traces::{TRACES, TRACES_SHAPE},
    upstream::{UPSTREAM, UPSTREAM_SHAPE},
    values::{usual_word, write_outage, write_time, write_word},
};
use crate::{
    model::{Introduce, Key, List, Part, Policy},
    source::{Node, Value},
    table::{Outline, Shape, Table, Written, key, key_with_default},
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
        key(
            "listen",
            "Where requests come in.",
            LISTEN,
            |reader, node, it| it.listen = reader.several(node, Reader::listener),
            |it| Written::several(&it.listen, write_listener),
        ),
        key(
            "admin",
            "Where operators come in.",
            ADMIN_SHAPE,
            |reader, node, it| it.admin = reader.admin(node),
            |it| write_admin(&it.admin),
        ),
        key(
            "decisions",
            "Where programs ask for decisions, over HTTP.",
            DECISIONS_SHAPE,
            |reader, node, it| it.decisions = reader.decisions(node),
            |it| it.decisions.as_ref().map(write_decisions),
        ),
        key(
            "connections",
            "What a client may do before any rule is asked.",
            Shape::Keys(|| CONNECTIONS.outline()),
            |reader, node, it| reader.fill(node, &CONNECTIONS, &mut it.connections),
            |it| Some(CONNECTIONS.write(&it.connections)).filter(|written| !written.is_empty_map()),
        ),
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
            |it| Some(LOG.write(&it.log)).filter(|written| !written.is_empty_map()),
        ),
        key(
            "traces",
            "Where spans of requests are sent, by OTLP over HTTP; a URL, or more.",
            TRACES_SHAPE,
            |reader, node, it| it.traces = reader.traces(node),
            |it| it.traces.as_ref().map(|traces| TRACES.write(traces)),
        ),
        key(
            "metrics",
            "Where all numbers are sent, by OTLP over HTTP; a URL, or more.",
            METRICS_SHAPE,
            |reader, node, it| it.metrics = reader.metrics(node),
            |it| it.metrics.as_ref().map(|metrics| METRICS.write(metrics)),
        ),
        key(
            "observe",
            "What is kept of single requests, for operators.",
            Shape::Keys(|| OBSERVE.outline()),
            |reader, node, it| reader.fill(node, &OBSERVE, &mut it.observe),
            |it| Some(OBSERVE.write(&it.observe)).filter(|written| !written.is_empty_map()),
        ),
        key(
            "store",
            "Where counts are kept, unless a rule names another store; may name variables of the environment.",
            STORE,
            |reader, node, it| it.stores.default = reader.address(node),
            |it| it.stores.default.as_ref().map(Written::text),
        ),
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
        key(
            "prefix",
            "What all keys in a store start with, `tidegate` by default.",
            Shape::Text(&["shop"]),
            |reader, node, it| it.stores.prefix = reader.name(node),
            |it| it.stores.prefix.as_ref().map(Written::text),
        ),
        key(
            "deadline",
            "How long a decision waits for a store, `500ms` by default.",
            Shape::Text(&["20ms"]),
            |reader, node, it| it.stores.deadline = reader.length(node),
            |it| it.stores.deadline.map(write_time),
        ),
        key(
            "on-outage",
            "What is decided while a store is unavailable: `open`, `closed`, or `local N` where N processes share the quota.",
            Shape::Text(&["open", "closed", "local 4"]),
            |reader, node, it| it.stores.on_outage = reader.outage(node),
            |it| it.stores.on_outage.map(write_outage),
        ),
        key(
            "trusted-proxies",
            "Whose word on addresses of clients counts.",
            Shape::Several(&PREFIX),
            |reader, node, it| it.trusted_proxies = reader.all(node, Reader::parse),
            |it| Written::texts(&it.trusted_proxies),
        ),
        key_with_default(
            "introduce",
            "What servers are told of clients.",
            Shape::Word(&["full", "x-forwarded", "none"]),
            |reader, node, it| it.introduce = reader.word(node, &INTRODUCE).unwrap_or_default(),
            |it| write_word(&it.introduce, &INTRODUCE),
            || usual_word(&INTRODUCE),
        ),
        key(
            "user",
            "Where the name of a user is found in a request.",
            key::SHAPE,
            |reader, node, it| it.user = reader.user(node),
            |it| it.user.as_ref().map(write_key),
        ),
        key_with_default(
            "headers",
            "How clients are told what is left.",
            Shape::Word(&["ietf", "legacy", "draft-03", "none"]),
            |reader, node, it| it.headers = reader.word(node, &FIELDS).unwrap_or_default(),
            |it| write_word(&it.headers, &FIELDS),
            || usual_word(&FIELDS),
        ),
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
        key(
            "networks",
            "Networks that are said here.",
            Shape::Several(&PREFIX),
            |reader, node, it| it.networks = reader.several(node, Reader::parse),
            |it| Written::texts(&it.networks),
        ),
        key(
            "files",
            "Files with one network on each line, which are read again when they change.",
            Shape::Several(&Shape::Text(&["deny.txt"])),
            |reader, node, it| it.files = reader.several(node, Reader::path),
            |it| Written::several(&it.files, |path| Written::text(path.display())),
        ),
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
