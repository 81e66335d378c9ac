//! Stored responses instead of rejections, with a real gateway.

use crate::{
    admin_api::{AdminGateway, LISTENERS, metric_value},
    harness::{RawResponse, TEST_TIMEOUT, TestBackend, text_body},
    overload::FakeMachine,
};
use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tidegate_limiter::Clock;
use tidegate_rule::Rules;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// The server counts its responses. The path selects the kind of response.
async fn start_counting() -> TestBackend {
    let count = Arc::new(AtomicUsize::new(0));
    TestBackend::start(move |request: Request<Incoming>| {
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        let language = request.headers().get(header::ACCEPT_LANGUAGE).cloned();
        let (cache_control, body) = match request.uri().path() {
            "/private" => ("private", format!("response {number}")),
            "/public" => ("public", format!("response {number}")),
            "/emptied" if number > 1 => ("max-age=1", String::new()),
            "/grown" if number > 1 => ("max-age=1", "x".repeat(2_000_000)),
            "/language" => ("max-age=1", format!("{language:?}")),
            _ => ("max-age=1", format!("response {number}")),
        };
        let response = Response::builder()
            .header("cache-control", cache_control)
            .header("vary", "accept-language")
            .header("x-number", number);
        async move { response.body(text_body(body)).unwrap() }
    })
    .await
}

/// A rule whose feature a test disables.
const RULES: &str = "features: { catalog: manual }
rules: [{ name: catalog, key: header x-tenant, missing: share, feature: catalog, on-limit: { fallback: { cache: 1h } } }]
";

