//! Strategies for random policies that use all keys.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::{collection::vec, option, prelude::*, sample::select};
use std::{collections::BTreeMap, fmt::Debug, path::PathBuf, time::Duration};
use tidegate_access::Prefix;
use tidegate_core::{CarryOver, Percent, Quota, Ratio};
use tidegate_identity::{CredentialSource, api_key::ApiKeyPart, jwt::JwtAlgorithm};
use tidegate_limiter::{Capacity, FailureMode, Overflow};
use tidegate_overload::{LoadLevel, load::MachineSignal};
use tidegate_policy::model::*;
use tidegate_rule::{
    HeaderStyle, Mode,
    body::JsonPointer,
    request::{CertificateName, DuplicateKeys, MissingKey},
};
use tidegate_testkit::strategy::any_sample;

/// Random valid policies.
pub(crate) fn policies() -> impl Strategy<Value = Policy> {
    (server_sections(), (stores(), identities()), rules_and_lists(), load_and_features()).prop_map(
        |sections| {
            let (server, (stores, identity), (user, lists, rules), (load, features, feature_recovery)) =
                sections;
            let (
                listen,
                (admin, decisions, envoy),
                connections,
                upstreams,
                routes,
                log,
                traced,
                header_settings,
                trusted_proxies,
            ) = server;
            let (traces, metrics, observe, overrides) = traced;
            let (mut stores, mut rules) = (stores, rules);
            for (index, rule) in rules.iter_mut().enumerate() {
                rule.name = format!("{} {index}", rule.name);
                if let Some(store) = &rule.store {
                    stores.named.entry(store.clone()).or_insert_with(|| "redis://db".to_owned());
                }
            }
            let mut policy = Policy {
                listen,
                admin,
                decisions,
                envoy,
                connections,
                upstreams,
                routes,
                log,
                traces,
                metrics,
                observe,
                overrides,
                stores,
                trusted_proxies,
                forwarded_headers: header_settings.1,
                user,
                identity,
                headers: header_settings.0,
                load,
                features,
                feature_recovery,
                lists,
                rules,
            };
            define_upstreams(&mut policy);
            policy
        },
    )
}

/// Defines everything that the policy refers to.
fn define_upstreams(policy: &mut Policy) {
    let fallbacks = policy.rules.iter().filter_map(|rule| match &rule.on_limit {
        OnLimit::Fallback(Fallback { response: Some(FallbackResponse::Upstream(name)), .. }) => {
            Some(name.clone())
        }
        _ => None,
    });
    let routes = policy.routes.iter().filter_map(|route| route.upstream().map(str::to_owned));
    let server = UpstreamServer { url: "http://127.0.0.1:9000".to_owned(), weight: 1 };
    let name = Some(LISTENER.to_owned());
    policy.listen.push(ListenerSpec { name, address: ([127, 0, 0, 1], 8081).into(), tls: None });
    for name in fallbacks.chain(routes).collect::<Vec<_>>() {
        policy.upstreams.entry(name).or_insert_with(|| Upstream::new(vec![server.clone()]));
    }
    for name in policy.rules.iter().filter_map(|rule| rule.feature.clone()) {
        if !policy.features.iter().any(|feature| feature.name == name) {
            policy.features.push(FeatureSpec { name, off_at: None, off_during: None });
        }
    }
}

/// Strings of all kinds: some look like other types, and some need quotes.
fn texts() -> BoxedStrategy<String> {
    let odd = [
        "",
        " ",
        "null",
        "~",
        "true",
        "no",
        "off",
        "1",
        "-1.5e3",
        "0x1f",
        "a: b",
        "a #b",
        "- a",
        "*a",
        "&a",
        "!a",
        "{a}",
        "[a]",
        "\"",
        "'",
        "\\",
        "a\nb",
        "\ta",
        "é",
        "😀",
        "\u{85}",
        "\u{2028}",
        "\u{feff}a",
        "\u{7}",
        "%",
        "@",
        "`",
        "|",
        ">",
        "a:",
        ":a",
        "?",
        "---",
        "...",
        "a,b",
        "=",
        "<<",
        " a ",
        "$HOME",
        "a\r\nb",
        "\u{0}",
        "\u{fffd}",
        "2026-01-01",
        "12:30:45",
        "+1",
        ".5",
        "5.",
        "1_000",
        "0o7",
    ];
    prop_oneof![
        "[a-z]{1,8}",
        "[ -~]{0,20}",
        "\\PC{0,12}",
        any::<String>(),
        select(odd.to_vec()).prop_map(str::to_owned),
    ]
    .boxed()
}

fn non_empty_texts() -> BoxedStrategy<String> {
    texts().prop_filter("blank", |text| !text.trim().is_empty()).boxed()
}

fn names() -> BoxedStrategy<String> {
    texts()
        .prop_filter("no name", |name| {
            let is_clean = !name.is_empty() && name.trim() == name && !name.chars().any(char::is_control);
            is_clean && !name.contains("://") && name.chars().count() < 200
        })
        .boxed()
}

