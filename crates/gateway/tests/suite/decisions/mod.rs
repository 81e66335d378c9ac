//! The decision API.

mod concurrency;
mod openapi;
mod proxies;
mod schema;
pub(crate) mod stores;
mod tls;

pub(crate) use stores::redis_rules;

use crate::{
    admin_api::metric_value,
    harness::{RawClient, RawResponse, TEST_TIMEOUT, TestBackend, open_gateway},
};
use serde_json::{Value, json};
use std::{fs, net::SocketAddr};
use tempfile::TempDir;
use tidegate_gateway::{Gateway, GatewayError, GatewayHandle, PolicySource};
use tidegate_rule::Rules;
use tokio::{sync::oneshot, task::JoinHandle, time::timeout};

/// A gateway with a decision API and a policy file.
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

    /// Starts it with rules that can connect to stores.
    fn start_with(policy: &str, rules: Rules) -> Self {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("policy.yaml"), policy).unwrap();
        let source = PolicySource::file(folder.path().join("policy.yaml"));
        let gateway = open_gateway(source, rules);
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
        let response = self.send(path, "", &body.to_string()).await;
        (response.status(), serde_json::from_str(&response.body).unwrap())
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

/// A policy with a decision API and no upstreams.
const DECISION_POLICY: &str = "
decisions: 127.0.0.1:0
rules:
  - { name: login, key: header x-user, quota: 3/h, message: Enough. }
  - { name: pair, key: [header x-tenant, ip], quota: 2/h }
  - { name: either, key: { first: [header x-user, ip] }, quota: 2/h }
  - { name: plans, key: ip, tiers: { key: header x-plan, quotas: { gold: 5/h }, default: 1/h } }
  - { name: jobs, key: header x-user, quota: 2 at once }
  - { name: all, quota: 2/h }
  - { name: watched, key: ip, quota: 1/h, mode: shadow }
";

