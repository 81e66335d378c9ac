//! Limits over plain HTTP.

mod concurrency;
mod openapi;
mod proxies;
mod schema;
mod stores;
mod tls;

use crate::harness::{RawClient, RawResponse, TEST_TIMEOUT, TestBackend};
use serde_json::{Value, json};
use std::{fs, net::SocketAddr};
use tempfile::TempDir;
use tidegate_gateway::{Gateway, GatewayError, GatewayHandle, PolicySource};
use tidegate_rule::Rules;
use tokio::{sync::oneshot, task::JoinHandle, time::timeout};

/// A service that decides by a file.
struct DecisionServer {
    decisions: SocketAddr,
    gateway: Option<SocketAddr>,
    admin: Option<SocketAddr>,
    handle: GatewayHandle,
    folder: TempDir,
    stop: oneshot::Sender<()>,
    end: JoinHandle<Result<(), GatewayError>>,
}

impl DecisionServer {
    fn start(policy: &str) -> Self {
        Self::start_with(policy, Rules::new())
    }

    /// One with rules that know how to connect to stores.
    fn start_with(policy: &str, rules: Rules) -> Self {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("policy.yaml"), policy).unwrap();
        let source = PolicySource::file(folder.path().join("policy.yaml"));
        let gateway = Gateway::open(source, rules).unwrap();
        let decisions = gateway.decisions_address().unwrap();
        let (address, admin) = (gateway.addresses().first().copied(), gateway.admin_address());
        let handle = gateway.handle();
        let (stop, stopped) = oneshot::channel::<()>();
        let end = tokio::spawn(gateway.run(async {
            let _ = stopped.await;
        }));
        Self { decisions, gateway: address, admin, handle, folder, stop, end }
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let answer = self.send(path, "", &body.to_string()).await;
        (answer.status(), serde_json::from_str(&answer.body).unwrap())
    }

    async fn send(&self, path: &str, headers: &str, body: &str) -> RawResponse {
        let length = body.len();
        let head =
            format!("POST /v1/{path} HTTP/1.1\r\nhost: a\r\n{headers}content-length: {length}\r\n\r\n{body}");
        timeout(TEST_TIMEOUT, RawClient::connect(self.decisions).await.request(&head)).await.unwrap()
    }

    async fn forward_auth(&self, query: &str, headers: &str) -> RawResponse {
        let head = format!("GET /v1/auth{query} HTTP/1.1\r\nhost: a\r\n{headers}\r\n");
        timeout(TEST_TIMEOUT, RawClient::connect(self.decisions).await.request(&head)).await.unwrap()
    }

    async fn stop(self) {
        drop(self.stop);
        timeout(TEST_TIMEOUT, self.end).await.unwrap().unwrap().unwrap();
    }
}

/// What decides and serves nobody.
const DECISION_POLICY: &str = "
decisions: 127.0.0.1:0
rules:
  - { name: login, key: header x-user, quota: 3/h, message: Enough. }
  - { name: pair, key: [header x-tenant, ip], quota: 2/h }
  - { name: either, key: { first: [header x-user, ip] }, quota: 2/h }
  - { name: plans, key: ip, tiers: { by: header x-plan, each: { gold: 5/h }, else: 1/h } }
  - { name: jobs, key: header x-user, quota: 2 at once }
  - { name: all, quota: 2/h }
  - { name: watched, key: ip, quota: 1/h, mode: shadow }
";

