//! Load shedding, features, quotas that follow the load, and circuit breakers, with a real gateway.
//!
//! The load is the memory use in a file that the test writes. Readings, cooldowns and open durations are a few milliseconds,
//! and each test waits until the gateway shows the effect.

use crate::{
    admin_api::{AdminGateway, metric_value},
    harness::{LogCapture, RawResponse, TEST_TIMEOUT, TestBackend, text_body},
    load_balancing::start_named,
};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};
use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tempfile::TempDir;
use tidegate_rule::Rules;
use tokio::{
    sync::Semaphore,
    time::{sleep, timeout},
};

/// A machine whose memory use is a file.
pub(crate) struct FakeMachine {
    pub(crate) directory: TempDir,
}

impl FakeMachine {
    pub(crate) fn with_load(percent: u64) -> Self {
        let machine = Self { directory: TempDir::new().unwrap() };
        machine.write_load(percent);
        machine
    }

    /// Replaces the file as a whole: the gateway reads it at any time.
    pub(crate) fn write_load(&self, percent: u64) {
        let text = format!("MemTotal: 100000 kB\nMemAvailable: {} kB\n", 100_000 - percent * 1_000);
        let next = self.directory.path().join("next");
        fs::write(&next, text).unwrap();
        fs::rename(next, self.directory.path().join("meminfo")).unwrap();
    }

    /// The `load` of a policy.
    fn policy(&self) -> String {
        let directory = self.directory.path().display();
        format!(
            "load: {{ signals: [memory], proc: {directory}, cgroup: {directory}/none, interval: 5ms, cooldown: 10ms }}\n"
        )
    }

    pub(crate) fn log_file(&self) -> PathBuf {
        self.directory.path().join("access.log")
    }

    /// An access log.
    pub(crate) fn log_policy(&self) -> String {
        format!("log: {{ format: json, file: {} }}\nobserve: {{ denials: 100 }}\n", self.log_file().display())
    }

    /// The `rule` and `decision` of each logged request with this status.
    fn logged(&self, status: u16) -> Vec<(String, String)> {
        let text = fs::read_to_string(self.log_file()).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let member = |line: &Value, name: &str| line[name].as_str().unwrap_or_default().to_owned();
        lines
            .filter(|line| line["status"] == status)
            .map(|line| (member(&line, "rule"), member(&line, "decision")))
            .collect()
    }
}

/// Waits until a condition is true.
pub(crate) async fn wait_until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !condition().await {
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(TEST_TIMEOUT, waiting).await.unwrap_or_else(|_| panic!("{what}: not in time"));
}

impl AdminGateway {
    pub(crate) async fn status_of(&self, path: &str, header: &str) -> u16 {
        self.get_with_header(path, header).await.status()
    }

    pub(crate) async fn wait_for_status(&self, path: &str, header: &str, expected: u16) {
        wait_until(&format!("{path} {header:?} returns {expected}"), async || {
            self.status_of(path, header).await == expected
        })
        .await;
    }

    pub(crate) async fn status_at(&self, pointer: &str) -> Value {
        self.admin_json("/api/v1/status").await.pointer(pointer).cloned().unwrap_or_default()
    }

    pub(crate) async fn set_feature(&self, name: &str, body: &str) -> RawResponse {
        self.admin_request("POST", &format!("/api/v1/features/{name}"), body).await
    }
}

pub(crate) const CLASSES: [&str; 4] = ["critical", "high", "normal", "low"];

pub(crate) fn priority(class: &str) -> String {
    format!("x-priority: {class}\r\n")
}