fn tokens() -> BoxedStrategy<String> {
    "[a-z0-9!#$%&'*+.^_`|~-]{1,10}".boxed()
}

fn plain_words() -> BoxedStrategy<String> {
    "[!-~é]{1,10}".boxed()
}

fn times() -> BoxedStrategy<Duration> {
    let micros = prop_oneof![1_u64..5_000, (1_u64..5_000).prop_map(|ms| ms * 1_000), 1_u64..1 << 50];
    micros.prop_map(Duration::from_micros).boxed()
}

fn shares() -> BoxedStrategy<Percent> {
    (0_u32..=1_000_000).prop_map(Percent::from_millionths).boxed()
}

fn quotas() -> BoxedStrategy<Quota> {
    any_sample().prop_map(|sample| sample.quota).boxed()
}

fn byte_quotas() -> BoxedStrategy<Quota> {
    // At least one byte per second with the factors of all schedules.
    (10_u64..1_000_000).prop_map(|bytes| Quota::bytes_per_second(bytes).quota().unwrap()).boxed()
}

fn prefixes() -> BoxedStrategy<Prefix> {
    let texts = ["10.0.0.0/8", "192.0.2.7", "2001:db8::/32", "::1", "0.0.0.0/0", "::/0"];
    select(texts.to_vec()).prop_map(|text| text.parse().unwrap()).boxed()
}

fn paths() -> BoxedStrategy<PathBuf> {
    "[a-z]{1,5}(/[a-z .]{1,5}[a-z])?".prop_map(PathBuf::from).boxed()
}

fn expressions() -> BoxedStrategy<Expression> {
    let texts = [
        "request.size > 1000",
        "request.headers['x-plan'] == 'it: \"free\" # {all}'",
        "request.path.startsWith('/ü')\n  && request.method in ['GET', 'PUT']",
        "\t!(request.query['a b'] == \"\\n\")",
        "1 < 2",
    ];
    select(texts.to_vec()).prop_map(|text| Expression(text.into())).boxed()
}

fn classes() -> BoxedStrategy<String> {
    select(vec!["critical", "high", "normal", "low"]).prop_map(str::to_owned).boxed()
}

const LISTS: [&str; 3] = ["internal", "bad ones", "ötztal"];

fn networks() -> BoxedStrategy<Vec<Network>> {
    let network = prop_oneof![
        prefixes().prop_map(Network::Prefix),
        select([&LISTS[..], &["all"]].concat()).prop_map(|name| Network::List(name.to_owned())),
    ];
    vec(network, 0..3).boxed()
}

fn path_patterns() -> BoxedStrategy<PathPattern> {
    let segment = prop_oneof![
        3 => "[ -.0-~é\u{1}😀]{1,6}"
            .prop_filter("dots", |text| text != "." && text != "..")
            .prop_map(Segment::Text),
        1 => select(vec!["*", "*.jpg", "a*b", "%;*"]).prop_map(|text| Segment::Glob(Glob(text.to_owned()))),
    ];
    let rest =
        prop_oneof![Just(None), Just(Some(PathTail::Any)), Just(Some(PathTail::Capture("tail".to_owned())))];
    (vec(segment, 0..4), option::of(0_usize..3), rest)
        .prop_map(|(mut segments, named, rest)| {
            if let Some(at) = named {
                segments.insert(at.min(segments.len()), Segment::Capture("id".to_owned()));
            }
            PathPattern { segments, tail: rest }
        })
        .boxed()
}

fn values<N: Ord + Debug + 'static>(keys: BoxedStrategy<N>) -> BoxedStrategy<BTreeMap<N, ValueGlobs>> {
    let values = vec(texts().prop_map(Glob), 1..3).prop_map(ValueGlobs);
    proptest::collection::btree_map(keys, values, 0..3).boxed()
}

fn credential_matches() -> BoxedStrategy<(ApiKeyMatch, ClientCertificateMatch)> {
    let globs = || vec(texts().prop_map(Glob), 0..3);
    (globs(), globs(), globs(), globs())
        .prop_map(|(names, tiers, subjects, sans)| {
            (ApiKeyMatch { names, tiers }, ClientCertificateMatch { subjects, sans })
        })
        .boxed()
}

/// The listener that a match may name.
const LISTENER: &str = "internal";

fn plain_matches() -> BoxedStrategy<Match> {
    let hosts = vec("[a-z*.-]{1,10}".prop_map(Glob), 0..3);
    (
        vec("[A-Z]{1,7}", 0..3),
        vec(path_patterns(), 0..3),
        hosts,
        values(tokens()),
        values(names()),
        (values(names()), values(names()), values(pointers()), credential_matches()),
        networks(),
        vec(Just(LISTENER.to_owned()), 0..2),
        option::of(expressions()),
    )
        .prop_map(|(methods, paths, hosts, headers, queries, more, clients, listeners, when)| {
            let (cookies, descriptor, claims, (api_key, client_certificate)) = more;
            Match {
                methods,
                paths,
                hosts,
                headers,
                queries,
                cookies,
                descriptor,
                claims,
                api_key,
                client_certificate,
                clients,
                listeners,
                not: None,
                any: Vec::new(),
                when,
            }
        })
        .boxed()
}

