//! The admin API of a running gateway.

use crate::harness::{RawClient, RawResponse, TEST_TIMEOUT, TestBackend, open_gateway, text_body};
use serde_json::{Value, json};
use std::{collections::BTreeSet, fs, net::SocketAddr, sync::Arc};
use tempfile::TempDir;
use tidegate_gateway::{Gateway, GatewayError, GatewayHandle, PolicySource};
use tidegate_limiter::{
    Clock, Store,
    store::{RuntimeAffinity, StoreError, StoreFuture, StoreReply, StoreRequest},
};
use tidegate_rule::{Rules, key_hash};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::{Notify, oneshot},
    task::JoinHandle,
    time::timeout,
};

/// A gateway with an admin API.
pub(crate) struct AdminGateway {
    /// The first address.
    pub(crate) address: SocketAddr,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) admin: SocketAddr,
    pub(crate) decisions: Option<SocketAddr>,
    handle: GatewayHandle,
    pub(crate) folder: TempDir,
    stop: oneshot::Sender<()>,
    end: JoinHandle<Result<(), GatewayError>>,
}

impl AdminGateway {
    pub(crate) fn start(server: &TestBackend, rest: &str) -> Self {
        Self::start_with(server, rest, Rules::new())
    }

    fn start_with(server: &TestBackend, rest: &str, rules: Rules) -> Self {
        Self::start_policy(&policy_text(server, rest), rules)
    }

    /// Starts a gateway that forwards to these servers, with these keys of the upstream.
    pub(crate) fn start_upstream(servers: &[&TestBackend], keys: &str) -> Self {
        let servers: Vec<_> = servers.iter().map(|server| format!("http://{}", server.address)).collect();
        Self::start_policy(
            &format!(
                "{LISTENERS}upstreams: {{ app: {{ servers: [{}], {keys} }} }}\nroutes: app\n",
                servers.join(", ")
            ),
            Rules::new(),
        )
    }

    /// Starts a gateway with a whole policy, which has an admin API.
    pub(crate) fn start_policy(text: &str, rules: Rules) -> Self {
        Self::start_with_files(text, &[], rules)
    }

    /// Starts a gateway with a whole policy, and other files beside it.
    pub(crate) fn start_with_files(text: &str, files: &[(&str, &str)], rules: Rules) -> Self {
        let folder = TempDir::new().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let source = write_policy(&folder, text);
        Self::run(folder, open_gateway(source, rules))
    }

    /// Starts a gateway whose counters use this clock.
    pub(crate) fn start_with_clock(server: &TestBackend, rest: &str, clock: Clock) -> Self {
        let folder = TempDir::new().unwrap();
        let source = write_policy(&folder, &policy_text(server, rest));
        let gateway = Gateway::open_with_clock(source, Rules::new(), clock);
        // `scripts/keys` searches for this text.
        Self::run(folder, gateway.unwrap_or_else(|error| panic!("invalid policy: {error}")))
    }

    fn run(folder: TempDir, gateway: Gateway) -> Self {
        let (addresses, admin) = (gateway.addresses(), gateway.admin_address().unwrap());
        let address = addresses[0];
        let (decisions, handle) = (gateway.decisions_address(), gateway.handle());
        let (stop, stopped) = oneshot::channel::<()>();
        let end = tokio::spawn(gateway.run(async {
            let _ = stopped.await;
        }));
        Self { address, addresses, admin, decisions, handle, folder, stop, end }
    }

    pub(crate) async fn replace(&self, server: &TestBackend, rest: &str) {
        self.replace_policy(&policy_text(server, rest)).await;
    }

    /// Replaces the whole policy.
    pub(crate) async fn replace_policy(&self, text: &str) {
        fs::write(self.folder.path().join("policy.yaml"), text).unwrap();
        self.handle.reload().await.unwrap_or_else(|error| panic!("invalid policy: {error}"));
    }

    /// Reloads the policy.
    pub(crate) async fn reload(&self) -> Result<(), String> {
        self.handle.reload().await.map(drop).map_err(|error| error.to_string())
    }

    pub(crate) async fn connect(&self) -> RawClient {
        RawClient::connect(self.address).await
    }

    pub(crate) async fn get(&self, path: &str) -> RawResponse {
        self.get_with_header(path, "").await
    }

    /// Sends a client request with this header.
    pub(crate) async fn get_with_header(&self, path: &str, header: &str) -> RawResponse {
        let request = format!("GET {path} HTTP/1.1\r\nhost: app.example\r\n{header}\r\n");
        timeout(TEST_TIMEOUT, self.connect().await.request(&request)).await.unwrap()
    }

    /// Sends a request to the admin API with the token.
    pub(crate) async fn admin_request(&self, method: &str, path: &str, body: &str) -> RawResponse {
        let token = concat!("authorization: Bearer ", env!("CARGO_PKG_VERSION"), "\r\n");
        self.admin_request_with_header(method, path, token, body).await
    }

    pub(crate) async fn admin_request_with_header(
        &self,
        method: &str,
        path: &str,
        header: &str,
        body: &str,
    ) -> RawResponse {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\n{header}content-length: {length}\r\n\r\n{body}"
        );
        timeout(TEST_TIMEOUT, RawClient::connect(self.admin).await.request(&request)).await.unwrap()
    }

    pub(crate) async fn admin_json(&self, path: &str) -> Value {
        let response = self.admin_request("GET", path, "").await;
        assert_eq!(response.status(), 200, "{}", response.body);
        serde_json::from_str(&response.body).unwrap()
    }

    pub(crate) async fn metrics(&self) -> String {
        self.admin_request("GET", "/metrics", "").await.body
    }

    pub(crate) async fn stop(self) {
        self.stop_and_keep_files().await;
    }

    /// Returns the folder of the policy, whose files are complete.
    pub(crate) async fn stop_and_keep_files(self) -> TempDir {
        drop(self.stop);
        timeout(TEST_TIMEOUT, self.end).await.unwrap().unwrap().unwrap();
        self.folder
    }
}

fn write_policy(folder: &TempDir, text: &str) -> PolicySource {
    let file = folder.path().join("policy.yaml");
    fs::write(&file, text).unwrap();
    PolicySource::file(file)
}

/// The listeners of most policies. Cargo sets the variable for every test, so it serves as a token.
pub(crate) const LISTENERS: &str =
    "listen: 127.0.0.1:0\nadmin: { listen: 127.0.0.1:0, token: $CARGO_PKG_VERSION }\n";

fn policy_text(server: &TestBackend, rest: &str) -> String {
    format!("{LISTENERS}upstreams: {{ app: http://{} }}\nroutes: app\n{rest}", server.address)
}

const LOGIN_POLICY: &str = "
observe: { denials: 100, history: 100 }
user: header x-user
rules:
  - { name: login, key: user, match: { path: /login }, quota: 2/h }
  - { name: watched, mode: shadow, quota: 1/h }
