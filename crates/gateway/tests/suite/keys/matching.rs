//! `match` of rules and routes, listeners, lists and keys.

use crate::{
    admin_api::AdminGateway,
    harness::{RawClient, TestBackend},
    load_balancing::start_named,
};
use tidegate_rule::Rules;

/// Each rule denies one path, under one more condition.
const MATCH_POLICY: &str = "
listen: [127.0.0.1:0, { name: internal, address: 127.0.0.1:0 }]
admin: 127.0.0.1:0
trusted-proxies: 127.0.0.0/8
lists: { internal: { networks: 192.0.2.0/24 } }
rules:
  - { name: method, match: { path: /method, method: POST }, deny: all }
  - { name: host, match: { path: /host, host: '*.example.org' }, deny: all }
  - { name: header, match: { path: /header, header: { x-plan: free } }, deny: all }
  - { name: query, match: { path: /query, query: { page: '1*' } }, deny: all }
  - { name: cookie, match: { path: /cookie, cookie: { beta: 'on' } }, deny: all }
  - { name: client, match: { path: /client, client: [internal, 198.51.100.7] }, deny: all }
  - { name: listener, match: { path: /listener, listener: internal }, deny: all }
  - { name: not, match: { path: /not/**, not: { path: /not/this } }, deny: all }
  - { name: any, match: { path: /any, any: [{ query: { a: '*' } }, { method: DELETE }] }, deny: all }
  - { name: when, match: { path: /when, when: \"'x-a' in request.headers\" }, deny: all }
  - { name: denied, match: { path: /deny }, deny: internal }
  - { name: allowed, match: { path: /allow }, deny: all, allow: internal }
";

#[tokio::test]
async fn rule_applies_only_to_requests_that_match() {
    let server = TestBackend::start_echo().await;
    let policy = format!("upstreams: {{ app: http://{} }}\nroutes: app{MATCH_POLICY}", server.address);
    let gateway = AdminGateway::start_policy(&policy, Rules::new());
    for (listener, line, headers, status) in [
        (0, "POST /method", "", 403),
        (0, "GET /method", "", 200),
        (0, "GET /host", "host: a.example.org\r\n", 403),
        (0, "GET /host", "host: a.example.net\r\n", 200),
        (0, "GET /header", "x-plan: free\r\n", 403),
        (0, "GET /header", "x-plan: gold\r\n", 200),
        (0, "GET /query?page=17", "", 403),
        (0, "GET /query?page=2", "", 200),
        (0, "GET /cookie", "cookie: beta=on\r\n", 403),
        (0, "GET /cookie", "cookie: beta=off\r\n", 200),
        (0, "GET /client", "x-forwarded-for: 192.0.2.9\r\n", 403),
        (0, "GET /client", "x-forwarded-for: 198.51.100.7\r\n", 403),
        (0, "GET /client", "x-forwarded-for: 198.51.100.8\r\n", 200),
        (1, "GET /listener", "", 403),
        (0, "GET /listener", "", 200),
        (0, "GET /not/that", "", 403),
        (0, "GET /not/this", "", 200),
        (0, "GET /any?a=1", "", 403),
        (0, "DELETE /any", "", 403),
        (0, "GET /any", "", 200),
        (0, "GET /when", "x-a: 1\r\n", 403),
        (0, "GET /when", "", 200),
        (0, "GET /deny", "x-forwarded-for: 192.0.2.9\r\n", 403),
        (0, "GET /deny", "x-forwarded-for: 198.51.100.8\r\n", 200),
        (0, "GET /allow", "x-forwarded-for: 192.0.2.9\r\n", 200),
        (0, "GET /allow", "x-forwarded-for: 198.51.100.8\r\n", 403),
    ] {
        let host = if headers.starts_with("host:") { "" } else { "host: a\r\n" };
        let request = format!("{line} HTTP/1.1\r\n{host}{headers}\r\n");
        let response = RawClient::connect(gateway.addresses[listener]).await.request(&request).await;
        assert_eq!(response.status(), status, "{line} {headers}");
    }
    gateway.stop().await;
}

const ROUTE_POLICY: &str = "
listen: 127.0.0.1:0
admin: 127.0.0.1:0
routes:
  - { match: { path: /closed }, respond: { status: 503, headers: { retry-after: '60' }, body: Later. } }
  - { path: /other, upstream: other }
  - app
rules: [{ name: each, key: upstream, quota: 2/h }]
";

#[tokio::test]
async fn first_route_that_matches_responds_or_forwards() {
    let (app, other) = (start_named("app").await, start_named("other").await);
    let upstreams = format!("upstreams: {{ app: http://{}, other: http://{} }}", app.address, other.address);
    let gateway = AdminGateway::start_policy(&(upstreams + ROUTE_POLICY), Rules::new());
    let closed = gateway.get("/closed").await;
    assert_eq!(
        (closed.status(), closed.header("retry-after"), closed.body.as_str()),
        (503, Some("60"), "Later.")
    );
    for (path, body) in [("/", "app"), ("/other", "other")] {
        assert_eq!(gateway.get(path).await.body, body);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn redirect_has_the_declared_status_and_location() {
    let policy = "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n\
        routes: [{ respond: { redirect: 'https://{host}/new{uri}', status: 308 } }]";
    let gateway = AdminGateway::start_policy(policy, Rules::new());
    let moved = gateway.get("/old/page?a=1").await;
    assert_eq!(
        (moved.status(), moved.header("location")),
        (308, Some("https://app.example/new/old/page?a=1"))
    );
    gateway.stop().await;
}

#[tokio::test]
async fn requests_of_each_upstream_are_counted_separately() {
    let (app, other) = (start_named("app").await, start_named("other").await);
    let upstreams = format!("upstreams: {{ app: http://{}, other: http://{} }}", app.address, other.address);
    let gateway = AdminGateway::start_policy(&(upstreams + ROUTE_POLICY), Rules::new());
    for path in ["/", "/other"] {
        assert_eq!(gateway.statuses(path, "", 3).await, [200, 200, 429], "{path}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn requests_are_counted_by_the_result_of_an_expression() {
    let server = TestBackend::start_echo().await;
    let rules = "rules: [{ name: plans, key: { cel: \"request.headers['x-plan']\" }, quota: 1/h }]";
    let gateway = AdminGateway::start(&server, rules);
    for plan in ["free", "gold"] {
        let header = format!("x-plan: {plan}\r\n");
        assert_eq!(gateway.statuses("/", &header, 2).await, [200, 429], "{plan}");
    }
    gateway.stop().await;
}
