//! A policy layer makes the same decisions as the gateway.

use crate::support::{ChannelBody, TestService, TestServiceError, send_request};
use bytes::Bytes;
use http::{Request, Response, Version};
use http_body::Frame;
use http_body_util::BodyExt as _;
use proptest::prelude::*;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tidegate_limiter::{Clock, ManualClock};
use tidegate_policy::{
    Policy,
    compile::{Compiler, LivePolicy, PolicyResult, RejectAction},
};
use tidegate_rule::{
    Evaluation, Rules,
    request::{ClientCertificate, ResponseHead},
};
use tidegate_testkit::tokens::TokenIssuer;
use tidegate_tower::{BandwidthBody, GateBody, LimitLayer, PolicyLayer, PolicyService, TowerRequestHead};
use tower::{Layer as _, service_fn};

fn live_policy(policy: &str) -> (Arc<LivePolicy>, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    let compiler = Compiler::new(Rules::new()).clock(clock);
    (Arc::new(LivePolicy::new(compiler, &policy.parse().unwrap()).unwrap()), manual_clock)
}

fn service(policy: &str) -> (PolicyService<TestService>, TestService, ManualClock) {
    let ((live, manual_clock), inner) = (live_policy(policy), TestService::new());
    (PolicyLayer::new(live).unwrap().layer(inner.clone()), inner, manual_clock)
}

fn request(line: &str, peer: u8) -> Request<()> {
    let (method, uri) = line.split_once(' ').unwrap();
    let peer = SocketAddr::from(([192, 0, 2, peer], 1));
    Request::builder().method(method).uri(uri).extension(peer).body(()).unwrap()
}

/// The response to a client: the status, the sorted headers, and the body.
type LayerResponse = (u16, Vec<(String, String)>, String);

async fn observe_response<R>(response: Response<GateBody<R>>) -> LayerResponse
where
    R: http_body::Body<Data = Bytes>,
{
    let (parts, body) = response.into_parts();
    let text = |value: &http::HeaderValue| value.to_str().unwrap().to_owned();
    let mut headers: Vec<_> =
        parts.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    headers.sort();
    let Ok(body) = body.collect().await else { panic!("a whole body") };
    (parts.status.as_u16(), headers, String::from_utf8(body.to_bytes().to_vec()).unwrap())
}

/// Returns the statuses of six requests of one client and one of another.
async fn statuses<S>(service: &S) -> [u16; 7]
where
    S: tower::Service<Request<()>, Response = Response<GateBody<BandwidthBody<http_body_util::Full<Bytes>>>>>
        + Clone,
    S::Error: std::fmt::Debug,
{
    let mut statuses = [0; 7];
    for (place, status) in statuses.iter_mut().enumerate() {
        let peer = if place < 6 { 1 } else { 2 };
        *status = send_request(service, request("GET /", peer)).await.unwrap().status().as_u16();
    }
    statuses
}

#[tokio::test]
async fn limit_layer_limits_each_address() {
    let service = LimitLayer::per_peer_ip("4 per 52w").unwrap().layer(TestService::new());
    let mut statuses = Vec::new();
    for peer in [1, 1, 1, 2, 1, 1, 2] {
        statuses.push(send_request(&service, request("GET /", peer)).await.unwrap().status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 200]);
    let other = LimitLayer::per_peer_ip("1 per 52w").unwrap().layer(TestService::new());
    assert_eq!(
        send_request(&other, request("GET /", 1)).await.unwrap().status(),
        200,
        "each layer has its own counters"
    );
    assert!(LimitLayer::per_peer_ip("4 per parsec").is_err());
}

#[tokio::test]
async fn limit_layer_loads_policy_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    std::fs::write(&path, "rules: [{ name: everybody, key: ip, quota: 4 per 52w }]").unwrap();
    let service = LimitLayer::from_policy(&path).unwrap().layer(TestService::new());
    assert_eq!(statuses(&service).await, [200, 200, 200, 200, 429, 429, 200]);

    std::fs::write(&path, "rules: [{ name: everybody, key: ip, quota: 4 per parsec }]").unwrap();
    let problems = LimitLayer::from_policy(&path).unwrap_err().to_string();
    assert!(problems.contains("policy.yaml:1:50: unknown period `parsec`; "), "{problems}");
}

