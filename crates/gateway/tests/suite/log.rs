//! The access log.

use crate::harness::{InProcessGateway, TestBackend, test_config};
use bytes::Bytes;
use http::Response;
use std::fs;
use tidegate_gateway::{Action, LogNote};
use tidegate_policy::head::ParsedRequest;
use tidegate_policy::model::{AccessLogFormat, AccessLogSpec};

#[tokio::test]
async fn each_request_is_logged_with_its_decision() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("access.log");
    let server = TestBackend::start_echo().await;
    let mut config = test_config(&[&server]);
    config.log = AccessLogSpec { format: AccessLogFormat::Json, file: Some(file.clone()) };
    let app = config.upstream_id("app").unwrap();
    let mut gateway =
        InProcessGateway::start_with_filter(config, move |head: &ParsedRequest| match head.path() {
            "/limited" => {
                let mut response = Response::new(Bytes::from_static(b"no"));
                *response.status_mut() = http::StatusCode::TOO_MANY_REQUESTS;
                let rule = Some("everybody".to_owned());
                let denial = Some("d1".to_owned());
                Action::Respond(response.into()).with_note(LogNote { rule, denial, ..LogNote::default() })
            }
            _ => Action::Forward(app).into(),
        })
        .await;
    let mut client = gateway.connect().await;
    let response = client.get("/a").await;
    client.get("/limited").await;
    gateway.stop();
    gateway.wait_stopped().await;

    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!((&lines[0]["uri"], &lines[0]["status"]), (&"/a".into(), &200.into()));
    assert_eq!(lines[0]["bytes"], response.body.len());
    assert_eq!(lines[0]["id"], response.header("x-request-id").unwrap());
    assert_eq!(lines[0]["server"], server.address.to_string());
    assert!(lines[0]["upstream_us"].as_u64().unwrap() <= lines[0]["duration_us"].as_u64().unwrap(), "{text}");
    assert_eq!((&lines[1]["status"], &lines[1]["rule"]), (&429.into(), &"everybody".into()));
    assert_eq!(lines[1]["denial"], "d1");
    assert!(lines[1].get("upstream_us").is_none() && lines[1].get("server").is_none(), "{text}");
}

#[tokio::test]
async fn request_with_an_invalid_head_is_logged() {
    let directory = tempfile::tempdir().unwrap();
    let server = TestBackend::start_echo().await;
    for format in [AccessLogFormat::Json, AccessLogFormat::Combined] {
        let file = directory.path().join(format!("{format:?}"));
        let mut config = test_config(&[&server]);
        config.log = AccessLogSpec { format, file: Some(file.clone()) };
        let mut gateway = InProcessGateway::start_with(config).await;
        let mut ids = Vec::new();
        for head in [
            "GET /a?token=abc HTTP/1.1\r\nhost: a\r\nx : y\r\n\r\n".to_owned(),
            "PUT /b HTTP/1.0\r\na: b\n\r\n".to_owned(),
            "GET /<b> HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
            "\u{16}\u{3}\u{1} \"\\x\n".to_owned(),
            format!("GET /c HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(100_000)),
        ] {
            let mut client = gateway.connect().await;
            client.send(head).await;
            let response = client.read_to_end().await;
            let id = response.lines().find_map(|line| line.strip_prefix("x-request-id: "));
            ids.push(id.unwrap_or_else(|| panic!("{response}")).to_owned());
        }
        gateway.stop();
        gateway.wait_stopped().await;
        let text = fs::read_to_string(&file).unwrap();
        if format == AccessLogFormat::Combined {
            let lines: Vec<_> = text
                .lines()
                .filter_map(|line| line.split_once("] ")?.1.split_once('"')?.1.split_once(" \"-\""))
                .collect();
            let requests: Vec<_> =
                lines.iter().map(|(request, _)| request.rsplit_once(' ').unwrap().0).collect();
            assert!(
                requests[0].starts_with("GET /a?token=") && requests[0].ends_with(" HTTP/1.1\" 400"),
                "{text}"
            );
            assert_eq!(
                requests[1..],
                [
                    "PUT /b HTTP/1.0\" 400",
                    "GET - HTTP/1.1\" 400",
                    "- - HTTP/1.1\" 400",
                    "GET /c HTTP/1.1\" 431"
                ]
            );
            assert!(!text.contains("abc"), "{text}");
            continue;
        }
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let requests: Vec<_> = lines
            .iter()
            .map(|line| (line["method"].as_str(), line["uri"].as_str(), line["status"].as_u64().unwrap()))
            .collect();
        assert_eq!(
            requests[1..],
            [
                (Some("PUT"), Some("/b"), 400),
                (Some("GET"), None, 400),
                (None, None, 400),
                (Some("GET"), Some("/c"), 431)
            ]
        );
        assert_eq!(lines.iter().map(|line| line["id"].as_str().unwrap()).collect::<Vec<_>>(), ids);
        assert!(
            lines.iter().all(|line| line["client"] == "127.0.0.1" && line["bytes"].as_u64() > Some(0)),
            "{text}"
        );
        assert!(!text.contains("abc"), "{text}");
    }
}

#[tokio::test]
async fn unwritable_log_prevents_start() {
    let server = TestBackend::start_echo().await;
    let mut config = test_config(&[&server]);
    config.log =
        AccessLogSpec { format: AccessLogFormat::Combined, file: Some("/no/such/place/access.log".into()) };
    let error = InProcessGateway::start_with(config).await.start_error().await;
    assert!(error.contains("/no/such/place/access.log"), "{error}");
}

#[tokio::test]
async fn log_names_the_client_behind_a_trusted_proxy() {
    let directory = tempfile::tempdir().unwrap();
    let server = TestBackend::start_echo().await;
    // Trusted proxies, the `X-Forwarded-For` of the peer, and the expected client.
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
            let mut config = test_config(&[&server]);
            config.trusted_proxies = vec![trusted.parse().unwrap()];
            config.log = AccessLogSpec { format, file: Some(file.clone()) };
            let mut gateway = InProcessGateway::start_with(config).await;
            let request =
                format!("GET /a HTTP/1.1\r\nhost: example.org\r\nx-forwarded-for: {claimed}\r\n\r\n");
            gateway.connect().await.request(&request).await;
            gateway.stop();
            gateway.wait_stopped().await;
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
