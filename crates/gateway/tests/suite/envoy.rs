//! The rate limit service for Envoy of a gateway, with a real gRPC client.

use crate::{
    decisions::stores::redis_rules,
    harness::{RawClient, TEST_TIMEOUT, TestBackend},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs, net::SocketAddr, process::Command, time::Duration};
use tempfile::TempDir;
use tidegate_gateway::{Gateway, GatewayError, GatewayHandle, PolicySource, Preflight};
use tidegate_limiter::{Clock, ManualClock};
use tidegate_proto::rls::{
    Code, DescriptorStatus, Entry, RateLimit, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
    RateLimitServiceClient, Unit,
};
use tidegate_rule::Rules;
use tidegate_testkit::{
    servers::{Certificates, RedisServer},
    tokens::TokenIssuer,
};
use tokio::{net::TcpStream, sync::oneshot, task::JoinHandle, time::timeout};
use tonic::{
    Status,
    transport::{Channel, Server, server::TcpIncoming},
};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

/// A gateway with a rate limit service, a policy file and a manual clock.
struct EnvoyGateway {
    envoy: SocketAddr,
    gateway: Option<SocketAddr>,
    admin: Option<SocketAddr>,
    clock: ManualClock,
    handle: GatewayHandle,
    folder: TempDir,
    stop: oneshot::Sender<()>,
    end: JoinHandle<Result<(), GatewayError>>,
}

impl EnvoyGateway {
    fn start(policy: &str) -> Self {
        Self::start_with(policy, Rules::new())
    }

    fn start_with(policy: &str, rules: Rules) -> Self {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("policy.yaml");
        fs::write(&file, policy).unwrap();
        let (clock, manual_clock) = Clock::manual();
        manual_clock.advance(Duration::from_secs(1_700_000_000));
        let gateway = Gateway::open_with_clock(PolicySource::file(file), rules, clock).unwrap();
        let (envoy, handle) = (gateway.envoy_address().unwrap(), gateway.handle());
        let (address, admin) = (gateway.addresses().first().copied(), gateway.admin_address());
        let (stop, stopped) = oneshot::channel::<()>();
        let end = tokio::spawn(gateway.run(async {
            let _ = stopped.await;
        }));
        Self { envoy, gateway: address, admin, clock: manual_clock, handle, folder, stop, end }
    }

    async fn replace(&self, policy: &str) {
        fs::write(self.folder.path().join("policy.yaml"), policy).unwrap();
        self.handle.reload().await.unwrap();
    }

    async fn channel(&self) -> Channel {
        Channel::from_shared(format!("http://{}", self.envoy)).unwrap().connect().await.unwrap()
    }

    async fn client(&self) -> EnvoyClient {
        EnvoyClient(RateLimitServiceClient::new(self.channel().await))
    }

    /// Sends a request to the admin API.
    async fn admin_json(&self, method: &str, path: &str, body: &str) -> Value {
        let length = body.len();
        let request =
            format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}");
        let client = RawClient::connect(self.admin.unwrap());
        let response = timeout(TEST_TIMEOUT, client.await.request(&request)).await.unwrap();
        assert!(response.status() < 300, "{}", response.body);
        serde_json::from_str(&response.body).unwrap()
    }

    /// Returns when this number of requests wait for the first rule.
    async fn wait_for_waiters(&self, count: u64) {
        let waiting = async {
            loop {
                let status = self.admin_json("GET", "/api/v1/status", "").await;
                if status["rules"][0]["queue"]["waiting"] == count {
                    return;
                }
            }
        };
        timeout(TEST_TIMEOUT, waiting).await.unwrap();
    }

    async fn stop(self) {
        drop(self.stop);
        timeout(TEST_TIMEOUT, self.end).await.unwrap().unwrap().unwrap();
    }
}

/// A client of the rate limit service.
#[derive(Clone)]
struct EnvoyClient(RateLimitServiceClient<Channel>);

impl EnvoyClient {
    async fn send(&mut self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let response = timeout(TEST_TIMEOUT, self.0.should_rate_limit(request)).await.unwrap();
        response.map(tonic::Response::into_inner)
    }

    async fn check(&mut self, descriptors: Vec<RateLimitDescriptor>) -> RateLimitResponse {
        self.send(request(descriptors)).await.unwrap()
    }

    /// The code for one descriptor.
    async fn code(&mut self, entries: &[(&str, &str)]) -> Code {
        self.check(vec![descriptor(entries)]).await.overall_code()
    }
}