fn matches() -> BoxedStrategy<Match> {
    let plain = || prop_oneof![2 => Just(Match::default()), 3 => plain_matches()];
    (plain(), option::of(plain_matches()), vec(plain_matches(), 0..3))
        .prop_map(|(matching, not, mut any)| Match {
            not: not.filter(|not| *not != Match::default()).map(Box::new),
            any: {
                any.retain(|each| *each != Match::default());
                any
            },
            ..matching
        })
        .boxed()
}

/// Rules may use both kinds of credentials, so both are always defined.
fn identities() -> BoxedStrategy<IdentitySpec> {
    let sources = prop_oneof![
        tokens().prop_map(|name| CredentialSource::Header(name.into())),
        plain_words().prop_map(|name| CredentialSource::Cookie(name.into())),
        plain_words().prop_map(|name| CredentialSource::Query(name.into())),
    ]
    .boxed();
    let keys = prop_oneof![
        paths().prop_map(KeySetLocation::File),
        "https?://[a-z]{1,5}(:[1-9][0-9]{0,3})?(/[a-z]{1,5}){0,2}([?]v=[0-9])?".prop_map(KeySetLocation::Url),
    ];
    let words = || vec(texts(), 0..3);
    let jwt =
        (keys, words(), words(), vec(select(JwtAlgorithm::ALL.to_vec()), 0..3), sources.clone(), 1..9_u64);
    let jwt = jwt.prop_map(|(keys, issuers, audiences, algorithms, from, seconds)| JwtSpec {
        keys,
        issuers,
        audiences,
        algorithms,
        leeway: Duration::from_secs(seconds - 1),
        from,
        refresh: Duration::from_secs(seconds),
    });
    let api_keys = (paths(), sources).prop_map(|(file, from)| ApiKeysSpec { file, from });
    let rates = quotas().prop_filter("a rate", |quota| !quota.is_concurrency() && !quota.is_total());
    (jwt, api_keys, option::of(rates))
        .prop_map(|(jwt, api_keys, invalid_quota)| IdentitySpec {
            jwt: Some(jwt),
            api_keys: Some(api_keys),
            invalid_quota,
        })
        .boxed()
}

fn pointers() -> BoxedStrategy<JsonPointer> {
    vec("[a-z~/_.-]{0,5}", 1..4).prop_map(|tokens| JsonPointer::from_tokens(tokens).unwrap()).boxed()
}

/// Keys. Those that need a path or a user are generated only if there may be one.
fn keys(more: Vec<KeyPart>) -> BoxedStrategy<KeySpec> {
    let part = prop_oneof![
        (1_u8..=128).prop_map(|prefix_len| KeyPart::Ip { prefix_len }),
        Just(KeyPart::Ip { prefix_len: 64 }),
        Just(KeyPart::Method),
        Just(KeyPart::Host),
        Just(KeyPart::Upstream),
        Just(KeyPart::Request),
        Just(KeyPart::Path),
        tokens().prop_map(KeyPart::Header),
        plain_words().prop_map(KeyPart::Cookie),
        plain_words().prop_map(KeyPart::Query),
        plain_words().prop_map(KeyPart::Descriptor),
        pointers().prop_map(KeyPart::Body),
        pointers().prop_map(KeyPart::Jwt),
        select(vec![ApiKeyPart::Name, ApiKeyPart::Tier]).prop_map(KeyPart::ApiKey),
        select(vec![CertificateName::Subject, CertificateName::San]).prop_map(KeyPart::ClientCertificate),
        expressions().prop_map(KeyPart::Cel),
        select([vec![KeyPart::Path], more].concat()),
    ];
    part.prop_map(KeySpec::Part)
        .prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                vec(inner.clone(), 2..4).prop_map(KeySpec::Composite),
                vec(inner, 2..4).prop_map(KeySpec::First)
            ]
        })
        .boxed()
}

fn stores() -> BoxedStrategy<Stores> {
    let address = || select(vec!["memory", "redis://:$PASSWORD@db:6379", "$STORE"]).prop_map(str::to_owned);
    let named = proptest::collection::btree_map(names(), address(), 0..3);
    (option::of(address()), named, option::of(names()), option::of(times()), option::of(failure_modes()))
        .prop_map(|(default, named, prefix, deadline, failure_mode)| Stores {
            default,
            named,
            prefix,
            deadline,
            failure_mode,
        })
        .boxed()
}

