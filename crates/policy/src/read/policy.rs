//! The top-level keys of a policy.

use super::{
    PolicyReader,
    decisions::{ADMIN_SHAPE, DECISIONS_SHAPE, ENVOY_SHAPE, write_admin, write_decision_listener},
    identity::IDENTITY,
    key::{self, write_key},
    load::{FEATURE_SHAPE, LOAD, LOAD_SHAPE, write_feature},
    observe::{METRICS, METRICS_SHAPE, OBSERVE, TRACES, TRACES_SHAPE},
    overrides::{OVERRIDES_SHAPE, write_overrides},
    rule::RULE,
    server::{CONNECTIONS, LISTEN_SHAPE, LOG, route_outline, write_listener, write_route},
    upstream::{UPSTREAM, UPSTREAM_SHAPE},
    values::{write_duration, write_failure_mode, write_path},
};
use crate::{
    compile::DEFAULT_RECOVERY,
    map_schema::{
        MapOutline, MapSchema, OutputValue, TextKind, ValueSchema, duration, field, key, with_default,
        with_example, without,
    },
    model::{AddressList, ForwardedHeaders, KeyPart, KeySpec, ListenerSpec, Policy},
    source::{SyntaxNode, SyntaxValue},
};
use tidegate_limiter::{
    FailureMode,
    store::{DEFAULT_DEADLINE, DEFAULT_PREFIX},
};
use tidegate_rule::HeaderStyle;

const HEADER_STYLES: [(&str, HeaderStyle); 6] = [
    ("ietf", HeaderStyle::Ietf),
    ("legacy", HeaderStyle::Legacy),
    ("draft-03", HeaderStyle::Draft03),
    ("openai", HeaderStyle::OpenAi),
    ("anthropic", HeaderStyle::Anthropic),
    ("none", HeaderStyle::None),
];
const FORWARDED_HEADERS: [(&str, ForwardedHeaders); 3] = [
    ("all", ForwardedHeaders::All),
    ("x-forwarded", ForwardedHeaders::XForwarded),
    ("none", ForwardedHeaders::None),
];
const PREFIX: ValueSchema = ValueSchema::Text(TextKind::Network, &["10.0.0.0/8", "2001:db8::/32"]);
const STORE: ValueSchema = ValueSchema::Text(TextKind::Store, &["redis://:$PASSWORD@db:6379", "memory"]);

