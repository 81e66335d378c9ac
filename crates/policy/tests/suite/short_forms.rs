//! Short forms equal their long forms, in every format.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use tidegate_policy::{
    Policy, PolicyFormat,
    model::{AccessSpec, KeyPart, KeySpec, Network, OnLimit, PathTail, PrioritySpec, Quotas, Segment},
};

fn read(text: &str) -> Policy {
    text.parse().unwrap_or_else(|problems| panic!("{problems}"))
}

#[test]
fn short_forms_equal_long_forms() {
    let rule = |keys: &str| format!("rules: [{{ name: a, quota: 5/min, {keys} }}]");
    let cases = [
        ("listen: 127.0.0.1:80".into(), "listen: [{ address: 127.0.0.1:80 }]".into()),
        ("upstreams: { a: http://b }".into(), "upstreams: { a: { servers: [{ url: http://b, weight: 1 }] } }".into()),
        ("upstreams: { a: [http://b/, http://c] }".into(), "upstreams: { a: { servers: [http://b, http://c] } }".into()),
        (
            "upstreams: { a: { servers: http://b, health: /up, retries: 3 } }".into(),
            "upstreams: { a: { servers: [http://b], health: { path: /up, interval: 5s }, retries: { max: 3, budget: 20% } } }".into(),
        ),
        ("upstreams: { a: http://b }\nroutes: a".into(), "upstreams: { a: http://b }\nroutes: [{ upstream: a, match: {} }]".into()),
        (
            "upstreams: { a: http://b }\nroutes: { path: /x, method: get, upstream: a }".into(),
            "upstreams: { a: http://b }\nroutes: [{ match: { path: [/x], method: [GET] }, upstream: a }]".into(),
        ),
        ("log: json".into(), "log: { format: json }".into()),
        ("traces: http://a:4318/".into(), "traces: { endpoint: http://a:4318 }".into()),
        ("lists: { a: 10.0.0.0/8 }".into(), "lists: { a: { networks: [10.0.0.0/8] } }".into()),
        ("connections: { max-header-size: 32KiB, max-body-size: none }".into(), "connections: { max-header-size: 32768 }".into()),
        ("connections: { max-body-size: 1.5MB }".into(), "connections: { max-body-size: 1500000 }".into()),
        ("rules: { name: a, quota: 5/min }".into(), "rules: [{ name: a, quotas: [5/min] }]".into()),
        ("rules: [{ name: a, quota: [5/min, 9/h] }]".into(), "rules: [{ name: a, quotas: [5/min, 9/h] }]".into()),
        (rule("key: ip"), rule("key: [ip/64]")),
        (rule("key: { first: [ip] }"), rule("key: ip")),
        (rule("cost: { from: header X-Cost, max: 9 }"), rule("cost: { from: header x-cost, default: 1, max: 9 }")),
        (rule("charge: { if-status: 401 }"), rule("charge: { if-status: [401] }")),
        (rule("bandwidth: 1MB/s"), rule("bandwidth: { down: 1MB/s }")),
        (rule("bandwidth: 100kB/s after 200kB"), rule("bandwidth: { down: 100kB/s after 200000 }")),
        (rule("bandwidth: 100kB/s burst 1MB after 2MiB"), rule("bandwidth: { down: 100kB/s burst 1MB after 2.097152MB }")),
        (rule("queue: 5"), rule("queue: { max: 5, order: fifo }")),
        (rule("wait: 1min"), rule("wait: 60s")),
        (rule("match: { header: { X-Plan: 5, x-b: true } }"), rule("match: { header: { x-plan: ['5'], x-b: ['true'] } }")),
        (rule("deny: all"), rule("deny: [all]")),
        (rule("match: { path: ['/a%20b//c/', /%7Ex/**] }"), rule("match: { path: [/a b/c, /~x/**] }")),
        (rule("match: { path: / }"), rule("match: { path: // }")),
        (rule("on-limit: { redirect: /busy }"), rule("on-limit: { redirect: /busy, status: 303 }")),
        (rule("on-limit: { fallback: { body: '' } }"), rule("on-limit: { fallback: { body: '', status: 200 } }")),
        (
            "rules: [{ name: a, quota: &q 5/min }, { name: b, quota: *q }]".into(),
            "rules: [{ name: a, quota: 5/min }, { name: b, quota: 5/min }]".into(),
        ),
    ];
    for (short, long) in cases {
        let (short, long): (String, String) = (short, long);
        assert_eq!(read(&short), read(&long), "{short}");
    }
}

/// The examples in docs/policy.md.
#[test]
fn documented_example_parses_and_round_trips() {
    let page = include_str!("../../../../docs/policy.md");
    let examples: Vec<_> =
        page.split("```yaml\n").skip(1).map(|part| part.split("```").next().unwrap()).collect();
    let [first, whole, templates] = examples.as_slice() else { panic!("{examples:?}") };
    assert_eq!((read(first).routes.len(), read(templates).rules.len()), (1, 2));
    let policy = read(whole);
    assert_eq!((policy.listen.len(), policy.upstreams.len(), policy.routes.len()), (3, 3, 6));
    let [login, photos, downloads, searches, backend, pages, similar, payments, proxied, closed] =
        policy.rules.as_slice()
    else {
        panic!("{policy}")
    };
    assert!(matches!(&login.key, KeySpec::First(keys) if keys[0] == KeySpec::Part(KeyPart::User)));
    assert!(matches!(&login.quotas, Quotas::All(quotas) if quotas.len() == 2));
    assert!(matches!(&login.access, Some(AccessSpec { ban: Some(_), .. })));
    assert_eq!(photos.matching.paths[0].tail, Some(PathTail::Capture("file".to_owned())));
    assert_eq!(photos.matching.paths[0].segments[1], Segment::Capture("id".to_owned()));
    assert_eq!(photos.matching.hosts[0].0, "*.example.com");
    assert_eq!(photos.matching.clients[1], Network::List("internal".to_owned()));
    assert!(matches!(&photos.priority, Some(PrioritySpec::FromRequest { default, .. }) if default == "low"));
    assert_eq!((photos.matching.any.len(), &downloads.key), (2, &KeySpec::Part(KeyPart::Request)));
    assert!(matches!(&backend.on_limit, OnLimit::Reject(reject) if reject.status == Some(503)));
    assert_eq!(closed.on_limit, OnLimit::Drop);
    assert_eq!((proxied.matching.descriptor.len(), policy.envoy.is_some()), (2, true));
    assert!(pages.shed.is_some() && pages.scale.is_some() && payments.while_failing.is_some());
    assert_eq!(similar.feature.as_deref(), Some("similar"));
    assert_eq!(policy.features.len(), 3);
    assert!(matches!(&searches.on_limit, OnLimit::Reject(reject) if reject.bodies.len() == 2));
    for format in PolicyFormat::ALL {
        assert_eq!(Policy::parse(&policy.print(format), format).unwrap(), policy);
    }
}

#[test]
fn crate_example_parses() {
    let source = include_str!("../../src/lib.rs");
    let example: String = source
        .lines()
        .skip_while(|line| !line.contains("```yaml"))
        .skip(1)
        .take_while(|line| !line.contains("```"))
        .map(|line| line.trim_start_matches("//!").to_owned() + "\n")
        .collect();
    assert_eq!(read(&example).rules.len(), 2);
}