fn failure_modes() -> BoxedStrategy<FailureMode> {
    prop_oneof![
        Just(FailureMode::Open),
        Just(FailureMode::Closed),
        (1_u64..100).prop_map(|nodes| FailureMode::Local { nodes })
    ]
    .boxed()
}

type ServerSection = (
    Vec<ListenerSpec>,
    (AdminSpec, Option<DecisionListener>, Option<DecisionListener>),
    Connections,
    BTreeMap<String, Upstream>,
    Vec<RouteSpec>,
    AccessLogSpec,
    (Option<Traces>, Option<Metrics>, Observe, Option<OverrideLocation>),
    (HeaderStyle, ForwardedHeaders),
    Vec<Prefix>,
);

fn server_sections() -> BoxedStrategy<ServerSection> {
    let address = || select(vec!["127.0.0.1:80", "[::1]:8443"]).prop_map(|text| text.parse().unwrap());
    let tls = || {
        (paths(), paths(), option::of(paths())).prop_map(|(certificate, key, clients)| Tls {
            certificate,
            key,
            client_ca: clients,
        })
    };
    let variable = || "[A-Z_][A-Z0-9_]{0,8}".prop_map(EnvVariable);
    let operator_token = (names(), variable(), prop::sample::select(OperatorRole::ALL.to_vec()))
        .prop_map(|(name, token, role)| OperatorToken { name, token, role });
    let admin = (
        option::of(address()),
        option::of(variable()),
        vec(operator_token, 0..3),
        vec("[a-z][a-z0-9.-]{0,8}", 0..3),
    )
        .prop_map(|(listen, token, tokens, hosts)| AdminSpec { listen, token, tokens, hosts });
    let token = (names(), variable()).prop_map(|(name, token)| Token { name, token });
    let decisions = || {
        (address(), option::of(tls()), vec(token.clone(), 0..3))
            .prop_map(|(listen, tls, tokens)| DecisionListener { listen, tls, tokens })
    };
    let listener = (option::of(names()), address(), option::of(tls()))
        .prop_map(|(name, address, tls)| ListenerSpec { name, address, tls });
    let listen = vec(listener, 0..3);
    let action =
        prop_oneof![names().prop_map(RouteAction::Forward), respond_actions().prop_map(RouteAction::Respond)];
    let routes = vec((matches(), action).prop_map(|(matching, action)| RouteSpec { matching, action }), 0..3);
    let log = (
        select(vec![AccessLogFormat::None, AccessLogFormat::Json, AccessLogFormat::Combined]),
        option::of(paths()),
    )
        .prop_map(|(format, file)| AccessLogSpec { format, file });
    let endpoints = vec!["http://127.0.0.1:4318", "https://[::1]:4318/otlp", "http://collector"];
    let traces = (select(endpoints), 0..=1_000_000_u32, names()).prop_map(|(endpoint, sample, service)| {
        Traces { endpoint: endpoint.to_owned(), sample: Percent::from_millionths(sample), service }
    });
    let metrics = (select(vec!["http://127.0.0.1:4318", "https://collector/otlp"]), 1_u64..9_000, names())
        .prop_map(|(endpoint, every, service)| Metrics {
            endpoint: endpoint.to_owned(),
            interval: Duration::from_secs(every),
            service,
        });
    let fields = select(vec![
        HeaderStyle::Ietf,
        HeaderStyle::Legacy,
        HeaderStyle::Draft03,
        HeaderStyle::OpenAi,
        HeaderStyle::Anthropic,
        HeaderStyle::None,
    ]);
    let forwarded_headers =
        select(vec![ForwardedHeaders::All, ForwardedHeaders::XForwarded, ForwardedHeaders::None]);
    (
        listen,
        (admin, option::of(decisions()), option::of(decisions())),
        connections(),
        proptest::collection::btree_map(names(), upstreams(), 0..3),
        routes,
        log,
        (option::of(traces), option::of(metrics), observe_settings(), option::of(override_locations())),
        (fields, forwarded_headers),
        vec(prefixes(), 0..3),
    )
        .boxed()
}

fn respond_actions() -> BoxedStrategy<Respond> {
    let headers = proptest::collection::btree_map(tokens(), plain_words(), 0..2);
    let location = select(vec!["https://{host}{uri}", "/new{path}", "https://a.test/"]);
    prop_oneof![
        Just(Respond::Drop),
        (200_u16..600, headers, prop_oneof![Just(String::new()), plain_words()])
            .prop_map(|(status, headers, body)| Respond::Status { status, headers, body }),
        (location, select(vec![301_u16, 302, 303, 307, 308]))
            .prop_map(|(location, status)| Respond::Redirect { location: location.to_owned(), status }),
    ]
    .boxed()
}

fn override_locations() -> BoxedStrategy<OverrideLocation> {
    prop_oneof![Just(OverrideLocation::Store), paths().prop_map(OverrideLocation::File)].boxed()
}

