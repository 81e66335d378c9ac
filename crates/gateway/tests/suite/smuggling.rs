//! Ambiguous requests. Each is rejected, or rewritten so that only one interpretation is left.

use crate::harness::{InProcessGateway, TestBackend, test_config};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
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
        // Lengths together with transfer codings.
        (
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            400,
        ),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            400,
        ),
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
        ("GET / HTTP/1.2\r\nhost: a\r\n\r\n", 505),
        ("GET / HTTP/2.0\r\nhost: a\r\n\r\n", 505),
        ("GET / HTTP/1.1\nhost: a\n\n", 400),
        ("GET / HTTP/1.1\r\nhost: a\nx-a: 1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a\r\n\n", 400),
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

/// A row has the name of the technique in publications, the bytes, and the status. A second request follows the bytes.
#[tokio::test]
async fn published_smuggling_request_is_rejected() {
    const POST: &str = "POST / HTTP/1.1\r\nhost: a\r\n";
    const CHUNKED: &str = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    let server = TestBackend::start_echo().await;
    let gateway = InProcessGateway::start(&[&server]).await;
    let mut wrong = Vec::new();
    for (technique, start, rest, status) in [
        ("CL.TE", POST, "content-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nG", 400),
        ("TE.CL", POST, "content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n1\r\nZ\r\nQ\r\n\r\n", 400),
        ("CL.TE without a body", POST, "transfer-encoding: chunked\r\ncontent-length: 0\r\n\r\n", 400),
        (
            "TE.TE second coding",
            POST,
            "transfer-encoding: chunked\r\ntransfer-encoding: x\r\n\r\n0\r\n\r\n",
            400,
        ),
        (
            "TE.TE first coding",
            POST,
            "transfer-encoding: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            501,
        ),
        ("TE.TE identity first", POST, "transfer-encoding: identity, chunked\r\n\r\n0\r\n\r\n", 501),
        ("TE.TE space before the colon", POST, "transfer-encoding : chunked\r\n\r\n0\r\n\r\n", 400),
        ("TE.TE tab before the colon", POST, "transfer-encoding\t: chunked\r\n\r\n0\r\n\r\n", 400),
        ("TE.TE vertical tab", POST, "transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n", 400),
        ("TE.TE vertical tab after", POST, "transfer-encoding: chunked\x0b\r\n\r\n0\r\n\r\n", 400),
        ("TE.TE form feed", POST, "transfer-encoding:\x0cchunked\r\n\r\n0\r\n\r\n", 400),
        ("TE.TE quotes", POST, "transfer-encoding: \"chunked\"\r\n\r\n0\r\n\r\n", 400),
        ("TE.TE parameter", POST, "transfer-encoding: chunked;q=1\r\n\r\n0\r\n\r\n", 400),
        ("TE.TE part of the name", POST, "transfer-encoding: chunk\r\n\r\n0\r\n\r\n", 400),
        ("TE.TE letter that folds to s", POST, "tran\u{17f}fer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        ("TE.TE no-break space", POST, "transfer-encoding:\u{a0}chunked\r\n\r\n0\r\n\r\n", 400),
        ("TE.TE NUL", POST, "transfer-encoding: chunked\0\r\n\r\n0\r\n\r\n", 400),
        ("TE.TE NUL in the name", POST, "transfer-encoding\0: chunked\r\n\r\n0\r\n\r\n", 400),
        ("TE.TE empty", POST, "transfer-encoding:\r\n\r\n0\r\n\r\n", 400),
        ("TE.TE empty element", POST, "transfer-encoding: chunked,\r\n\r\n0\r\n\r\n", 400),
        ("TE.TE folded value", POST, "transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400),
        ("TE.TE folded field", POST, "x-a: b\r\n transfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        ("TE.TE folded with a tab", POST, "x-a: b\r\n\ttransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        ("TE.TE line feed", POST, "x-a: b\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        ("TE.TE carriage return", POST, "x-a: b\rtransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        ("TE.TE carriage return at the start", POST, "\rtransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        ("TE.TE line end before the colon", POST, "transfer-encoding\r\n: chunked\r\n\r\n0\r\n\r\n", 400),
        ("CL space before the colon", POST, "content-length : 5\r\n\r\nhello", 400),
        ("CL NUL", POST, "content-length: 5\0\r\n\r\nhello", 400),
        ("CL vertical tab", POST, "content-length:\x0b5\r\n\r\nhello", 400),
        ("CL two numbers", POST, "content-length: 5 6\r\n\r\nhello", 400),
        ("CL fraction", POST, "content-length: 5.0\r\n\r\nhello", 400),
        ("CL overflow", POST, "content-length: 18446744073709551621\r\n\r\nhello", 400),
        ("chunk prefix 0x", CHUNKED, "0x5\r\nhello\r\n0\r\n\r\n", 400),
        ("chunk sign", CHUNKED, "+5\r\nhello\r\n0\r\n\r\n", 400),
        ("chunk leading space", CHUNKED, " 5\r\nhello\r\n0\r\n\r\n", 400),
        ("chunk trailing space", CHUNKED, "5 \r\nhello\r\n0\r\n\r\n", 400),
        ("chunk vertical tab", CHUNKED, "5\x0b\r\nhello\r\n0\r\n\r\n", 400),
        ("chunk underscore", CHUNKED, "0_5\r\nhello\r\n0\r\n\r\n", 400),
        ("chunk without a size", CHUNKED, "\r\nhello\r\n0\r\n\r\n", 400),
        ("chunk overflow", CHUNKED, "10000000000000005\r\nhello\r\n0\r\n\r\n", 400),
        ("chunk extension with line feed", CHUNKED, "5;\nhello\r\n0\r\n\r\n", 400),
        ("chunk extension with carriage return", CHUNKED, "5;a\rhello\r\n0\r\n\r\n", 400),
        ("chunk extension with NUL", CHUNKED, "5;a\0\r\nhello\r\n0\r\n\r\n", 400),
        ("chunk extension with quoted line end", CHUNKED, "5;a=\"\r\n\"\r\nhello\r\n0\r\n\r\n", 400),
        ("chunk data without line end", CHUNKED, "5\r\nhello0\r\n\r\n", 400),
        ("chunk data with line feed", CHUNKED, "5\r\nhello\n0\r\n\r\n", 400),
        ("chunk data with carriage return", CHUNKED, "5\r\nhello\r0\r\n\r\n", 400),
        ("chunk data too short", CHUNKED, "5\r\nhell\r\n0\r\n\r\n", 400),
        ("last chunk with line feed", CHUNKED, "0\n\r\n", 400),
        ("end with line feed", CHUNKED, "0\r\n\n", 400),
        ("trailer with line feed", CHUNKED, "0\r\nx-a: b\n\r\n", 400),
        ("trailer with space before the colon", CHUNKED, "0\r\nx-a : b\r\n\r\n", 400),
        ("trailer folded", CHUNKED, "0\r\nx-a: b\r\n c\r\n\r\n", 400),
        ("trailing data", CHUNKED, "0\r\nGET /inner HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("head end with line feeds", "GET / HTTP/1.1\nhost: a\n\n", "", 400),
        ("head end with carriage returns", "GET / HTTP/1.1\rhost: a\r\r", "", 400),
        ("head end with two carriage returns", "GET / HTTP/1.1\r\nhost: a\r\r\n\r\n", "", 400),
        ("space in the target", "GET /a b HTTP/1.1\r\nhost: a\r\n\r\n", "", 505),
        ("tab in the target", "GET /a\tb HTTP/1.1\r\nhost: a\r\n\r\n", "", 400),
        ("two request lines in one", "GET / HTTP/1.1 HTTP/1.1\r\nhost: a\r\n\r\n", "", 400),
        ("carriage return in the target", "GET /\rx HTTP/1.1\r\nhost: a\r\n\r\n", "", 400),
        ("vertical tab after the target", "GET /\x0bHTTP/1.1\r\nhost: a\r\n\r\n", "", 400),
        ("HTTP/0.9", "GET /\r\n", "", 400),
        ("version in lower case", "GET / http/1.1\r\nhost: a\r\n\r\n", "", 505),
        ("absolute target without Host", "GET http://b/ HTTP/1.1\r\n\r\n", "", 400),
        ("absolute target and two Host", "GET http://b/ HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", "", 400),
        ("absolute target with user name", "GET http://a@b/ HTTP/1.1\r\nhost: b\r\n\r\n", "", 400),
        ("absolute target without a host", "GET http:///a HTTP/1.1\r\nhost: a\r\n\r\n", "", 400),
        ("absolute target without a scheme", "GET ://b/a HTTP/1.1\r\nhost: a\r\n\r\n", "", 400),
        ("absolute target with a path as scheme", "GET a/b://c/d HTTP/1.1\r\nhost: a\r\n\r\n", "", 400),
        ("authority as target", "GET a:80 HTTP/1.1\r\nhost: a:80\r\n\r\n", "", 400),
        ("Host with a name as port", "GET / HTTP/1.1\r\nhost: a:b\r\n\r\n", "", 400),
        ("Host with two ports", "GET / HTTP/1.1\r\nhost: a:80:b\r\n\r\n", "", 400),
        ("Host without a name", "GET / HTTP/1.1\r\nhost: :80\r\n\r\n", "", 400),
        ("Host with a path", "GET / HTTP/1.1\r\nhost: a?b\r\n\r\n", "", 400),
        ("Host with NUL", "GET / HTTP/1.1\r\nhost: a\0b\r\n\r\n", "", 400),
        ("folded Host", "GET / HTTP/1.1\r\nhost: a\r\n\thost: b\r\n\r\n", "", 400),
        ("space before Host", "GET / HTTP/1.1\r\n host: a\r\n\r\n", "", 400),
    ] {
        let request = format!("{start}{rest}");
        let mut client = gateway.connect().await;
        client.send(format!("{request}GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n")).await;
        let response = client.read_to_end().await;
        let is_rejected = response.starts_with(&format!("HTTP/1.1 {status} "));
        if !is_rejected || response.matches("HTTP/1.1 ").count() != 1 {
            wrong.push(format!("{technique}: {request:?} got {response:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn line_feed_before_request_is_rejected_in_pieces_too() {
    let server = TestBackend::start_echo().await;
    let gateway = InProcessGateway::start(&[&server]).await;
    for pieces in
        [&["\r\n\nGET / HTTP/1.1\r\nhost: a\r\n\r\n"][..], &["\r", "\n\nGET / HTTP/1.1\r\nhost: a\r\n\r\n"]]
    {
        let mut client = gateway.connect().await;
        for piece in pieces {
            client.send(piece).await;
            // The gateway reads the pieces separately.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(client.read_to_end().await.starts_with("HTTP/1.1 400 "), "{pieces:?}");
    }
}

#[tokio::test]
async fn http10_request_without_host_gets_that_of_the_server() {
    let server = TestBackend::start_echo().await;
    let gateway = InProcessGateway::start(&[&server]).await;
    let response = gateway.connect().await.request("GET / HTTP/1.0\r\n\r\n").await;
    assert_eq!(response.echoed_headers("host"), [server.address.to_string()]);
}

#[tokio::test]
async fn response_204_has_no_length() {
    let server = TestBackend::start_raw(|mut stream| async move {
        let mut head = [0; 1_024];
        let _ = stream.read(&mut head).await;
        let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n").await;
        // Open until the gateway closes it.
        let _ = stream.read(&mut head).await;
    })
    .await;
    let gateway = InProcessGateway::start(&[&server]).await;
    let mut client = gateway.connect().await;
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let head = client.read_head().await;
    assert!(head.starts_with("HTTP/1.1 204 ") && !head.contains("content-length"), "{head}");
}

/// Beyond the limits of docs/http1.md a request is rejected, and its connection is closed. Within them it is forwarded.
#[tokio::test]
async fn request_beyond_a_limit_is_rejected_and_closes_connection() {
    let (server, record) = start_recorder().await;
    let gateway = InProcessGateway::start(&[&server]).await;
    let fields = |count: usize| format!("GET / HTTP/1.1\r\nhost: a\r\n{}\r\n", "a: b\r\n".repeat(count - 1));
    let chunked =
        |body: &str| format!("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{body}");
    let trailers = |count: usize| chunked(&format!("0\r\n{}\r\n", "a: b\r\n".repeat(count)));
    let trailer = |size: usize| chunked(&format!("0\r\na: {}\r\n\r\n", "b".repeat(size)));
    let extension = |size: usize| chunked(&format!("0;{}\r\n\r\n", "a".repeat(size)));
    // The size of all extensions of a body counts.
    let extensions = |count: usize| chunked(&format!("{}0\r\n\r\n", "1;aaaaaaa\r\nx\r\n".repeat(count)));
    for (what, request, status) in [
        ("100 fields", fields(100), 200),
        ("101 fields", fields(101), 431),
        ("100,000 fields", fields(100_000), 431),
        ("100 trailers", trailers(100), 200),
        ("101 trailers", trailers(101), 400),
        ("a trailer of almost 8 KiB", trailer(8_192 - 7), 200),
        ("trailers of more than 8 KiB", trailer(8_192), 400),
        ("an extension of 4 KiB", extension(4_096 - 1), 200),
        ("an extension of more than 4 KiB", extension(4_096), 400),
        ("extensions of 4 KiB", extensions(512), 200),
        ("extensions of more than 4 KiB", extensions(513), 400),
        ("a method of 32 characters", format!("{} / HTTP/1.1\r\nhost: a\r\n\r\n", "M".repeat(32)), 200),
        ("a method of 33 characters", format!("{} / HTTP/1.1\r\nhost: a\r\n\r\n", "M".repeat(33)), 400),
    ] {
        record.lock().unwrap().clear();
        let mut client = gateway.connect().await;
        if status == 200 {
            assert_eq!(client.request(&request).await.status(), status, "{what}");
            assert!(is_complete_request(&record.lock().unwrap()), "{what}");
            continue;
        }
        // The gateway may close the connection before everything is sent.
        let next = "GET /next HTTP/1.1\r\nhost: a\r\n\r\n";
        let _ = client.stream.write_all(format!("{request}{next}").as_bytes()).await;
        let response = client.read_to_end().await;
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{what}: {response:.200}");
        assert_eq!(response.matches("HTTP/1.1 ").count(), 1, "{what}: {response:.200}");
        assert!(!is_complete_request(&record.lock().unwrap()), "{what}");
    }
}

/// A client may send the data of the tunnel before the response.
#[tokio::test]
async fn connect_method_is_rejected_and_closes_connection() {
    let server = TestBackend::start_echo().await;
    let gateway = InProcessGateway::start_with(test_config(&[&server])).await;
    for line in ["CONNECT evil:25 HTTP/1.1", "CONNECT /a HTTP/1.1", "TRACE / HTTP/1.1"] {
        let mut client = gateway.connect().await;
        client.send(format!("{line}\r\nhost: a\r\n\r\nGET /x HTTP/1.1\r\nhost: a\r\n\r\n")).await;
        let response = client.read_to_end().await;
        assert!(
            response.starts_with("HTTP/1.1 405 ") && response.contains("\r\nconnection: close\r\n"),
            "{response}"
        );
        assert_eq!(response.matches("HTTP/1.1 ").count(), 1, "{response}");
    }
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
        None if head.contains("transfer-encoding") => {
            // Trailers may follow the last chunk.
            (body.starts_with("0\r\n") || body.contains("\r\n0\r\n")) && body.ends_with("\r\n\r\n")
        }
        None => true,
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
        // Names in capitals, spaces around values, an empty line before the request.
        ("GET / HTTP/1.1\r\nHOST:a\r\nX-A: \t 1 \t\r\n\r\n", "GET / HTTP/1.1\r\nhost: a\r\nx-a: 1\r\n\r\n"),
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
        // Tabs and spaces around a coding.
        (
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding:\tchunked \t\r\n\r\n5\t;a\r\nhello\r\n0\r\n\r\n",
            CHUNKED,
        ),
        // CL.0: the length applies to all methods.
        (
            "GET / HTTP/1.1\r\nhost: a\r\ncontent-length: 21\r\n\r\nGET /inner HTTP/1.1\r\n",
            "GET / HTTP/1.1\r\ncontent-length: 21\r\nhost: a\r\n\r\nGET /inner HTTP/1.1\r\n",
        ),
        // TE.0: so does the coding.
        (
            "OPTIONS / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nGET /\r\n0\r\n\r\n",
            "OPTIONS / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nGET /\r\n0\r\n\r\n",
        ),
        // Names with an underscore, which CGI reads as a hyphen.
        (
            "GET / HTTP/1.1\r\nhost: a\r\ncontent_length: 5\r\ntransfer_encoding: chunked\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        ),
        // An upgrade to HTTP/2.
        (
            "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\n\r\n",
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
