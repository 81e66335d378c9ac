//! The decision API with TLS and client certificates, and its shutdown.

use super::DecisionServer;
use crate::harness::{RawClient, TEST_TIMEOUT};
use std::{fs, path::Path, process::Command};
use tidegate_testkit::servers::Certificates;
use tokio::{io::AsyncReadExt as _, net::TcpStream, time::timeout};

/// Returns the status of a response and the HTTP version; 0 without a response.
async fn curl(arguments: Vec<String>) -> String {
    let run = move || {
        let mut command = Command::new("curl");
        command.args(["-s", "-o", "/dev/null", "-w", "%{http_code} %{http_version}", "--noproxy", "*"]);
        command.args(["-d", r#"{"rule":"all"}"#, "--max-time", "20"]).args(arguments).output().unwrap()
    };
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn client_certificate_and_token_are_both_required() {
    let directory = tempfile::tempdir().unwrap();
    let certificates = Certificates::create(directory.path()).unwrap();
    let text = |path: &Path| path.display().to_string();
    let (certificate, key) = (text(&certificates.certificate), text(&certificates.key));
    let authority = text(&certificates.authority);
    let policy = |clients: &str| {
        let tls = format!("{{ certificate: '{certificate}', key: '{key}'{clients} }}");
        // Cargo sets this variable for every test, so it serves as a token.
        let tokens = "[{ name: web, token: $CARGO_PKG_NAME }]";
        format!(
            "decisions: {{ listen: 127.0.0.1:0, tls: {tls}, tokens: {tokens} }}\nrules:\n  - {{ name: all, quota: 9/h }}\n"
        )
    };
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let trusting = words(&format!("--cacert {authority}"));
    let known = words(&format!("--cert {certificate} --key {key}"));
    let token = vec!["-H".to_owned(), format!("authorization: Bearer {}", env!("CARGO_PKG_NAME"))];
    for (clients, without) in [(String::new(), "200 2"), (format!(", client-ca: '{authority}'"), "000 0")] {
        let api = DecisionServer::start(&policy(&clients));
        let url = vec![format!("https://localhost:{}/v1/check", api.decisions.port())];
        let all = |parts: &[&Vec<String>]| parts.iter().flat_map(|part| part.iter().cloned()).collect();
        assert_eq!(curl(all(&[&trusting, &known, &token, &url])).await, "200 2", "{clients}");
        assert_eq!(curl(all(&[&trusting, &known, &url])).await, "401 2", "{clients}");
        assert_eq!(curl(all(&[&trusting, &token, &url])).await, without, "{clients}");
        let old = words("--http1.1");
        assert_eq!(curl(all(&[&trusting, &known, &token, &old, &url])).await, "200 1.1", "{clients}");
        assert_eq!(curl(all(&[&token, &url])).await, "000 0", "a client without a certificate");
        api.stop().await;
    }
}

#[tokio::test]
async fn shutdown_answers_decision_in_flight() {
    let policy = "decisions: 127.0.0.1:0\nrules:\n  - { name: all, quota: 9/h }\n";
    let body = r#"{"rule":"all"}"#;
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let api = DecisionServer::start(policy);
    // A request in flight on the old listener.
    let mut before = RawClient::connect(api.decisions).await;
    before.send(head.as_bytes()).await;
    // The server waits for the body of the request.
    assert!(timeout(TEST_TIMEOUT, before.read_head()).await.unwrap().contains("100 Continue"));
    let moved = format!("connections: {{ idle-timeout: 61s }}\n{policy}");
    fs::write(api.folder.path().join("policy.yaml"), moved).unwrap();
    api.handle.reload().await.unwrap();
    // A connection without a request is closed, and does not delay the shutdown.
    let mut silent = TcpStream::connect(api.decisions).await.unwrap();
    let DecisionServer { stop, end, .. } = api;
    drop(stop);
    let mut rest = Vec::new();
    let _ = timeout(TEST_TIMEOUT, silent.read_to_end(&mut rest)).await.unwrap();
    assert!(!end.is_finished(), "a request is still in flight");
    assert_eq!(timeout(TEST_TIMEOUT, before.request(body)).await.unwrap().status(), 200);
    timeout(TEST_TIMEOUT, end).await.unwrap().unwrap().unwrap();
}

/// A connection to a replaced listener can still send a request.
#[tokio::test]
async fn reload_serves_connections_of_replaced_listener() {
    let policy = "decisions: 127.0.0.1:0\nrules:\n  - { name: all, quota: 99/h }\n";
    let query = "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 14\r\n\r\n{\"rule\":\"all\"}";
    let api = DecisionServer::start(policy);
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(RawClient::connect(api.decisions).await);
    }
    // Connections are accepted in order, so all earlier ones are accepted.
    assert_eq!(
        timeout(TEST_TIMEOUT, RawClient::connect(api.decisions).await.request(query)).await.unwrap().status(),
        200
    );
    let moved = format!("connections: {{ idle-timeout: 61s }}\n{policy}");
    fs::write(api.folder.path().join("policy.yaml"), moved).unwrap();
    api.handle.reload().await.unwrap();
    for wire in &mut silent {
        assert_eq!(timeout(TEST_TIMEOUT, wire.request(query)).await.unwrap().status(), 200);
    }
    api.stop().await;
}
