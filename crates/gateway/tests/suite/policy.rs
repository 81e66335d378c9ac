//! Policies in force, and reloads during traffic.

use crate::harness::{RawClient, TEST_TIMEOUT, TestBackend, open_gateway};
use std::{
    fs,
    future::Future,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
use tempfile::TempDir;
use tidegate_gateway::{GatewayError, GatewayHandle, PolicySource, ReloadScope};
use tidegate_rule::Rules;
use tokio::{sync::oneshot, task::JoinHandle, time::timeout};

/// A gateway with a policy file.
struct PolicyGateway {
    address: SocketAddr,
    admin: Option<SocketAddr>,
    handle: GatewayHandle,
    folder: TempDir,
    stop: oneshot::Sender<()>,
    end: JoinHandle<Result<(), GatewayError>>,
}

impl PolicyGateway {
    /// Starts a gateway on a free port with the rest of the policy.
    fn start(rest: &str) -> Self {
        let folder = TempDir::new().unwrap();
        write_policy(&folder.path().join("policy.yaml"), rest);
        let source = PolicySource::file(folder.path().join("policy.yaml"));
        let gateway = open_gateway(source, Rules::new());
        let (address, admin, handle) = (gateway.addresses()[0], gateway.admin_address(), gateway.handle());
        let (stop, stopped) = oneshot::channel::<()>();
        let end = tokio::spawn(gateway.run(async {
            let _ = stopped.await;
        }));
        Self { address, admin, handle, folder, stop, end }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes another policy, and reloads it.
    async fn replace(&self, rest: &str) -> Result<ReloadScope, String> {
        write_policy(&self.path("policy.yaml"), rest);
        self.handle.reload().await.map_err(|error| error.to_string())
    }

    async fn connect(&self) -> RawClient {
        RawClient::connect(self.address).await
    }

    async fn statuses(&self, path: &str, count: usize) -> Vec<u16> {
        let mut client = self.connect().await;
        let mut statuses = Vec::new();
        for _ in 0..count {
            statuses.push(client.get(path).await.status());
        }
        statuses
    }

    async fn stop(self) {
        drop(self.stop);
        with_timeout(self.end).await.unwrap().unwrap();
    }
}

/// Replaces the file atomically: an empty policy would change the listener.
fn write_policy(path: &Path, rest: &str) {
    let next = path.with_extension("next");
    fs::write(&next, format!("listen: 127.0.0.1:0\n{rest}")).unwrap();
    fs::rename(next, path).unwrap();
}

async fn with_timeout<T>(future: impl Future<Output = T>) -> T {
    timeout(TEST_TIMEOUT, future).await.expect("timed out")
}

fn policy_for_server(server: &TestBackend, rules: &str) -> String {
    format!("upstreams: {{ app: 'http://{}' }}\nroutes: app\nrules:\n{rules}", server.address)
}

#[tokio::test]
async fn total_is_used_up_for_good_and_a_reload_keeps_the_count() {
    let server = TestBackend::start_echo().await;
    let rule = |rest: &str| {
        policy_for_server(&server, &format!("  - {{ name: trial, key: header x-user, {rest} }}"))
    };
    let gateway = PolicyGateway::start(&rule("quota: 3 total"));
    let mut client = gateway.connect().await;
    let request = |user: &str| format!("GET / HTTP/1.1\r\nhost: a\r\nx-user: {user}\r\n\r\n");
    let first = client.request(&request("ann")).await;
    assert_eq!((first.status(), first.header("ratelimit-policy")), (200, Some(r#""trial";q=3"#)));
    assert_eq!(first.header("ratelimit"), Some(r#""trial";r=2"#), "no time");
    assert_eq!(client.request(&request("ann")).await.status(), 200);

    gateway.replace(&rule("quota: 3 total, message: Enough.")).await.unwrap();
    assert_eq!(client.request(&request("ann")).await.status(), 200);
    for _ in 0..5 {
        let denied = client.request(&request("ann")).await;
        assert_eq!((denied.status(), denied.header("retry-after")), (429, None));
        assert_eq!(denied.header("ratelimit"), Some(r#""trial";r=0"#));
        assert!(denied.body.contains(r#""detail":"Enough.""#), "{}", denied.body);
    }
    assert_eq!(client.request(&request("bob")).await.status(), 200);

    // Another total counts what is used; so does one beside a rate, which needs another table.
    for quotas in ["quota: 4 total", "quotas: [1000/h, 5 total]"] {
        gateway.replace(&rule(quotas)).await.unwrap();
        let statuses = [client.request(&request("ann")).await, client.request(&request("ann")).await];
        assert_eq!(statuses.map(|response| response.status()), [200, 429], "{quotas}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn limit_applies_per_client_and_returns_remaining() {
    let server = TestBackend::start_echo().await;
    let gateway = PolicyGateway::start(&policy_for_server(
        &server,
        "  - { name: each, key: header x-user, quota: 2/h, message: Enough. }",
    ));
    let mut client = gateway.connect().await;
    let request = |user: &str| format!("GET /a?b=c HTTP/1.1\r\nhost: a\r\nx-user: {user}\r\n\r\n");
    let first = client.request(&request("ann")).await;
    assert_eq!(first.status(), 200);
    assert_eq!(first.header("ratelimit-policy"), Some(r#""each";q=2;w=3600"#));
    assert_eq!(first.header("ratelimit"), Some(r#""each";r=1;t=1800"#));
    assert!(first.body.starts_with("GET /a?b=c\n"), "{}", first.body);
    assert_eq!(client.request(&request("ann")).await.status(), 200);
    let third = client.request(&request("ann")).await;
    assert_eq!(third.status(), 429);
    assert_eq!(third.header("retry-after"), Some("1800"));
    assert!(third.body.contains(r#""detail":"Enough.""#), "{}", third.body);
    assert_eq!(client.request(&request("bob")).await.status(), 200);
    gateway.stop().await;
}

#[tokio::test]
async fn on_limit_action_is_applied() {
    let (app, spare) = (TestBackend::start_echo().await, TestBackend::start_echo().await);
    let text = format!(
        "upstreams: {{ app: 'http://{}', spare: 'http://{}' }}\n\
         routes: [{{ path: /known/**, upstream: app }}]\n\
         log: {{ format: json, file: access.log }}\n\
         rules:\n\
         \x20 - {{ name: away, match: {{ path: /known/away }}, quota: 1/h, on-limit: {{ redirect: 'https://example.org/busy' }} }}\n\
         \x20 - {{ name: other, match: {{ path: /known/other }}, quota: 1/h, on-limit: {{ fallback: {{ upstream: spare }} }} }}\n\
         \x20 - {{ name: old, match: {{ path: /known/old }}, quota: 1/h, on-limit: {{ fallback: {{ body: 'of yesterday' }} }} }}\n\
         \x20 - {{ name: gone, match: {{ path: /known/gone }}, deny: all, on-limit: drop }}\n\
         \x20 - {{ name: failed, match: {{ path: /failed }}, quota: 1/h, charge: {{ if-status: [404] }} }}\n",
        app.address, spare.address
    );
    let gateway = PolicyGateway::start(&text);
    assert_eq!(gateway.statuses("/known/away", 2).await, [200, 303]);

    assert_eq!(gateway.statuses("/known/other", 1).await, [200]);
    assert_eq!(spare.connection_count(), 0);
    assert_eq!(gateway.statuses("/known/other", 1).await, [200]);
    assert_eq!(spare.connection_count(), 1);

    assert_eq!(gateway.statuses("/known/old", 1).await, [200]);
    assert_eq!(gateway.connect().await.get("/known/old").await.body, "of yesterday");

    let mut client = gateway.connect().await;
    client.send("GET /known/gone HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(client.read_to_end().await, "");

    // No route matches, and the request still counts.
    assert_eq!(gateway.statuses("/failed", 2).await, [404, 429]);

    let log = gateway.path("access.log");
    let folder = gateway.folder.path().to_owned();
    drop(gateway.stop);
    with_timeout(gateway.end).await.unwrap().unwrap();
    let log = fs::read_to_string(log).unwrap();
    let reply: Vec<_> = log
        .lines()
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let text = |name: &str| line[name].as_str().unwrap_or("-").to_owned();
            (text("rule"), text("decision"), line["status"].as_u64().unwrap())
        })
        .collect();
    let expected = [
        ("away", "admitted", 200),
        ("away", "limited", 303),
        ("other", "admitted", 200),
        ("other", "limited", 200),
        ("old", "admitted", 200),
        ("old", "limited", 200),
        ("gone", "deny-list", 0),
        ("failed", "admitted", 404),
        ("failed", "limited", 429),
    ];
    assert_eq!(
        reply,
        expected.map(|(rule, decision, status)| (rule.to_owned(), decision.to_owned(), status))
    );
    assert!(folder.exists());
}

#[tokio::test]
async fn echo_upstream_responds_with_the_head_of_the_request() {
    for protocol in ["http1", "http2"] {
        let policy = |rest: &str| {
            format!("upstreams: {{ app: {{ servers: echo, protocol: {protocol}, {rest} }} }}\nroutes: app\n")
        };
        let gateway = PolicyGateway::start(&policy(""));
        let mut client = gateway.connect().await;
        let request = "POST /a?b HTTP/1.1\r\nhost: a\r\nx-user: ann\r\ncontent-length: 3\r\n\r\nabc";
        let response = client.request(request).await;
        assert_eq!((response.status(), response.echoed_headers("x-user")), (200, vec!["ann"]));
        assert!(response.body.starts_with("POST ") && response.body.contains("/a?b\n"), "{}", response.body);

        gateway.replace(&policy("keep-alive: 1")).await.unwrap();
        assert_eq!(gateway.statuses("/", 3).await, [200, 200, 200]);
        gateway.stop().await;
    }
}

#[tokio::test]
async fn reload_keeps_counters() {
    let server = TestBackend::start_echo().await;
    let gateway = PolicyGateway::start(&policy_for_server(&server, "  - { name: all, quota: 3/h }"));
    assert_eq!(gateway.statuses("/", 2).await, [200, 200]);

    let other = policy_for_server(
        &server,
        "  - { name: all, quota: 3/h }\n  - { name: new, match: { path: /new }, deny: all }",
    );
    assert_eq!(gateway.replace(&other).await, Ok(ReloadScope::Rules));
    assert_eq!(gateway.statuses("/new", 1).await, [403]);
    assert_eq!(gateway.statuses("/", 2).await, [200, 429]);

    let larger = policy_for_server(&server, "  - { name: all, quota: 5/h }");
    assert_eq!(gateway.replace(&larger).await, Ok(ReloadScope::Rules));
    assert_eq!(gateway.statuses("/", 3).await, [200, 200, 429]);
    assert_eq!(gateway.replace(&larger).await, Ok(ReloadScope::Lists));
    assert_eq!(gateway.statuses("/", 1).await, [429]);
    gateway.stop().await;
}

#[tokio::test]
async fn invalid_policy_is_rejected_on_reload() {
    let server = TestBackend::start_echo().await;
    let fine = policy_for_server(&server, "  - { name: all, quota: 3/h }");
    let gateway = PolicyGateway::start(&format!("admin: 127.0.0.1:0\n{fine}"));
    assert_eq!(gateway.statuses("/", 2).await, [200, 200]);

    let cases = [
        (fine.replace("quota", "quta"), "unknown key `quta`"),
        (fine.replace("3/h", "3/day burst 1000000000000"), "burst"),
        (fine.replace("http://", "http://no-such-host.invalid:1/"), "no-such-host.invalid"),
        (format!("{fine}\nlists: {{ bad: {{ files: none.txt }} }}"), "none.txt"),
        (fine.replace("rules:", "log: { format: json, file: no/such/folder }\nrules:"), "no/such/folder"),
    ];
    for (text, reason) in cases {
        let error = gateway.replace(&text).await.unwrap_err();
        assert!(error.contains(reason), "{error}");
        let mut operator = RawClient::connect(gateway.admin.unwrap()).await;
        let response = operator.request("POST /reload HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert_eq!(response.status(), 422);
        assert!(response.body.contains(reason), "{}", response.body);
    }
    assert_eq!(gateway.statuses("/", 2).await, [200, 429]);
    gateway.stop().await;
}

#[tokio::test]
async fn changed_policy_file_is_reloaded() {
    let server = TestBackend::start_echo().await;
    let gateway = PolicyGateway::start(&policy_for_server(
        &server,
        "  - { name: all, match: { path: /no }, deny: all }",
    ));
    assert_eq!(gateway.statuses("/", 1).await, [200]);
    // Replaced by rename, as editors do.
    write_policy(
        &gateway.path("next"),
        &policy_for_server(&server, "  - { name: all, deny: bad }\nlists: { bad: { files: bad.txt } }"),
    );
    fs::write(gateway.path("bad.txt"), "192.0.2.1\n").unwrap();
    fs::rename(gateway.path("next"), gateway.path("policy.yaml")).unwrap();
    with_timeout(async { while gateway.statuses("/no", 1).await != [200] {} }).await;
    // Lists are watched too.
    fs::write(gateway.path("bad.txt"), "127.0.0.0/8\n").unwrap();
    with_timeout(async { while gateway.statuses("/", 1).await != [403] {} }).await;
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_reloads_lose_no_request() {
    let (one, two) = (TestBackend::start_echo().await, TestBackend::start_echo().await);
    let rules = |count: usize| {
        format!(
            "  - {{ name: all, quota: 1000000/h }}\n  - {{ name: r{count}, match: {{ path: /r{count} }}, deny: all }}"
        )
    };
    let gateway = PolicyGateway::start(&policy_for_server(&one, &rules(0)));
    let (is_over, counts) = (Arc::new(AtomicBool::new(false)), Arc::new([const { AtomicU64::new(0) }; 4]));
    let clients: Vec<_> = (0..4)
        .map(|index| {
            let (is_over, counts, address) = (is_over.clone(), counts.clone(), gateway.address);
            tokio::spawn(async move {
                let mut client = RawClient::connect(address).await;
                while !is_over.load(Ordering::Relaxed) {
                    let response = client.get("/").await;
                    assert_eq!(response.status(), 200);
                    if response.header("connection") == Some("close") {
                        client = RawClient::connect(address).await;
                    }
                    counts[index].fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let completed = || counts.each_ref().map(|count| count.load(Ordering::SeqCst));
    let mut by_watch = 0;
    for round in 1..=100 {
        // Every fourth round changes the upstream server, which replaces the workers.
        let server = if (round / 4) % 2 == 0 { &one } else { &two };
        let before = completed();
        let reloaded = gateway.replace(&policy_for_server(server, &rules(round))).await;
        let expected = if round % 4 == 0 { ReloadScope::Connections } else { ReloadScope::Rules };
        // If the file watch was faster, nothing is left to reload.
        match reloaded {
            Ok(ReloadScope::Lists) => by_watch += 1,
            reloaded => assert_eq!(reloaded, Ok(expected), "round {round}"),
        }
        // Each client uses its connection again: the gateway closes idle ones when it has replaced the workers several times.
        with_timeout(async {
            while completed().iter().zip(before).any(|(now, before)| *now < before + 2) {
                assert!(!clients.iter().any(tokio::task::JoinHandle::is_finished), "a request was lost");
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
    assert!(by_watch < 50, "{by_watch} of 100 reloads did nothing");
    is_over.store(true, Ordering::Relaxed);
    for client in clients {
        with_timeout(client).await.unwrap();
    }
    let count: u64 = completed().iter().sum();
    let left = gateway.connect().await.get("/").await;
    let left = left.header("ratelimit").unwrap();
    let left: u64 = left.split("r=").nth(1).unwrap().split(';').next().unwrap().parse().unwrap();
    // The refill during the test is small.
    let taken = 1_000_000 - left;
    assert!(taken <= count + 1 && taken + 20_000 > count, "{taken} of {count}");
    assert!(count >= 100, "{count}");
    gateway.stop().await;
}

#[tokio::test]
async fn admin_api_rejects_cross_origin_requests() {
    let server = TestBackend::start_echo().await;
    let gateway = PolicyGateway::start(&format!(
        "admin: 127.0.0.1:0\n{}",
        policy_for_server(&server, "  - { name: all, quota: 3/h }")
    ));
    let mut operator = RawClient::connect(gateway.admin.unwrap()).await;
    let cases = [
        ("GET /health HTTP/1.1\r\nhost: a\r\n\r\n", 200),
        ("POST /reload HTTP/1.1\r\nhost: a\r\n\r\n", 200),
        ("GET /reload HTTP/1.1\r\nhost: localhost\r\n\r\n", 405),
        ("GET /nothing HTTP/1.1\r\nhost: localhost\r\n\r\n", 404),
        ("GET /api/v1/status HTTP/1.1\r\nhost: a\r\n\r\n", 421),
        ("POST /reload HTTP/1.1\r\nhost: a\r\norigin: https://example.org\r\n\r\n", 403),
    ];
    for (request, status) in cases {
        assert_eq!(operator.request(request).await.status(), status, "{request}");
    }
    gateway.stop().await;
}

/// A request to the admin API.
fn request_text(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")
}

/// A request of this user.
fn login_request(user: &str) -> String {
    format!("POST /login HTTP/1.1\r\nhost: a\r\nx-user: {user}\r\ncontent-length: 0\r\n\r\n")
}

#[tokio::test]
async fn users_behind_one_address_are_banned_individually() {
    let server = TestBackend::start_echo().await;
    let rules =
        "  - { name: login, key: header x-user, quota: 1/h, ban: 2/min for 1h }\nadmin: 127.0.0.1:0\n";
    let gateway = PolicyGateway::start(&policy_for_server(&server, rules));
    let mut client = gateway.connect().await;
    let mut statuses = Vec::new();
    for _ in 0..5 {
        statuses.push(client.request(&login_request("mallory")).await.status());
    }
    assert_eq!(statuses, [200, 429, 429, 403, 403]);
    assert_eq!(
        client.request(&login_request("ann")).await.status(),
        200,
        "another user behind the same address"
    );
    // Operators see the ban, and lift it.
    let mut admin = RawClient::connect(gateway.admin.unwrap()).await;
    let bans: serde_json::Value =
        serde_json::from_str(&admin.request(&request_text("/api/v1/bans")).await.body).unwrap();
    assert_eq!(bans["bans"][0]["kind"], "key", "{bans}");
    assert_eq!(bans["bans"][0]["value"], "mallory", "{bans}");
    gateway.stop().await;
}

#[tokio::test]
async fn failing_expression_denies_and_is_counted() {
    let server = TestBackend::start_echo().await;
    let rules = "  - { name: closed, match: { when: \"request.headers['x-plan'] == 'free'\" }, deny: all }\n\
                 admin: 127.0.0.1:0\n";
    let gateway = PolicyGateway::start(&policy_for_server(&server, rules));
    let mut client = gateway.connect().await;
    let request = |plan: &str| format!("GET / HTTP/1.1\r\nhost: a\r\n{plan}\r\n");
    assert_eq!(client.request(&request("x-plan: gold\r\n")).await.status(), 200);
    assert_eq!(client.request(&request("x-plan: free\r\n")).await.status(), 403);
    assert_eq!(client.request(&request("")).await.status(), 403, "a missing header gains nothing");
    let mut admin = RawClient::connect(gateway.admin.unwrap()).await;
    let metrics = admin.request(&request_text("/metrics")).await.body;
    assert!(metrics.contains("tidegate_expression_failures_total{rule=\"closed\"} 1\n"), "{metrics}");
    let wrong = gateway
        .replace(&policy_for_server(
            &server,
            "  - { name: closed, match: { when: request.size }, deny: all }",
        ))
        .await;
    let error = wrong.unwrap_err();
    assert!(error.contains("is a number, but `when` needs a boolean"), "{error}");
    gateway.stop().await;
}