fn observe_settings() -> BoxedStrategy<Observe> {
    let counts = || prop_oneof![Just(0), 0..=1_000_000_u64];
    (counts(), select(vec![KeyDisplay::Plain, KeyDisplay::Hashed]), counts(), 0..=1_000_000_u32)
        .prop_map(|(denials, keys, history, share)| Observe {
            denials,
            keys,
            history,
            share: Percent::from_millionths(share),
        })
        .boxed()
}

fn connections() -> BoxedStrategy<Connections> {
    let sizes = || prop_oneof![0_u64..5_000, (0_u64..5_000).prop_map(|kib| kib << 10), any::<u64>()];
    let some = (
        1_u64..u64::MAX,
        1_u64..9_000,
        times(),
        times(),
        times(),
        times(),
        sizes(),
        (option::of(sizes()), sizes(), option::of(1_u64..1_000_000)),
        prop_oneof![Just(Duration::ZERO), times()],
        (
            select(vec![EscapedSlashes::Reject, EscapedSlashes::Keep, EscapedSlashes::Unescape]),
            select(vec![Underscores::Drop, Underscores::Allow]),
        ),
    )
        .prop_map(
            |(
                max,
                per_client,
                header,
                body,
                idle,
                tunnel,
                header_size,
                (body_size, parsed_body_size, min_body_rate),
                drain,
                (escaped_slashes, underscores),
            )| {
                Connections {
                    max,
                    per_client,
                    header_timeout: header,
                    body_timeout: body,
                    min_body_rate,
                    idle_timeout: idle,
                    tunnel_timeout: tunnel,
                    header_size,
                    body_size,
                    parsed_body_size,
                    drain_timeout: drain,
                    escaped_slashes,
                    underscores,
                }
            },
        );
    prop_oneof![Just(Connections::default()), some].boxed()
}

fn upstreams() -> BoxedStrategy<Upstream> {
    let url = select(vec!["http://127.0.0.1:9000", "https://app.internal", "http://[::1]:80", "echo"]);
    let server = (url, prop_oneof![Just(1_u64), 1_u64..=1_000])
        .prop_map(|(url, weight)| UpstreamServer { url: url.to_owned(), weight });
    let timeouts = prop_oneof![
        Just(Timeouts::default()),
        (times(), times(), times()).prop_map(|(connect, response, idle)| Timeouts {
            connect,
            response,
            idle
        })
    ];
    let health = ("/[a-z?=]{0,8}", times(), times(), 1_u64..9, 1_u64..9).prop_map(
        |(path, every, timeout, failures, successes)| HealthCheck {
            path,
            interval: every,
            timeout,
            unhealthy_threshold: failures,
            healthy_threshold: successes,
        },
    );
    let retries = prop_oneof![
        Just(Retries::default()),
        (0_u64..=10, shares()).prop_map(|(max, budget)| Retries { max, budget })
    ];
    (
        vec(server, 1..3),
        select(vec![Balance::RoundRobin, Balance::LeastRequests, Balance::Client]),
        select(vec![Protocol::Http1, Protocol::Http2]),
        timeouts,
        prop_oneof![Just(64_u64), 0_u64..1_000],
        prop_oneof![Just((3, Duration::from_secs(10))), (0_u64..9, times())],
        option::of(health),
        option::of(breakers()),
        retries,
    )
        .prop_map(|(servers, balance, protocol, timeouts, keep_alive, fails, health, breaker, retries)| {
            Upstream {
                max_fails: fails.0,
                fail_timeout: fails.1,
                servers,
                balance,
                protocol,
                timeouts,
                keep_alive,
                health,
                breaker,
                retries,
            }
        })
        .boxed()
}

fn breakers() -> BoxedStrategy<BreakerSpec> {
    let number = || option::of(1_u64..=1_000_000);
    let slow = option::of((shares(), times()));
    let window = option::of(prop_oneof![
        (1_u64..=1_000_000).prop_map(BreakerWindow::Calls),
        times().prop_map(BreakerWindow::Time)
    ]);
    let backoff = option::of((1_u64..=100, option::of(times())));
    let half_open = (number(), option::of(times()));
    (
        option::of(shares()),
        slow,
        window,
        number(),
        option::of(times()),
        half_open,
        backoff,
        option::of(shares()),
    )
        .prop_map(|(failure_rate, slow, window_size, min, open, half_open, backoff, jitter)| BreakerSpec {
            failure_rate,
            slow_call_rate: slow.map(|(rate, _)| rate),
            slow_call_duration: slow.map(|(_, time)| time),
            window_size,
            min_calls: min,
            open_duration: open,
            backoff: backoff.map(|(factor, _)| Ratio::new(factor, 2).unwrap()),
            max_open_duration: backoff.and_then(|(_, max)| max),
            jitter,
            half_open_calls: half_open.0,
            half_open_timeout: half_open.1,
        })
        .boxed()
}

type RulesAndLists = (Option<KeySpec>, BTreeMap<String, AddressList>, Vec<RuleSpec>);