#[tokio::test]
async fn check_returns_limits_and_denial_is_429() {
    let stage = DecisionServer::start(DECISION_POLICY);
    assert_eq!(stage.gateway, None, "there is nothing to go to");
    let (status, told) = stage.post("check", &json!({"rule": "login", "key": "ann", "cost": 2})).await;
    assert_eq!(status, 200);
    assert_eq!((&told["allowed"], &told["limit"], &told["remaining"]), (&json!(true), &json!(3), &json!(1)));
    assert_eq!(
        (&told["quota"], &told["degraded"], &told["mode"]),
        (&json!("3/h"), &json!(false), &json!("enforce"))
    );

    let (_, peeked) = stage.post("peek", &json!({"rule": "login", "key": "ann"})).await;
    assert_eq!((&peeked["allowed"], &peeked["remaining"]), (&json!(true), &json!(1)), "nothing was taken");

    let denied = stage.send("check", "", r#"{"rule":"login","key":"ann","cost":2}"#).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert!(denied.header("retry-after").is_some());
    assert_eq!(denied.header("ratelimit-policy"), Some(r#""login";q=3;w=3600"#));
    let told: Value = serde_json::from_str(&denied.body).unwrap();
    assert_eq!(
        (&told["allowed"], &told["status"], &told["detail"]),
        (&json!(false), &json!(429), &json!("Enough."))
    );
    assert!(told["retry-after"].as_f64().unwrap() > 1_000.0);
    let same = stage.send("check?deny=200", "", r#"{"rule":"login","key":"ann","cost":2}"#).await;
    assert_eq!((same.status(), same.header("content-type")), (200, Some("application/json")));
    stage.stop().await;
}

#[tokio::test]
async fn batch_is_answered_in_order_and_can_be_atomic() {
    let stage = DecisionServer::start(DECISION_POLICY);
    let ask = |key: &str, cost: u64| json!({"rule": "login", "key": key, "cost": cost});
    let (status, told) =
        stage.post("check", &json!([ask("a", 2), ask("a", 2), ask("b", 1), ask("a", 1)])).await;
    let allowed: Vec<_> =
        told.as_array().unwrap().iter().map(|told| told["allowed"].as_bool().unwrap()).collect();
    assert_eq!((status, allowed), (200, vec![true, false, true, true]));

    let both = json!({"asks": [ask("c", 2), ask("b", 3)], "all-or-nothing": true});
    let (status, told) = stage.post("check", &both).await;
    assert_eq!((status, &told["allowed"]), (200, &json!(false)));
    let (_, told) = stage.post("peek", &ask("c", 0)).await;
    assert_eq!(told["remaining"], 3, "nothing was charged");
    let both = json!({"asks": [ask("c", 2), ask("b", 2)], "all-or-nothing": true});
    let (_, told) = stage.post("check", &both).await;
    assert_eq!((&told["allowed"], &told["answers"][0]["remaining"]), (&json!(true), &json!(1)));
    let (status, _) = stage.post("check", &Value::Array(vec![ask("d", 0); 1_001])).await;
    assert_eq!(status, 400);
    stage.stop().await;
}

#[tokio::test]
async fn reservation_is_committed_or_released() {
    let stage = DecisionServer::start(DECISION_POLICY);
    let left =
        async || stage.post("peek", &json!({"rule": "login", "key": "ann"})).await.1["remaining"].clone();
    let reserve = json!({"rule": "login", "key": "ann", "cost": 3});
    let (status, held) = stage.post("reserve", &reserve).await;
    assert_eq!((status, &held["expires-after"], left().await), (200, &json!(60), json!(0)));
    let (status, denied) = stage.post("reserve", &reserve).await;
    assert_eq!((status, denied.get("id")), (429, None));
    let (status, _) = stage.post("commit", &json!({"id": held["id"], "cost": 1})).await;
    assert_eq!((status, left().await), (200, json!(2)));
    assert_eq!(stage.post("commit", &json!({"id": held["id"], "cost": 1})).await.0, 404);
    let (_, held) = stage.post("reserve", &json!({"rule": "login", "key": "ann", "cost": 2})).await;
    assert_eq!(left().await, 0);
    assert_eq!(stage.post("cancel", &json!({"id": held["id"]})).await.0, 200);
    assert_eq!(left().await, 2);
    let gone = json!({"id": format!("1-{:032x}", 7)});
    assert_eq!(stage.post("cancel", &gone).await.0, 410);
    assert_eq!(stage.post("release", &gone).await.0, 410);
    stage.stop().await;
}

#[tokio::test]
async fn permits_hold_slots_until_they_are_released_or_expire() {
    let stage = DecisionServer::start(DECISION_POLICY);
    let acquire = json!({"rule": "jobs", "key": "ann"});
    let (_, first) = stage.post("acquire", &acquire).await;
    let (status, _) = stage.post("acquire", &json!({"rule": "jobs", "key": "ann", "expires": 0.001})).await;
    assert_eq!(status, 200);
    // The second ends by itself, and its slot is there for the next.
    let (_, third) = timeout(TEST_TIMEOUT, async {
        loop {
            match stage.post("acquire", &acquire).await {
                (200, told) => return (200, told),
                _ => tokio::task::yield_now().await,
            }
        }
    })
    .await
    .unwrap();
    let (status, told) = stage.post("acquire", &acquire).await;
    assert_eq!(
        (status, told["detail"].as_str()),
        (429, Some("All slots are held; one has to be released first."))
    );
    for permit in [first, third] {
        assert_eq!(
            stage.post("release", &json!({"id": permit["id"]})).await,
            (200, json!({"released": true}))
        );
        assert_eq!(stage.post("release", &json!({"id": permit["id"]})).await.0, 404);
    }
    assert_eq!(stage.post("reserve", &acquire).await.0, 400, "slots are not reserved");
    assert_eq!(stage.post("acquire", &json!({"rule": "login", "key": "ann"})).await.0, 400);
    stage.stop().await;
}

#[tokio::test]
async fn api_keys_match_request_keys() {
    let server = TestBackend::start_echo().await;
    let rules = DECISION_POLICY.replace("127.0.0.1:0", "127.0.0.1:0\nlisten: 127.0.0.1:0");
    let stage = DecisionServer::start(&format!(
        "upstreams: {{ app: 'http://{}' }}\nroutes: app{rules}",
        server.address
    ));
    let mut client = RawClient::connect(stage.gateway.unwrap()).await;
    let seen = client
        .request("GET / HTTP/1.1\r\nhost: a\r\nx-user: ann\r\nx-tenant: acme\r\nx-plan: gold\r\n\r\n")
        .await;
    assert_eq!(seen.status(), 200);
    let cases = [
        (json!({"rule": "login", "key": "ann"}), 2),
        (json!({"rule": "login", "key": "bob"}), 3),
        (json!({"rule": "pair", "key": ["acme", "127.0.0.1"]}), 1),
        (json!({"rule": "pair", "key": ["acme", "::ffff:127.0.0.1"]}), 1),
        (json!({"rule": "pair", "key": ["acme", "127.0.0.2"]}), 2),
        (json!({"rule": "either", "key": "ann"}), 1),
        (json!({"rule": "either", "key": {"header x-user": "ann"}}), 1),
        (json!({"rule": "either", "key": {"ip": "127.0.0.1"}}), 2),
        (json!({"rule": "plans", "key": "127.0.0.1", "tier": "gold"}), 4),
        (json!({"rule": "all"}), 1),
    ];
    for (ask, left) in cases {
        let (status, told) = stage.post("peek", &ask).await;
        assert_eq!((status, &told["remaining"]), (200, &json!(left)), "{ask}");
    }
    // And the other way round.
    let seen = client.request("GET / HTTP/1.1\r\nhost: a\r\nx-plan: gold\r\n\r\n").await;
    assert_eq!(seen.status(), 200);
    let (_, told) = stage.post("check", &json!({"rule": "either", "key": {"ip": "127.0.0.1"}})).await;
    assert_eq!(told["remaining"], 0, "a request without a name is counted by its address");
    stage.stop().await;
}

#[tokio::test]
async fn invalid_request_error_names_field_and_fix() {
    let stage = DecisionServer::start(DECISION_POLICY);
    let cases = [
        ("check", "{", 400, "line 1 column 1"),
        ("check", "7", 400, "an object is needed here"),
        ("check", "{}", 400, "`rule` is missing"),
        ("check", r#"{"rule":"lgoin"}"#, 404, "did you mean `login`?"),
        ("check", r#"{"rule":"login","kye":"a"}"#, 400, "unknown member `kye`; did you mean `key`?"),
        ("check", r#"[{"rule":"all"},{"rule":"login"}]"#, 400, "[1]: there is no key"),
        ("check", r#"{"asks":[{"rule":"all","cost":-1}]}"#, 400, "asks[0]: `cost` is not a whole number"),
        ("check", r#"{"asks":7}"#, 400, "`asks` is no list"),
        ("check", r#"{"rule":"all","key":"a"}"#, 400, "leave `key` out"),
        ("check", r#"{"rule":"plans","key":"x"}"#, 400, "`x` is not an address"),
        ("check", r#"{"rule":"plans","key":"::1","tier":"glod"}"#, 400, "did you mean `gold`?"),
        ("check", r#"{"rule":"pair","key":"a"}"#, 400, "give a list of 2"),
        ("check", r#"{"rule":"either","key":{"ipp":"::1"}}"#, 400, "name one of `header x-user`, `ip`"),
        ("check?deny=302", "{}", 400, "from 400 to 599"),
        ("check?dney=200", "{}", 400, "did you mean `deny`?"),
        ("commit?deny=200", "{}", 400, "unknown parameter `deny`; leave it out"),
        ("peek", r#"{"asks":[],"all-or-nothing":true}"#, 400, "leave `all-or-nothing` out"),
        ("commit", r#"{"asks":[],"all-or-nothing":true}"#, 400, "leave `all-or-nothing` out"),
        ("check", r#"{"rule":"all","cost":1.5}"#, 400, "`cost` is not a whole number"),
        ("check", r#"{"rule":"all","cost":1e999}"#, 400, "the body is not JSON"),
        ("reserve", r#"{"rule":"login","key":"a","expires":3601}"#, 400, "3600 at most"),
        ("commit", r#"{"id":"x"}"#, 400, "`cost` is missing"),
        ("release", r#"{"id":"x"}"#, 404, "there is no such permit"),
        ("nothing", "{}", 404, "/v1/openapi.json"),
    ];
    for (path, body, status, part) in cases {
        let answer = stage.send(path, "", body).await;
        assert_eq!(answer.status(), status, "{path} {body}: {}", answer.body);
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{path} {body}");
        let told: Value = serde_json::from_str(&answer.body).unwrap();
        assert!(told["detail"].as_str().unwrap().contains(part), "{path} {body}: {told}");
    }
    let long = json!({"rule": "login", "key": "a".repeat(5_000)});
    assert_eq!(stage.post("check", &long).await.0, 400);
    assert_eq!(stage.send("check", "", &" ".repeat(1_000_001)).await.status(), 413);
    assert_eq!(stage.post("check", &json!({"rule": "login", "key": "a".repeat(1 << 20)})).await.0, 413);
    assert_eq!(stage.post("check", &Value::Array(vec![json!({"rule": "all"}); 10_000])).await.0, 400);
    // However a whole number is written, it is one.
    assert_eq!(stage.post("peek", &json!({"rule": "all", "cost": 2.0})).await.0, 200);
    assert_eq!(stage.send("check", "origin: http://a\r\n", "{}").await.status(), 403);
    let (_, watched) = stage.post("check", &json!({"rule": "watched", "key": "::1", "cost": 2})).await;
    assert_eq!((&watched["allowed"], &watched["would-allow"]), (&json!(true), &json!(false)));
    stage.stop().await;
}

/// Cargo says these to every test, so they can stand for secrets.
const TOKEN_POLICY: &str = "
decisions: { listen: 127.0.0.1:0, tokens: [{ name: web, token: $CARGO_PKG_NAME }] }
admin: { listen: 127.0.0.1:0, token: $CARGO_PKG_VERSION }
rules:
  - { name: all, quota: 1/h }
";

#[tokio::test]
async fn programs_and_operators_use_separate_tokens() {
    let stage = DecisionServer::start(TOKEN_POLICY);
    let (web, admin) = (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
    let ask = r#"{"rule":"all"}"#;
    let with = |token: &str| format!("authorization: Bearer {token}\r\n");
    let none = stage.send("check", "", ask).await;
    assert_eq!((none.status(), none.header("www-authenticate")), (401, Some("Bearer realm=\"tidegate\"")));
    assert_eq!(stage.send("check", &with("tidegate-serve"), ask).await.status(), 401);
    assert_eq!(stage.send("check", &with(web), ask).await.status(), 200);
    let elsewhere = format!("x-tidegate-token: {web}\r\nauthorization: Basic YTpi\r\n");
    assert_eq!(stage.send("check", &elsewhere, ask).await.status(), 429);
    assert_eq!(stage.send("reset", &with(web), ask).await.status(), 403);
    assert_eq!(stage.send("reset", &with(admin), ask).await.status(), 200);
    assert_eq!(stage.send("check", &with(web), ask).await.status(), 200, "it was forgotten");

    let reload =
        |headers: &str| format!("POST /reload HTTP/1.1\r\nhost: a\r\n{headers}content-length: 0\r\n\r\n");
    let mut operator = RawClient::connect(stage.admin.unwrap()).await;
    assert_eq!(operator.request(&reload("")).await.status(), 401);
    assert_eq!(operator.request(&reload(&with(web))).await.status(), 401);
    assert_eq!(operator.request(&reload(&with(admin))).await.status(), 200);
    stage.stop().await;

    let missing =
        "decisions: { listen: 127.0.0.1:0, tokens: { name: web, token: $NOBODY_SET_THIS } }".parse().unwrap();
    let error = Gateway::open(PolicySource::inline(missing), Rules::new()).unwrap_err().to_string();
    assert!(error.contains("the variable NOBODY_SET_THIS"), "{error}");
}

#[tokio::test]
async fn reload_keeps_counters_of_decision_api() {
    let stage = DecisionServer::start(DECISION_POLICY);
    let ask = json!({"rule": "login", "key": "ann", "cost": 3});
    assert_eq!(stage.post("check", &ask).await.0, 200);
    let (_, held) = stage.post("acquire", &json!({"rule": "jobs", "key": "ann", "cost": 2})).await;
    let next = DECISION_POLICY.replace("quota: 3/h", "quota: 4/h");
    fs::write(stage.folder.path().join("policy.yaml"), next).unwrap();
    stage.handle.reload().await.unwrap();
    let (_, told) = stage.post("peek", &json!({"rule": "login", "key": "ann"})).await;
    assert_eq!((&told["limit"], &told["remaining"]), (&json!(4), &json!(1)));
    assert_eq!(
        stage.post("acquire", &json!({"rule": "jobs", "key": "ann"})).await.0,
        429,
        "it is still held"
    );
    assert_eq!(stage.post("release", &json!({"id": held["id"]})).await.0, 200);
    stage.stop().await;
}