";

#[tokio::test]
async fn denial_id_leads_to_its_reason() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, LOGIN_POLICY);
    let alice = "x-user: alice\r\n";
    for _ in 0..2 {
        let admitted = gateway.get_with_header("/login?secret=1", alice).await;
        assert_eq!((admitted.status(), admitted.header("tidegate-denial")), (200, None));
    }
    let denied = gateway.get_with_header("/login?secret=1", alice).await;
    let id = denied.header("tidegate-denial").unwrap().to_owned();
    let problem: Value = serde_json::from_str(&denied.body).unwrap();
    assert_eq!(problem["instance"], format!("urn:tidegate:denial:{id}"));
    assert_eq!((denied.status(), &problem["status"]), (429, &json!(429)));

    let why = gateway.admin_json(&format!("/api/v1/denials/{id}")).await;
    for (member, expected) in [
        ("/id", json!(id)),
        ("/rule", json!("login")),
        ("/reason", json!("limited")),
        ("/key", json!("alice")),
        ("/key-hashed", json!(false)),
        ("/client", json!("127.0.0.1")),
        ("/method", json!("GET")),
        ("/path", json!("/login")),
        ("/host", json!("app.example")),
        ("/cost", json!(1)),
        ("/quota/text", json!("2/h")),
        ("/quota/algorithm", json!("token-bucket")),
        ("/before/limit", json!(2)),
        ("/before/remaining", json!(0)),
        ("/status", json!(429)),
        ("/degraded", json!(false)),
    ] {
        assert_eq!(why.pointer(member), Some(&expected), "{member} of {why}");
    }
    let wait = why["retry-after"].as_f64().unwrap();
    assert!(wait > 1_700.0 && wait <= 1_800.0, "{wait}");
    assert!(why["retry-at"].as_str() > why["time"].as_str());
    assert!(why["summary"].as_str().unwrap().contains("0 of 2 left"), "{why}");

    let list = gateway.admin_json("/api/v1/denials").await;
    assert_eq!(list["denials"], json!([why]));
    assert_eq!(gateway.admin_json("/api/v1/denials?rule=watched").await["denials"], json!([]));
    assert_eq!(gateway.admin_request("GET", "/api/v1/denials/0000000000000000", "").await.status(), 404);
    assert_eq!(gateway.admin_request("GET", "/api/v1/denials?limit=0", "").await.status(), 400);

    let top = gateway.admin_json("/api/v1/top?rule=login&by=denied").await;
    assert_eq!(
        top["keys"],
        json!([{ "rule": "login", "key": "alice", "count": 1, "error": 0, "share": 1.0 }])
    );
    assert_eq!(gateway.admin_request("GET", "/api/v1/top?rule=logni", "").await.status(), 404);
    gateway.stop().await;
}

#[tokio::test]
async fn log_has_the_denial_id_of_the_client() {
    let server = TestBackend::start_echo().await;
    let rest = format!("log: {{ format: json, file: access.log }}\n{LOGIN_POLICY}");
    let gateway = AdminGateway::start(&server, &rest);
    let mut ids = Vec::new();
    for _ in 0..3 {
        let response = gateway.get_with_header("/login", "x-user: alice\r\n").await;
        ids.push(response.header("tidegate-denial").map_or(Value::Null, Value::from));
    }
    assert_eq!((&ids[1], ids[2].is_string()), (&Value::Null, true));
    let folder = gateway.stop_and_keep_files().await;
    let log = fs::read_to_string(folder.path().join("access.log")).unwrap();
    let logged: Vec<Value> =
        log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["denial"].clone()).collect();
    assert_eq!(logged, ids);
}

#[tokio::test]
async fn nothing_is_recorded_without_observe() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, "rules: [{ name: all, quota: 1/h }]");
    gateway.get("/").await;
    let denied = gateway.get("/").await;
    assert_eq!((denied.status(), denied.header("tidegate-denial")), (429, None));
    assert!(!denied.body.contains("instance"), "{}", denied.body);
    assert_eq!(gateway.admin_json("/api/v1/denials").await, json!({ "denials": [] }));
    assert_eq!(gateway.admin_json("/api/v1/top").await["keys"], json!([]));
    assert_eq!(gateway.admin_request("GET", "/api/v1/history", "").await.body, "");
    assert_eq!(gateway.admin_json("/api/v1/status").await["observe"], Value::Null);
    gateway.stop().await;
}

#[tokio::test]
async fn reload_keeps_request_counts() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, LOGIN_POLICY);
    for path in ["/login", "/login", "/login", "/other"] {
        gateway.get_with_header(path, "x-user: alice\r\n").await;
    }
    let of = |status: &Value, name: &str| {
        let rules = status["rules"].as_array().unwrap();
        rules.iter().find(|rule| rule["name"] == name).unwrap()["counts"].clone()
    };
    let counts = |admitted, denied, shadow| json!({ "admitted": admitted, "delayed": 0, "denied": denied, "shadow-denied": shadow, "degraded": 0 });
    let status = gateway.admin_json("/api/v1/status").await;
    assert_eq!(of(&status, "login"), counts(2, 1, 0));
    assert_eq!(of(&status, "watched"), counts(1, 0, 2), "a rejected request does not reach later rules");
    assert_eq!(
        status["requests"],
        json!({ "total": 4, "admitted": 3, "rejected": 1, "delayed": 0, "shadow-denied": 2, "in-flight": 0 })
    );
    assert_eq!(status["responses"]["2xx"], 3);

    // One rule is changed, and one is removed.
    let next = "rules:\n  - { name: login, key: ip, match: { path: /login }, quota: 20/h }\n";
    gateway.replace(&server, next).await;
    gateway.get("/login").await;
    let status = gateway.admin_json("/api/v1/status").await;
    assert_eq!(of(&status, "login"), counts(3, 1, 0));
    assert_eq!(status["rules"].as_array().unwrap().len(), 1);
    assert_eq!(status["requests"]["total"], 5);
    // The file watch may have reloaded it before the request did.
    assert!(
        status["policy"]["reloads"].as_u64() >= Some(1) && status["policy"]["error"].is_null(),
        "{status}"
    );

    fs::write(gateway.folder.path().join("policy.yaml"), "rules: 7").unwrap();
    gateway.handle.reload().await.unwrap_err();
    let status = gateway.admin_json("/api/v1/status").await;
    assert!(status["policy"]["error"].as_str().unwrap().contains("policy.yaml:1"), "{status}");
    assert!(gateway.metrics().await.contains("tidegate_policy_reloads_total{outcome=\"rejected\"} "));
    gateway.stop().await;
}

