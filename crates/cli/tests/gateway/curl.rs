//! The gateway with curl as its client.

use crate::common::{GatewayProcess, TestUpstream, read_head, run_curl};
use std::fs;
use tidegate_testkit::servers::Certificates;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A server that responds with the size of the request body.
async fn start_counting_server() -> TestUpstream {
    TestUpstream::start(|mut stream| async move {
        while let Some(head) = read_head(&mut stream).await? {
            let length = head.iter().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            let mut body = vec![0; length.unwrap_or(0)];
            stream.read_exact(&mut body).await?;
            let text = format!("{} {}", head[0], body.len());
            let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len());
            stream.write_all(response.as_bytes()).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn curl_works_over_each_http_version() {
    let server = start_counting_server().await;
    let gateway = GatewayProcess::start(&format!("listen: 127.0.0.1:0\n{}", server.upstream_config())).await;
    let url = gateway.url("/a?b");
    for (how, version) in [
        ("--http1.0", "1"),
        ("--http1.1", "1.1"),
        ("--http2-prior-knowledge", "2"),
        // The gateway ignores the upgrade request, so curl continues with HTTP/1.1.
        ("--http2", "1.1"),
    ] {
        let (code, text) =
            run_curl(&[how, "--data", "hello", "-w", " %{http_version} %{http_code}", &url]).await;
        assert_eq!(
            (code, text.as_str()),
            (0, format!("post /a?b http/1.1 5 {version} 200").as_str()),
            "{how}"
        );
    }
}

#[tokio::test]
async fn tls_negotiates_http_version() {
    let server = start_counting_server().await;
    let directory = tempfile::tempdir().unwrap();
    let certificates = Certificates::create(directory.path()).unwrap();
    let policy = format!(
        "listen: {{ address: '127.0.0.1:0', tls: {{ certificate: server.crt, key: server.key }} }}\n{}",
        server.upstream_config()
    );
    let gateway = GatewayProcess::start_in(directory, &policy).await;
    let url = format!("https://localhost:{}/", gateway.address.port());
    let authority = certificates.authority.to_str().unwrap();
    for (how, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let (code, text) =
            run_curl(&[how, "--ipv4", "--cacert", authority, "-w", " %{http_version} %{http_code}", &url])
                .await;
        assert_eq!((code, text.as_str()), (0, format!("get / http/1.1 0 {version} 200").as_str()), "{how}");
    }
}

#[tokio::test]
async fn limit_headers_are_sent_over_each_http_version() {
    let server = TestUpstream::start_ok().await;
    let policy = format!(
        "listen: 127.0.0.1:0\n{}rules: [{{ name: few, key: header x-user, quota: 2/h }}]\n",
        server.upstream_config()
    );
    let gateway = GatewayProcess::start(&policy).await;
    let url = gateway.url("/");
    for how in ["--http1.1", "--http2-prior-knowledge"] {
        let user = format!("x-user: {how}");
        let mut statuses = Vec::new();
        for _ in 0..3 {
            let (code, text) = run_curl(&[
                how,
                "-H",
                &user,
                "-o",
                "/dev/null",
                "-w",
                "%{http_code} %header{retry-after}",
                &url,
            ])
            .await;
            assert_eq!(code, 0);
            statuses.push(text);
        }
        assert_eq!(&statuses[..2], ["200 ", "200 "]);
        let wait: u32 = statuses[2].strip_prefix("429 ").unwrap().parse().unwrap();
        assert!((1..=3_600).contains(&wait), "{how}: {wait}");
    }
}

#[tokio::test]
async fn oversized_request_head_is_rejected() {
    let server = TestUpstream::start_ok().await;
    let policy = format!(
        "listen: 127.0.0.1:0\nconnections: {{ max-header-size: 16KiB }}\n{}",
        server.upstream_config()
    );
    let gateway = GatewayProcess::start(&policy).await;
    let url = gateway.url("/");
    for (bytes, status) in [(8_000, "200"), (64_000, "431"), (1_000_000, "431")] {
        let head = gateway.directory.path().join("head");
        fs::write(&head, format!("x-large: {}", "a".repeat(bytes))).unwrap();
        let head = format!("@{}", head.display());
        let (code, text) = run_curl(&["-H", &head, "-o", "/dev/null", "-w", "%{http_code}", &url]).await;
        assert_eq!((code, text.as_str()), (0, status), "{bytes} bytes");
    }
    // HTTP/2 cannot respond before the head is complete, so the request fails; the connection may stay open.
    let large = format!("x-large: {}", "a".repeat(64_000));
    let args = ["--http2-prior-knowledge", "-H", &large, "-o", "/dev/null", "-w", "%{http_code}", &url];
    let (code, text) = run_curl(&args).await;
    assert!(code != 0 || text == "431", "{code} {text}");
}