fn rules_and_lists() -> BoxedStrategy<RulesAndLists> {
    let list = (vec(prefixes(), 0..3), vec(paths(), 0..3))
        .prop_map(|(networks, files)| AddressList { networks, files });
    let lists = vec(list, LISTS.len())
        .prop_map(|lists| LISTS.iter().map(|name| (*name).to_owned()).zip(lists).collect());
    (option::of(keys(Vec::new())), lists)
        .prop_flat_map(|(user, lists): (_, BTreeMap<String, AddressList>)| {
            let has_user = user.is_some();
            (Just(user), Just(lists), vec(rules(has_user), 0..4))
        })
        .boxed()
}

fn rules(has_user: bool) -> BoxedStrategy<RuleSpec> {
    matches()
        .prop_flat_map(move |matching| {
            let mut more = Vec::new();
            if has_user {
                more.push(KeyPart::User);
            }
            if !matching.paths.is_empty() {
                more.push(KeyPart::Route);
            }
            let captures = matching.paths.iter().flat_map(PathPattern::captures);
            more.extend(captures.map(|name| KeyPart::Capture(name.to_owned())));
            (Just(matching), limits(more.clone()), rule_terms(more), actions(), capacities())
        })
        .prop_map(|(matching, limits, terms, actions, (capacity, overflow))| {
            let (quotas, adaptive, bandwidth, access, breaker) = limits;
            let (key, (missing, duplicates), cost, (charge, settle), priority, enforcement, inherit) = terms;
            let (name, (schedule, overload), (store, prefetch), failure_mode, wait, queue, message, on_limit) = actions;
            let (scale, shed, feature, while_failing) = overload;
            // A total cannot follow the load or a schedule.
            let has_total = match &quotas {
                Quotas::All(quotas) => quotas.iter().any(Quota::is_total),
                Quotas::Tiers(tiers) => {
                    tiers.default.is_total() || tiers.quotas.iter().any(|(_, quota)| quota.is_total())
                }
            };
            let (schedule, scale) = if has_total { (None, None) } else { (schedule, scale) };
            RuleSpec {
                name,
                matching,
                key,
                missing,
                duplicates,
                quotas,
                cost,
                charge,
                settle,
                adaptive,
                bandwidth,
                access,
                breaker,
                priority,
                schedule,
                scale,
                shed,
                feature,
                while_failing,
                enforcement,
                store,
                failure_mode,
                prefetch,
                wait,
                queue,
                message,
                on_limit,
                carry_over: inherit,
                capacity,
                overflow,
            }
        })
        .boxed()
}

fn capacities() -> BoxedStrategy<(Option<Capacity>, Overflow)> {
    let capacity =
        prop_oneof![(1_u64..=1 << 32).prop_map(Capacity::Keys), (1_u64..=1 << 40).prop_map(Capacity::Bytes),];
    (option::of(capacity), select(vec![Overflow::Replace, Overflow::Share, Overflow::Deny])).boxed()
}

type RuleLimits =
    (Quotas, Option<AdaptiveSpec>, Option<BandwidthSpec>, Option<AccessSpec>, Option<BreakerSpec>);

fn limits(more: Vec<KeyPart>) -> BoxedStrategy<RuleLimits> {
    let tiers =
        (keys(more), vec((names(), quotas()), 0..3), quotas()).prop_map(|(by, mut each, otherwise)| {
            let mut known_names = Vec::new();
            each.retain(|(name, _): &(String, Quota)| {
                let is_new = !known_names.contains(name);
                known_names.push(name.clone());
                is_new
            });
            Quotas::Tiers(Tiers { key: by, quotas: each, default: otherwise })
        });
    let adaptive = (times(), option::of(1_u64..10), option::of(10_u64..1_000))
        .prop_map(|(target, min, max)| AdaptiveSpec { target, min, max });
    let after = prop_oneof![3 => Just(0), 2 => 1_u64..10_000_000, 1 => any::<u64>()];
    let rates = (byte_quotas(), after).prop_map(|(quota, after)| BandwidthRate { quota, after });
    let bandwidth = (option::of(rates.clone()), option::of(rates))
        .prop_filter_map("no bandwidth", |(down, up)| {
            (down.is_some() || up.is_some()).then_some(BandwidthSpec { down, up })
        });
    let ban = select(vec!["10/min for 1h", "10/min burst 20 for 1h growing 2 up to 1d"]);
    let access =
        (networks(), networks(), option::of(ban)).prop_filter_map("no access", |(deny, allow, ban)| {
            let access = AccessSpec { deny, allow, ban: ban.map(|ban| ban.parse().unwrap()) };
            (access != AccessSpec::default()).then_some(access)
        });
    let quotas = prop_oneof![vec(quotas(), 1..4).prop_map(Quotas::All), tiers];
    let first = (quotas, option::of(adaptive.clone()), option::of(bandwidth), option::of(access));
    let first = (first, option::of(breakers())).prop_map(|((quotas, a, b, c), d)| (quotas, a, b, c, d));
    let second = (adaptive, option::of(breakers()))
        .prop_map(|(adaptive, breaker)| (Quotas::All(Vec::new()), Some(adaptive), None, None, breaker));
    prop_oneof![4 => first, 1 => second].boxed()
}