fn request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "shop".to_owned(), descriptors, hits_addend: 0 }
}

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..RateLimitDescriptor::default() }
}

fn headers(response: &RateLimitResponse) -> BTreeMap<&str, &str> {
    response.response_headers_to_add.iter().map(|header| (&*header.key, &*header.value)).collect()
}

/// The name of a limit, with its requests per unit.
type NamedLimit<'a> = (&'a str, u32, Unit);

/// The code, the limit, the remaining tokens and the seconds until the reset.
fn status(status: &DescriptorStatus) -> (Code, Option<NamedLimit<'_>>, u32, Option<i64>) {
    let limit = |limit: &RateLimit| (limit.requests_per_unit, limit.unit());
    let limit = status.current_limit.as_ref().map(|it| (&*it.name, limit(it).0, limit(it).1));
    let reset = status.duration_until_reset.as_ref().map(|reset| reset.seconds);
    (status.code(), limit, status.limit_remaining, reset)
}

const POLICY: &str = "
envoy: 127.0.0.1:0
admin: 127.0.0.1:0
observe: { denials: 100 }
features: { search: manual }
lists: { blocked: 203.0.113.0/24 }
rules:
  - { name: user, match: { descriptor: { user: \"*\" } }, key: descriptor user, quota: 3/min burst 2, message: Slow down. }
  - { name: window, match: { descriptor: { path: export } }, quota: 10 per 90min fixed-window from-first-hit }
  - { name: trial, match: { descriptor: { user: \"*\" } }, quota: 1/h, mode: shadow }
  - { name: old, quota: 1/h, mode: off }
  - { name: address, key: ip, missing: skip, quota: 2/h, deny: blocked }
  - { name: feature, match: { descriptor: { path: search } }, feature: search }
  - { name: http, match: { path: /** }, quota: 1/h }
";

#[tokio::test]
async fn each_descriptor_is_decided_by_the_rules() {
    let server = EnvoyGateway::start(POLICY);
    assert_eq!(server.gateway, None, "there are no upstreams");
    let mut client = server.client().await;
    let ann = || descriptor(&[("user", "ann")]);

    let allowed = client.check(vec![ann()]).await;
    assert_eq!(status(&allowed.statuses[0]), (Code::Ok, Some(("user", 3, Unit::Minute)), 1, Some(20)));
    assert_eq!(headers(&allowed)["ratelimit"], r#""user";r=1;t=20"#);
    assert!(headers(&allowed)["ratelimit-policy"].starts_with(r#""user";q="#), "{allowed:?}");
    assert_eq!((allowed.overall_code(), &allowed.raw_body[..]), (Code::Ok, &b""[..]));

    // A denied descriptor changes nothing for the others, and the first denial is the response.
    let unlimited = descriptor(&[("other", "x")]);
    let export = || RateLimitDescriptor { hits_addend: Some(4), ..descriptor(&[("path", "export")]) };
    let both = client.check(vec![export(), ann(), unlimited.clone(), ann()]).await;
    let limit = Some(("user", 3, Unit::Minute));
    assert_eq!(both.overall_code(), Code::OverLimit);
    assert_eq!(
        both.statuses.iter().map(status).collect::<Vec<_>>(),
        [
            (Code::Ok, None, 6, Some(5_400)),
            (Code::Ok, limit, 0, Some(20)),
            (Code::Ok, None, 0, None),
            (Code::OverLimit, limit, 0, Some(20)),
        ]
    );
    let denial = headers(&both);
    assert_eq!((denial["retry-after"], denial["content-type"]), ("20", "application/problem+json"));
    assert_eq!(denial["ratelimit"], r#""user";r=0;t=20"#);
    let body: Value = serde_json::from_slice(&both.raw_body).unwrap();
    assert_eq!((&body["detail"], &body["status"]), (&json!("Slow down."), &json!(429)));

    let again = client.check(vec![export(), unlimited]).await;
    assert_eq!(status(&again.statuses[0]), (Code::Ok, None, 2, Some(5_400)), "it was charged");
    let over = client.check(vec![export()]).await;
    assert_eq!(status(&over.statuses[0]), (Code::OverLimit, None, 2, Some(5_400)), "and this was not");
    let peek = RateLimitDescriptor { hits_addend: Some(0), ..descriptor(&[("path", "export")]) };
    assert_eq!(client.check(vec![peek.clone(), peek]).await.overall_code(), Code::Ok);
    // The hits of the request are those of each descriptor without its own.
    let hits = RateLimitRequest { hits_addend: 2, ..request(vec![descriptor(&[("path", "export")])]) };
    assert_eq!(client.send(hits.clone()).await.unwrap().overall_code(), Code::Ok);
    assert_eq!(client.send(hits).await.unwrap().overall_code(), Code::OverLimit);

    server.clock.advance(Duration::from_secs(20));
    assert_eq!(client.code(&[("user", "ann")]).await, Code::Ok, "the clock has advanced");
    server.stop().await;
}

/// Envoy copies the header of the client to an entry of the same name.
#[tokio::test]
async fn credential_in_a_descriptor_is_verified() {
    let issuer = TokenIssuer::new("ES256", "one").unwrap();
    let keys = TempDir::new().unwrap();
    fs::write(keys.path().join("jwks.json"), issuer.key_set()).unwrap();
    let server = EnvoyGateway::start(&format!(
        "envoy: 127.0.0.1:0\nadmin: 127.0.0.1:0\nobserve: {{ denials: 9 }}\nidentity: {{ jwt: {{ keys: '{}/jwks.json', audience: api }} }}\n\
         rules: [{{ name: users, key: jwt sub, tiers: {{ key: jwt plan, quotas: {{ gold: 2/h }}, default: 1/h }}, missing: reject }}]\n",
        keys.path().display()
    ));
    let mut client = server.client().await;
    let token = |claims: &str| {
        format!("Bearer {}", issuer.sign(&format!(r#"{{{claims},"aud":"api","exp":4102444800}}"#)))
    };
    let (ada, bob) = (token(r#""sub":"ada","plan":"gold""#), token(r#""sub":"bob""#));
    for (value, expected) in [
        (&*ada, Code::Ok),
        (&ada, Code::Ok),
        (&ada, Code::OverLimit),
        (&bob, Code::Ok),
        (&bob, Code::OverLimit),
        ("Bearer a.b.c", Code::OverLimit),
        ("Basic YTpi", Code::OverLimit),
    ] {
        assert_eq!(client.code(&[("authorization", value)]).await, expected, "{value}");
    }
    assert_eq!(client.code(&[("user", "ada")]).await, Code::OverLimit);
    let denials = server.admin_json("GET", "/api/v1/denials", "").await;
    let credentials: Vec<_> =
        denials["denials"].as_array().unwrap().iter().map(|denial| denial["credential"].clone()).collect();
    assert_eq!(credentials[..3], [json!("missing"), json!("missing"), json!("malformed")]);
    assert!(!denials.to_string().contains(&ada[10..40]), "{denials}");
    server.stop().await;
}

#[tokio::test]
async fn lists_bans_and_features_apply_and_denials_are_recorded() {
    let server = EnvoyGateway::start(POLICY);
    let mut client = server.client().await;
    let address = |address: &'static str| [("remote_address", address)];
    assert_eq!(client.code(&address("203.0.113.7")).await, Code::OverLimit, "on a deny list");
    for code in [Code::Ok, Code::Ok, Code::OverLimit] {
        assert_eq!(client.code(&address("192.0.2.1")).await, code);
    }
    let ban = r#"{"ip":"192.0.2.9","seconds":600}"#;
    server.admin_json("POST", "/api/v1/bans", ban).await;
    let banned = client.check(vec![descriptor(&address("192.0.2.9"))]).await;
    assert_eq!((banned.overall_code(), headers(&banned)["retry-after"]), (Code::OverLimit, "600"));

    assert_eq!(client.code(&[("path", "search")]).await, Code::Ok);
    server.admin_json("POST", "/api/v1/features/search", r#"{"state":"off"}"#).await;
    let off = client.check(vec![descriptor(&[("path", "search")])]).await;
    assert_eq!((off.overall_code(), headers(&off)["retry-after"]), (Code::OverLimit, "1"));

    let denials = server.admin_json("GET", "/api/v1/denials", "").await;
    let denials = denials["denials"].as_array().unwrap();
    let found: Vec<_> = denials
        .iter()
        .rev()
        .map(|denial| (denial["rule"].as_str(), denial["reason"].as_str().unwrap()))
        .collect();
    let expected = [
        (Some("address"), "deny-list"),
        (Some("address"), "limited"),
        (None, "banned"),
        (Some("feature"), "feature-off"),
    ];
    assert_eq!(found, expected);
    assert_eq!((&denials[2]["path"], &denials[2]["method"]), (&Value::Null, &Value::Null));
    // The client gets the id of its denial.
    let id = off.response_headers_to_add.iter().find(|header| header.value == denials[0]["id"]);
    assert!(id.is_some(), "{off:?}");

    let status = server.admin_json("GET", "/api/v1/status", "").await;
    assert_eq!(status["envoy"], server.envoy.to_string());
    let rule = |name: &str| {
        status["rules"].as_array().unwrap().iter().find(|rule| rule["name"] == name).unwrap().clone()
    };
    assert_eq!(rule("address")["denied-by"]["limited"], 1);
    server.stop().await;
}

#[tokio::test]
async fn address_shares_its_counter_with_requests_of_the_gateway() {
    let backend = TestBackend::start_echo().await;
    let server = EnvoyGateway::start(&format!(
        "envoy: 127.0.0.1:0\nlisten: 127.0.0.1:0\nupstreams: {{ app: 'http://{}' }}\nroutes: app\n\
         rules: [{{ name: each, key: ip, quota: 3/h }}]\n",
        backend.address
    ));
    let mut client = server.client().await;
    let mut http = RawClient::connect(server.gateway.unwrap()).await;
    assert_eq!(client.code(&[("remote_address", "127.0.0.1")]).await, Code::Ok);
    let response = http.request("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!((response.status(), response.header("ratelimit")), (200, Some(r#""each";r=1;t=1200"#)));
    assert_eq!(client.code(&[("remote_address", "127.0.0.1")]).await, Code::Ok);
    assert_eq!(http.request("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.status(), 429);
    assert_eq!(client.code(&[("remote_address", "192.0.2.1")]).await, Code::Ok);
    server.stop().await;
}

#[tokio::test]
async fn invalid_requests_are_rejected_and_health_is_served() {
    let server = EnvoyGateway::start(POLICY);
    let mut client = server.client().await;
    let any = || descriptor(&[("user", "ann")]);
    let many_entries = descriptor(&[("a", "b"); 65]);
    let cases = [
        (RateLimitRequest { domain: String::new(), ..request(vec![any()]) }, "domain must not be empty"),
        (request(vec![]), "descriptor list must not be empty"),
        (request(vec![any(); 1_001]), "too many descriptors: 1001; send at most 1000"),
        (request(vec![any(), many_entries]), "descriptors[1]: too many entries: 65; send at most 64"),
    ];
    for (request, expected) in cases {
        let error = client.send(request).await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::InvalidArgument);
        assert!(error.message().contains(expected), "{error:?}");
    }
    // Long keys, keys that are no addresses, and all descriptors that are allowed.
    let long = "x".repeat(100_000);
    for entries in [&[("user", &*long)][..], &[("remote_address", &*long)], &[("", "")], &[]] {
        assert_eq!(client.code(entries).await, Code::Ok);
    }
    let all = client.check(vec![descriptor(&[("user", "bob")]); 1_000]).await;
    let allowed = all.statuses.iter().filter(|status| status.code() == Code::Ok);
    assert_eq!((all.statuses.len(), allowed.count()), (1_000, 2));

    let mut health = HealthClient::new(server.channel().await);
    for service in ["", "ratelimit"] {
        let request = HealthCheckRequest { service: service.to_owned() };
        let health = health.check(request).await.unwrap().into_inner();
        assert_eq!(health.status(), ServingStatus::Serving);
    }
    server.stop().await;
}

#[tokio::test]
async fn reload_replaces_rules_tokens_and_listener() {
    let policy = |envoy: &str, quota: &str| {
        format!(
            "decisions: 127.0.0.1:0\n{envoy}\nrules: [{{ name: a, key: descriptor user, quota: {quota} }}]\n"
        )
    };
    let open = "envoy: 127.0.0.1:0";
    let server = EnvoyGateway::start(&policy(open, "1/h"));
    let mut client = server.client().await;
    assert_eq!(client.code(&[("user", "ann")]).await, Code::Ok);
    assert_eq!(client.code(&[("user", "ann")]).await, Code::OverLimit);
    server.replace(&policy(open, "2/h burst 2")).await;
    assert_eq!(client.code(&[("user", "ann")]).await, Code::Ok, "on the same connection");

    // Cargo sets this variable for every test, so it serves as a token.
    let tokens = "envoy: { listen: 127.0.0.1:0, tokens: [{ name: edge, token: $CARGO_PKG_NAME }] }";
    server.replace(&policy(tokens, "2/h burst 2")).await;
    // On the same connection.
    let error = client.send(request(vec![descriptor(&[("user", "bob")])])).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::Unauthenticated, "{error:?}");
    let mut with_token = tonic::Request::new(request(vec![descriptor(&[("user", "bob")])]));
    let token = format!("Bearer {}", env!("CARGO_PKG_NAME")).parse().unwrap();
    with_token.metadata_mut().insert("authorization", token);
    assert_eq!(client.0.should_rate_limit(with_token).await.unwrap().into_inner().overall_code(), Code::Ok);

    // The tokens of operators are accepted too, and those of the policy in force only.
    for (variable, ann, bob) in
        [("CARGO_MANIFEST_DIR", Some(()), None), ("CARGO_PKG_VERSION", None, Some(()))]
    {
        let operators = format!(
            "{tokens}\nadmin: {{ listen: 127.0.0.1:0, tokens: {{ name: ann, token: ${variable}, role: operate }} }}"
        );
        server.replace(&policy(&operators, "2/h burst 2")).await;
        for (token, expected) in [(env!("CARGO_MANIFEST_DIR"), ann), (env!("CARGO_PKG_VERSION"), bob)] {
            let mut sent = tonic::Request::new(request(vec![descriptor(&[("user", "eve")])]));
            sent.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
            let result = client.0.should_rate_limit(sent).await.map(drop);
            assert_eq!(result.as_ref().ok(), expected.as_ref(), "{variable} {token}: {result:?}");
        }
    }

    server.replace(&policy("", "2/h burst 2")).await;
    let closed = async { while TcpStream::connect(server.envoy).await.is_ok() {} };
    timeout(TEST_TIMEOUT, closed).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn store_outage_is_decided_by_the_failure_mode() {
    let redis = RedisServer::start().unwrap();
    let policy = format!(
        "store: {}\nenvoy: 127.0.0.1:0\nrules:\n\
         - {{ name: closed, match: {{ descriptor: {{ mode: closed }} }}, quota: 3 per 52w, failure-mode: closed }}\n\
         - {{ name: open, match: {{ descriptor: {{ mode: open }} }}, quota: 3 per 52w, failure-mode: open }}\n",
        redis.url()
    );
    let server = EnvoyGateway::start_with(&policy, redis_rules());
    let mut client = server.client().await;
    let connected = async { while client.clone().code(&[("mode", "closed")]).await != Code::Ok {} };
    timeout(TEST_TIMEOUT, connected).await.unwrap();
    let both = || ["closed", "open"].map(|mode| descriptor(&[("mode", mode)])).to_vec();
    let first = client.check(both()).await;
    assert_eq!(first.statuses.iter().map(|it| it.limit_remaining).collect::<Vec<_>>(), [1, 2]);
    redis.kill();
    let down = async {
        loop {
            let response = client.clone().check(both()).await;
            if response.overall_code() == Code::OverLimit {
                return response;
            }
        }
    };
    let down = timeout(TEST_TIMEOUT, down).await.unwrap();
    let codes: Vec<_> = down.statuses.iter().map(DescriptorStatus::code).collect();
    assert_eq!(codes, [Code::OverLimit, Code::Ok]);
    let body: Value = serde_json::from_slice(&down.raw_body).unwrap();
    assert_eq!(body["status"], 503);
    server.stop().await;
}

/// The clock is manual, so a request that waits ends only when the test advances it.
#[tokio::test]
async fn descriptor_waits_for_its_turn_and_a_dropped_call_leaves_the_queue() {
    let server = EnvoyGateway::start(
        "envoy: 127.0.0.1:0\nadmin: 127.0.0.1:0\nrules: [{ name: slow, quota: 1/s, wait: 1s, queue: 9 }]\n",
    );
    let mut client = server.client().await;
    assert_eq!(client.code(&[]).await, Code::Ok);
    let spawn = || {
        let mut client = client.clone();
        tokio::spawn(async move { client.code(&[]).await })
    };
    let dropped = spawn();
    server.wait_for_waiters(1).await;
    let denied = client.clone().check(vec![descriptor(&[])]).await;
    assert_eq!((denied.overall_code(), headers(&denied)["retry-after"]), (Code::OverLimit, "2"));
    dropped.abort();
    server.wait_for_waiters(0).await;
    let next = spawn();
    server.wait_for_waiters(1).await;
    server.clock.advance(Duration::from_secs(1));
    assert_eq!(timeout(TEST_TIMEOUT, next).await.unwrap().unwrap(), Code::Ok);
    server.stop().await;
}

/// A call of tonic through the gateway, over HTTP/2 on both sides.
#[tokio::test]
async fn grpc_call_through_the_gateway_waits_for_its_turn() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let backend = listener.local_addr().unwrap();
    let (_reporter, health) = tonic_health::server::health_reporter();
    tokio::spawn(Server::builder().add_service(health).serve_with_incoming(TcpIncoming::from(listener)));
    let server = EnvoyGateway::start(&format!(
        "envoy: 127.0.0.1:0\nadmin: 127.0.0.1:0\nlisten: 127.0.0.1:0\n\
         upstreams: {{ app: {{ servers: 'http://{backend}', protocol: http2 }} }}\nroutes: app\n\
         rules: [{{ name: slow, match: {{ method: POST }}, quota: 1/s, wait: 1s, queue: 9 }}]\n"
    ));
    let uri = format!("http://{}", server.gateway.unwrap());
    let channel = Channel::from_shared(uri).unwrap().connect().await.unwrap();
    let spawn = || {
        let mut client = HealthClient::new(channel.clone());
        let check = async move { client.check(HealthCheckRequest::default()).await.map(drop) };
        tokio::spawn(timeout(TEST_TIMEOUT, check))
    };
    spawn().await.unwrap().unwrap().unwrap();
    let dropped = spawn();
    server.wait_for_waiters(1).await;
    assert!(spawn().await.unwrap().unwrap().is_err(), "its wait would be too long");
    dropped.abort();
    server.wait_for_waiters(0).await;
    let next = spawn();
    server.wait_for_waiters(1).await;
    server.clock.advance(Duration::from_secs(1));
    next.await.unwrap().unwrap().unwrap();
    server.stop().await;
}

#[tokio::test]
async fn service_is_served_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let certificates = Certificates::create(folder.path()).unwrap();
    let (certificate, key) = (certificates.certificate.display(), certificates.key.display());
    let server = EnvoyGateway::start(&format!(
        "envoy: {{ listen: 127.0.0.1:0, tls: {{ certificate: '{certificate}', key: '{key}' }} }}\n"
    ));
    // An empty message of the health service, in a frame of gRPC.
    let message = folder.path().join("message");
    fs::write(&message, [0; 5]).unwrap();
    let url = format!("https://localhost:{}/grpc.health.v1.Health/Check", server.envoy.port());
    let run = move || {
        let mut command = Command::new("curl");
        command.args(["-s", "-o", "/dev/null", "-w", "%{http_code} %{http_version}", "--noproxy", "*"]);
        command.args(["--max-time", "20", "--http2", "-H", "content-type: application/grpc"]);
        command.arg("--data-binary").arg(format!("@{}", message.display()));
        command.arg("--cacert").arg(&certificates.authority).arg(url).output().unwrap()
    };
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "200 2");
    server.stop().await;
}

#[test]
fn preflight_checks_address_certificate_and_token_of_envoy() {
    let policy = "decisions: 127.0.0.1:8081\nenvoy: { listen: 127.0.0.1:8081, tls: { certificate: a.pem, key: a.key }, \
                  tokens: [{ name: edge, token: $TIDEGATE_NO_SUCH_TOKEN }] }\n\
                  admin: { listen: 127.0.0.1:8082, tokens: [{ name: root, token: $CARGO_PKG_NAME }, { name: ann, token: $ANN_TOKEN }] }\n";
    let found = Preflight::check(&policy.parse().unwrap(), &|_| Ok(()));
    let errors: Vec<_> =
        found.errors.iter().map(|error| (error.path.join("."), error.problem.clone())).collect();
    let expected = [
        ("envoy.tls.certificate", "a.pem"),
        ("envoy.listen", "`127.0.0.1:8081` is in use: `decisions` listens on 127.0.0.1:8081"),
        ("admin.tokens.1.token", "ANN_TOKEN"),
        ("envoy.tokens.0.token", "TIDEGATE_NO_SUCH_TOKEN"),
    ];
    assert_eq!(errors.len(), expected.len(), "{errors:?}");
    for ((path, problem), (expected_path, expected)) in errors.iter().zip(expected) {
        assert!(path == expected_path && problem.contains(expected), "{path}: {problem}");
    }
    let only_envoy = Preflight::check(&"envoy: 127.0.0.1:8081\n".parse().unwrap(), &|_| Ok(()));
    assert_eq!((only_envoy.errors.len(), only_envoy.warnings.len()), (0, 0), "{only_envoy:?}");
}