#[tokio::test]
async fn hashed_key_is_never_exposed() {
    let server = TestBackend::start_echo().await;
    let rest = LOGIN_POLICY.replace("denials: 100", "denials: 100, keys: hashed");
    let gateway = AdminGateway::start(&server, &rest);
    for _ in 0..40 {
        gateway.get_with_header("/login", "x-user: alice\r\n").await;
    }
    let hash = format!("{:016x}", key_hash("login", &"alice"));
    assert_eq!(gateway.admin_json("/api/v1/top").await["keys"][0]["key"], hash);
    let denial = &gateway.admin_json("/api/v1/denials").await["denials"][0];
    assert_eq!((&denial["key"], &denial["key-hashed"]), (&json!(hash), &json!(true)));
    let pages = ["status", "top?by=denied", "top?by=requests", "denials", "history", "bans"];
    for page in pages.map(|page| format!("/api/v1/{page}")).into_iter().chain(["/metrics".to_owned()]) {
        let reply = gateway.admin_request("GET", &page, "").await;
        assert_eq!(reply.status(), 200, "{page}");
        assert!(!reply.body.contains("alice"), "{page}: {}", reply.body);
    }
    let history = gateway.admin_request("GET", "/api/v1/history", "").await.body;
    assert_eq!(history.lines().count(), 40);
    assert!(!history.contains("127.0.0.1"), "{history}");
    gateway.stop().await;
}

/// Connections to the admin listener beyond its limit are closed, and do not affect clients.
#[tokio::test]
async fn admin_connections_are_limited() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, LOGIN_POLICY);
    let mut open = Vec::new();
    for _ in 0..300 {
        open.push(tokio::net::TcpStream::connect(gateway.admin).await.unwrap());
    }
    let mut last = open.pop().unwrap();
    // A served connection would get a response. On a closed one, even the write may fail.
    let _ = last.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let read = timeout(TEST_TIMEOUT, last.read(&mut [0; 1])).await.unwrap();
    assert!(matches!(read, Ok(0) | Err(_)), "the last connection was served: {read:?}");
    assert_eq!(gateway.get("/").await.status(), 200);
    drop(open);
    gateway.stop().await;
}

#[tokio::test]
async fn banned_key_is_hashed_like_other_keys() {
    let server = TestBackend::start_echo().await;
    let rules = "observe: { keys: hashed }\nrules:\n  - { name: all, key: ip, quota: 1/h, ban: 2/min for 1h }\n  - { name: users, key: header x-user, quota: 9/h }";
    let gateway = AdminGateway::start(&server, rules);
    for status in [200, 429, 429, 403] {
        assert_eq!(gateway.get("/").await.status(), status);
    }
    let banned =
        gateway.admin_request("POST", "/api/v1/bans", r#"{"rule":"users","key":"alice","seconds":60}"#).await;
    assert_eq!(banned.status(), 201, "{}", banned.body);
    assert!(!banned.body.contains("alice"), "{}", banned.body);
    let bans = gateway.admin_json("/api/v1/bans").await;
    let shown = |by: &str| {
        let ban = bans["bans"].as_array().unwrap().iter().find(|ban| ban["by"] == by).unwrap();
        ban["value"].as_str().unwrap().to_owned()
    };
    assert_eq!(shown("operator"), format!("{:016x}", key_hash("users", &"alice")));
    assert_eq!(shown("rule"), format!("{:016x}", key_hash("", &"127.0.0.1")));
    // A displayed hash is not a key.
    let hash = shown("operator");
    for (path, body) in [
        ("/api/v1/reset", json!({ "rule": "users", "key": hash })),
        ("/api/v1/bans", json!({ "rule": "users", "key": hash, "seconds": 60 })),
    ] {
        let response = gateway.admin_request("POST", path, &body.to_string()).await;
        assert_eq!(response.status(), 400, "{path}");
        assert!(response.body.contains("send the key itself"), "{}", response.body);
    }
    let id = bans["bans"].as_array().unwrap().iter().find(|ban| ban["by"] == "rule").unwrap()["id"].clone();
    assert_eq!(
        gateway.admin_request("DELETE", &format!("/api/v1/bans/{}", id.as_str().unwrap()), "").await.status(),
        204
    );
    assert_eq!(gateway.get("/").await.status(), 429);
    gateway.stop().await;
}

#[tokio::test]
async fn hashing_keys_drops_plain_records() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, LOGIN_POLICY);
    for _ in 0..3 {
        gateway.get_with_header("/login", "x-user: alice\r\n").await;
    }
    assert_eq!(gateway.admin_json("/api/v1/denials").await["denials"].as_array().unwrap().len(), 1);
    gateway.replace(&server, &LOGIN_POLICY.replace("denials: 100", "denials: 100, keys: hashed")).await;
    for page in ["denials", "top", "history"] {
        let reply = gateway.admin_request("GET", &format!("/api/v1/{page}"), "").await.body;
        assert!(!reply.contains("alice"), "{page}: {reply}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn request_ending_after_reload_is_recorded_hashed() {
    let (arrived, ready) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let server = {
        let (arrived, ready) = (arrived.clone(), ready.clone());
        TestBackend::start(move |_| {
            let (arrived, ready) = (arrived.clone(), ready.clone());
            async move {
                arrived.notify_one();
                ready.notified().await;
                http::Response::new(text_body("ok"))
            }
        })
        .await
    };
    let gateway = AdminGateway::start(&server, LOGIN_POLICY);
    let request = gateway.get_with_header("/login", "x-user: alice\r\n");
    let replace = async {
        arrived.notified().await;
        gateway.replace(&server, &LOGIN_POLICY.replace("denials: 100", "denials: 100, keys: hashed")).await;
        ready.notify_one();
    };
    let (response, ()) = tokio::join!(request, replace);
    assert_eq!(response.status(), 200);
    let history = gateway.admin_request("GET", "/api/v1/history", "").await.body;
    assert!(!history.contains("alice"), "{history}");
    gateway.stop().await;
}

#[tokio::test]
async fn client_behind_trusted_proxy_is_recorded_and_banned() {
    let server = TestBackend::start_echo().await;
    let policy = "trusted-proxies: 127.0.0.0/8
observe: { denials: 100, history: 100 }
rules: [{ name: each, key: ip, quota: 1/h, ban: 2/min for 1h }]";
    let gateway = AdminGateway::start(&server, policy);
    let get =
        async |client: &str| gateway.get_with_header("/", &format!("x-forwarded-for: {client}\r\n")).await;
    let (noisy, other, third) = ("203.0.113.7", "203.0.113.8", "2001:db8::7");
    for status in [200, 429, 429, 403] {
        let response = get(noisy).await;
        assert_eq!(response.status(), status);
        if let Some(id) = response.header("tidegate-denial") {
            let denial = gateway.admin_json(&format!("/api/v1/denials/{id}")).await;
            assert_eq!((&denial["client"], &denial["key"]), (&json!(noisy), &json!(noisy)), "{denial}");
        }
    }
    assert_eq!(gateway.admin_json("/api/v1/bans").await["bans"][0]["value"], noisy);
    assert_eq!(gateway.admin_json("/api/v1/top?rule=each&by=denied").await["keys"][0]["key"], noisy);
    for client in [other, third] {
        assert_eq!(get(client).await.status(), 200, "{client} has a quota of its own");
    }

    let ban = json!({ "ip": third, "seconds": 600 }).to_string();
    assert_eq!(gateway.admin_request("POST", "/api/v1/bans", &ban).await.status(), 201);
    assert_eq!((get(third).await.status(), get(other).await.status()), (403, 429));
    let history = gateway.admin_request("GET", "/api/v1/history", "").await.body;
    let clients: Vec<Value> =
        history.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["ip"].clone()).collect();
    assert_eq!(clients, [noisy, noisy, noisy, noisy, other, third, third, other]);
    gateway.stop().await;
}