#[tokio::test]
async fn load_sheds_low_priorities_and_readmits_them() {
    let (server, machine) = (TestBackend::start_echo().await, FakeMachine::with_load(95));
    let rules = "rules: [{ name: pages, priority: { key: header x-priority, default: low }, shed: { low: 60%, normal: 80% } }]";
    let gateway = AdminGateway::start(&server, &(machine.policy() + &machine.log_policy() + rules));
    gateway.wait_for_status("/", &priority("normal"), 503).await;
    let mut statuses = Vec::new();
    for class in CLASSES {
        statuses.push(gateway.status_of("/", &priority(class)).await);
    }
    assert_eq!(statuses, [200, 200, 503, 503]);

    let status = gateway.admin_json("/api/v1/status").await;
    assert_eq!(
        status["load"],
        json!({ "percent": 95.0, "level": "critical", "signals": [{ "name": "memory", "percent": 95.0 }] })
    );
    assert_eq!(status["rules"][0]["shedding"], json!(["normal", "low"]));
    assert!(status["rules"][0]["denied-by"]["overloaded"].as_u64() >= Some(3), "{status}");
    let metrics = gateway.metrics().await;
    for (name, value) in [
        ("tidegate_load_ratio{signal=\"memory\"}", 0.95),
        ("tidegate_load_level", 3.0),
        ("tidegate_rule_shedding{rule=\"pages\"}", 1.0),
    ] {
        assert_eq!(metric_value(&metrics, name), value, "{name}");
    }
    assert!(metric_value(&metrics, "tidegate_decisions_total{rule=\"pages\",outcome=\"overloaded\"}") >= 3.0);
    let rejected = gateway.get("/").await;
    let denial = rejected.header("tidegate-denial").unwrap();
    assert_eq!(gateway.admin_json(&format!("/api/v1/denials/{denial}")).await["reason"], "overloaded");

    machine.write_load(65);
    gateway.wait_for_status("/", &priority("normal"), 200).await;
    assert_eq!(gateway.status_of("/", &priority("low")).await, 503, "the load is above its threshold");
    machine.write_load(10);
    gateway.wait_for_status("/", &priority("low"), 200).await;
    assert_eq!(gateway.status_at("/rules/0/shedding").await, json!([]));
    wait_until("level relaxed", async || gateway.status_at("/load/level").await == "relaxed").await;
    let metrics = gateway.metrics().await;
    assert_eq!(metric_value(&metrics, "tidegate_rule_shedding{rule=\"pages\"}"), 0.0);
    assert_eq!(metric_value(&metrics, "tidegate_load_level"), 0.0);
    gateway.stop().await;
    let logged = machine.logged(503);
    let expected = ("pages".to_owned(), "overloaded".to_owned());
    assert!(logged.len() >= 4 && logged.iter().all(|line| *line == expected), "{logged:?}");
}

#[tokio::test]
async fn policy_without_load_reports_none() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, "rules: [{ name: all, quota: 9/s }]");
    let status = gateway.admin_json("/api/v1/status").await;
    assert_eq!((&status["load"], &status["features"]), (&Value::Null, &json!([])));
    for member in ["feature", "shedding", "scale", "while-failing"] {
        assert_eq!(status["rules"][0].get(member), Some(&Value::Null), "{member}");
    }
    assert_eq!(gateway.admin_json("/api/v1/features").await, json!({ "features": [] }));
    let unknown = gateway.set_feature("search", r#"{"state":"off"}"#).await;
    assert_eq!(unknown.status(), 404);
    assert!(unknown.body.contains("no features are configured"), "{}", unknown.body);
    gateway.stop().await;
}

