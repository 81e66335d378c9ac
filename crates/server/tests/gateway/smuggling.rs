//! Requests that servers might understand in different ways. Each is refused, or written anew so that there is one way.

use crate::stage::{Gateway, Server, config};

#[tokio::test]
async fn what_has_two_meanings_is_refused_and_ends_the_connection() {
    let server = Server::mirror().await;
    let gateway = Gateway::before(&[&server]).await;
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
        // Codings.
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
        // Pieces.
        (long.as_str(), 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhelloX\r\n0\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5;a\nhello\r\n0\r\n\r\n", 400),
    ] {
        let mut client = gateway.client().await;
        client.send(format!("{request}GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n")).await;
        let answer = client.rest().await;
        let line = answer.lines().next().unwrap_or_default();
        assert!(line.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?} was answered {line:?}");
        assert!(!answer.contains("/smuggled"), "{request:?} was answered {answer:?}");
    }
}

#[tokio::test]
async fn a_coding_is_stronger_than_a_length_which_no_server_gets_to_see() {
    let server = Server::mirror().await;
    let gateway = Gateway::before(&[&server]).await;
    for lengths in [
        "content-length: 4\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ncontent-length: 4",
        "content-length: 4\r\ntransfer-encoding: chunked\r\ncontent-length: 5",
    ] {
        let mut client = gateway.client().await;
        client
            .send(format!(
                "POST / HTTP/1.1\r\nhost: a\r\n{lengths}\r\n\r\n5\r\nhello\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n"
            ))
            .await;
        let answer = client.answer().await;
        assert!(answer.body.ends_with("\n\nhello"), "{answer:?}");
        assert_eq!(answer.seen("content-length"), [""; 0]);
        assert_eq!(answer.seen("transfer-encoding"), ["chunked"]);
        // What follows cannot be told from the body by those who believe the length.
        assert_eq!(client.rest().await, "");
    }
}

#[tokio::test]
async fn lines_that_end_in_different_ways_are_written_anew() {
    let server = Server::mirror().await;
    let gateway = Gateway::before(&[&server]).await;
    let answer = gateway.client().await.ask("GET /a HTTP/1.1\nhost: a\nx-a: 1\n\n").await;
    assert!(answer.body.starts_with("GET /a\n"), "{answer:?}");
    assert_eq!(answer.seen("x-a"), ["1"]);
}

#[tokio::test]
async fn nobody_is_connected_to_others() {
    let server = Server::mirror().await;
    let gateway = Gateway::with(config(&[&server])).await;
    let answer = gateway.client().await.ask("CONNECT evil:25 HTTP/1.1\r\nhost: evil:25\r\n\r\n").await;
    assert_eq!(answer.status(), 405);
    assert_eq!(server.connections(), 0);
}