#[tokio::test]
async fn metric_count_does_not_grow_with_keys() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, LOGIN_POLICY);
    let names = |text: &str| -> BTreeSet<String> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
    };
    gateway.get("/login").await;
    let before = names(&gateway.metrics().await);
    for number in 0..300 {
        gateway.get_with_header("/login", &format!("x-user: user-{number}\r\n")).await;
    }
    let text = gateway.metrics().await;
    assert_eq!(names(&text), before);
    for line in [
        "tidegate_decisions_total{rule=\"login\",outcome=\"admitted\"} 301",
        "tidegate_decisions_total{rule=\"watched\",outcome=\"shadow-denied\"} 300",
        "tidegate_requests_total{outcome=\"admitted\"} 301",
        "tidegate_quota_limit{rule=\"login\",quota=\"0\"} 2",
        "tidegate_rule_mode{rule=\"watched\",mode=\"shadow\"} 1",
        "tidegate_rule_enforced_ratio{rule=\"watched\"} 0",
        "tidegate_table_keys{rule=\"login\",kind=\"used\"} 301",
        "tidegate_table_overflow_total{rule=\"login\"} 0",
    ] {
        assert!(text.lines().any(|sample| sample == line), "{line} is not in\n{text}");
    }
    let server = format!("tidegate_upstream_server_up{{upstream=\"app\",server=\"{}\"}} 1", server.address);
    assert!(text.contains(&server), "{text}");
    let timed = text.lines().find_map(|line| line.strip_prefix("tidegate_decision_seconds_count "));
    let timed: u64 = timed.unwrap().parse().unwrap();
    // Each thread times one of 64 decisions, with a weight of 64. There is one thread per core.
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
    let min = 301_u64.saturating_sub(63 * threads) / 64;
    assert!(timed.is_multiple_of(64) && (min..=301 / 64).contains(&(timed / 64)), "{text}");
    gateway.stop().await;
}

/// The value of a metric, with its labels if it has any.
pub(crate) fn metric_value(metrics: &str, name: &str) -> f64 {
    let found = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    found.unwrap_or_else(|| panic!("{name} is not in\n{metrics}"))
}

impl AdminGateway {
    /// Waits until a metric has this value: requests are counted after their last byte.
    async fn wait_for_metric(&self, name: &str, expected: f64) -> String {
        let looking = async {
            loop {
                let metrics = self.metrics().await;
                if metric_value(&metrics, name) == expected {
                    return metrics;
                }
            }
        };
        timeout(TEST_TIMEOUT, looking).await.unwrap_or_else(|_| panic!("{name} is never {expected}"))
    }
}

#[tokio::test]
async fn decision_latency_excludes_queue_wait() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, "rules: [{ name: slow, quota: 4/s burst 1, wait: 10s }]");
    for _ in 0..4 {
        assert_eq!(gateway.get("/").await.status(), 200);
    }
    let metrics = gateway.wait_for_metric("tidegate_request_seconds_count{rule=\"slow\"}", 4.0).await;
    // The first request is admitted at once, the others at intervals of 250 ms.
    assert_eq!(metric_value(&metrics, "tidegate_wait_seconds_count"), 3.0);
    let waited = metric_value(&metrics, "tidegate_wait_seconds_sum");
    let decided = metric_value(&metrics, "tidegate_decision_seconds_sum");
    assert!(waited > decided, "waited {waited} s, decided in {decided} s");
    assert!(metric_value(&metrics, "tidegate_request_seconds_sum{rule=\"slow\"}") >= waited);
    let status = gateway.admin_json("/api/v1/status").await;
    assert_eq!(status["latency"]["wait"]["count"], 3);
    gateway.stop().await;
}

#[tokio::test]
async fn latency_is_counted_by_rule_and_by_upstream() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, LOGIN_POLICY);
    for _ in 0..3 {
        gateway.get_with_header("/login", "x-user: alice\r\n").await;
    }
    gateway.get("/other").await;
    let metrics = gateway.wait_for_metric("tidegate_request_seconds_count{rule=\"watched\"}", 3.0).await;
    // The third login is denied, and reaches neither later rules nor a server.
    let labels = format!("upstream=\"app\",server=\"{}\"", server.address);
    for (name, count) in [
        ("tidegate_request_seconds_count{rule=\"login\"}", 2.0),
        (&*format!("tidegate_upstream_seconds_count{{{labels}}}"), 3.0),
        ("tidegate_request_seconds_bucket{rule=\"login\",le=\"+Inf\"}", 2.0),
        ("tidegate_request_seconds_bucket{rule=\"login\",le=\"60\"}", 2.0),
        (&*format!("tidegate_upstream_seconds_bucket{{{labels},le=\"+Inf\"}}"), 3.0),
        (&*format!("tidegate_upstream_responses_total{{{labels},class=\"2xx\"}}"), 3.0),
        (&*format!("tidegate_upstream_responses_total{{{labels},class=\"5xx\"}}"), 0.0),
    ] {
        assert_eq!(metric_value(&metrics, name), count, "{name}");
    }
    let first = metrics.lines().find(|line| line.starts_with("tidegate_upstream_seconds_bucket"));
    assert!(first.unwrap().contains("le=\"0.0001\""), "{first:?}");
    let status = gateway.admin_json("/api/v1/status").await;
    assert_eq!(status["rules"][0]["latency"]["count"], 2);
    assert_eq!(status["latency"]["request"]["count"], 3);
    let upstream = &status["upstreams"][0];
    assert_eq!(
        (&upstream["latency"]["count"], &upstream["servers"][0]["latency"]["count"]),
        (&json!(3), &json!(3))
    );
    assert_eq!(
        upstream["servers"][0]["classes"],
        json!({ "1xx": 0, "2xx": 3, "3xx": 0, "4xx": 0, "5xx": 0 })
    );
    gateway.stop().await;
}