#[tokio::test]
async fn check_returns_limits_and_denial_is_429() {
    let api = DecisionServer::start(DECISION_POLICY);
    assert_eq!(api.gateway, None, "there are no upstreams");
    let (status, reply) = api.post("check", &json!({"rule": "login", "key": "ann", "cost": 2})).await;
    assert_eq!(status, 200);
    assert_eq!(
        (&reply["allowed"], &reply["limit"], &reply["remaining"]),
        (&json!(true), &json!(3), &json!(1))
    );
    assert_eq!(
        (&reply["quota"], &reply["degraded"], &reply["mode"]),
        (&json!("3/h"), &json!(false), &json!("enforce"))
    );

    let (_, peeked) = api.post("peek", &json!({"rule": "login", "key": "ann"})).await;
    assert_eq!((&peeked["allowed"], &peeked["remaining"]), (&json!(true), &json!(1)), "a peek takes nothing");

    let denied = api.send("check", "", r#"{"rule":"login","key":"ann","cost":2}"#).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert!(denied.header("retry-after").is_some());
    assert_eq!(denied.header("ratelimit-policy"), Some(r#""login";q=3;w=3600"#));
    let reply: Value = serde_json::from_str(&denied.body).unwrap();
    assert_eq!(
        (&reply["allowed"], &reply["status"], &reply["detail"]),
        (&json!(false), &json!(429), &json!("Enough."))
    );
    assert!(reply["retry-after"].as_f64().unwrap() > 1_000.0);
    let same = api.send("check?deny=200", "", r#"{"rule":"login","key":"ann","cost":2}"#).await;
    assert_eq!((same.status(), same.header("content-type")), (200, Some("application/json")));
    api.stop().await;
}

#[tokio::test]
async fn batch_is_answered_in_order_and_can_be_atomic() {
    let api = DecisionServer::start(DECISION_POLICY);
    let query = |key: &str, cost: u64| json!({"rule": "login", "key": key, "cost": cost});
    let (status, reply) =
        api.post("check", &json!([query("a", 2), query("a", 2), query("b", 1), query("a", 1)])).await;
    let allowed: Vec<_> =
        reply.as_array().unwrap().iter().map(|reply| reply["allowed"].as_bool().unwrap()).collect();
    assert_eq!((status, allowed), (200, vec![true, false, true, true]));

    let both = json!({"queries": [query("c", 2), query("b", 3)], "all-or-nothing": true});
    let (status, reply) = api.post("check", &both).await;
    assert_eq!((status, &reply["allowed"]), (200, &json!(false)));
    let (_, reply) = api.post("peek", &query("c", 0)).await;
    assert_eq!(reply["remaining"], 3, "nothing was charged");
    let both = json!({"queries": [query("c", 2), query("b", 2)], "all-or-nothing": true});
    let (_, reply) = api.post("check", &both).await;
    assert_eq!((&reply["allowed"], &reply["results"][0]["remaining"]), (&json!(true), &json!(1)));
    let (status, _) = api.post("check", &Value::Array(vec![query("d", 0); 1_001])).await;
    assert_eq!(status, 400);
    api.stop().await;
}

#[tokio::test]
async fn reservation_is_committed_or_released() {
    let api = DecisionServer::start(DECISION_POLICY);
    let left =
        async || api.post("peek", &json!({"rule": "login", "key": "ann"})).await.1["remaining"].clone();
    let reserve = json!({"rule": "login", "key": "ann", "cost": 3});
    let (status, reservation) = api.post("reserve", &reserve).await;
    assert_eq!((status, &reservation["expires-after"], left().await), (200, &json!(60), json!(0)));
    let (status, denied) = api.post("reserve", &reserve).await;
    assert_eq!((status, denied.get("id")), (429, None));
    let (status, _) = api.post("commit", &json!({"id": reservation["id"], "cost": 1})).await;
    assert_eq!((status, left().await), (200, json!(2)));
    assert_eq!(api.post("commit", &json!({"id": reservation["id"], "cost": 1})).await.0, 404);
    let (_, reservation) = api.post("reserve", &json!({"rule": "login", "key": "ann", "cost": 2})).await;
    assert_eq!(left().await, 0);
    assert_eq!(api.post("cancel", &json!({"id": reservation["id"]})).await.0, 200);
    assert_eq!(left().await, 2);
    let gone = json!({"id": format!("1-{:032x}", 7)});
    assert_eq!(api.post("cancel", &gone).await.0, 410);
    assert_eq!(api.post("release", &gone).await.0, 410);
    api.stop().await;
}

/// A final cost above the reserved one is debt, up to the maximum of the rule; the metrics count it.
#[tokio::test]
async fn committed_cost_above_the_reserved_one_is_debt() {
    let api = DecisionServer::start(
        "admin: 127.0.0.1:0\ndecisions: 127.0.0.1:0\nrules:\n\
         \x20 - { name: capped, quota: 100 per 1000h fixed-window, settle: { from: openai, max-debt: 20 } }\n\
         \x20 - { name: open, quota: 100 per 1000h fixed-window }\n",
    );
    for (rule, committed, left) in [("capped", 50, 50), ("open", 500, 0)] {
        let (_, reserved) = api.post("reserve", &json!({"rule": rule, "cost": 30})).await;
        let (status, commit) = api.post("commit", &json!({"id": reserved["id"], "cost": 500})).await;
        assert_eq!((status, &commit["committed"]), (200, &json!(committed)), "{rule}");
        assert_eq!(api.post("peek", &json!({"rule": rule})).await.1["remaining"], left, "{rule}");
    }
    assert_eq!(api.post("check", &json!({"rule": "open"})).await.0, 429, "the debt is not repaid");
    let (_, reserved) = api.post("reserve", &json!({"rule": "capped", "cost": 30})).await;
    api.post("commit", &json!({"id": reserved["id"], "cost": 5})).await;
    assert_eq!(api.post("peek", &json!({"rule": "capped"})).await.1["remaining"], 45);

    let request = "GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let metrics = RawClient::connect(api.admin.unwrap()).await.request(request).await.body;
    for (series, value) in [
        (r#"tidegate_settled_requests_total{rule="capped",result="stated"}"#, 2.0),
        (r#"tidegate_settled_tokens_total{rule="capped",kind="debt"}"#, 20.0),
        (r#"tidegate_settled_tokens_total{rule="capped",kind="uncharged"}"#, 450.0),
        (r#"tidegate_settled_tokens_total{rule="capped",kind="refunded"}"#, 25.0),
        (r#"tidegate_settled_tokens_total{rule="open",kind="debt"}"#, 470.0),
    ] {
        assert_eq!(metric_value(&metrics, series), value, "{series}");
    }
    api.stop().await;
}

#[tokio::test]
async fn permits_hold_slots_until_they_are_released_or_expire() {
    let api = DecisionServer::start(DECISION_POLICY);
    let acquire = json!({"rule": "jobs", "key": "ann"});
    let (_, first) = api.post("acquire", &acquire).await;
    let (status, _) = api.post("acquire", &json!({"rule": "jobs", "key": "ann", "expires": 0.001})).await;
    assert_eq!(status, 200);
    // The second permit expires, and its slot becomes free.
    let (_, third) = timeout(TEST_TIMEOUT, async {
        loop {
            match api.post("acquire", &acquire).await {
                (200, reply) => return (200, reply),
                _ => tokio::task::yield_now().await,
            }
        }
    })
    .await
    .unwrap();
    let (status, reply) = api.post("acquire", &acquire).await;
    assert_eq!(
        (status, reply["detail"].as_str()),
        (429, Some("The concurrency limit is reached; release a permit first."))
    );
    for permit in [first, third] {
        assert_eq!(api.post("release", &json!({"id": permit["id"]})).await, (200, json!({"released": true})));
        assert_eq!(api.post("release", &json!({"id": permit["id"]})).await.0, 404);
    }
    assert_eq!(api.post("reserve", &acquire).await.0, 400, "slots cannot be reserved");
    assert_eq!(api.post("acquire", &json!({"rule": "login", "key": "ann"})).await.0, 400);
    api.stop().await;
}

#[tokio::test]
async fn api_keys_match_request_keys() {
    let server = TestBackend::start_echo().await;
    let rules = DECISION_POLICY.replace("127.0.0.1:0", "127.0.0.1:0\nlisten: 127.0.0.1:0");
    let api = DecisionServer::start(&format!(
        "upstreams: {{ app: 'http://{}' }}\nroutes: app{rules}",
        server.address
    ));
    let mut client = RawClient::connect(api.gateway.unwrap()).await;
    let response = client
        .request("GET / HTTP/1.1\r\nhost: a\r\nx-user: ann\r\nx-tenant: acme\r\nx-plan: gold\r\n\r\n")
        .await;
    assert_eq!(response.status(), 200);
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
    for (query, left) in cases {
        let (status, reply) = api.post("peek", &query).await;
        assert_eq!((status, &reply["remaining"]), (200, &json!(left)), "{query}");
    }
    // The other direction.
    let response = client.request("GET / HTTP/1.1\r\nhost: a\r\nx-plan: gold\r\n\r\n").await;
    assert_eq!(response.status(), 200);
    let (_, reply) = api.post("check", &json!({"rule": "either", "key": {"ip": "127.0.0.1"}})).await;
    assert_eq!(reply["remaining"], 0, "a request without a user is counted by its address");
    api.stop().await;
}

#[tokio::test]
async fn invalid_request_error_names_field_and_fix() {
    let api = DecisionServer::start(DECISION_POLICY);
    let cases = [
        ("check", "{", 400, "line 1 column 1"),
        ("check", "7", 400, "expected an object"),
        ("check", "{}", 400, "`rule` is missing"),
        ("check", r#"{"rule":"lgoin"}"#, 404, "did you mean `login`?"),
        ("check", r#"{"rule":"login","kye":"a"}"#, 400, "unknown member `kye`; did you mean `key`?"),
        ("check", r#"[{"rule":"all"},{"rule":"login"}]"#, 400, "[1]: missing key"),
        (
            "check",
            r#"{"queries":[{"rule":"all","cost":-1}]}"#,
            400,
            "queries[0]: `cost` is not a whole number",
        ),
        ("check", r#"{"queries":7}"#, 400, "`queries` is not a list"),
        ("check", r#"{"rule":"all","key":"a"}"#, 400, "omit `key`"),
        ("check", r#"{"rule":"plans","key":"x"}"#, 400, "invalid address `x`"),
        ("check", r#"{"rule":"plans","key":"::1","tier":"glod"}"#, 400, "did you mean `gold`?"),
        ("check", r#"{"rule":"pair","key":"a"}"#, 400, "use a list of 2"),
        ("check", r#"{"rule":"either","key":{"ipp":"::1"}}"#, 400, "name one of `header x-user`, `ip`"),
        ("check?deny=302", "{}", 400, "from 400 to 599"),
        ("check?dney=200", "{}", 400, "did you mean `deny`?"),
        ("commit?deny=200", "{}", 400, "unknown parameter `deny`; remove it"),
        ("peek", r#"{"queries":[],"all-or-nothing":true}"#, 400, "`all-or-nothing` is invalid here"),
        ("commit", r#"{"queries":[],"all-or-nothing":true}"#, 400, "`all-or-nothing` is invalid here"),
        ("check", r#"{"rule":"all","cost":1.5}"#, 400, "`cost` is not a whole number"),
        ("check", r#"{"rule":"all","cost":1e999}"#, 400, "invalid JSON body"),
        ("reserve", r#"{"rule":"login","key":"a","expires":3601}"#, 400, "at most 3600"),
        ("commit", r#"{"id":"x"}"#, 400, "`cost` is missing"),
        ("release", r#"{"id":"x"}"#, 404, "unknown permit"),
        ("nothing", "{}", 404, "/v1/openapi.json"),
    ];
    for (path, body, status, part) in cases {
        let response = api.send(path, "", body).await;
        assert_eq!(response.status(), status, "{path} {body}: {}", response.body);
        assert_eq!(response.header("content-type"), Some("application/problem+json"), "{path} {body}");
        let reply: Value = serde_json::from_str(&response.body).unwrap();
        assert!(reply["detail"].as_str().unwrap().contains(part), "{path} {body}: {reply}");
    }
    let long = json!({"rule": "login", "key": "a".repeat(5_000)});
    assert_eq!(api.post("check", &long).await.0, 400);
    assert_eq!(api.send("check", "", &" ".repeat(1_000_001)).await.status(), 413);
    assert_eq!(api.post("check", &json!({"rule": "login", "key": "a".repeat(1 << 20)})).await.0, 413);
    assert_eq!(api.post("check", &Value::Array(vec![json!({"rule": "all"}); 10_000])).await.0, 400);
    // 2.0 is an integer too.
    assert_eq!(api.post("peek", &json!({"rule": "all", "cost": 2.0})).await.0, 200);
    assert_eq!(api.send("check", "origin: http://a\r\n", "{}").await.status(), 403);
    let (_, watched) = api.post("check", &json!({"rule": "watched", "key": "::1", "cost": 2})).await;
    assert_eq!((&watched["allowed"], &watched["would-allow"]), (&json!(true), &json!(false)));
    api.stop().await;
}

/// Cargo sets these variables for every test, so they serve as tokens.
const TOKEN_POLICY: &str = "
decisions: { listen: 127.0.0.1:0, tokens: [{ name: web, token: $CARGO_PKG_NAME }] }
admin: { listen: 127.0.0.1:0, token: $CARGO_PKG_VERSION }
rules:
  - { name: all, quota: 1/h }
";

/// A token for reading resets nothing. Cargo sets these variables for every test, so they serve as tokens.
#[tokio::test]
async fn reset_needs_the_role_operate() {
    let api = DecisionServer::start(
        "decisions: 127.0.0.1:0\nadmin: { listen: 127.0.0.1:0, tokens: [{ name: grafana, token: $CARGO_PKG_NAME }, \
         { name: ann, token: $CARGO_PKG_VERSION, role: operate }] }\nrules: [{ name: all, quota: 1/h }]\n",
    );
    let query = r#"{"rule":"all"}"#;
    let with = |token: &str| format!("authorization: Bearer {token}\r\n");
    assert_eq!(api.send("check", "", query).await.status(), 200);
    let refused = api.send("reset", &with(env!("CARGO_PKG_NAME")), query).await;
    assert_eq!(refused.status(), 403);
    assert!(refused.body.contains("has the role `read`; this needs the role `operate`"), "{}", refused.body);
    assert_eq!(api.send("check", "", query).await.status(), 429, "nothing was reset");
    assert_eq!(api.send("reset", &with(env!("CARGO_PKG_VERSION")), query).await.status(), 200);
    assert_eq!(api.send("check", "", query).await.status(), 200);
    api.stop().await;
}

#[tokio::test]
async fn programs_and_operators_use_separate_tokens() {
    let api = DecisionServer::start(TOKEN_POLICY);
    let (web, admin) = (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
    let query = r#"{"rule":"all"}"#;
    let with = |token: &str| format!("authorization: Bearer {token}\r\n");
    let none = api.send("check", "", query).await;
    assert_eq!((none.status(), none.header("www-authenticate")), (401, Some("Bearer realm=\"tidegate\"")));
    assert_eq!(api.send("check", &with("tidegate-serve"), query).await.status(), 401);
    assert_eq!(api.send("check", &with(web), query).await.status(), 200);
    let elsewhere = format!("x-tidegate-token: {web}\r\nauthorization: Basic YTpi\r\n");
    assert_eq!(api.send("check", &elsewhere, query).await.status(), 429);
    assert_eq!(api.send("reset", &with(web), query).await.status(), 403);
    assert_eq!(api.send("reset", &with(admin), query).await.status(), 200);
    assert_eq!(api.send("check", &with(web), query).await.status(), 200, "the counters were reset");

    let reload =
        |headers: &str| format!("POST /reload HTTP/1.1\r\nhost: a\r\n{headers}content-length: 0\r\n\r\n");
    let mut operator = RawClient::connect(api.admin.unwrap()).await;
    assert_eq!(operator.request(&reload("")).await.status(), 401);
    assert_eq!(operator.request(&reload(&with(web))).await.status(), 401);
    assert_eq!(operator.request(&reload(&with(admin))).await.status(), 200);
    api.stop().await;

    let missing =
        "decisions: { listen: 127.0.0.1:0, tokens: { name: web, token: $UNSET_VARIABLE } }".parse().unwrap();
    let error = Gateway::open(PolicySource::inline(missing), Rules::new()).unwrap_err().to_string();
    assert!(error.contains("environment variable UNSET_VARIABLE"), "{error}");
}

#[tokio::test]
async fn reload_keeps_counters_of_decision_api() {
    let api = DecisionServer::start(DECISION_POLICY);
    let query = json!({"rule": "login", "key": "ann", "cost": 3});
    assert_eq!(api.post("check", &query).await.0, 200);
    let (_, reservation) = api.post("acquire", &json!({"rule": "jobs", "key": "ann", "cost": 2})).await;
    let next = DECISION_POLICY.replace("quota: 3/h", "quota: 4/h");
    fs::write(api.folder.path().join("policy.yaml"), next).unwrap();
    api.handle.reload().await.unwrap();
    let (_, reply) = api.post("peek", &json!({"rule": "login", "key": "ann"})).await;
    assert_eq!((&reply["limit"], &reply["remaining"]), (&json!(4), &json!(1)));
    assert_eq!(
        api.post("acquire", &json!({"rule": "jobs", "key": "ann"})).await.0,
        429,
        "the slots are still in use"
    );
    assert_eq!(api.post("release", &json!({"id": reservation["id"]})).await.0, 200);
    api.stop().await;
}