impl AdminGateway {
    async fn disable_catalog(&self) {
        assert_eq!(self.set_feature("catalog", r#"{"state":"off"}"#).await.status(), 200);
    }

    async fn send_method(&self, method: &str, path: &str) -> RawResponse {
        let request = format!("{method} {path} HTTP/1.1\r\nhost: app.example\r\n\r\n");
        timeout(TEST_TIMEOUT, self.connect().await.request(&request)).await.unwrap()
    }
}

#[tokio::test]
async fn last_good_response_is_sent_while_a_feature_is_off() {
    let (server, machine) = (start_counting().await, FakeMachine::with_load(10));
    let rules = "features: { catalog: manual }\nrules:\n\
         - { name: empty, match: { path: /private }, feature: catalog, on-limit: { fallback: { cache: 1h } } }\n\
         - { name: catalog, feature: catalog, on-limit: { fallback: { cache: 1h, body: none } } }\n";
    let gateway = AdminGateway::start(&server, &(machine.log_policy() + rules));
    for (path, expected) in [("/a", "response 1"), ("/a", "response 2"), ("/private", "response 3")] {
        assert_eq!(gateway.get(path).await.body, expected);
    }
    assert_eq!(gateway.set_feature("catalog", r#"{"state":"off"}"#).await.status(), 200);
    let stored = gateway.get("/a").await;
    assert_eq!((stored.status(), stored.body.as_str()), (200, "response 2"));
    assert_eq!(
        (stored.header("x-number"), stored.header("cache-status")),
        (Some("2"), Some("tidegate; hit"))
    );
    assert!(stored.header("age").is_some());
    assert_eq!(gateway.get("/b").await.body, "none");
    assert_eq!(gateway.get("/private").await.status(), 503);

    let metrics = gateway.metrics().await;
    assert_eq!(metric_value(&metrics, r#"tidegate_fallback_cache_total{result="hit"}"#), 1.0);
    assert_eq!(metric_value(&metrics, r#"tidegate_fallback_cache_total{result="miss"}"#), 2.0);
    assert!(metric_value(&metrics, "tidegate_fallback_cache_bytes") > 500.0);
    assert_eq!(gateway.set_feature("catalog", r#"{"state":"auto"}"#).await.status(), 200);
    assert_eq!(gateway.get("/a").await.body, "response 4");
    gateway.stop().await;
    let text = fs::read_to_string(machine.log_file()).unwrap();
    let cache_results: Vec<_> = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).unwrap()["cache"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(cache_results, ["hit", "miss", "miss"]);
}

#[tokio::test]
async fn response_to_one_user_is_not_sent_to_another() {
    let server = start_counting().await;
    // The policy identifies users by three headers; only the first is in the key of the rule with the fallback.
    let others = "user: header x-user\n";
    let rules = RULES.replace("rules: [", "rules: [{ name: plans, key: header x-plan, quota: 100/s }, ");
    let gateway = AdminGateway::start(&server, &format!("{others}{rules}"));
    let personal = [
        "cookie: a=b\r\n",
        "authorization: Bearer a\r\n",
        "x-api-key: a\r\n",
        "x-tenant: a\r\n",
        "x-user: a\r\n",
        "x-plan: a\r\n",
    ];
    for (number, header) in personal.iter().enumerate() {
        assert_eq!(gateway.status_of(&format!("/{number}"), header).await, 200);
        assert_eq!(gateway.status_of(&format!("/public?{number}"), header).await, 200);
    }
    gateway.disable_catalog().await;
    for (number, header) in personal.iter().enumerate() {
        assert_eq!(gateway.status_of(&format!("/{number}"), "").await, 503, "{header}");
        assert_eq!(gateway.status_of(&format!("/public?{number}"), "").await, 200, "{header}");
    }
    gateway.stop().await;
}

/// Without the key `cache`, the policy is valid and sends the body.
#[tokio::test]
async fn stored_response_is_sent_until_the_age_of_the_policy() {
    let (server, (clock, manual_clock)) = (start_counting().await, Clock::manual());
    let rules =
        "rules: [{ name: pages, quota: 1 total, on-limit: { fallback: { cache: 10min, body: none } } }]\n";
    let gateway = AdminGateway::start_with_clock(&server, rules, clock);
    for _ in 0..2 {
        assert_eq!(gateway.get("/").await.body, "response 1");
        manual_clock.advance(Duration::from_secs(600));
    }
    assert_eq!(gateway.get("/").await.body, "none");
    gateway.stop().await;
}

/// A client of HTTP/2 treats a body of such a response as an error.
#[tokio::test]
async fn head_over_http2_gets_the_length_without_the_body() {
    let server = start_counting().await;
    let gateway = AdminGateway::start(&server, RULES);
    assert_eq!(gateway.get("/").await.body, "response 1");
    gateway.disable_catalog().await;
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    for (path, status, length) in [("/", 200, Some("10")), ("/other", 503, None)] {
        let request = Request::head(format!("http://app.example{path}")).body(Empty::<Bytes>::new()).unwrap();
        let response = timeout(TEST_TIMEOUT, sender.send_request(request)).await.unwrap().unwrap();
        assert_eq!(response.status(), status);
        let received = response.headers().get(header::CONTENT_LENGTH).unwrap().clone();
        assert!(length.is_none_or(|length| length == received), "{received:?}");
        let body = timeout(TEST_TIMEOUT, response.into_body().collect()).await.unwrap().unwrap();
        assert_eq!(body.to_bytes(), "");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn denied_client_gets_no_stored_response() {
    let server = start_counting().await;
    let rules = "trusted-proxies: [127.0.0.1]
observe: { denials: 100 }
rules: [{ name: pages, deny: [192.0.2.1], quota: 1/h, on-limit: { fallback: { cache: 1h } } }]
";
    let gateway = AdminGateway::start(&server, rules);
    let from = |client: &str| format!("x-forwarded-for: {client}\r\n");
    assert_eq!(gateway.get_with_header("/", &from("192.0.2.2")).await.body, "response 1");
    let stored = gateway.get_with_header("/", &from("192.0.2.2")).await;
    assert_eq!((stored.status(), stored.body.as_str()), (200, "response 1"));
    assert_eq!(gateway.status_of("/", &from("192.0.2.1")).await, 403);
    // The record of the denial has the status that was sent.
    let denials = gateway.admin_json("/api/v1/denials").await;
    let statuses: Vec<_> =
        denials["denials"].as_array().unwrap().iter().map(|denial| denial["status"].clone()).collect();
    assert_eq!(statuses, [403, 200]);
    gateway.stop().await;
}

#[tokio::test]
async fn newest_response_of_each_kind_is_stored() {
    let server = start_counting().await;
    let gateway = AdminGateway::start(&server, RULES);
    let german = "accept-language: de\r\n";
    for path in ["/", "/deleted", "/emptied", "/grown"] {
        assert_eq!(gateway.status_of(path, "").await, 200);
    }
    for path in ["/emptied", "/grown"] {
        assert_eq!(gateway.status_of(path, "").await, 200);
    }
    assert_eq!(gateway.status_of("/language", "").await, 200);
    assert_eq!(gateway.status_of("/language", german).await, 200);
    assert_eq!(gateway.send_method("DELETE", "/deleted").await.status(), 200);
    gateway.disable_catalog().await;
    assert_eq!(gateway.get("/emptied").await.body, "");
    assert_eq!(gateway.get("/language").await.body, "None");
    assert_eq!(gateway.get_with_header("/language", german).await.body, "Some(\"de\")");
    assert_eq!(gateway.status_of("/language", "accept-language: fr\r\n").await, 503);
    assert_eq!(gateway.status_of("/grown", "").await, 503, "2 MB are not stored, and 1 is older");
    assert_eq!(gateway.status_of("/deleted", "").await, 503);
    assert_eq!(gateway.send_method("POST", "/").await.status(), 503);
    let mut client = gateway.connect().await;
    client.send("HEAD / HTTP/1.1\r\nhost: app.example\r\n\r\n").await;
    let head = timeout(TEST_TIMEOUT, client.read_head()).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("content-length: 10\r\n"), "{head}");
    gateway.stop().await;
}

#[tokio::test]
async fn truncated_response_is_not_stored() {
    let server = TestBackend::start_raw(async |mut stream| {
        let mut request = [0; 1_024];
        let _ = stream.read(&mut request).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf").await;
    })
    .await;
    let gateway = AdminGateway::start(&server, RULES);
    let mut client = gateway.connect().await;
    client.send("GET / HTTP/1.1\r\nhost: app.example\r\n\r\n").await;
    let received = timeout(TEST_TIMEOUT, client.read_to_end()).await.unwrap();
    assert!(received.ends_with("half"), "{received}");
    gateway.disable_catalog().await;
    assert_eq!(gateway.get("/").await.status(), 503);
    gateway.stop().await;
}

#[tokio::test]
async fn reload_removes_responses_of_other_upstreams() {
    let server = start_counting().await;
    let policy = |upstream: &str, rules: &str| {
        format!(
            "{LISTENERS}upstreams: {{ {upstream}: http://{} }}\nroutes: {upstream}\n{rules}",
            server.address
        )
    };
    let gateway = AdminGateway::start_policy(&policy("app", RULES), Rules::new());
    assert_eq!(gateway.get("/").await.body, "response 1");
    gateway.disable_catalog().await;
    assert_eq!(gateway.get("/").await.body, "response 1");
    gateway.replace_policy(&policy("app", &format!("{RULES}headers: none\n"))).await;
    gateway.disable_catalog().await;
    assert_eq!(gateway.get("/").await.body, "response 1", "a reload does not remove it");
    gateway.replace_policy(&policy("other", RULES)).await;
    gateway.disable_catalog().await;
    assert_eq!(gateway.get("/").await.status(), 503);
    // A policy without such a rule removes all responses.
    gateway.replace_policy(&policy("app", "")).await;
    gateway.replace_policy(&policy("app", RULES)).await;
    gateway.disable_catalog().await;
    assert_eq!(gateway.get("/").await.status(), 503);
    gateway.stop().await;
}