#[tokio::test]
async fn series_have_the_rules_and_servers_of_the_policy() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, LOGIN_POLICY);
    // The first reading is taken by the first tick, within a second.
    let read = async {
        loop {
            let series = gateway.admin_json("/api/v1/series?limit=2").await;
            if series["rules"].as_array().is_some_and(|rules| !rules.is_empty()) {
                return series;
            }
            tokio::task::yield_now().await;
        }
    };
    let series = timeout(TEST_TIMEOUT, read).await.unwrap();
    assert_eq!((&series["step"], &series["omitted"]), (&json!(10.0), &json!(0)));
    assert_eq!(
        (&series["rules"][0]["name"], &series["rules"][1]["name"]),
        (&json!("login"), &json!("watched"))
    );
    assert_eq!(series["servers"][0]["address"], server.address.to_string());
    let points = series["times"].as_array().unwrap().len();
    for column in ["/requests/admitted", "/rules/0/denied", "/rules/0/p99", "/servers/0/up"] {
        assert_eq!(series.pointer(column).and_then(Value::as_array).map(Vec::len), Some(points), "{column}");
    }
    for query in ["limit=0", "limit=361", "limit=x", "rule=login"] {
        let response = gateway.admin_request("GET", &format!("/api/v1/series?{query}"), "").await;
        assert_eq!(response.status(), 400, "{query}: {}", response.body);
    }
    assert_eq!(gateway.admin_request_with_header("GET", "/api/v1/series", "", "").await.status(), 401);
    gateway.stop().await;
}

#[tokio::test]
async fn gateway_and_server_responses_are_counted_separately() {
    let gone = TestBackend::unreachable().await;
    let gateway = AdminGateway::start(&gone, "rules: [{ name: few, match: { path: /few }, quota: 1/h }]");
    for _ in 0..5 {
        assert_eq!(gateway.get("/").await.status(), 502);
    }
    assert_eq!(gateway.get("/few").await.status(), 502);
    assert_eq!(gateway.get("/few").await.status(), 429);
    let nonsense = RawClient::connect(gateway.address).await.request("GET / HTTP/1.1\r\n\r\n").await;
    assert_eq!(nonsense.status(), 400);
    let name = |source, class| format!("tidegate_responses_total{{source=\"{source}\",class=\"{class}\"}}");
    // A response is counted after it was sent.
    let metrics = gateway.wait_for_metric(&name("gateway", "4xx"), 2.0).await;
    let of = |source, class| metric_value(&metrics, &name(source, class));
    assert_eq!((of("gateway", "5xx"), of("gateway", "4xx")), (6.0, 2.0));
    assert_eq!((of("upstream", "5xx"), of("upstream", "4xx")), (0.0, 0.0));
    let status = gateway.admin_json("/api/v1/status").await;
    assert_eq!((&status["gateway-responses"]["5xx"], &status["responses"]["5xx"]), (&json!(6), &json!(0)));
    gateway.stop().await;
}

#[tokio::test]
async fn responses_without_a_readable_request_are_counted() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, "connections: { max-per-client: 1 }");
    let mut only = RawClient::connect(gateway.address).await;
    assert_eq!(only.get("/").await.status(), 200);
    assert_eq!(gateway.get("/").await.status(), 503);
    assert_eq!(only.request("nonsense\r\n\r\n").await.status(), 400);
    let of = |class| format!("tidegate_responses_total{{source=\"gateway\",class=\"{class}\"}}");
    let metrics = gateway.wait_for_metric(&of("4xx"), 1.0).await;
    assert_eq!(metric_value(&metrics, &of("5xx")), 1.0);
    gateway.stop().await;
}

#[tokio::test]
async fn failures_of_down_server_are_counted() {
    let gone = TestBackend::unreachable().await;
    let gateway = AdminGateway::start(&gone, "");
    let up = format!("tidegate_upstream_server_up{{upstream=\"app\",server=\"{}\"}}", gone.address);
    assert_eq!(metric_value(&gateway.metrics().await, &up), 1.0);
    for queried in 1..=6 {
        gateway.get("/").await;
        let server = gateway.admin_json("/api/v1/status").await["upstreams"][0]["servers"][0].clone();
        assert_eq!((&server["failures"], &server["responses"]), (&json!(queried), &json!(0)), "{server}");
    }
    let metrics = gateway.metrics().await;
    let labels = format!("upstream=\"app\",server=\"{}\",kind=\"request\"", gone.address);
    assert_eq!(metric_value(&metrics, &format!("tidegate_upstream_failures_total{{{labels}}}")), 6.0);
    assert_eq!(
        metric_value(&metrics, &up),
        0.0,
        "a server without health checks that never responds is not up"
    );
    gateway.stop().await;
}

#[tokio::test]
async fn every_metric_has_help() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, LOGIN_POLICY);
    let metrics = gateway.metrics().await;
    let lines: Vec<&str> = metrics.lines().collect();
    for (place, line) in lines.iter().enumerate() {
        let Some(name) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split(' ').next()) else {
            continue;
        };
        let help = place.checked_sub(1).and_then(|before| lines[before].strip_prefix("# HELP "));
        let text =
            help.and_then(|help| help.strip_prefix(name)).unwrap_or_else(|| panic!("{name} has no help"));
        assert!(text.len() > 10 && text.ends_with('.'), "{name}:{text}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn banning_a_wide_network_needs_a_confirmation() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, LOGIN_POLICY);
    for (network, is_wide) in [
        ("0.0.0.0/0", true),
        ("126.0.0.0/7", true),
        ("::/0", true),
        ("2000::/15", true),
        ("10.0.0.0/8", false),
        ("2001:db8::/32", false),
    ] {
        let ban = json!({ "network": network, "seconds": 60 });
        let response = gateway.admin_request("POST", "/api/v1/bans", &ban.to_string()).await;
        assert_eq!(response.status(), if is_wide { 409 } else { 201 }, "{network}: {}", response.body);
    }
    assert_eq!(gateway.get("/").await.status(), 200);
    let all = json!({ "network": "0.0.0.0/0", "seconds": 60, "confirm": true });
    assert_eq!(gateway.admin_request("POST", "/api/v1/bans", &all.to_string()).await.status(), 201);
    assert_eq!(gateway.get("/").await.status(), 403);
    gateway.stop().await;
}

#[tokio::test]
async fn denial_of_queued_rule_names_the_wait() {
    let server = TestBackend::start_echo().await;
    let rest =
        "observe: { denials: 10 }\nrules: [{ name: queue, quota: 1/h leaky-bucket queue 5, wait: 30s }]";
    let gateway = AdminGateway::start(&server, rest);
    assert_eq!(gateway.get("/").await.status(), 200);
    let denied = gateway.get("/").await;
    assert_eq!(denied.status(), 429);
    let id = denied.header("tidegate-denial").unwrap();
    let denial = gateway.admin_json(&format!("/api/v1/denials/{id}")).await;
    let summary = denial["summary"].as_str().unwrap();
    assert!(
        summary.contains("longer than the 30 s that the rule allows") && !summary.contains(" left"),
        "{summary}"
    );
    assert_eq!(denial["max-wait"], 30.0);
    gateway.stop().await;
}

