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
    let policy = |client_ca: &str| {
        let tls = format!("{{ certificate: '{certificate}', key: '{key}'{client_ca} }}");
        // Cargo sets this variable for every test, so it serves as a token.
        let tokens = "[{ name: web, token: $CARGO_PKG_NAME }]";
        format!(
            "decisions: {{ listen: 127.0.0.1:0, tls: {tls}, tokens: {tokens} }}\nrules:\n  - {{ name: all, quota: 9/h }}\n"
        )
    };
    let split_args = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let ca_args = split_args(&format!("--cacert {authority}"));
    let client_cert_args = split_args(&format!("--cert {certificate} --key {key}"));
    let token_args = vec!["-H".to_owned(), format!("authorization: Bearer {}", env!("CARGO_PKG_NAME"))];
    for (client_ca, without_certificate) in
        [(String::new(), "200 2"), (format!(", client-ca: '{authority}'"), "000 0")]
    {
        let api = DecisionServer::start(&policy(&client_ca));
        let url_args = vec![format!("https://localhost:{}/v1/check", api.decisions.port())];
        let concat_args =
            |parts: &[&Vec<String>]| parts.iter().flat_map(|part| part.iter().cloned()).collect();
        assert_eq!(
            curl(concat_args(&[&ca_args, &client_cert_args, &token_args, &url_args])).await,
            "200 2",
            "{client_ca}"
        );
        assert_eq!(
            curl(concat_args(&[&ca_args, &client_cert_args, &url_args])).await,
            "401 2",
            "{client_ca}"
        );
        assert_eq!(
            curl(concat_args(&[&ca_args, &token_args, &url_args])).await,
            without_certificate,
            "{client_ca}"
        );
        let http1_args = split_args("--http1.1");
        assert_eq!(
            curl(concat_args(&[&ca_args, &client_cert_args, &token_args, &http1_args, &url_args])).await,
            "200 1.1",
            "{client_ca}"
        );
        assert_eq!(
            curl(concat_args(&[&token_args, &url_args])).await,
            "000 0",
            "a client without a certificate"
        );
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
    let changed_policy = format!("connections: {{ idle-timeout: 61s }}\n{policy}");
    fs::write(api.folder.path().join("policy.yaml"), changed_policy).unwrap();
    api.handle.reload().await.unwrap();
    // A connection without a request is closed, and does not delay the shutdown.
    let mut idle_connection = TcpStream::connect(api.decisions).await.unwrap();
    let DecisionServer { stop, end, .. } = api;
    drop(stop);
    let mut rest = Vec::new();
    let _ = timeout(TEST_TIMEOUT, idle_connection.read_to_end(&mut rest)).await.unwrap();
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
    let mut idle_clients = Vec::new();
    for _ in 0..8 {
        idle_clients.push(RawClient::connect(api.decisions).await);
    }
    // Connections are accepted in order, so all earlier ones are accepted.
    assert_eq!(
        timeout(TEST_TIMEOUT, RawClient::connect(api.decisions).await.request(query)).await.unwrap().status(),
        200
    );
    let changed_policy = format!("connections: {{ idle-timeout: 61s }}\n{policy}");
    fs::write(api.folder.path().join("policy.yaml"), changed_policy).unwrap();
    api.handle.reload().await.unwrap();
    for client in &mut idle_clients {
        assert_eq!(timeout(TEST_TIMEOUT, client.request(query)).await.unwrap().status(), 200);
    }
    api.stop().await;
}
