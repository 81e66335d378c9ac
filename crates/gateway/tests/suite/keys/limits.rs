//! Quotas, costs and keys of rules.

use crate::{
    admin_api::AdminGateway,
    harness::{RawResponse, TestBackend, text_body},
};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tidegate_rule::Rules;

/// The remaining tokens of the only limit.
fn remaining(response: &RawResponse) -> u64 {
    let header = response.header("ratelimit").unwrap();
    header.split("r=").nth(1).unwrap().split(';').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn cost_is_read_from_the_request() {
    let server = TestBackend::start_echo().await;
    let rules = "rules: [{ name: all, quota: 10/h, cost: { from: query n, default: 3, max: 5 } }]";
    let gateway = AdminGateway::start(&server, rules);
    for (path, left) in [("/", 7), ("/?n=2", 5), ("/?n=100", 0)] {
        assert_eq!(remaining(&gateway.get(path).await), left, "{path}");
    }
    gateway.stop().await;
}

/// Responds with the status and the `x-cost` that the path names: `/500/3`.
async fn start_priced() -> TestBackend {
    TestBackend::start(|request: Request<Incoming>| async move {
        let mut parts = request.uri().path().split('/').skip(1);
        let mut response = Response::new(text_body("app"));
        *response.status_mut() = StatusCode::from_bytes(parts.next().unwrap().as_bytes()).unwrap();
        response.headers_mut().insert("x-cost", parts.next().unwrap().parse().unwrap());
        response
    })
    .await
}

#[tokio::test]
async fn response_determines_the_charge() {
    let server = start_priced().await;
    for (charge, path, statuses) in [
        ("refund-status: 5xx", "/500/1", [500, 500, 500, 500]),
        ("refund-status: 5xx", "/200/1", [200, 200, 200, 429]),
        ("if-status: [401]", "/401/1", [401, 401, 401, 429]),
        ("if-status: [401]", "/200/1", [200, 200, 200, 200]),
    ] {
        let policy = format!("rules: [{{ name: all, quota: 3/h, charge: {{ {charge} }} }}]");
        let gateway = AdminGateway::start(&server, &policy);
        assert_eq!(gateway.statuses(path, "", 4).await, statuses, "{charge} {path}");
        gateway.stop().await;
    }
}

#[tokio::test]
async fn rule_takes_keys_from_template_and_included_file() {
    let server = TestBackend::start_echo().await;
    let policy = format!(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nupstreams: {{ app: http://{} }}\nroutes: app\n\
         include: [limits.yaml]\ntemplates: {{ each: {{ key: header x-user }} }}\n",
        server.address
    );
    // The rule is valid without its quotas.
    let included = "rules: [{ name: all, use: each, quotas: [2/h, 1 per 2h burst 5], deny: 192.0.2.0/24 }]";
    let gateway = AdminGateway::start_with_files(&policy, &[("limits.yaml", included)], Rules::new());
    for user in ["ann", "bob"] {
        let header = format!("x-user: {user}\r\n");
        assert_eq!(gateway.statuses("/", &header, 3).await, [200, 200, 429], "{user}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn changed_quota_inherits_or_resets_the_counters() {
    let server = TestBackend::start_echo().await;
    let policy = |quota: &str| {
        format!(
            "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nupstreams: {{ app: http://{} }}\nroutes: app\nrules:\n\
             \x20 - {{ name: inherited, match: {{ path: /inherited }}, quota: {quota} }}\n\
             \x20 - {{ name: reset, match: {{ path: /reset }}, quota: {quota}, inherit: reset }}\n",
            server.address
        )
    };
    let gateway = AdminGateway::start_policy(&policy("2/h"), Rules::new());
    for path in ["/inherited", "/reset"] {
        assert_eq!(gateway.statuses(path, "", 3).await, [200, 200, 429], "{path}");
    }
    gateway.replace_policy(&policy("3/h")).await;
    assert_eq!(gateway.statuses("/inherited", "", 2).await, [200, 429]);
    assert_eq!(gateway.statuses("/reset", "", 4).await, [200, 200, 200, 429]);
    gateway.stop().await;
}

#[tokio::test]
async fn full_table_denies_new_keys() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(
        &server,
        "rules: [{ name: each, key: header x-user, quota: 2/h, capacity: 8, overflow: deny }]",
    );
    let mut client = gateway.connect().await;
    let mut admitted = 0;
    for user in 0..1_000 {
        let request = format!("GET / HTTP/1.1\r\nhost: a\r\nx-user: {user}\r\n\r\n");
        admitted += usize::from(client.request(&request).await.status() == 200);
    }
    assert!((8..1_000).contains(&admitted), "{admitted} keys were admitted");
    let table = gateway.status_at("/rules/0/table").await;
    assert_eq!(table["overflowed"], 1_000 - admitted, "{table}");
    gateway.stop().await;
}

#[tokio::test]
async fn part_of_a_quota_is_reserved_for_higher_priorities() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(
        &server,
        "rules: [{ name: all, quota: 10/h, priority: { key: header x-priority, default: critical, reserve: { critical: 50%, high: 20% } } }]",
    );
    assert_eq!(gateway.statuses("/", "x-priority: low\r\n", 4).await, [200, 200, 200, 429]);
    assert_eq!(gateway.statuses("/", "x-priority: normal\r\n", 1).await, [429]);
    assert_eq!(gateway.statuses("/", "x-priority: high\r\n", 3).await, [200, 200, 429]);
    assert_eq!(gateway.statuses("/", "", 6).await, [200, 200, 200, 200, 200, 429]);
    gateway.stop().await;
}