#[tokio::test]
async fn rule_without_quotas_reports_no_keys() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, "rules: [{ name: overload, adaptive: { target: 1s } }]");
    for (path, body) in [
        ("/api/v1/bans", json!({ "rule": "overload", "key": "all", "seconds": 60 })),
        ("/api/v1/reset", json!({ "rule": "overload", "key": "all" })),
    ] {
        let response = gateway.admin_request("POST", path, &body.to_string()).await;
        assert_eq!(response.status(), 404, "{}", response.body);
        assert!(!response.body.contains("did you mean `overload`"), "{}", response.body);
    }
    gateway.stop().await;
}

/// A sum over all gateways must not hide one of them, nor break a panel.
#[test]
fn grafana_queries_group_by_instance() {
    let board: Value = serde_json::from_str(include_str!("../../../../docs/grafana.json")).unwrap();
    for panel in board["panels"].as_array().unwrap() {
        if panel["type"] != "row" {
            assert!(
                panel["description"].as_str().is_some_and(|text| text.ends_with('.')),
                "{}",
                panel["title"]
            );
        }
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap();
            let matched = expression.split(" on (").skip(1).filter_map(|rest| rest.split(')').next());
            matched.for_each(|labels| assert!(labels.contains("instance"), "{expression}"));
            let selected = expression.matches("instance=~\"$instance\"").count();
            assert_eq!(selected, metric_names(expression).len(), "{expression}");
        }
    }
    let page = include_str!("../../../../docs/operating.md");
    let alerts: Vec<&str> =
        page.lines().filter(|line| line.contains("| `") && line.contains("tidegate_")).collect();
    assert!(alerts.len() >= 7, "{alerts:?}");
    for alert in alerts {
        let sums = alert.split("sum by (").skip(1).filter_map(|rest| rest.split(')').next());
        sums.for_each(|labels| assert!(labels.contains("instance"), "{alert}"));
        assert!(!alert.contains("sum("), "{alert}");
    }
}

/// A store that is always unavailable.
#[derive(Debug)]
struct UnavailableStore;

impl Store for UnavailableStore {
    fn execute(&self, _: StoreRequest) -> StoreFuture<Result<StoreReply, StoreError>> {
        Box::pin(async { Err(StoreError::Unavailable("no response".to_owned())) })
    }

    fn runtime_affinity(&self) -> RuntimeAffinity {
        RuntimeAffinity::AnyRuntime
    }

    fn last_error(&self) -> Option<String> {
        Some("no response".to_owned())
    }
}