#[tokio::test]
async fn rate_limit_headers_follow_a_quota_under_load() {
    let (server, machine) = (TestBackend::start_echo().await, FakeMachine::with_load(95));
    let rules =
        "rules: [{ name: all, quota: 1000/min, scale: { high: 80%, low: 50%, min: x0.5, interval: 5ms } }]";
    let gateway = AdminGateway::start(&server, &(machine.policy() + rules));
    let has_quota = async |expected: &str| {
        gateway.get("/").await.header("ratelimit-policy").is_some_and(|policy| policy == expected)
    };
    wait_until("the quota shrinks", async || has_quota(r#""all";q=500;w=60"#).await).await;
    assert_eq!(gateway.status_at("/rules/0/scale").await, 0.5);
    assert_eq!(gateway.status_at("/rules/0/quotas/0/limit").await, 500);
    machine.write_load(10);
    wait_until("the quota recovers", async || has_quota(r#""all";q=1000;w=60"#).await).await;
    wait_until("the factor recovers", async || gateway.status_at("/rules/0/scale").await == 1.0).await;
    gateway.stop().await;
}

/// Two upstreams, and three features with different responses while they are off.
fn feature_policy(machine: &FakeMachine, [app, spare]: [&TestBackend; 2], last_rule: &str) -> String {
    format!(
        "listen: 127.0.0.1:0\nadmin: {{ listen: 127.0.0.1:0, token: $CARGO_PKG_VERSION }}\n\
         upstreams: {{ app: 'http://{}', spare: 'http://{}' }}\nroutes: app\n{}{}\
         features: {{ search: critical, similar: busy, beta: manual }}\nfeature-recovery: 5ms\nrules:\n\
         \x20 - {{ name: search, match: {{ path: /search }}, feature: search, on-limit: {{ fallback: {{ upstream: spare }} }} }}\n\
         \x20 - {{ name: similar, match: {{ path: /similar }}, feature: similar, on-limit: {{ fallback: {{ body: '[]' }} }} }}\n\
         {last_rule}",
        app.address,
        spare.address,
        machine.policy(),
        machine.log_policy(),
    )
}

const BETA_RULE: &str = "  - { name: beta, match: { path: /beta }, feature: beta }\n";

#[tokio::test]
async fn load_turns_features_off_and_fallbacks_respond() {
    let mut log = LogCapture::start();
    let (app, spare) = (start_named("app").await, start_named("spare").await);
    let machine = FakeMachine::with_load(95);
    let policy = feature_policy(&machine, [&app, &spare], BETA_RULE);
    let gateway = AdminGateway::start_policy(&policy, Rules::new());
    log.wait_for("message=load level changed level=\"critical\" share=\"95%\"").await;
    log.wait_for("message=feature off feature=\"search\" cause=\"load\" level=\"critical\"").await;
    log.wait_for("message=feature off feature=\"similar\" cause=\"load\" level=\"critical\"").await;
    for (path, body) in [("/search", "spare"), ("/similar", "[]"), ("/beta", "app")] {
        let response = gateway.get(path).await;
        assert_eq!((response.status(), response.body.as_str()), (200, body), "{path}");
    }
    let status = gateway.admin_json("/api/v1/status").await;
    let expected = json!([
        { "name": "search", "on": false, "override": "automatic", "cause": "load" },
        { "name": "similar", "on": false, "override": "automatic", "cause": "load" },
        { "name": "beta", "on": true, "override": "automatic", "cause": null },
    ]);
    assert_eq!(status["features"], expected);
    assert_eq!(gateway.admin_json("/api/v1/features").await["features"], expected);
    assert_eq!(status["rules"][1]["feature"], json!({ "name": "similar", "on": false }));
    assert_eq!(status["rules"][1]["denied-by"]["feature-off"], 1);
    let metrics = gateway.metrics().await;
    for (name, value) in [
        ("tidegate_feature_enabled{feature=\"similar\"}", 0.0),
        ("tidegate_feature_enabled{feature=\"beta\"}", 1.0),
        ("tidegate_decisions_total{rule=\"search\",outcome=\"feature-off\"}", 1.0),
    ] {
        assert_eq!(metric_value(&metrics, name), value, "{name}");
    }

    machine.write_load(10);
    for (path, feature) in [("/search", "search"), ("/similar", "similar")] {
        wait_until(feature, async || gateway.get(path).await.body == "app").await;
        log.wait_for(&format!("message=feature on feature=\"{feature}\"")).await;
    }
    gateway.stop().await;
    let off = |rule: &str| (rule.to_owned(), "feature-off".to_owned());
    let logged = machine.logged(200);
    assert!(logged.contains(&off("search")) && logged.contains(&off("similar")), "{logged:?}");
}

#[tokio::test]
async fn operator_turns_feature_off_until_it_is_automatic_again() {
    let mut log = LogCapture::start();
    let (app, spare) = (start_named("app").await, start_named("spare").await);
    let machine = FakeMachine::with_load(10);
    let policy = feature_policy(&machine, [&app, &spare], BETA_RULE);
    let gateway = AdminGateway::start_policy(&policy, Rules::new());
    assert_eq!(gateway.get("/beta").await.status(), 200);

    let response = gateway.set_feature("beta", r#"{"state":"off","reason":"slow database"}"#).await;
    assert_eq!(response.status(), 200, "{}", response.body);
    let off = json!({ "name": "beta", "on": false, "override": "off", "cause": "operator" });
    assert_eq!(serde_json::from_str::<Value>(&response.body).unwrap(), off);
    log.wait_for("message=feature turned off feature=\"beta\" reason=\"slow database\" by=\"api\"").await;
    // Each connection may be served by another worker.
    for _ in 0..20 {
        assert_eq!(gateway.get("/beta").await.status(), 503);
    }
    let rejected = gateway.get("/beta").await;
    let denial = rejected.header("tidegate-denial").unwrap();
    let denial = gateway.admin_json(&format!("/api/v1/denials/{denial}")).await;
    assert_eq!((&denial["reason"], &denial["rule"]), (&json!("feature-off"), &json!("beta")));

    // A reload keeps the override.
    let changed = format!("{BETA_RULE}  - {{ name: more, quota: 1000/s }}\n");
    gateway.replace_policy(&feature_policy(&machine, [&app, &spare], &changed)).await;
    assert_eq!(gateway.status_at("/rules/3/name").await, "more");
    assert_eq!(gateway.get("/beta").await.status(), 503);
    assert_eq!(gateway.status_at("/features/2").await, off);

    // An override wins over the load.
    assert_eq!(gateway.set_feature("similar", r#"{"state":"on"}"#).await.status(), 200);
    log.wait_for("message=feature turned on feature=\"similar\" by=\"api\"").await;
    machine.write_load(95);
    wait_until("search is off", async || gateway.status_at("/features/0/on").await == false).await;
    assert_eq!(gateway.get("/similar").await.body, "app");
    assert_eq!(gateway.set_feature("similar", r#"{"state":"auto","reason":null}"#).await.status(), 200);
    log.wait_for("message=feature set to automatic feature=\"similar\" by=\"api\"").await;
    assert_eq!(gateway.get("/similar").await.body, "[]");

    assert_eq!(gateway.set_feature("beta", r#"{"state":"auto"}"#).await.status(), 200);
    assert_eq!(gateway.get("/beta").await.status(), 200);
    gateway.stop().await;
    let expected = ("beta".to_owned(), "feature-off".to_owned());
    let logged = machine.logged(503);
    assert!(logged.len() == 22 && logged.iter().all(|line| *line == expected), "{logged:?}");
}

#[tokio::test]
async fn change_of_operator_is_logged_once() {
    let mut log = LogCapture::start();
    let server = TestBackend::start_echo().await;
    let gateway =
        AdminGateway::start(&server, "features: { beta: manual }\nrules: [{ name: a, feature: beta }]");
    assert_eq!(gateway.set_feature("beta", r#"{"state":"off"}"#).await.status(), 200);
    assert_eq!(gateway.set_feature("beta", r#"{"state":"on"}"#).await.status(), 200);
    // The next ticks log nothing about it: only the second feature follows.
    gateway
        .replace_policy(&fs::read_to_string(gateway.folder.path().join("policy.yaml")).unwrap().replace(
            "features: { beta: manual }",
            "features: { beta: manual, night: { off-during: '00:00-24:00' } }",
        ))
        .await;
    let events = log.collect_until("message=feature off feature=\"night\" cause=\"schedule\"").await;
    let about_beta: Vec<_> = events.iter().filter(|event| event.contains("feature=\"beta\"")).collect();
    assert_eq!(about_beta.len(), 2, "{events:?}");
    gateway.stop().await;
}

#[tokio::test]
async fn invalid_change_of_feature_is_rejected() {
    let server = TestBackend::start_echo().await;
    let policy = "features: { search: manual, similar: manual }\nrules: [{ name: a, feature: search }]";
    let gateway = AdminGateway::start(&server, policy);
    let long = "x".repeat(201);
    for (name, body, status, part) in [
        ("serach", r#"{"state":"off"}"#, 404, "unknown feature `serach`; did you mean `search`?"),
        ("%20", r#"{"state":"off"}"#, 404, "use one of search, similar"),
        ("search", r#"{"state":"broken"}"#, 400, "`state` must be `on`, `off` or `auto`"),
        ("search", r#"{"state":true}"#, 400, "`state` is not a string"),
        ("search", r#"{}"#, 400, "`state` is missing"),
        ("search", r#"{"stat":"on"}"#, 400, "unknown member `stat`; did you mean `state`?"),
        ("search", "7", 400, "expected an object"),
        ("search", "{", 400, "invalid JSON body"),
        ("search", &format!(r#"{{"state":"on","reason":"{long}"}}"#), 400, "`reason` is too long"),
    ] {
        let response = gateway.set_feature(name, body).await;
        assert!(
            response.status() == status && response.body.contains(part),
            "{name} {body}: {} {}",
            response.status(),
            response.body
        );
    }
    let large = format!(r#"{{"state":"on","reason":"{}"}}"#, "x".repeat(2 << 20));
    assert_eq!(gateway.set_feature("search", &large).await.status(), 413);
    assert_eq!(gateway.admin_request("GET", "/api/v1/features/search", "").await.status(), 405);
    for header in ["", "authorization: Bearer wrong\r\n"] {
        for (method, path) in [("POST", "/api/v1/features/search"), ("GET", "/api/v1/features")] {
            let response =
                gateway.admin_request_with_header(method, path, header, r#"{"state":"off"}"#).await;
            assert_eq!(response.status(), 401, "{method} {path}");
        }
    }
    assert_eq!(gateway.status_at("/features/0/override").await, "automatic");
    gateway.stop().await;

    // Without a token, a listener that is not on loopback accepts no changes.
    let policy = "listen: 127.0.0.1:0\nadmin: 0.0.0.0:0\nfeatures: { search: manual }\nrules: [{ name: a, feature: search }]";
    let gateway = AdminGateway::start_policy(policy, Rules::new());
    assert_eq!(gateway.set_feature("search", r#"{"state":"off"}"#).await.status(), 403);
    assert_eq!(gateway.status_at("/features/0/on").await, true);
    gateway.stop().await;
}

/// A server whose responses the test chooses.
#[derive(Clone)]
pub(crate) struct ChosenResponses {
    status: Arc<AtomicU64>,
    /// The response time, in milliseconds.
    delay: Arc<AtomicU64>,
    requests: Arc<AtomicUsize>,
}

impl ChosenResponses {
    pub(crate) fn new(status: u64, delay: u64) -> Self {
        Self {
            status: Arc::new(AtomicU64::new(status)),
            delay: Arc::new(AtomicU64::new(delay)),
            requests: Arc::default(),
        }
    }

    pub(crate) async fn start(&self) -> TestBackend {
        let chosen = self.clone();
        TestBackend::start(move |_: Request<Incoming>| {
            let chosen = chosen.clone();
            async move {
                chosen.requests.fetch_add(1, Ordering::SeqCst);
                let delay = chosen.delay.load(Ordering::SeqCst);
                if delay > 0 {
                    sleep(Duration::from_millis(delay)).await;
                }
                let mut response = Response::new(text_body("app"));
                let status = chosen.status.load(Ordering::SeqCst);
                *response.status_mut() = StatusCode::from_u16(status as u16).unwrap();
                response
            }
        })
        .await
    }

    /// Responds 500 from now on.
    pub(crate) fn fail(&self) {
        self.status.store(500, Ordering::SeqCst);
    }

    /// Responds 200 at once from now on.
    pub(crate) fn recover(&self) {
        self.delay.store(0, Ordering::SeqCst);
        self.status.store(200, Ordering::SeqCst);
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn only_a_failing_key_is_limited_while_its_calls_fail() {
    let chosen = ChosenResponses::new(500, 0);
    let server = chosen.start().await;
    let gateway = AdminGateway::start(
        &server,
        "observe: { denials: 10 }\nrules: [{ name: pay, key: header x-merchant, quota: 1/h, while-failing: { min-calls: 4, failure-rate: 50%, window-size: 1h } }]",
    );
    let call = async |merchant: &str| gateway.status_of("/", &format!("x-merchant: {merchant}\r\n")).await;
    let mut statuses = Vec::new();
    for _ in 0..8 {
        statuses.push(call("failing").await);
    }
    // Five failures exceed both thresholds; then the quota admits one more.
    assert_eq!(statuses, [500, 500, 500, 500, 500, 500, 429, 429]);
    chosen.recover();
    for _ in 0..8 {
        assert_eq!(call("working").await, 200);
    }
    assert_eq!(call("failing").await, 429);
    assert_eq!(gateway.status_at("/rules/0/while-failing").await, json!({ "keys": 2, "failing": 1 }));
    assert_eq!(gateway.status_at("/rules/0/denied-by/limited").await, 3);
    gateway.stop().await;
}

/// Where a policy declares a circuit breaker.
#[derive(Clone, Copy, Debug)]
enum BreakerPlace {
    Rule,
    Upstream,
}

impl BreakerPlace {
    fn start(self, server: &TestBackend, breaker: &str) -> AdminGateway {
        let (rule, upstream) = match self {
            Self::Rule => (format!(", breaker: {breaker}"), String::new()),
            Self::Upstream => (String::new(), format!(", breaker: {breaker}")),
        };
        let policy = format!(
            "listen: 127.0.0.1:0\nadmin: {{ listen: 127.0.0.1:0, token: $CARGO_PKG_VERSION }}\n\
             upstreams: {{ app: {{ servers: 'http://{}'{upstream} }} }}\nroutes: app\n\
             rules: [{{ name: all, quota: 1000000/s{rule} }}]",
            server.address
        );
        AdminGateway::start_policy(&policy, Rules::new())
    }

    /// The path of the breaker in the status.
    fn pointer(self) -> &'static str {
        match self {
            Self::Rule => "/rules/0/breaker",
            Self::Upstream => "/upstreams/0/servers/0/breaker",
        }
    }

    /// The name of the metric for this state.
    fn metric(self, server: &TestBackend, state: &str) -> String {
        match self {
            Self::Rule => format!("tidegate_breaker_state{{rule=\"all\",state=\"{state}\"}}"),
            Self::Upstream => format!(
                "tidegate_upstream_breaker_state{{upstream=\"app\",server=\"{}\",state=\"{state}\"}}",
                server.address
            ),
        }
    }
}

#[tokio::test]
async fn breaker_opens_for_failing_or_slow_server_and_closes_when_it_recovers() {
    let count_window = "{ window-size: 4, open-duration: 50ms, half-open-calls: 1 }";
    let time_window = "{ window-size: 1h, min-calls: 4, open-duration: 50ms, half-open-calls: 1 }";
    let slow_calls = "{ window-size: 4, failure-rate: 100%, slow-call-duration: 50ms, slow-call-rate: 50%, open-duration: 50ms, half-open-calls: 1 }";
    for place in [BreakerPlace::Rule, BreakerPlace::Upstream] {
        for (breaker, status, delay) in [(count_window, 500, 0), (time_window, 500, 0), (slow_calls, 200, 60)]
        {
            let chosen = ChosenResponses::new(status, delay);
            let server = chosen.start().await;
            let gateway = place.start(&server, breaker);
            for _ in 0..4 {
                let failed = gateway.status_of("/", "").await;
                assert_eq!(u64::from(failed), status, "{place:?} {breaker}: not before four calls");
            }
            gateway.wait_for_status("/", "", 503).await;
            let metrics = gateway.metrics().await;
            let states = ["closed", "open", "half-open"];
            let sum: f64 =
                states.iter().map(|state| metric_value(&metrics, &place.metric(&server, state))).sum();
            assert_eq!(sum, 1.0, "{place:?} {breaker}");
            assert_eq!(metric_value(&metrics, &place.metric(&server, "closed")), 0.0, "{place:?} {breaker}");

            chosen.recover();
            gateway.wait_for_status("/", "", 200).await;
            let state = format!("{}/state", place.pointer());
            wait_until(&format!("{place:?} {breaker} closes"), async || {
                gateway.get("/").await;
                gateway.status_at(&state).await == "closed"
            })
            .await;
            for _ in 0..8 {
                assert_eq!(gateway.status_of("/", "").await, 200, "{place:?} {breaker}");
            }
            gateway.stop().await;
        }
    }
}

#[tokio::test]
async fn open_breaker_sends_no_requests_to_the_server() {
    for place in [BreakerPlace::Rule, BreakerPlace::Upstream] {
        for window in ["window-size: 4", "window-size: 1h, min-calls: 4"] {
            let chosen = ChosenResponses::new(500, 0);
            let server = chosen.start().await;
            let gateway = place.start(&server, &format!("{{ {window}, open-duration: 1h }}"));
            for _ in 0..4 {
                assert_eq!(gateway.status_of("/", "").await, 500);
            }
            for _ in 0..4 {
                assert_eq!(gateway.status_of("/", "").await, 503, "{place:?} {window}");
            }
            assert_eq!(chosen.requests(), 4, "{place:?} {window}");
            let breaker = gateway.status_at(place.pointer()).await;
            assert_eq!((&breaker["state"], &breaker["failure-rate"]), (&json!("open"), &json!(1.0)));
            assert!(breaker["remaining"].as_f64() > Some(3_000.0), "{place:?} {window}: {breaker}");
            gateway.stop().await;
        }
    }
}

#[tokio::test]
async fn failed_probe_multiplies_the_open_duration() {
    let places = [BreakerPlace::Rule, BreakerPlace::Upstream];
    let maximums = [("", 20.0), (", max-open-duration: 15s", 15.0)];
    for (place, (maximum, seconds)) in places.into_iter().flat_map(|place| maximums.map(|max| (place, max))) {
        let chosen = ChosenResponses::new(500, 0);
        let server = chosen.start().await;
        let breaker =
            format!("{{ window-size: 2, open-duration: 20ms, half-open-calls: 1, backoff: x1000{maximum} }}");
        let gateway = place.start(&server, &breaker);
        // Two failures open it, and then the only probe fails.
        wait_until("the probe", async || {
            gateway.get("/").await;
            chosen.requests() == 3
        })
        .await;
        assert_eq!(gateway.status_of("/", "").await, 503);
        let remaining = gateway.status_at(&format!("{}/remaining", place.pointer())).await;
        let remaining = remaining.as_f64().unwrap();
        assert!(remaining > 1.0 && remaining <= seconds, "{place:?} {maximum}: {remaining}");
        assert_eq!(chosen.requests(), 3);
        gateway.stop().await;
    }
}

#[tokio::test]
async fn half_open_breaker_admits_the_declared_number_of_probes() {
    for place in [BreakerPlace::Rule, BreakerPlace::Upstream] {
        // The first two requests fail. Later ones wait until the test lets them end.
        let (release, count) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
        let (gate, counted) = (release.clone(), count.clone());
        let server = TestBackend::start(move |_: Request<Incoming>| {
            let (gate, number) = (gate.clone(), counted.fetch_add(1, Ordering::SeqCst));
            async move {
                let mut response = Response::new(text_body("app"));
                match number {
                    0 | 1 => *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR,
                    _ => gate.acquire().await.unwrap().forget(),
                }
                response
            }
        })
        .await;
        let gateway = place.start(&server, "{ window-size: 2, open-duration: 10ms, half-open-calls: 2 }");
        for _ in 0..2 {
            assert_eq!(gateway.status_of("/", "").await, 500);
        }
        let state = format!("{}/state", place.pointer());
        // Requests during the open duration are rejected. Then the server holds each probe.
        let observe = async {
            wait_until("two probes", async || count.load(Ordering::SeqCst) == 4).await;
            assert_eq!(gateway.status_at(&state).await, "half-open", "{place:?}");
            for _ in 0..3 {
                assert_eq!(gateway.status_of("/", "").await, 503, "{place:?}: all probes are in flight");
            }
            assert_eq!(count.load(Ordering::SeqCst), 4, "{place:?}");
            release.add_permits(1_000);
        };
        let probe = || gateway.wait_for_status("/", "", 200);
        tokio::join!(probe(), probe(), observe);
        wait_until("closed", async || gateway.status_at(&state).await == "closed").await;
        assert_eq!(gateway.status_of("/", "").await, 200);
        gateway.stop().await;
    }
}