type RuleTerms = (
    KeySpec,
    (MissingKey, DuplicateKeys),
    CostSpec,
    (Option<ChargeSpec>, Option<SettleSpec>),
    Option<PrioritySpec>,
    RuleEnforcement,
    CarryOver,
);

fn rule_terms(more: Vec<KeyPart>) -> BoxedStrategy<RuleTerms> {
    let key = prop_oneof![Just(KeySpec::All), keys(more.clone())];
    let part = keys(Vec::new()).prop_filter_map("several", |key| match key {
        KeySpec::Part(part) => Some(part),
        _ => None,
    });
    let cost = prop_oneof![
        Just(CostSpec::Fixed(1)),
        any::<u64>().prop_map(CostSpec::Fixed),
        (vec(part, 1..3), any::<u64>(), 1..=u64::MAX).prop_map(|(mut parts, otherwise, max)| {
            let from = match parts.len() {
                1 => KeySpec::Part(parts.remove(0)),
                _ => KeySpec::First(parts.into_iter().map(KeySpec::Part).collect()),
            };
            CostSpec::FromRequest { from, default: otherwise, max }
        }),
    ];
    let due = || {
        vec(
            prop_oneof![
                (100_u16..600).prop_map(StatusPattern::Status),
                (1_u16..=5).prop_map(StatusPattern::Class)
            ],
            1..4,
        )
    };
    let charge = prop_oneof![due().prop_map(ChargeSpec::If), due().prop_map(ChargeSpec::Unless),];
    let source = prop_oneof![
        tokens().prop_map(SettleSource::Header),
        tokens().prop_map(SettleSource::Trailer),
        pointers().prop_map(SettleSource::Body),
        Just(SettleSource::OpenAi),
        Just(SettleSource::Anthropic),
        Just(SettleSource::Cel(Expression("2 * usage.total".into()))),
    ];
    let settle =
        (source, option::of(any::<u64>())).prop_map(|(source, max_debt)| SettleSpec { source, max_debt });
    let priority = prop_oneof![
        classes().prop_map(PrioritySpec::Fixed),
        (keys(more), classes(), option::of(reserves())).prop_map(|(by, otherwise, reserve)| {
            PrioritySpec::FromRequest { key: by, default: otherwise, reserve }
        }),
    ];
    let enforcement = prop_oneof![
        select(vec![Mode::Enforce, Mode::Shadow, Mode::Off]).prop_map(RuleEnforcement::All),
        shares().prop_map(RuleEnforcement::Percent),
    ];
    (
        key,
        (
            select(vec![MissingKey::Ip, MissingKey::Shared, MissingKey::Skip, MissingKey::Reject]),
            select(vec![DuplicateKeys::Reject, DuplicateKeys::First, DuplicateKeys::Last]),
        ),
        cost,
        (option::of(charge), option::of(settle)),
        option::of(priority),
        enforcement,
        select(vec![CarryOver::Keep, CarryOver::Reset]),
    )
        .boxed()
}

type RuleActions = (
    String,
    (Option<tidegate_overload::Schedule>, RuleOverload),
    (Option<String>, Option<Duration>),
    Option<FailureMode>,
    Duration,
    Option<QueueSpec>,
    Option<String>,
    OnLimit,
);

/// Shares of less than 100 % in total, at least one of them.
fn reserves() -> BoxedStrategy<[Option<Percent>; 4]> {
    let share = || option::of((0_u32..=240_000).prop_map(Percent::from_millionths));
    [share(), share(), share(), share()]
        .prop_filter("no reserve", |shares| shares.iter().any(Option::is_some))
        .boxed()
}

type LoadAndFeatures = (Option<LoadSpec>, Vec<FeatureSpec>, Option<Duration>);

fn load_and_features() -> BoxedStrategy<LoadAndFeatures> {
    let levels = (option::of(shares()), option::of(shares()), option::of(shares()), option::of(shares()));
    let directories = (option::of(paths()), option::of(paths()));
    let load = (load_signals(), levels, option::of(times()), option::of(times()), directories).prop_map(
        |(signals, (normal, busy, critical, hysteresis), cooldown, interval, (proc, cgroup))| LoadSpec {
            signals,
            normal,
            busy,
            critical,
            hysteresis,
            cooldown,
            interval,
            proc,
            cgroup,
        },
    );
    let level = select(vec![LoadLevel::Normal, LoadLevel::Busy, LoadLevel::Critical]);
    let windows = select(vec!["+08:00; mon-fri 18:00-22:00", "sat,sun; 22:00-06:00", "00:00-24:00"]);
    let windows = windows.prop_map(|text| text.parse().unwrap());
    let feature = (names(), option::of(level), option::of(windows))
        .prop_map(|(name, off_at, off_during)| FeatureSpec { name, off_at, off_during });
    let features = vec(feature, 0..3).prop_map(|features| {
        let numbered = features.into_iter().enumerate();
        numbered.map(|(index, it)| FeatureSpec { name: format!("{} {index}", it.name), ..it }).collect()
    });
    (option::of(load), features, option::of(times())).boxed()
}