#[tokio::test]
async fn unavailable_store_is_reported() {
    let server = TestBackend::start_echo().await;
    let rules = Rules::new();
    rules.set_connect(|_| Ok(Arc::new(UnavailableStore)));
    let rest = "store: redis://:secret@db\nfailure-mode: closed\nobserve: { denials: 9 }\n\
                rules: [{ name: all, key: ip, quota: 5/h }]";
    let gateway = AdminGateway::start_with(&server, rest, rules);
    let denied = gateway.get("/").await;
    assert_eq!(denied.status(), 503);
    let id = denied.header("tidegate-denial").unwrap();
    let why = gateway.admin_json(&format!("/api/v1/denials/{id}")).await;
    assert_eq!((&why["reason"], &why["degraded"]), (&json!("store-unavailable"), &json!(true)));

    let status = gateway.admin_json("/api/v1/status").await;
    let store = &status["stores"][0];
    assert_eq!((&store["name"], &store["health"]), (&json!("default"), &json!("unavailable")));
    assert_eq!(store["last-error"], "no response");
    assert!(store["failures"].as_u64() >= Some(1), "{store}");
    assert_eq!(status["rules"][0]["counts"]["degraded"], 1);
    assert_eq!(
        (&status["rules"][0]["store"], &status["rules"][0]["table"]),
        (&json!("default"), &Value::Null)
    );
    // The outage grows with time.
    let degraded = async {
        loop {
            let status = gateway.admin_json("/api/v1/status").await;
            if status["stores"][0]["degraded-seconds"].as_f64().unwrap() > 0.0 {
                return;
            }
        }
    };
    timeout(TEST_TIMEOUT, degraded).await.unwrap();
    assert!(gateway.metrics().await.contains("tidegate_store_up{store=\"default\"} 0"));
    for page in ["/api/v1/policy", "/api/v1/status"] {
        assert!(!gateway.admin_request("GET", page, "").await.body.contains("secret"), "{page}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn ban_and_reset_require_operator_token() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, LOGIN_POLICY);
    let ban = json!({ "rule": "login", "key": "alice", "seconds": 600, "reason": "noise" }).to_string();
    for header in ["", "authorization: Bearer wrong\r\n"] {
        assert_eq!(
            gateway.admin_request_with_header("POST", "/api/v1/bans", header, &ban).await.status(),
            401
        );
        assert_eq!(
            gateway.admin_request_with_header("POST", "/api/v1/reset", header, "{}").await.status(),
            401
        );
        assert_eq!(
            gateway.admin_request_with_header("DELETE", "/api/v1/bans/b-1", header, "").await.status(),
            401
        );
        assert_eq!(gateway.admin_request_with_header("GET", "/api/v1/token", header, "").await.status(), 401);
    }
    assert_eq!(gateway.admin_json("/api/v1/token").await, json!({ "name": "api", "role": "admin" }));

    let banned = gateway.admin_request("POST", "/api/v1/bans", &ban).await;
    assert_eq!(banned.status(), 201, "{}", banned.body);
    let banned: Value = serde_json::from_str(&banned.body).unwrap();
    let rejected = gateway.get_with_header("/anywhere", "x-user: alice\r\n").await;
    assert_eq!((rejected.status(), rejected.header("retry-after")), (403, Some("600")));
    let denial =
        gateway.admin_json(&format!("/api/v1/denials/{}", rejected.header("tidegate-denial").unwrap())).await;
    assert_eq!(
        (&denial["rule"], &denial["reason"], &denial["key"]),
        (&Value::Null, &json!("banned"), &json!("alice"))
    );
    assert_eq!(gateway.get_with_header("/anywhere", "x-user: bob\r\n").await.status(), 200);
    assert_eq!(gateway.admin_json("/api/v1/bans").await["bans"][0]["id"], banned["id"]);
    let lift = format!("/api/v1/bans/{}", banned["id"].as_str().unwrap());
    assert_eq!(gateway.admin_request("DELETE", &lift, "").await.status(), 204);
    assert_eq!(gateway.admin_request("DELETE", &lift, "").await.status(), 404);
    assert_eq!(gateway.get_with_header("/anywhere", "x-user: alice\r\n").await.status(), 200);

    let network = json!({ "network": "127.0.0.0/8", "seconds": 60 }).to_string();
    assert_eq!(gateway.admin_request("POST", "/api/v1/bans", &network).await.status(), 201);
    assert_eq!(gateway.get("/").await.status(), 403);
    let id = gateway.admin_json("/api/v1/bans").await["bans"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(gateway.admin_request("DELETE", &format!("/api/v1/bans/{id}"), "").await.status(), 204);

    for _ in 0..2 {
        gateway.get_with_header("/login", "x-user: carol\r\n").await;
    }
    assert_eq!(gateway.get_with_header("/login", "x-user: carol\r\n").await.status(), 429);
    let reset =
        gateway.admin_request("POST", "/api/v1/reset", r#"{ "rule": "login", "key": "carol" }"#).await;
    assert_eq!((reset.status(), reset.body.as_str()), (200, r#"{"reset":true}"#));
    assert_eq!(gateway.get_with_header("/login", "x-user: carol\r\n").await.status(), 200);
    for (body, part) in [
        (r#"{ "ip": "x", "seconds": 1 }"#, "not an address"),
        (r#"{ "network": "10.0.0.1/8", "seconds": 1 }"#, "write `10.0.0.0/8`"),
        (r#"{ "ip": "10.0.0.1", "seconds": 0 }"#, "`seconds` must be a number"),
        (r#"{ "seconds": 1 }"#, "missing target"),
        (r#"{ "rule": "logni", "key": "a", "seconds": 1 }"#, "did you mean `login`?"),
        ("7", "expected an object"),
    ] {
        let response = gateway.admin_request("POST", "/api/v1/bans", body).await;
        assert!(response.status() >= 400 && response.body.contains(part), "{body}: {}", response.body);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn rule_bans_are_listed_and_lifted() {
    let server = TestBackend::start_echo().await;
    let gateway =
        AdminGateway::start(&server, "rules: [{ name: all, key: ip, quota: 1/h, ban: 2/min for 1h }]");
    let statuses = [200, 429, 429, 403];
    for status in statuses {
        assert_eq!(gateway.get("/").await.status(), status);
    }
    let bans = gateway.admin_json("/api/v1/bans").await;
    let ban = &bans["bans"][0];
    assert_eq!(
        (&ban["by"], &ban["rule"], &ban["value"]),
        (&json!("rule"), &json!("all"), &json!("127.0.0.1"))
    );
    assert_eq!(gateway.admin_json("/api/v1/status").await["rules"][0]["denied-by"]["banned"], 1);
    let lift = format!("/api/v1/bans/{}", ban["id"].as_str().unwrap());
    assert_eq!(gateway.admin_request("DELETE", &lift, "").await.status(), 204);
    assert_eq!(gateway.get("/").await.status(), 429);
    gateway.stop().await;
}

#[tokio::test]
async fn live_stream_sends_snapshots_to_limited_watchers() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, LOGIN_POLICY);
    let live_request = concat!(
        "GET /api/v1/live HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer ",
        env!("CARGO_PKG_VERSION"),
        "\r\n\r\n"
    );
    let mut watchers = Vec::new();
    for _ in 0..32 {
        let mut watcher = RawClient::connect(gateway.admin).await;
        watcher.send(live_request).await;
        let head = watcher.read_head().await;
        assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/event-stream"), "{head}");
        watchers.push(watcher);
    }
    let rejected =
        timeout(TEST_TIMEOUT, RawClient::connect(gateway.admin).await.request(live_request)).await.unwrap();
    assert_eq!((rejected.status(), rejected.header("retry-after")), (503, Some("5")));

    gateway.get_with_header("/login", "x-user: alice\r\n").await;
    let first = &mut watchers[0];
    let waiting = async {
        loop {
            first.read_until(b"data: ").await;
            let line = first.read_until(b"\n").await;
            let snapshot: Value = serde_json::from_slice(&line).unwrap();
            if snapshot["rules"][0]["counts"]["admitted"] == 1 {
                return snapshot;
            }
        }
    };
    let snapshot = timeout(TEST_TIMEOUT, waiting).await.unwrap();
    assert_eq!(snapshot["watchers"], json!({ "current": 32, "max": 32 }));
    gateway.stop().await;
    for mut watcher in watchers {
        assert!(watcher.read_to_end().await.ends_with("0\r\n\r\n"), "the stream ends normally");
    }
}

#[tokio::test]
async fn history_and_policy_are_readable() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, LOGIN_POLICY);
    for path in ["/a?b=c", "/login", "/login", "/login"] {
        gateway.get_with_header(path, "x-user: alice\r\n").await;
    }
    let history = gateway.admin_request("GET", "/api/v1/history", "").await;
    assert_eq!(history.header("tidegate-share"), Some("1"));
    let lines: Vec<Value> = history.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let requests: Vec<_> =
        lines.iter().map(|line| (line["path"].as_str().unwrap(), line["status"].as_u64().unwrap())).collect();
    assert_eq!(requests, [("/a", 200), ("/login", 200), ("/login", 200), ("/login", 429)]);
    assert_eq!((&lines[0]["ip"], &lines[0]["user"]), (&json!("127.0.0.1"), &json!("alice")));
    assert_eq!(gateway.admin_request("GET", "/api/v1/history?limit=1", "").await.body.lines().count(), 1);

    let policy = gateway.admin_json("/api/v1/policy").await;
    assert!(policy["text"].as_str().unwrap().contains("name: login"), "{policy}");
    assert_eq!(policy["version"], gateway.admin_json("/api/v1/status").await["policy"]["version"]);
    assert!(policy["lint"].as_array().unwrap().iter().all(|advice| advice["rule"].is_string()));

    let body = json!({ "quota": "1/s burst 2", "arrivals": [0, 0, 0, 1] }).to_string();
    let simulated = gateway.admin_request("POST", "/api/v1/simulate", &body).await;
    let simulated: Value = serde_json::from_str(&simulated.body).unwrap();
    assert_eq!((&simulated["admitted"], &simulated["denied"]), (&json!(3), &json!(1)));
    assert_eq!(simulated["decisions"][2]["retry-after"], 1.0);
    gateway.stop().await;
}

#[tokio::test]
async fn api_decisions_are_counted() {
    let server = TestBackend::start_echo().await;
    let rest = "decisions: 127.0.0.1:0\nrules: [{ name: mails, key: ip, quota: 2/h }]";
    let gateway = AdminGateway::start(&server, rest);
    let check = r#"{ "rule": "mails", "key": "192.0.2.1" }"#;
    for path in ["check", "check", "check", "peek", "reserve"] {
        let request =
            format!("POST /v1/{path} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{check}", check.len());
        timeout(TEST_TIMEOUT, RawClient::connect(gateway.decisions.unwrap()).await.request(&request))
            .await
            .unwrap();
    }
    let auth = "GET /v1/auth HTTP/1.1\r\nhost: a\r\nx-original-uri: /\r\nx-real-ip: 192.0.2.2\r\n\r\n";
    timeout(TEST_TIMEOUT, RawClient::connect(gateway.decisions.unwrap()).await.request(auth)).await.unwrap();
    let counts = &gateway.admin_json("/api/v1/status").await["rules"][0]["counts"];
    assert_eq!((&counts["admitted"], &counts["denied"]), (&json!(3), &json!(2)));
    gateway.stop().await;
}

#[tokio::test]
async fn grafana_queries_use_existing_metrics() {
    let server = TestBackend::start_echo().await;
    let rules = Rules::new();
    rules.set_connect(|_| Ok(Arc::new(UnavailableStore)));
    let rest = "stores: { far: redis://db }
rules:
  - { name: far, store: far, quota: 5/h }
  - { name: near, quota: 5/h, wait: 1ms, breaker: { failure-rate: 50% }, adaptive: { target: 1s } }
";
    let gateway = AdminGateway::start_with(&server, rest, rules);
    let metrics = gateway.metrics().await;
    let known: BTreeSet<&str> =
        metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let board: Value = serde_json::from_str(include_str!("../../../../docs/grafana.json")).unwrap();
    let mut queried = BTreeSet::new();
    let panels = board["panels"].as_array().unwrap();
    for target in panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten()) {
        queried.extend(metric_names(target["expr"].as_str().unwrap()));
    }
    for variable in board["templating"]["list"].as_array().unwrap() {
        queried.extend(metric_names(variable["query"].as_str().unwrap_or_default()));
    }
    assert!(queried.len() >= 20, "{queried:?}");
    for name in &queried {
        let base =
            ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        assert!(
            known.contains(base) || known.contains(name.as_str()),
            "the board queries the unknown metric {name}"
        );
    }
    // The documentation lists all metrics, and no others.
    let page = include_str!("../../../../docs/metrics.md");
    let written = page.lines().filter_map(|line| line.strip_prefix("| `tidegate_")?.split('`').next());
    let written: BTreeSet<String> = written.map(|name| format!("tidegate_{name}")).collect();
    assert_eq!(written, known.iter().map(|name| (*name).to_owned()).collect());
    gateway.stop().await;
}

/// The metric names in a Prometheus query.
fn metric_names(query: &str) -> Vec<String> {
    let is_name_char = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let tokens = query.split(|c: char| !is_name_char(c));
    tokens.filter(|token| token.starts_with("tidegate_")).map(str::to_owned).collect()
}

#[cfg(feature = "otel")]
#[tokio::test]
async fn otlp_collector_receives_all_metrics() {
    use http_body_util::BodyExt as _;
    use opentelemetry_proto::tonic::{
        collector::metrics::v1::ExportMetricsServiceRequest,
        common::v1::any_value::Value as ServiceName,
        metrics::v1::{Metric, metric::Data, number_data_point::Value as Point},
    };
    use prost::Message as _;

    let (sender, mut exports) = tokio::sync::mpsc::channel::<ExportMetricsServiceRequest>(8);
    let collector = TestBackend::start(move |request: http::Request<hyper::body::Incoming>| {
        let arrived = sender.clone();
        async move {
            assert_eq!(request.uri().path(), "/v1/metrics");
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let _ = arrived.try_send(ExportMetricsServiceRequest::decode(body).unwrap());
            http::Response::new(crate::harness::text_body(""))
        }
    })
    .await;
    let server = TestBackend::start_echo().await;
    let metrics =
        format!("metrics: {{ endpoint: 'http://{}', interval: 50ms, service: shop }}\n", collector.address);
    let gateway = AdminGateway::start(&server, &(metrics + LOGIN_POLICY));
    gateway.get_with_header("/login", "x-user: alice\r\n").await;

    // The first export may precede the request. A few more show the interval: by default, four take longer than the timeout.
    let receive = async {
        let (mut exported, mut count) = (None, 0);
        while exported.is_none() || count < 4 {
            let export = exports.recv().await.unwrap();
            count += 1;
            let all = &export.resource_metrics[0];
            let service = &all.resource.as_ref().unwrap().attributes[0];
            assert_eq!(service.key, "service.name");
            let name = service.value.as_ref().and_then(|value| value.value.as_ref());
            assert_eq!(name, Some(&ServiceName::StringValue("shop".to_owned())));
            let id = &all.resource.as_ref().unwrap().attributes[1];
            let text = format!("{:?}", id.value);
            assert_eq!(id.key, "service.instance.id");
            assert!(text.matches('-').count() == 4 && text.contains("-4"), "{text}");
            let described = |metric: &Metric| !metric.description.is_empty();
            assert!(all.scope_metrics[0].metrics.iter().all(described));
            let metrics: Vec<Metric> = all.scope_metrics[0].metrics.clone();
            let requests = metrics.iter().find(|metric| metric.name == "tidegate_requests_total").unwrap();
            let Some(Data::Sum(sum)) = &requests.data else { panic!("{requests:?}") };
            assert!(sum.is_monotonic && sum.aggregation_temporality == 2);
            if sum.data_points[0].value == Some(Point::AsInt(1)) {
                exported = Some(metrics);
            }
        }
        exported.unwrap()
    };
    let exported = timeout(TEST_TIMEOUT, receive).await.unwrap();
    let text = gateway.metrics().await;
    let known = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let has_values = |name: &&str| {
        text.lines().any(|line| {
            line.starts_with(&format!("{name}{{"))
                || line.starts_with(&format!("{name} "))
                || line.starts_with(&format!("{name}_count"))
        })
    };
    let known: BTreeSet<&str> = known.filter(has_values).collect();
    assert_eq!(exported.iter().map(|metric| metric.name.as_str()).collect::<BTreeSet<_>>(), known);
    let times = exported.iter().find(|metric| metric.name == "tidegate_decision_seconds").unwrap();
    let Some(Data::Histogram(times)) = &times.data else { panic!("{times:?}") };
    let point = &times.data_points[0];
    assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
    assert_eq!(times.data_points[0].count, point.bucket_counts.iter().sum::<u64>());
    gateway.stop().await;
}

#[cfg(feature = "otel")]
#[tokio::test]
async fn lost_spans_are_counted() {
    let (server, collector) = (TestBackend::start_echo().await, TestBackend::unreachable().await);
    let traces = format!("traces: 'http://{}'\n{LOGIN_POLICY}", collector.address);
    let gateway = AdminGateway::start(&server, &traces);
    gateway.get("/").await;
    // The request, and the attempt to send it to the server.
    let metrics = gateway.wait_for_metric("tidegate_spans_total{outcome=\"lost\"}", 2.0).await;
    assert_eq!(metric_value(&metrics, "tidegate_spans_total{outcome=\"sent\"}"), 0.0);
    gateway.stop().await;
}
