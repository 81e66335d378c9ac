//! Costs that are read from the body of a request, and settled by its response.

mod bad_input;
mod http2;
mod records;

use crate::{
    admin_api::{AdminGateway, metric_value},
    harness::{RawClient, RawResponse, TEST_TIMEOUT, TestBackend, TestBody, text_body},
};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{Request, Response};
use http_body_util::{BodyExt, Channel};
use hyper::body::Incoming;
use std::{convert::Infallible, io::Write, sync::Arc};
use tokio::{io::AsyncReadExt, io::AsyncWriteExt, sync::Notify, time::timeout};

/// The cost before the call.
const ESTIMATE: u64 = 10;
const USAGE: &str = r#"{"usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}"#;

/// The remaining tokens of the only limit.
fn remaining(response: &RawResponse) -> u64 {
    let header = response.header("ratelimit").unwrap();
    header.split("r=").nth(1).unwrap().split(';').next().unwrap().parse().unwrap()
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// Responds with what the path names.
async fn start_server() -> TestBackend {
    TestBackend::start(|request: Request<Incoming>| async move {
        let json = |text: &str| ("application/json", "", Bytes::copy_from_slice(text.as_bytes()));
        let events = |text: &str| ("text/event-stream", "", Bytes::copy_from_slice(text.as_bytes()));
        let (kind, coding, body) = match request.uri().path() {
            "/usage" | "/500/usage" | "/openai" => json(USAGE),
            "/none" => json(r#"{"id": 1}"#),
            "/string" => json(r#"{"usage": {"total_tokens": "7"}}"#),
            "/negative" => json(r#"{"usage": {"total_tokens": -7}}"#),
            "/absurd" => json(r#"{"usage": {"total_tokens": 1e300}}"#),
            "/text" => json("no JSON"),
            "/zero" => json(r#"{"usage": {"total_tokens": 0}}"#),
            "/much" => json(r#"{"usage": {"total_tokens": 60}}"#),
            "/gzip" => ("application/json", "gzip", gzip(USAGE).into()),
            "/unknown-coding" => ("application/json", "sdch", Bytes::from_static(USAGE.as_bytes())),
            "/large" => json(&format!(r#"{{"text": "{}", "usage": {{"total_tokens": 7}}}}"#, "x".repeat(200_000))),
            "/openai-stream" => events(&format!(
                "data: {{\"choices\": [], \"usage\": null}}\n\ndata: {USAGE}\n\ndata: [DONE]\n\n"
            )),
            "/openai-responses" => events(
                "event: response.created\ndata: {\"response\": {\"usage\": null}}\n\nevent: response.completed\n\
                 data: {\"response\": {\"usage\": {\"input_tokens\": 5, \"output_tokens\": 6}}}\n\n",
            ),
            "/anthropic" => json(
                r#"{"usage": {"input_tokens": 3, "cache_read_input_tokens": 20, "output_tokens": 4}}"#,
            ),
            "/anthropic-stream" => events(
                "event: message_start\ndata: {\"message\": {\"usage\": {\"input_tokens\": 12, \"output_tokens\": 1}}}\n\n\
                 event: message_delta\ndata: {\"usage\": {\"output_tokens\": 9}}\n\n",
            ),
            other => panic!("no response for {other}"),
        };
        let mut response = Response::new(text_body(body));
        if request.uri().path().starts_with("/500/") {
            *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
        }
        let headers = response.headers_mut();
        headers.insert("content-type", kind.parse().unwrap());
        headers.insert("x-cost", "8".parse().unwrap());
        if !coding.is_empty() {
            headers.insert("content-encoding", coding.parse().unwrap());
        }
        response
    })
    .await
}

/// The tokens that a request used, after its response.
async fn used(gateway: &AdminGateway, path: &str) -> u64 {
    let user = format!("x-user: {path}\r\n");
    gateway.get_with_header(path, &user).await;
    100 - ESTIMATE - remaining(&gateway.get_with_header("/none", &user).await)
}

fn policy(rest: &str) -> String {
    format!("rules: [{{ name: tokens, key: header x-user, quota: 100 per 1000h, cost: 10, {rest} }}]")
}

#[tokio::test]
async fn response_states_the_cost() {
    let server = start_server().await;
    for (settle, cases) in [
        (
            "settle: body /usage/total_tokens",
            &[
                ("/usage", 7),
                ("/gzip", 7),
                ("/large", 7),
                ("/zero", 0),
                ("/much", 60),
                ("/500/usage", 7),
                // Without a valid cost, that of the request is charged.
                ("/none", ESTIMATE),
                ("/string", ESTIMATE),
                ("/negative", ESTIMATE),
                ("/absurd", ESTIMATE),
                ("/text", ESTIMATE),
                ("/unknown-coding", ESTIMATE),
            ][..],
        ),
        ("settle: header x-cost", &[("/usage", 8)]),
        ("settle: { from: body /usage/total_tokens, max-debt: 20 }", &[("/much", 30), ("/usage", 7)]),
        (
            "settle: { cel: usage.prompt_tokens + 4 * usage.completion_tokens }",
            &[("/usage", 19), ("/none", ESTIMATE)],
        ),
        (
            "charge: { refund-status: 5xx }, settle: body /usage/total_tokens",
            &[("/500/usage", 0), ("/usage", 7)],
        ),
        ("settle: openai", &[("/openai", 7), ("/openai-stream", 7), ("/openai-responses", 11)]),
        ("settle: anthropic", &[("/anthropic", 27), ("/anthropic-stream", 21)]),
    ] {
        let gateway = AdminGateway::start(&server, &policy(settle));
        for (path, tokens) in cases {
            assert_eq!(used(&gateway, path).await, *tokens, "{settle} {path}");
        }
        gateway.stop().await;
    }
}

#[tokio::test]
async fn settled_costs_are_counted() {
    let server = start_server().await;
    let settle = "settle: { from: body /usage/total_tokens, max-debt: 20 }";
    let gateway = AdminGateway::start(&server, &policy(settle));
    for path in ["/usage", "/zero", "/much", "/text"] {
        gateway.get_with_header(path, &format!("x-user: {path}\r\n")).await;
    }
    let metrics = gateway.metrics().await;
    for (series, value) in [
        (r#"tidegate_settled_requests_total{rule="tokens",result="stated"}"#, 3.0),
        (r#"tidegate_settled_requests_total{rule="tokens",result="unstated"}"#, 1.0),
        (r#"tidegate_settled_requests_total{rule="tokens",result="aborted"}"#, 0.0),
        (r#"tidegate_settled_tokens_total{rule="tokens",kind="refunded"}"#, 13.0),
        (r#"tidegate_settled_tokens_total{rule="tokens",kind="debt"}"#, 20.0),
        (r#"tidegate_settled_tokens_total{rule="tokens",kind="uncharged"}"#, 30.0),
    ] {
        assert_eq!(metric_value(&metrics, series), value, "{series}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn trailer_states_the_cost() {
    let server = TestBackend::start_raw(|mut stream| async move {
        let mut received = [0; 4_096];
        while stream.read(&mut received).await.is_ok_and(|length| length > 0) {
            let response = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-cost\r\n\r\n2\r\nok\r\n0\r\nx-cost: 4\r\n\r\n";
            stream.write_all(response.as_bytes()).await.unwrap();
        }
    })
    .await;
    let gateway = AdminGateway::start(&server, &policy("settle: trailer x-cost"));
    let user = "x-user: ann\r\n";
    assert_eq!(remaining(&gateway.get_with_header("/", user).await), 100 - ESTIMATE);
    assert_eq!(remaining(&gateway.get_with_header("/", user).await), 100 - 4 - ESTIMATE);
    gateway.stop().await;
}

/// A body whose pieces are sent one by one.
fn streamed_body() -> (http_body_util::channel::Sender<Bytes>, TestBody) {
    let (sender, body) = Channel::<Bytes, Infallible>::new(1);
    (sender, body.map_err(|never| match never {}).boxed())
}

/// Each event arrives before the server sends the next one, so the gateway neither buffers nor delays them.
#[tokio::test]
async fn stream_is_not_delayed() {
    let next = Arc::new(Notify::new());
    let received = next.clone();
    let server = TestBackend::start(move |_: Request<Incoming>| {
        let received = received.clone();
        async move {
            let (mut sender, body) = streamed_body();
            tokio::spawn(async move {
                for tokens in 1..=3 {
                    let event = format!("data: {{\"usage\": {{\"total_tokens\": {tokens}}}}}\n\n");
                    sender.send_data(event.into()).await.unwrap();
                    received.notified().await;
                }
            });
            let mut response = Response::new(body);
            response.headers_mut().insert("content-type", "text/event-stream".parse().unwrap());
            response
        }
    })
    .await;
    let gateway = AdminGateway::start(&server, &policy("settle: body /usage/total_tokens"));
    let mut client = gateway.connect().await;
    client.send("GET / HTTP/1.1\r\nhost: a\r\nx-user: ann\r\n\r\n").await;
    client.read_head().await;
    for tokens in 1..=3 {
        let event = client.read_until(b"}}\n\n\r\n").await;
        assert!(
            String::from_utf8_lossy(&event).ends_with(&format!("\"total_tokens\": {tokens}}}}}\n\n\r\n"))
        );
        next.notify_one();
    }
    client.read_until(b"0\r\n\r\n").await;
    let metrics = gateway.metrics().await;
    assert_eq!(
        metric_value(&metrics, r#"tidegate_settled_tokens_total{rule="tokens",kind="refunded"}"#),
        7.0
    );
    gateway.stop().await;
}

/// A client that disconnects is charged what the response had stated.
#[tokio::test]
async fn disconnected_client_is_charged_what_was_stated() {
    let server = TestBackend::start(|request: Request<Incoming>| async move {
        if request.uri().path() == "/none" {
            return Response::new(text_body("{}"));
        }
        let (mut sender, body) = streamed_body();
        tokio::spawn(async move {
            let event = "data: {\"message\": {\"usage\": {\"input_tokens\": 33, \"output_tokens\": 2}}}\n\n";
            sender.send_data(event.into()).await.unwrap();
            // Until the gateway disconnects.
            while sender.send_data("data: {}\n\n".into()).await.is_ok() {
                tokio::task::yield_now().await;
            }
        });
        let mut response = Response::new(body);
        response.headers_mut().insert("content-type", "text/event-stream".parse().unwrap());
        response
    })
    .await;
    let gateway = AdminGateway::start(&server, &policy("settle: anthropic"));
    let mut client = gateway.connect().await;
    client.send("GET / HTTP/1.1\r\nhost: a\r\nx-user: ann\r\n\r\n").await;
    client.read_until(b"output_tokens").await;
    drop(client);
    let series = r#"tidegate_settled_requests_total{rule="tokens",result="aborted"}"#;
    let settled = async { while metric_value(&gateway.metrics().await, series) == 0.0 {} };
    timeout(TEST_TIMEOUT, settled).await.unwrap();
    let next = gateway.get_with_header("/none", "x-user: ann\r\n").await;
    assert_eq!(remaining(&next), 100 - 35 - ESTIMATE);
    gateway.stop().await;
}

async fn post(client: &mut RawClient, head: &str, body: &str) -> RawResponse {
    client
        .request(&format!("POST / HTTP/1.1\r\nhost: a\r\n{head}content-length: {}\r\n\r\n{body}", body.len()))
        .await
}

const BODY_RULE: &str = "connections: { max-parsed-body-size: 2kB }\n\
    rules: [{ name: tokens, key: body /model, missing: reject, quota: 100 per 1000h,\n\
    \x20 cost: { from: { first: [body /max_completion_tokens, body /max_tokens] }, default: 9, max: 50 } }]";

#[tokio::test]
async fn key_and_cost_are_read_from_the_body() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, BODY_RULE);
    let mut client = gateway.connect().await;
    for (body, left) in [
        (r#"{"model": "a", "max_tokens": 20}"#, 80),
        (r#"{"model": "b", "messages": [{"model": "x", "max_tokens": 1}], "max_tokens": 3}"#, 97),
        (r#"{"model": "a", "max_tokens": 1, "max_completion_tokens": 5}"#, 75),
        // Without a valid number the default applies, and no cost is above the maximum.
        (r#"{"model": "a"}"#, 66),
        (r#"{"model": "a", "max_tokens": -3}"#, 57),
        (r#"{"model": "a", "max_tokens": 1e9}"#, 48),
        (r#"{"model": "c", "max_tokens": 1000000}"#, 50),
    ] {
        let response = post(&mut client, "", body).await;
        assert_eq!((response.status(), remaining(&response)), (200, left), "{body}");
        assert!(response.body.ends_with(&format!("\n\n{body}")), "the server received {:?}", response.body);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn body_that_is_not_parsed_has_no_key() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, BODY_RULE);
    let large = format!(r#"{{"model": "a", "text": "{}"}}"#, "x".repeat(3_000));
    for (head, body) in [
        ("", "no JSON"),
        ("", r#"{"model": "a""#),
        ("", r#"{"model": ["a"]}"#),
        ("content-encoding: gzip\r\n", r#"{"model": "a"}"#),
        ("", &large),
    ] {
        let response = post(&mut gateway.connect().await, head, body).await;
        assert_eq!(response.status(), 400, "{body}");
    }
    assert_eq!(gateway.get("/").await.status(), 400, "a request without a body");
    // Chunked, in pieces, and larger than the limit only in total.
    let mut client = gateway.connect().await;
    client.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n").await;
    for piece in large.as_bytes().chunks(100) {
        client.send(format!("{:x}\r\n{}\r\n", piece.len(), String::from_utf8_lossy(piece))).await;
    }
    client.send("0\r\n\r\n").await;
    assert_eq!(client.read_response().await.status(), 400);
    let metrics = gateway.metrics().await;
    for (outcome, count) in [("parsed", 1.0), ("too-large", 2.0), ("invalid", 3.0)] {
        let series = format!("tidegate_request_bodies_total{{outcome=\"{outcome}\"}}");
        assert_eq!(metric_value(&metrics, &series), count, "{outcome}");
    }
    gateway.stop().await;
}

/// A body that is larger than what rules read is forwarded completely.
#[tokio::test]
async fn large_body_is_forwarded() {
    let server = TestBackend::start_echo().await;
    let rule = BODY_RULE.replace("missing: reject", "missing: share");
    let gateway = AdminGateway::start(&server, &rule);
    let large = format!(r#"{{"model": "a", "text": "{}"}}"#, "x".repeat(100_000));
    let mut client = gateway.connect().await;
    let response = post(&mut client, "", &large).await;
    assert_eq!((response.status(), remaining(&response)), (200, 91));
    assert!(response.body.ends_with(&large));
    client.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n").await;
    client.send(format!("{:x}\r\n{large}\r\n0\r\n\r\n", large.len())).await;
    let response = client.read_response().await;
    assert_eq!((response.status(), remaining(&response)), (200, 82));
    assert!(response.body.ends_with(&large));
    gateway.stop().await;
}

/// The rules get the body of a client that waits for `100 Continue`.
#[tokio::test]
async fn expected_continue_is_sent_for_the_rules() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, BODY_RULE);
    let mut client = gateway.connect().await;
    let body = r#"{"model": "a", "max_tokens": 20}"#;
    client
        .send(format!(
            "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
            body.len()
        ))
        .await;
    assert_eq!(client.read_head().await, "HTTP/1.1 100 Continue\r\n\r\n");
    client.send(body).await;
    let response = client.read_response().await;
    assert_eq!((response.status(), remaining(&response)), (200, 80));
    gateway.stop().await;
}

/// Rules with `cost` or `settle` count tokens, all others requests.
#[tokio::test]
async fn provider_headers_tell_tokens_from_requests() {
    let server = TestBackend::start_echo().await;
    let policy = |style: &str, cost: &str| {
        format!(
            "headers: {style}\nrules:\n  - {{ name: requests, key: header x-user, quota: 60 per 60h }}\n\
             \x20 - {{ name: budget, key: header x-user, quota: 9000 per 100h{cost} }}\n"
        )
    };
    let tokens = ", cost: { from: body /max_tokens, default: 100, max: 9000 }, settle: openai";
    let gateway = AdminGateway::start(&server, &policy("openai", tokens));
    let body = r#"{"max_tokens": 250}"#;
    let response = post(&mut gateway.connect().await, "x-user: ann\r\n", body).await;
    for (name, value) in [
        ("x-ratelimit-limit-requests", "60"),
        ("x-ratelimit-remaining-requests", "59"),
        ("x-ratelimit-reset-requests", "1h0m0s"),
        ("x-ratelimit-limit-tokens", "9000"),
        ("x-ratelimit-remaining-tokens", "8750"),
        ("x-ratelimit-reset-tokens", "2h46m40s"),
    ] {
        assert_eq!(response.header(name), Some(value), "{name}");
    }
    let denied = post(&mut gateway.connect().await, "x-user: ann\r\n", r#"{"max_tokens": 8900}"#).await;
    assert_eq!((denied.status(), denied.header("x-ratelimit-remaining-tokens")), (429, Some("8750")));

    // Without a cost the second rule counts requests, too. The one with the least remaining is shown.
    gateway.replace(&server, &policy("openai", "")).await;
    let response = gateway.get_with_header("/", "x-user: bob\r\n").await;
    assert_eq!(response.header("x-ratelimit-remaining-requests"), Some("59"));
    assert_eq!(response.header("x-ratelimit-remaining-tokens"), None);

    gateway.replace(&server, &policy("anthropic", tokens)).await;
    let response = post(&mut gateway.connect().await, "x-user: cy\r\n", body).await;
    for (name, value) in [
        ("anthropic-ratelimit-requests-limit", "60"),
        ("anthropic-ratelimit-requests-remaining", "59"),
        ("anthropic-ratelimit-tokens-limit", "9000"),
        ("anthropic-ratelimit-tokens-remaining", "8750"),
    ] {
        assert_eq!(response.header(name), Some(value), "{name}");
    }
    let reset = response.header("anthropic-ratelimit-tokens-reset").unwrap();
    assert!(reset.len() == "2000-02-29T12:34:56Z".len() && reset.ends_with('Z'), "{reset}");
    gateway.stop().await;
}

/// All estimates are reserved before the first response, so no more requests are admitted than the budget has.
#[tokio::test]
async fn parallel_requests_stay_within_the_budget() {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let waiting = gate.clone();
    let server = TestBackend::start(move |_: Request<Incoming>| {
        let waiting = waiting.clone();
        async move {
            let _permit = waiting.acquire().await.unwrap();
            Response::new(text_body(r#"{"usage": {"total_tokens": 5}}"#))
        }
    })
    .await;
    let rule = policy("settle: body /usage/total_tokens").replace("1000h", "1000h fixed-window");
    let gateway = AdminGateway::start(&server, &rule);
    let mut clients = Vec::new();
    for _ in 0..100 {
        let mut client = gateway.connect().await;
        client.send("GET / HTTP/1.1\r\nhost: a\r\nx-user: ann\r\n\r\n").await;
        clients.push(client);
    }
    let series = r#"tidegate_requests_total{outcome="rejected"}"#;
    let decided = async { while metric_value(&gateway.metrics().await, series) < 90.0 {} };
    timeout(TEST_TIMEOUT, decided).await.unwrap();
    gate.add_permits(100);
    let mut admitted = 0;
    for client in &mut clients {
        admitted += u64::from(client.read_response().await.status() == 200);
    }
    assert_eq!(admitted, 10);
    // Each used half of its estimate.
    let next = gateway.get_with_header("/", "x-user: ann\r\n").await;
    assert_eq!(remaining(&next), 100 - 10 * 5 - ESTIMATE);
    gateway.stop().await;
}
