//! What is written of requests.

use crate::stage::{Gateway, Server, config};
use bytes::Bytes;
use http::{Response, request};
use std::fs;
use tidegate_gateway::{Action, LogNote};
use tidegate_policy::model::{AccessLogFormat, AccessLogSpec};

#[tokio::test]
async fn each_request_is_a_line_with_what_was_decided() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("access.log");
    let server = Server::mirror().await;
    let mut config = config(&[&server]);
    config.log = AccessLogSpec { format: AccessLogFormat::Json, file: Some(file.clone()) };
    let app = config.target("app").unwrap();
    let mut gateway = Gateway::judged(config, move |head: &request::Parts| match head.uri.path() {
        "/limited" => {
            let mut answer = Response::new(Bytes::from_static(b"no"));
            *answer.status_mut() = http::StatusCode::TOO_MANY_REQUESTS;
            let rule = Some("everybody".to_owned());
            Action::Respond(answer).noted(LogNote { rule, ..LogNote::default() })
        }
        _ => Action::Forward(app).into(),
    })
    .await;
    let mut client = gateway.client().await;
    let answer = client.get("/a").await;
    client.get("/limited").await;
    gateway.stop();
    gateway.ended().await;

    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!((&lines[0]["uri"], &lines[0]["status"]), (&"/a".into(), &200.into()));
    assert_eq!(lines[0]["bytes"], answer.body.len());
    assert_eq!(lines[0]["id"], answer.header("x-request-id").unwrap());
    assert_eq!((&lines[1]["status"], &lines[1]["rule"]), (&429.into(), &"everybody".into()));
}

#[tokio::test]
async fn a_log_that_cannot_be_written_keeps_the_gateway_from_starting() {
    let server = Server::mirror().await;
    let mut config = config(&[&server]);
    config.log =
        AccessLogSpec { format: AccessLogFormat::Combined, file: Some("/no/such/place/access.log".into()) };
    let error = Gateway::with(config).await.fault().await;
    assert!(error.contains("/no/such/place/access.log"), "{error}");
}

#[tokio::test]
async fn log_names_the_client_behind_a_trusted_proxy() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::mirror().await;
    // Each is how proxies are trusted, what the peer claims, and which client is meant.
    for (number, (trusted, claimed, client)) in [
        ("127.0.0.0/8", "198.51.100.9, 203.0.113.7", "203.0.113.7"),
        ("127.0.0.0/8", "2001:db8::7", "2001:db8::7"),
        ("127.0.0.0/8", "unknown", "127.0.0.1"),
        ("10.0.0.0/8", "203.0.113.7", "127.0.0.1"),
    ]
    .into_iter()
    .enumerate()
    {
        for format in [AccessLogFormat::Json, AccessLogFormat::Combined] {
            let file = directory.path().join(format!("{number}-{format:?}"));
            let mut config = config(&[&server]);
            config.trusted = vec![trusted.parse().unwrap()];
            config.log = AccessLogSpec { format, file: Some(file.clone()) };
            let mut gateway = Gateway::with(config).await;
            let request =
                format!("GET /a HTTP/1.1\r\nhost: example.org\r\nx-forwarded-for: {claimed}\r\n\r\n");
            gateway.client().await.ask(&request).await;
            gateway.stop();
            gateway.ended().await;
            let line = fs::read_to_string(&file).unwrap();
            if format == AccessLogFormat::Combined {
                assert!(line.starts_with(&format!("{client} - - [")), "{line}");
                continue;
            }
            let line: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert_eq!(line["client"], client);
            let peer = if client == "127.0.0.1" { serde_json::Value::Null } else { "127.0.0.1".into() };
            assert_eq!(line["peer"], peer, "{line}");
        }
    }
}
