//! Ambiguous requests. Each is rejected, or rewritten so that only one interpretation is left.

use crate::harness::{InProcessGateway, TestBackend, test_config};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn ambiguous_request_is_rejected_and_closes_connection() {
    let server = TestBackend::start_echo().await;
    let gateway = InProcessGateway::start(&[&server]).await;
    let long =
        format!("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{}\r\n", "f".repeat(17));
    for (request, status) in [
        // Lengths.
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5, 6\r\n\r\nhello", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: +5\r\n\r\nhello", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0x5\r\n\r\nhello", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999999999999\r\n\r\n", 400),
        // Transfer codings.
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: identity\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: xchunked\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, identity\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 501),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            501,
        ),
        ("POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        // Lines.
        ("GET / HTTP/1.1\r\nhost: a\r\nx-a: 1\r\n folded\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a\r\nx-a : 1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a\r\n : 1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a\r\nx-a: 1\r2\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a\r\nx-a: \0\r\n\r\n", 400),
        ("GET  / HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("GET / HTTP/1.1 \r\nhost: a\r\n\r\n", 400),
        ("GET /\u{7f} HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        // Hosts.
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a/b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a@b\r\n\r\n", 400),
        // Chunks.
        (long.as_str(), 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhelloX\r\n0\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5;a\nhello\r\n0\r\n\r\n", 400),
    ] {
        let mut client = gateway.connect().await;
        client.send(format!("{request}GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n")).await;
        let response = client.read_to_end().await;
        let line = response.lines().next().unwrap_or_default();
        assert!(line.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?} got {line:?}");
        assert!(!response.contains("/smuggled"), "{request:?} got {response:?}");
    }
}

#[tokio::test]
async fn transfer_encoding_overrides_content_length() {
    let server = TestBackend::start_echo().await;
    let gateway = InProcessGateway::start(&[&server]).await;
    for lengths in [
        "content-length: 4\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ncontent-length: 4",
        "content-length: 4\r\ntransfer-encoding: chunked\r\ncontent-length: 5",
    ] {
        let mut client = gateway.connect().await;
        client
            .send(format!(
                "POST / HTTP/1.1\r\nhost: a\r\n{lengths}\r\n\r\n5\r\nhello\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n"
            ))
            .await;
        let response = client.read_response().await;
        assert!(response.body.ends_with("\n\nhello"), "{response:?}");
        assert_eq!(response.echoed_headers("content-length"), [""; 0]);
        assert_eq!(response.echoed_headers("transfer-encoding"), ["chunked"]);
        // The connection is closed: a server that uses the length could take the body for the next request.
        assert_eq!(client.read_to_end().await, "");
    }
}

#[tokio::test]
async fn bare_line_feeds_are_normalized() {
    let server = TestBackend::start_echo().await;
    let gateway = InProcessGateway::start(&[&server]).await;
    let response = gateway.connect().await.request("GET /a HTTP/1.1\nhost: a\nx-a: 1\n\n").await;
    assert!(response.body.starts_with("GET /a\n"), "{response:?}");
    assert_eq!(response.echoed_headers("x-a"), ["1"]);
}

#[tokio::test]
async fn connect_method_is_rejected() {
    let server = TestBackend::start_echo().await;
    let gateway = InProcessGateway::start_with(test_config(&[&server])).await;
    let response = gateway.connect().await.request("CONNECT evil:25 HTTP/1.1\r\nhost: evil:25\r\n\r\n").await;
    assert_eq!(response.status(), 405);
    assert_eq!(server.connection_count(), 0);
}

/// Starts a server that records all bytes, and responds to each complete request.
async fn start_recorder() -> (TestBackend, Arc<Mutex<Vec<u8>>>) {
    let record = Arc::new(Mutex::new(Vec::new()));
    let recorded = record.clone();
    let server = TestBackend::start_raw(move |mut stream| {
        let record = recorded.clone();
        async move {
            let mut piece = [0; 4_096];
            while let Ok(length @ 1..) = stream.read(&mut piece).await {
                let is_whole = {
                    let mut record = record.lock().unwrap();
                    record.extend_from_slice(&piece[..length]);
                    is_complete_request(&record)
                };
                let response = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                if is_whole && stream.write_all(response).await.is_err() {
                    return;
                }
            }
        }
    })
    .await;
    (server, record)
}

/// Whether the last request is complete: by its length, its last chunk, or its head alone.
fn is_complete_request(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    match length {
        Some(length) => body.len() >= length.parse::<usize>().unwrap(),
        None => !head.contains("transfer-encoding") || body.ends_with("0\r\n\r\n"),
    }
}

/// The bytes of one request as the server received them, without the headers that the gateway adds.
fn recorded_request(record: &Mutex<Vec<u8>>) -> String {
    let text = String::from_utf8(record.lock().unwrap().clone()).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let own = ["forwarded:", "x-forwarded-", "x-request-id:"];
    let mut lines: Vec<_> =
        head.split("\r\n").filter(|line| !own.iter().any(|own| line.starts_with(own))).collect();
    lines[1..].sort_unstable();
    format!("{}\r\n\r\n{body}", lines.join("\r\n"))
}

/// Compares received and forwarded bytes.
#[tokio::test]
async fn forwarded_request_has_canonical_bytes() {
    const CHUNKED: &str =
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    for (request, forwarded) in [
        ("GET / HTTP/1.1\r\nhost: a\r\n\r\n", "GET / HTTP/1.1\r\nhost: a\r\n\r\n"),
        // Lines that end in a bare LF, names in capitals, spaces around values.
        ("GET / HTTP/1.1\nHOST:a\nX-A: \t 1 \t\n\n", "GET / HTTP/1.1\r\nhost: a\r\nx-a: 1\r\n\r\n"),
        ("\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n", "GET / HTTP/1.1\r\nhost: a\r\n\r\n"),
        // Duplicate lengths with the same value.
        (
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello",
            "POST / HTTP/1.1\r\ncontent-length: 5\r\nhost: a\r\n\r\nhello",
        ),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 005\r\n\r\nhello",
            "POST / HTTP/1.1\r\ncontent-length: 5\r\nhost: a\r\n\r\nhello",
        ),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\nhello",
            "POST / HTTP/1.1\r\ncontent-length: 5\r\nhost: a\r\n\r\nhello",
        ),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 00\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 0\r\nhost: a\r\n\r\n",
        ),
        // Chunk sizes with extensions, leading zeros and upper case are rewritten.
        (
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: Chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\n\r\n",
            CHUNKED,
        ),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0005\r\nhello\r\n00;x\r\n\r\n",
            CHUNKED,
        ),
        // A length together with a transfer coding.
        (
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            CHUNKED,
        ),
        // An absolute request target, which overrides the host.
        ("GET http://b/x HTTP/1.1\r\nhost: a\r\n\r\n", "GET /x HTTP/1.1\r\nhost: b\r\n\r\n"),
        // `Connection` cannot remove end-to-end headers.
        (
            "POST / HTTP/1.1\r\nhost: a\r\nconnection: content-length, host\r\ncontent-length: 5\r\n\r\nhello",
            "POST / HTTP/1.1\r\ncontent-length: 5\r\nhost: a\r\n\r\nhello",
        ),
        (
            "POST / HTTP/1.1\r\nhost: a\r\nconnection: transfer-encoding\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            CHUNKED,
        ),
    ] {
        let (server, record) = start_recorder().await;
        let gateway = InProcessGateway::start(&[&server]).await;
        let response = gateway.connect().await.request(request).await;
        assert_eq!(response.status(), 200, "{request:?}");
        assert_eq!(recorded_request(&record), forwarded, "{request:?}");
    }
}

#[tokio::test]
async fn rejected_request_never_reaches_server_complete() {
    for request in [
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhelloX\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5 5\r\nhello\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5;a=\"\nb\"\r\nhello\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding\t: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\n transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5 5\r\n\r\nhello",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: \r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5,\r\n\r\nhello",
        "GET / HTTP/1.1\r\nhost: a\r\nx-a: b\rx-b: c\r\n\r\n",
    ] {
        let (server, record) = start_recorder().await;
        let gateway = InProcessGateway::start(&[&server]).await;
        let mut client = gateway.connect().await;
        client.send(format!("{request}GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n")).await;
        let response = client.read_to_end().await;
        let is_rejected = response.starts_with("HTTP/1.1 400 ") || response.starts_with("HTTP/1.1 501 ");
        assert!(is_rejected, "{request:?} got {response:?}");
        let record = record.lock().unwrap();
        assert!(
            !is_complete_request(&record),
            "{request:?} was forwarded as {:?}",
            String::from_utf8_lossy(&record)
        );
    }
}
