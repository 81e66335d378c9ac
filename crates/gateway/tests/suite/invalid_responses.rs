//! Invalid and ambiguous responses of servers. Each row of the table in docs/http1.md has its bytes here.

use crate::harness::{InProcessGateway, RawClient, TestBackend};

/// Starts a server that sends these bytes for every request, and then waits for the gateway to close the connection.
async fn start_server(bytes: Vec<u8>) -> TestBackend {
    let bytes = std::sync::Arc::new(bytes);
    TestBackend::start_raw(move |stream| {
        let bytes = bytes.clone();
        async move {
            let mut wire = RawClient::new(stream);
            wire.read_head().await;
            wire.send(&*bytes).await;
            wire.read_to_end().await;
        }
    })
    .await
}

fn with_fields(count: usize) -> String {
    format!("HTTP/1.1 200 OK\r\n{}content-length: 0\r\n\r\n", "a: b\r\n".repeat(count - 1))
}

fn with_interim_responses(count: usize) -> String {
    let interim = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n".repeat(count);
    format!("{interim}HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
}

/// A head of this size.
fn with_head_size(size: usize) -> String {
    let rest = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx-a: \r\n\r\n".len();
    format!("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx-a: {}\r\n\r\n", "a".repeat(size - rest))
}

/// Nothing of these responses reaches the client, and their connection is not used again.
#[tokio::test]
async fn invalid_response_is_a_bad_gateway() {
    let ok = |fields: &str, body: &str| format!("HTTP/1.1 200 OK\r\n{fields}\r\n{body}");
    let mut wrong = Vec::new();
    for (problem, response) in [
        ("101 fields", with_fields(101)),
        ("100,000 fields", with_fields(100_000)),
        ("a head of more than 64 KiB", with_head_size((64 << 10) + 1)),
        ("a head without an end", "HTTP/1.1 200 OK\r\nx-a: ".to_owned() + &"a".repeat(100_000)),
        ("17 interim responses", with_interim_responses(17)),
        ("a coding before chunked", ok("transfer-encoding: gzip, chunked\r\n", "0\r\n\r\n")),
        (
            "a coding in another field",
            ok("transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n", "0\r\n\r\n"),
        ),
        ("chunked is not the last coding", ok("transfer-encoding: chunked, gzip\r\n", "0\r\n\r\n")),
        ("another coding", ok("transfer-encoding: gzip\r\n", "abc")),
        ("chunked twice", ok("transfer-encoding: chunked, chunked\r\n", "0\r\n\r\n")),
        ("identity", ok("transfer-encoding: identity\r\ncontent-length: 3\r\n", "abc")),
        ("chunked in HTTP/1.0", "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".to_owned()),
        ("different lengths", ok("content-length: 3\r\ncontent-length: 4\r\n", "abcd")),
        ("different lengths in one field", ok("content-length: 3, 4\r\n", "abcd")),
        ("a length with a sign", ok("content-length: +3\r\n", "abc")),
        ("a negative length", ok("content-length: -1\r\n", "")),
        ("a hexadecimal length", ok("content-length: 0x3\r\n", "abc")),
        ("an empty length", ok("content-length: \r\n", "")),
        ("a length beyond 64 bits", ok("content-length: 18446744073709551616\r\n", "")),
        ("status 99", "HTTP/1.1 099 X\r\ncontent-length: 0\r\n\r\n".to_owned()),
        ("status 600", "HTTP/1.1 600 X\r\ncontent-length: 0\r\n\r\n".to_owned()),
        ("status of two digits", "HTTP/1.1 20 OK\r\ncontent-length: 0\r\n\r\n".to_owned()),
        ("status of four digits", "HTTP/1.1 2000 OK\r\ncontent-length: 0\r\n\r\n".to_owned()),
        ("HTTP/1.2", "HTTP/1.2 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned()),
        ("HTTP/2.0", "HTTP/2.0 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned()),
        ("another protocol", "ICY 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned()),
        ("a version in lower case", "http/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned()),
        ("a space before the status line", " HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned()),
        (
            "an empty line before the status line",
            "\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned(),
        ),
        ("a line feed alone in the head", "HTTP/1.1 200 OK\ncontent-length: 0\n\n".to_owned()),
        ("a line feed at the end of the head", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\n".to_owned()),
        ("a carriage return in a value", ok("x-a: b\rc\r\ncontent-length: 0\r\n", "")),
        ("NUL in a value", ok("x-a: \0\r\ncontent-length: 0\r\n", "")),
        ("a space before the colon", ok("content-length : 0\r\n", "")),
        ("a folded field", ok("x-a: b\r\n c\r\ncontent-length: 0\r\n", "")),
        ("a field without a name", ok(": b\r\ncontent-length: 0\r\n", "")),
        ("a field without a colon", ok("x-a\r\ncontent-length: 0\r\n", "")),
        ("an unrequested upgrade", "HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n".to_owned()),
        ("a chunk size with a sign", ok("transfer-encoding: chunked\r\n", "+3\r\nabc\r\n0\r\n\r\n")),
    ] {
        let shown = &response[..response.len().min(80)];
        let server = start_server(response.clone().into_bytes()).await;
        let gateway = InProcessGateway::start(&[&server]).await;
        let mut client = gateway.connect().await;
        client.send("POST / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        let head = client.read_head().await;
        // The head of a chunked body may have been sent before the body arrived.
        let is_aborted = problem.starts_with("a chunk") && head.starts_with("HTTP/1.1 200 ");
        if is_aborted {
            let rest = client.read_to_end().await;
            assert!(!rest.contains("abc") && !rest.ends_with("0\r\n\r\n"), "{problem}: {rest:?}");
        } else if !head.starts_with("HTTP/1.1 502 ") || head.contains("x-a") {
            wrong.push(format!("{problem}: {shown:?} got {head:?}"));
        }
        let connections = server.connection_count();
        let mut next = gateway.connect().await;
        next.send("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
        next.read_to_end().await;
        if server.connection_count() == connections {
            wrong.push(format!("{problem}: the connection was used again"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// These are just within the limits, or their meaning is clear.
#[tokio::test]
async fn unusual_response_is_forwarded() {
    for (problem, response, expected) in [
        ("100 fields", with_fields(100), "content-length: 0\r\n"),
        ("a head of 64 KiB", with_head_size(64 << 10), "content-length: 0\r\n"),
        ("16 interim responses", with_interim_responses(16), "content-length: 0\r\n"),
        (
            "the same length twice",
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 3\r\n\r\nabc".to_owned(),
            "content-length: 3\r\n",
        ),
        (
            "a length and a coding",
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
                .to_owned(),
            "transfer-encoding: chunked\r\n",
        ),
        ("status 599", "HTTP/1.1 599 X\r\ncontent-length: 0\r\n\r\n".to_owned(), "content-length: 0\r\n"),
    ] {
        let server = start_server(response.into_bytes()).await;
        let gateway = InProcessGateway::start(&[&server]).await;
        let mut client = gateway.connect().await;
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        let head = client.read_head().await;
        let framing = ["content-length", "transfer-encoding"].map(|name| head.matches(name).count());
        assert!(!head.starts_with("HTTP/1.1 502 ") && head.contains(expected), "{problem}: {head:.200}");
        assert_eq!(framing.iter().sum::<usize>(), 1, "{problem}: {head:.200}");
    }
}

/// What follows the end of a response is not the response to the next request.
#[tokio::test]
async fn bytes_after_a_response_are_dropped() {
    let extra = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nx-extra: 1\r\n\r\nextra";
    for (method, response) in [
        ("GET", "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc"),
        ("GET", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n"),
        ("HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"),
    ] {
        let server = start_server(format!("{response}{extra}").into_bytes()).await;
        let gateway = InProcessGateway::start(&[&server]).await;
        let mut client = gateway.connect().await;
        for _ in 0..2 {
            client.send(format!("{method} / HTTP/1.1\r\nhost: a\r\nconnection: keep-alive\r\n\r\n")).await;
            let head = client.read_head().await;
            assert!(!head.contains("x-extra"), "{method} {response:?}: {head}");
            if head.contains("chunked") {
                client.read_until(b"0\r\n\r\n").await;
            } else if method == "GET" && head.starts_with("HTTP/1.1 200") {
                assert_eq!(client.read_exact(3).await, b"abc");
            }
        }
        assert_eq!(server.connection_count(), 2, "{method} {response:?}");
    }
}
