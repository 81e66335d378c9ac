//! Upstream servers that close in the middle of a response: clients must not see a complete response.

use crate::common::{GatewayProcess, TestUpstream, read_head, run_curl};
use tokio::io::AsyncWriteExt;

#[tokio::test]
async fn truncated_upstream_body_is_an_error() {
    let server = TestUpstream::start(|mut stream| async move {
        let head = read_head(&mut stream).await?.unwrap_or_default();
        let response: &[u8] = match head[0].split(' ').nth(1) {
            Some("/length") => b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\nabc",
            Some("/pieces") => b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
            Some("/piece") => b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffff\r\nabc",
            _ => b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n",
        };
        stream.write_all(response).await
    })
    .await;
    let gateway = GatewayProcess::start(&format!("listen: 127.0.0.1:0\n{}", server.upstream_config())).await;
    for path in ["/length", "/pieces", "/piece", "/end"] {
        for how in ["--http1.0", "--http1.1", "--http2-prior-knowledge"] {
            let (code, text) = run_curl(&[how, "-w", " %{http_code}", &gateway.url(path)]).await;
            // 18: partial body; 56: connection reset; 92: stream error.
            assert!([18, 56, 92].contains(&code), "{how} {path}: {code} {text}");
        }
    }
}