fn load_signals() -> BoxedStrategy<Vec<LoadSignalSpec>> {
    let network = (1_u64..=1 << 30).prop_map(|bytes_per_second| LoadSignalSpec {
        signal: MachineSignal::Network { bytes_per_second },
        full_at: Percent::FULL,
    });
    let share = (1_u32..=1_000_000).prop_map(Percent::from_millionths);
    let signals = vec(option::of(share), MachineSignal::ALL.len()).prop_map(|shares| {
        let declared = MachineSignal::ALL.into_iter().zip(shares);
        declared.filter_map(|(signal, full_at)| Some(LoadSignalSpec { signal, full_at: full_at? })).collect()
    });
    (signals, option::of(network))
        .prop_map(|(signals, network): (Vec<_>, _)| signals.into_iter().chain(network).collect())
        .boxed()
}

type RuleOverload = (Option<ScaleSpec>, Option<ShedSpec>, Option<String>, Option<FailingSpec>);

fn rule_overload() -> BoxedStrategy<RuleOverload> {
    let factor = (1_u64..=1_000).prop_map(|factor| Ratio::new(factor, 1_000).unwrap());
    let scale = (option::of(shares()), option::of(shares()), option::of(factor), option::of(times()))
        .prop_map(|(high, low, min, interval)| ScaleSpec { high, low, min, interval });
    let classes = [option::of(shares()), option::of(shares()), option::of(shares()), option::of(shares())];
    let classes = classes.prop_filter("no class", |classes| classes.iter().any(Option::is_some));
    let shed = prop_oneof![shares().prop_map(ShedSpec::All), classes.prop_map(ShedSpec::Classes)];
    let failing = (option::of(0_u64..=1_000_000_000), option::of(shares()), option::of(times())).prop_map(
        |(min_calls, failure_rate, window_size)| FailingSpec { min_calls, failure_rate, window_size },
    );
    (option::of(scale), option::of(shed), option::of(names()), option::of(failing)).boxed()
}

fn actions() -> BoxedStrategy<RuleActions> {
    let schedule = select(vec!["+08:00; mon-fri 09:00-18:00 x2; 22:00-06:00 x0.5", "sat,sun x0.1"])
        .prop_map(|text| text.parse().unwrap());
    let queue = (
        1_u64..=1_000_000,
        option::of(0_u64..=1_000_000),
        select(vec![QueueOrder::Fifo, QueueOrder::Priority]),
    )
        .prop_map(|(max, max_total, order)| QueueSpec {
            max,
            max_total: max_total.map(|all| all.max(max)),
            order,
        });
    (
        names(),
        (option::of(schedule), rule_overload()),
        (option::of(names()), option::of(times())),
        option::of(failure_modes()),
        prop_oneof![Just(Duration::ZERO), times()],
        option::of(queue),
        option::of(non_empty_texts()),
        on_limits(),
    )
        .boxed()
}

pub(crate) fn on_limits() -> BoxedStrategy<OnLimit> {
    let value = || texts().prop_filter("controls", |text| !text.chars().any(|c| c.is_control() && c != '\t'));
    let headers = move || proptest::collection::btree_map(tokens(), value(), 0..3);
    let bodies = proptest::collection::btree_map("[a-z]{1,5}/[a-z+.-]{1,8}", texts(), 0..3)
        .prop_map(|bodies| bodies.into_iter().collect::<Vec<_>>());
    let reject = (option::of(400_u16..600), headers(), option::of(texts()), bodies).prop_map(
        |(status, headers, body, bodies)| OnLimit::Reject(Reject { status, headers, body, bodies }),
    );
    let body = (200_u16..600, headers(), texts())
        .prop_map(|(status, headers, body)| FallbackResponse::Body { status, headers, body });
    let upstream = names().prop_map(FallbackResponse::Upstream);
    let cached = (option::of(times()), option::of(prop_oneof![body, upstream]))
        .prop_filter("empty", |(cache, response)| cache.is_some() || response.is_some())
        .prop_map(|(cache, response)| OnLimit::Fallback(Fallback { cache, response }));
    prop_oneof![
        Just(OnLimit::default()),
        reject,
        (plain_words(), select(vec![301_u16, 302, 303, 307, 308]))
            .prop_map(|(location, status)| OnLimit::Redirect { location, status }),
        cached,
        Just(OnLimit::Drop),
    ]
    .boxed()
}
