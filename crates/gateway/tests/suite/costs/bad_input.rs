//! Requests and responses without a valid cost.

use super::{BODY_RULE, ESTIMATE, USAGE, policy, post, remaining};
use crate::{
    admin_api::{AdminGateway, metric_value},
    harness::{RawClient, TEST_TIMEOUT, TestBackend},
};
use tokio::{io::AsyncWriteExt, time::timeout};

/// A value of another type, or a number out of range, is not valid: the default applies. No request is free.
#[tokio::test]
async fn request_with_an_invalid_number_costs_the_default() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, BODY_RULE);
    for (value, cost) in [
        ("\"many\"", 9),
        ("\"\"", 9),
        ("null", 9),
        ("true", 9),
        ("[20]", 9),
        ("{\"tokens\": 20}", 9),
        ("-1", 9),
        ("0.5", 9),
        ("1e300", 9),
        ("99999999999999999999", 9),
        ("0", 1),
        ("51", 50),
    ] {
        let body = format!("{{\"model\": {value:?}, \"max_tokens\": {value}}}");
        let response = post(&mut gateway.connect().await, "", &body).await;
        assert_eq!((response.status(), remaining(&response)), (200, 100 - cost), "{body}");
    }
    gateway.stop().await;
}

/// The request is not decided, so nothing is reserved.
#[tokio::test]
async fn body_that_is_cut_off_takes_nothing() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, BODY_RULE);
    let body = r#"{"model": "a", "max_tokens": 20}"#;
    let mut client = gateway.connect().await;
    let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", body.len() + 1);
    client.send(head + body).await;
    client.stream.shutdown().await.unwrap();
    // Until the gateway closes the connection.
    client.read_to_end().await;
    let response = post(&mut gateway.connect().await, "", body).await;
    assert_eq!((response.status(), remaining(&response)), (200, 80));
    gateway.stop().await;
}

/// The last event with a value counts, whatever the others have.
#[tokio::test]
async fn last_value_of_a_stream_counts() {
    for (events, cost) in [
        ("data: {\"usage\": {\"total_tokens\": 7}}\n\ndata: no JSON\n\ndata: {\"usage\": 5}\n\n", 7),
        (
            "data: {\"usage\": {\"total_tokens\": 7}}\n\ndata: {\"usage\": {\"total_tokens\": -7}}\n\n",
            ESTIMATE,
        ),
        (
            "data: {\"usage\": {\"total_tokens\": 7}}\n\ndata: {\"usage\": {\"total_tokens\": \"8\"}}\n\n",
            ESTIMATE,
        ),
        ("data: {\"usage\": {\"total_tokens\": 7", ESTIMATE),
        (": a comment\n\nevent: usage\n\nid: 7\n\n", ESTIMATE),
    ] {
        let server = TestBackend::start_raw(move |stream| async move {
            let mut wire = RawClient::new(stream);
            wire.read_head().await;
            let length = events.len();
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n";
            wire.send(format!("{head}content-length: {length}\r\n\r\n{events}")).await;
        })
        .await;
        let gateway = AdminGateway::start(&server, &policy("settle: body /usage/total_tokens"));
        gateway.get_with_header("/", "x-user: ann\r\n").await;
        let next = gateway.get_with_header("/", "x-user: ann\r\n").await;
        assert_eq!(remaining(&next), 100 - cost - ESTIMATE, "{events}");
        gateway.stop().await;
    }
}

/// If the server disconnects, what it had stated is charged, or else the estimate.
#[tokio::test]
async fn response_that_is_cut_off_is_charged_what_it_stated() {
    let server = TestBackend::start_raw(|stream| async move {
        let mut wire = RawClient::new(stream);
        let body = match wire.read_head().await.starts_with("GET /stated ") {
            true => &USAGE[..USAGE.len() - 1],
            false => "{\"id\": ",
        };
        wire.send(format!("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{body}")).await;
    })
    .await;
    let gateway = AdminGateway::start(&server, &policy("settle: body /usage/total_tokens"));
    let mut left = 100;
    for (number, (path, cost)) in [("/stated", 7), ("/unstated", ESTIMATE)].into_iter().enumerate() {
        let mut client = gateway.connect().await;
        client.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\nx-user: ann\r\n\r\n")).await;
        let received = client.read_to_end().await;
        assert!(received.contains(&format!("r={};", left - ESTIMATE)), "{received}");
        let series = r#"tidegate_settled_requests_total{rule="tokens",result="aborted"}"#;
        let settled = async { while metric_value(&gateway.metrics().await, series) <= number as f64 {} };
        timeout(TEST_TIMEOUT, settled).await.unwrap();
        left -= cost;
    }
    assert_eq!(left, 100 - 7 - ESTIMATE);
    gateway.stop().await;
}