pub(crate) static POLICY: MapSchema<Policy> = MapSchema {
    name: "policy",
    required: &[],
    keys: &[
        without(
            key(
                "include",
                "Files to include, relative to this one. Their content is appended.",
                ValueSchema::OneOrMany(&ValueSchema::Text(TextKind::File, &["more.yaml"])),
                |_, _, _| {},
                |_| None,
            ),
            "The policy is this file alone.",
        ),
        with_default(
            field!("listen": LISTEN_SHAPE, [listen] = listener => write_listener, "The addresses that the gateway listens on. A policy with `decisions` or `envoy`, and without upstreams and routes, has no gateway."),
            || OutputValue::text(ListenerSpec::DEFAULT_ADDRESS),
        ),
        without(
            key(
                "admin",
                "The address of the admin API.",
                ADMIN_SHAPE,
                |reader, node, it| it.admin = reader.admin(node),
                |it| write_admin(&it.admin),
            ),
            "There is no admin API, no dashboard and no page of metrics.",
        ),
        without(
            field!("decisions": DECISIONS_SHAPE, decisions = decisions => write_decision_listener,
            "The address of the decision API, which other programs call over HTTP."),
            "There is no decision API.",
        ),
        without(
            field!("envoy": ENVOY_SHAPE, envoy = envoy => write_decision_listener,
            "The address of the rate limit service, which Envoy calls over gRPC."),
            "There is no rate limit service for Envoy.",
        ),
        without(
            field!("connections": connections { CONNECTIONS }, "Limits of connections and requests that apply before any rule."),
            "The defaults of its keys apply.",
        ),
        without(
            key(
                "upstreams",
                "Upstreams by name: groups of servers that requests are forwarded to.",
                ValueSchema::NamedMap("app", &UPSTREAM_SHAPE),
                |reader, node, it| {
                    reader.named_entries(node, "upstreams", |reader, name, node| {
                        let scope = format!("upstream `{}`", name.text);
                        let upstream = reader.with_scope(scope, |reader| reader.upstream(node));
                        it.upstreams.insert(name.text.clone(), upstream);
                    });
                },
                |it| OutputValue::named_map(&it.upstreams, |upstream| UPSTREAM.write(upstream)),
            ),
            "Requests cannot be forwarded.",
        ),
        without(
            key(
                "routes",
                "The routes. The first one that matches a request applies.",
                ValueSchema::OneOrMany(&ValueSchema::AnyOf(&[
                    ValueSchema::Text(TextKind::Name, &["app"]),
                    ValueSchema::Map(route_outline),
                ])),
                |reader, node, it| it.routes = reader.zero_or_more(node, PolicyReader::route),
                |it| OutputValue::one_or_many(&it.routes, write_route),
            ),
            "Every request gets 404.",
        ),
        without(
            key(
                "log",
                "The access log.",
                ValueSchema::AnyOf(&[
                    ValueSchema::Keyword(&["none", "json", "combined"]),
                    ValueSchema::Map(|| LOG.outline()),
                ]),
                |reader, node, it| it.log = reader.log(node),
                |it| LOG.write_non_empty(&it.log),
            ),
            "There is no access log.",
        ),
        without(
            field!("traces": TRACES_SHAPE, traces = traces => |traces| TRACES.write(traces),
            "Where traces are exported to, by OTLP over HTTP: a URL, or a map."),
            "No traces are exported. `traceparent` and `tracestate` are forwarded unchanged.",
        ),
        without(
            field!("metrics": METRICS_SHAPE, metrics = metrics => |metrics| METRICS.write(metrics),
            "Where metrics are exported to, by OTLP over HTTP: a URL, or a map."),
            "No metrics are exported. The admin API still provides them.",
        ),
        without(
            field!("observe": observe { OBSERVE }, "What is recorded of single requests, for operators."),
            "The defaults of its keys apply.",
        ),
        without(
            field!("overrides": OVERRIDES_SHAPE, overrides = overrides => write_overrides,
            "Where the quotas of single keys that operators set at run time are stored: in the default store, or in a file."),
            "Quotas of single keys cannot be overridden.",
        ),
        with_default(
            field!("store": STORE, stores.default = address => OutputValue::text,
            "The store of the counters, unless a rule names another one. May contain environment variables."),
            || OutputValue::text("memory"),
        ),
        without(
            key(
                "stores",
                "Other stores, by name.",
                ValueSchema::NamedMap("sessions", &STORE),
                |reader, node, it| {
                    reader.named_entries(node, "stores", |reader, name, node| {
                        if let Some(address) = reader.address(node) {
                            it.stores.named.insert(name.text.clone(), address);
                        }
                    });
                },
                |it| OutputValue::named_map(&it.stores.named, OutputValue::text),
            ),
            "There is only the store of `store`.",
        ),
        with_default(
            field!("prefix": ValueSchema::Text(TextKind::Name, &["shop"]), stores.prefix = name => OutputValue::text,
            "The prefix of all keys in a store."),
            || OutputValue::text(DEFAULT_PREFIX),
        ),
        with_default(
            field!("deadline": duration(&["20ms"]), stores.deadline = positive_duration => write_duration,
            "The time that a decision waits for a store."),
            || write_duration(&DEFAULT_DEADLINE),
        ),
        with_default(
            field!("failure-mode": ValueSchema::Text(TextKind::FailureMode, &["open", "closed", "local 4"]),
            stores.failure_mode = failure_mode => write_failure_mode,
            "The decision while a store is unavailable: `open` allows, `closed` denies, `local N` counts in memory, for N processes that share the quota."),
            || write_failure_mode(&FailureMode::default()),
        ),
        without(
            key(
                "trusted-proxies",
                "The proxies whose forwarded headers determine the address of the client.",
                ValueSchema::OneOrMany(&PREFIX),
                |reader, node, it| it.trusted_proxies = reader.zero_or_more(node, PolicyReader::parse),
                |it| OutputValue::text_list(&it.trusted_proxies),
            ),
            "The address of the connection is the address of the client.",
        ),
        field!("forwarded-headers": forwarded_headers in FORWARDED_HEADERS, "The headers that describe the client to upstream servers."),
        with_example(
            without(
                field!("user": key::KEY_SHAPE, user = user_key => write_key,
            "Where a request carries the name of the user."),
                "Rules with `key: user` are an error.",
            ),
            || OutputValue::text("header x-user"),
        ),
        without(
            field!("identity": identity { IDENTITY }, "How clients prove who they are."),
            "There are no verified identities.",
        ),
        field!("headers": headers in HEADER_STYLES, "The style of the rate limit headers in responses."),
        without(
            field!("load": LOAD_SHAPE, load = load => |load| LOAD.write(load),
            "How the load of the machine is measured, for `shed` and `scale` of rules and for `features`."),
            "All signals of this machine are measured, with the defaults of its keys.",
        ),
        without(
            key(
                "features",
                "Parts of the service that can be disabled, the most important first: the load level from which each is off, or `manual`.",
                ValueSchema::NamedMap("search", &FEATURE_SHAPE),
                |reader, node, it| {
                    reader.named_entries(node, "features", |reader, name, node| {
                        let scope = format!("feature `{}`", name.text);
                        let feature = reader.with_scope(scope, |reader| reader.feature(name, node));
                        it.features.push(feature);
                    });
                },
                |it| OutputValue::named_map(it.features.iter().map(|it| (&it.name, it)), write_feature),
            ),
            "There are no features.",
        ),
        with_default(
            field!("feature-recovery": duration(&["30s"]), feature_recovery = positive_duration => write_duration,
            "The minimum time between two features that are enabled again."),
            || write_duration(&DEFAULT_RECOVERY),
        ),
        without(
            key(
                "lists",
                "Address lists by name.",
                ValueSchema::NamedMap(
                    "internal",
                    &ValueSchema::AnyOf(&[
                        ValueSchema::OneOrMany(&PREFIX),
                        ValueSchema::Map(|| LIST.outline()),
                    ]),
                ),
                |reader, node, it| {
                    reader.named_entries(node, "lists", |reader, name, node| {
                        if name.text == "all" || name.text.contains(['/', ':']) {
                            let problem = format!("invalid list name `{}`", name.text);
                            reader.report_error(
                                name.span,
                                problem,
                                "use a name that is neither `all` nor a network",
                            );
                        }
                        let scope = format!("list `{}`", name.text);
                        let list = reader.with_scope(scope, |reader| reader.list(node));
                        it.lists.insert(name.text.clone(), list);
                    });
                },
                |it| OutputValue::named_map(&it.lists, |list| LIST.write(list)),
            ),
            "There are no lists.",
        ),
        with_example(
            without(
                key(
                    "templates",
                    "Templates by name: keys that several rules share.",
                    ValueSchema::NamedMap("api", &ValueSchema::Map(template_outline)),
                    |reader, node, _| reader.check_templates(node),
                    |_| None,
                ),
                "There are no templates.",
            ),
            || map_of(&[("api", map_of(&[("key", OutputValue::text("ip"))]))]),
        ),
        with_example(
            without(
                key(
                    "rules",
                    "The rules: which requests are limited, by which key and quota, and what happens over the limit.",
                    ValueSchema::OneOrMany(&ValueSchema::Map(|| RULE.outline())),
                    |reader, node, it| it.rules = reader.zero_or_more(node, PolicyReader::rule),
                    |it| match it.rules.is_empty() {
                        true => None,
                        false => {
                            Some(OutputValue::List(it.rules.iter().map(|rule| RULE.write(rule)).collect()))
                        }
                    },
                ),
                "Nothing is limited.",
            ),
            || {
                map_of(&[
                    ("name", OutputValue::text("login")),
                    ("key", OutputValue::text("ip")),
                    ("quota", OutputValue::text("5/min")),
                ])
            },
        ),
    ],
};