const POLICY: &str = r#"
lists: { bad: [192.0.2.3] }
rules:
  - { name: everybody, key: ip, quota: 6/s burst 6 }
  - { name: login, match: { method: POST, path: /login }, key: ip, quotas: [2/s, 5/min], charge: { if-status: 401 } }
  - { name: closed, match: { path: /in/** }, deny: bad, on-limit: { status: 404, body: "Nothing." } }
  - { name: moved, match: { path: '/a/{id}' }, key: capture id, quota: 1/s, on-limit: { redirect: /later } }
  - { name: other, match: { path: /b }, quota: 1/s, on-limit: { fallback: { body: "stale", headers: { x-old: "1" } } } }
  - { name: gone, match: { path: /c }, quota: 1/s, on-limit: drop, ban: 3/s for 2s }
  - { name: apart, match: { path: /d }, key: ip, quota: 2 at once }
  - { name: spared, match: { path: /e }, breaker: { failure-rate: 50%, window-size: 4, min-calls: 2, open-duration: 1s, half-open-calls: 1 } }
  - { name: tried, match: { path: /b }, quota: 1/min, mode: shadow }
  - { name: tiers, match: { path: /f }, tiers: { key: header x-plan, quotas: { gold: 3/s }, default: 1/s }, cost: 1 }
"#;

const REQUEST_LINES: [&str; 10] = [
    "GET /",
    "POST /login",
    "GET /in/x",
    "GET /a/1",
    "GET /a/2",
    "GET /b",
    "GET /c",
    "GET /d",
    "GET /e",
    "GET /f",
];

#[derive(Clone, Copy, Debug)]
struct PolicyStep {
    delay: u64,
    line: usize,
    peer: u8,
    status: u16,
    /// Whether the body is read immediately, or only at the end.
    body: BodyHandling,
}

#[derive(Clone, Copy, Debug)]
enum BodyHandling {
    Read,
    Deferred,
}

fn steps() -> impl Strategy<Value = PolicyStep> {
    let after = prop_oneof![4 => Just(0), 2 => 1_u64..400, 1 => 400_u64..3_000];
    let status = prop::sample::select(vec![200_u16, 200, 401, 500, 0]);
    let body = prop_oneof![2 => Just(BodyHandling::Read), 1 => Just(BodyHandling::Deferred)];
    (after, 0..REQUEST_LINES.len(), 1_u8..4, status, body)
        .prop_map(|(after, line, peer, status, body)| PolicyStep { delay: after, line, peer, status, body })
}

struct TestStatus(u16);

impl ResponseHead for TestStatus {
    fn status(&self) -> u16 {
        self.0
    }
    fn header(&self, _: &str) -> Option<&[u8]> {
        None
    }
}

/// Returns the response of a gate that is checked directly, as a gateway does.
fn expected_response(
    live: &LivePolicy,
    request: &Request<()>,
    step: PolicyStep,
    permits: &mut Vec<tidegate_rule::RequestPermits>,
) -> LayerResponse {
    let result = match live.current().check(&TowerRequestHead::new(request)) {
        Evaluation::Ready(result) => result,
        Evaluation::Pending(_) => panic!("no rule waits"),
    };
    let (status, mut headers, body) = match result {
        PolicyResult::Admitted(admission) if step.status == 0 => {
            admission.fail();
            return (0, Vec::new(), String::new());
        }
        PolicyResult::Admitted(admission) => {
            let mut headers = Vec::new();
            admission.write_headers(|name, value| headers.push((name.to_owned(), value.to_owned())));
            let slots = admission.settle(&TestStatus(step.status));
            if matches!(step.body, BodyHandling::Deferred) {
                permits.push(slots);
            }
            (step.status, headers, "hello".to_owned())
        }
        PolicyResult::Rejected(rejection) => match rejection.action {
            RejectAction::Response(answer) => {
                let answer = answer.to_response();
                let headers =
                    answer.headers.iter().map(|(name, value)| (name.to_string(), value.to_string()));
                (answer.status, headers.collect(), answer.body.clone())
            }
            RejectAction::Drop => (444, vec![("connection".to_owned(), "close".to_owned())], String::new()),
            RejectAction::Upstream(_) => panic!("no upstream fallbacks"),
        },
    };
    headers.sort();
    (status, headers, body)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn policy_layer_matches_gate(steps in prop::collection::vec(steps(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (service, inner, manual_clock) = service(POLICY);
            let (gate, gate_clock) = live_policy(POLICY);
            let (mut permits, mut bodies) = (Vec::new(), Vec::new());
            for step in steps {
                manual_clock.advance(Duration::from_millis(step.delay));
                gate_clock.advance(Duration::from_millis(step.delay));
                inner.set_status(step.status.into());
                let expected = expected_response(&gate, &request(REQUEST_LINES[step.line], step.peer), step, &mut permits);
                let found = match send_request(&service, request(REQUEST_LINES[step.line], step.peer)).await {
                    Err(TestServiceError) => (0, Vec::new(), String::new()),
                    Ok(response) => match step.body {
                        BodyHandling::Read => observe_response(response).await,
                        BodyHandling::Deferred => {
                            let (parts, body) = response.into_parts();
                            let empty: Response<GateBody<BandwidthBody<http_body_util::Empty<Bytes>>>> =
                                Response::from_parts(parts, GateBody::default());
                            bodies.push(body);
                            let (status, headers, _) = observe_response(empty).await;
                            (status, headers, expected.2.clone())
                        }
                    },
                };
                assert_eq!(found, expected, "{step:?}");
            }
        });
    }
}

/// A rule with a fallback that only a gateway has is rejected when the layer is created, and in a replacement.
#[test]
fn policy_layer_rejects_fallback_of_gateway() {
    let policy_with = |fallback: &str| {
        format!(
            "upstreams: {{ spare: 'http://127.0.0.1:1' }}\nroutes: spare\n\
             rules: [{{ name: a, quota: 1/s, on-limit: {{ fallback: {{ {fallback} }} }} }}]"
        )
    };
    for (fallback, error) in [
        (
            "upstream: spare",
            "rule `a`: fallback to upstream `spare`, but a policy for a service has no upstreams; \
             use a fallback with `body`, or `status` or `redirect`",
        ),
        (
            "cache: 10min",
            "rule `a`: fallback to cached responses, but only a gateway stores responses; \
             remove `cache`, or use `body`",
        ),
    ] {
        let text = policy_with(fallback);
        assert_eq!(PolicyLayer::new(live_policy(&text).0).unwrap_err().to_string(), error);

        let (good, _manual_clock) = live_policy("rules: [{ name: a, quota: 1/s }]");
        let _layer = PolicyLayer::new(good.clone()).unwrap();
        let next: Policy = text.parse().unwrap();
        assert_eq!(good.replace(&next).unwrap_err().to_string(), error);
        assert!(good.replace(&"rules: [{ name: a, quota: 2/s }]".parse().unwrap()).is_ok());
    }
}

#[tokio::test]
async fn drop_action_closes_http1_connection() {
    let (service, ..) = service("rules: [{ name: a, quota: 1/h, on-limit: drop }]");
    assert_eq!(send_request(&service, request("GET /", 1)).await.unwrap().status(), 200);
    let dropped = observe_response(send_request(&service, request("GET /", 1)).await.unwrap()).await;
    assert_eq!(dropped, (444, vec![("connection".to_owned(), "close".to_owned())], String::new()));
    let mut second = request("GET /", 1);
    *second.version_mut() = Version::HTTP_2;
    assert_eq!(
        observe_response(send_request(&service, second).await.unwrap()).await,
        (444, Vec::new(), String::new())
    );
}

/// Redirects, pages and dropped connections do not apply to gRPC.
#[tokio::test]
async fn grpc_rejection_uses_grpc_status() {
    for on_limit in ["drop", "{ redirect: /x }", "{ fallback: { body: x } }", "{ status: 503 }"] {
        let (service, ..) = service(&format!("rules: [{{ name: a, quota: 1/h, on-limit: {on_limit} }}]"));
        let call = || {
            let mut call = request("POST /s/M", 1);
            *call.version_mut() = Version::HTTP_2;
            call.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
            call
        };
        assert_eq!(send_request(&service, call()).await.unwrap().status(), 200);
        let (status, headers, body) = observe_response(send_request(&service, call()).await.unwrap()).await;
        let has = |name: &str, value: &str| headers.iter().any(|(n, v)| n == name && v == value);
        assert_eq!((status, body.as_str()), (200, ""));
        assert!(has("grpc-status", "8") && has("grpc-message", "denied by rule `a`"), "{headers:?}");
        assert!(!headers.iter().any(|(name, _)| name == "connection"), "{headers:?}");
    }
}

/// Requests wait in a bounded queue, and a cancelled request is not charged.
#[tokio::test(start_paused = true)]
async fn requests_wait_in_bounded_queue() {
    let policy =
        "rules: [{ name: a, quota: 1 at once, wait: 10s, queue: 1 }, { name: b, quota: 1 per 2s, wait: 3s }]";
    let compiler = Compiler::new(Rules::new()).clock(Clock::tokio());
    let live = Arc::new(LivePolicy::new(compiler, &policy.parse().unwrap()).unwrap());
    let inner = TestService::new();
    let service = PolicyLayer::new(live).unwrap().layer(inner.clone());
    let first = send_request(&service, request("GET /", 1)).await.unwrap();
    let spawn = || {
        let service = service.clone();
        tokio::spawn(async move { send_request(&service, request("GET /", 1)).await.unwrap() })
    };
    let second = spawn();
    tokio::task::yield_now().await;
    let third = spawn().await.unwrap();
    assert_eq!((third.status().as_u16(), inner.calls()), (503, 1), "one may wait");
    second.abort();
    _ = second.await;
    let fourth = spawn();
    tokio::task::yield_now().await;
    assert_eq!(inner.calls(), 1);
    drop(first);
    assert_eq!((fourth.await.unwrap().status().as_u16(), inner.calls()), (200, 2));
}

/// Requests update the schedules; no call of `follow_time` is needed.
#[tokio::test]
async fn schedules_follow_clock() {
    let (clock, manual_clock) = Clock::manual();
    let day = 86_400;
    manual_clock.advance(Duration::from_secs(day - Duration::from(clock.now()).as_secs() % day));
    let policy = "rules: [{ name: a, quota: 1/h, schedule: '09:00-18:00 x3' }]";
    let compiler = Compiler::new(Rules::new()).clock(clock);
    let live = Arc::new(LivePolicy::new(compiler, &policy.parse().unwrap()).unwrap());
    let service = PolicyLayer::new(live).unwrap().layer(TestService::new());
    let admitted = async || {
        let mut admitted = 0;
        while send_request(&service, request("GET /", 1)).await.unwrap().status() == 200 {
            admitted += 1;
        }
        admitted
    };
    assert_eq!(admitted().await, 1);
    manual_clock.advance(Duration::from_secs(10 * 3_600));
    assert_eq!(admitted().await, 3);
    manual_clock.advance(Duration::from_secs(10 * 3_600));
    assert_eq!(admitted().await, 1);
}

/// The bandwidths of all rules apply, so the slowest one decides.
#[tokio::test(start_paused = true)]
async fn slowest_bandwidth_rule_applies() {
    const CHUNK: usize = 10_000;
    let body = |chunks: usize| {
        let (pieces, body) = ChannelBody::new();
        for _ in 0..chunks {
            pieces.send(Ok(Frame::data(Bytes::from(vec![b'x'; CHUNK])))).unwrap();
        }
        body
    };
    let policy =
        "rules: [{ name: a, bandwidth: { down: 1MB/s, up: 200kB/s } }, { name: b, bandwidth: 100kB/s }]";
    let clock = Clock::tokio();
    let compiler = Compiler::new(Rules::new()).clock(clock.clone());
    let live = Arc::new(LivePolicy::new(compiler, &policy.parse().unwrap()).unwrap());
    let service = PolicyLayer::new(live).unwrap().layer(service_fn(
        move |request: Request<BandwidthBody<ChannelBody>>| async move {
            let read = request.into_body().collect().await?.to_bytes().len();
            assert_eq!(read, 100 * CHUNK);
            Ok::<_, TestServiceError>(Response::new(body(50)))
        },
    ));
    let began = clock.now();
    let response = send_request(&service, Request::new(body(100))).await.unwrap();
    let up = clock.now().saturating_sub(began).to_duration().as_secs_f64();
    assert!((4.8..5.2).contains(&up), "{up}");
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 50 * CHUNK);
    let both = clock.now().saturating_sub(began).to_duration().as_secs_f64();
    assert!((9.7..10.3).contains(&both), "{both}");
}

/// The keys are in a file, and tokens are verified as in the gateway.
#[tokio::test]
async fn policy_layer_verifies_credentials() {
    let folder = tempfile::tempdir().unwrap();
    let issuer = TokenIssuer::new("ES256", "one").unwrap();
    std::fs::write(folder.path().join("jwks.json"), issuer.key_set()).unwrap();
    let policy = "identity: { jwt: { keys: jwks.json, audience: api } }
rules:
  - { name: subject, match: { path: /subject }, key: jwt sub, quota: 1/h, missing: reject }
  - { name: plan, match: { path: /plan, jwt: { plan: gold } }, deny: all }
  - { name: certificate, match: { path: /certificate }, key: client-cert san, quota: 1/h, missing: reject }
";
    let compiler = Compiler::new(Rules::new()).clock(Clock::manual().0).base(folder.path());
    let live = Arc::new(LivePolicy::new(compiler, &policy.parse().unwrap()).unwrap());
    let service = PolicyLayer::new(live).unwrap().layer(TestService::new());
    let send = async |mut request: Request<()>, token: Option<&str>| {
        if let Some(token) = token {
            request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        let response = send_request(&service, request).await.unwrap();
        (response.status().as_u16(), response.headers().contains_key("www-authenticate"))
    };
    let token = |claims: &str| issuer.sign(&format!(r#"{{{claims},"aud":"api","exp":4102444800}}"#));
    let (ada, bob) = (token(r#""sub":"ada","plan":"gold""#), token(r#""sub":"bob""#));
    for (path, token, expected) in [
        ("/subject", Some(&*ada), (200, false)),
        ("/subject", Some(&ada), (429, false)),
        ("/subject", Some(&bob), (200, false)),
        ("/subject", Some("a.b.c"), (401, true)),
        ("/subject", None, (401, true)),
        ("/plan", Some(&ada), (403, false)),
        ("/plan", Some(&bob), (200, false)),
    ] {
        assert_eq!(send(request(&format!("GET {path}"), 1), token).await, expected, "{path}");
    }
    let with_certificate = |name: &str| {
        let mut request = request("GET /certificate", 1);
        request.extensions_mut().insert(ClientCertificate::new("CN=a", [name.to_owned()]));
        request
    };
    for (name, status) in [("ada.example.org", 200), ("ada.example.org", 429), ("bob.example.org", 200)] {
        assert_eq!(send(with_certificate(name), None).await, (status, false), "{name}");
    }
    assert_eq!(send(request("GET /certificate", 1), None).await, (403, false));
}