static LIST: MapSchema<AddressList> = MapSchema {
    name: "list",
    required: &[],
    keys: &[
        without(
            field!("networks": ValueSchema::OneOrMany(&PREFIX), [networks] = parse, "The networks of the list."),
            "Only the networks of `files` count.",
        ),
        without(
            field!("files": ValueSchema::OneOrMany(&ValueSchema::Text(TextKind::File, &["deny.txt"])), [files] = path => write_path,
            "Files with one network per line. They are reloaded when they change."),
            "Only the networks of `networks` count.",
        ),
    ],
};

/// A map for an example.
fn map_of(entries: &[(&str, OutputValue)]) -> OutputValue {
    OutputValue::Map(entries.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect())
}

/// The keys of a rule without `name` and `use`.
fn template_outline() -> MapOutline {
    let mut outline = RULE.outline();
    outline.name = "template";
    outline.keys.retain(|key| !matches!(key.name, "name" | "use"));
    outline
}

impl PolicyReader<'_> {
    /// Reads one item or a list of items, which may be empty.
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

    /// Reads the address of a store. Errors never show it, because it may contain a password.
    fn address(&mut self, node: &SyntaxNode) -> Option<String> {
        let text = self.text(node)?;
        match text == "memory" || text.contains("://") || text.starts_with('$') {
            true => Some(text.to_owned()),
            false => {
                let fix = "write `memory`, or a URL, as in `redis://127.0.0.1:6379`";
                self.report_secret_error(node.span, "invalid store address", fix);
                None
            }
        }
    }

    fn user_key(&mut self, node: &SyntaxNode) -> Option<KeySpec> {
        let first_reference = self.reference_count();
        let key = self.key(node)?;
        if contains_user(&key) {
            self.drop_path_references(first_reference);
            self.report_error(
                node.span,
                "`user` refers to itself",
                "name where the request carries it, as in `header x-user`",
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
