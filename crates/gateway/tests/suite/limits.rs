//! Clients that are slow, many or large, servers that are slow, and the end.

use crate::stage::{Gateway, LONG, Server, config, text};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Channel};
use hyper::body::Incoming;
use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{net::TcpStream, sync::mpsc};

const SOON: Duration = Duration::from_millis(100);

#[tokio::test]
async fn a_client_that_takes_its_time_over_a_head_is_let_go() {
    let server = Server::mirror().await;
    let mut config = config(&[&server]);
    config.connections.header_timeout = SOON;
    let gateway = Gateway::with(config).await;

    let mut patient = gateway.client().await;
    assert_eq!(patient.get("/").await.status(), 200);
    let mut slow = gateway.client().await;
    slow.send("GET / HTTP/1.1\r\nhost: a\r\nx-a").await;
    assert_eq!(slow.rest().await, "");
    // The other one has been idle for long enough to be taken apart, and is put together again.
    assert_eq!(patient.get("/").await.status(), 200);
    patient.send("GET / HT").await;
    assert_eq!(patient.rest().await, "");
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_client_that_says_nothing_is_let_go() {
    let server = Server::mirror().await;
    let mut config = config(&[&server]);
    config.connections.idle_timeout = SOON;
    let gateway = Gateway::with(config).await;
    assert_eq!(gateway.client().await.rest().await, "");
    let mut client = gateway.client().await;
    assert_eq!(client.get("/").await.status(), 200);
    assert_eq!(client.rest().await, "");
}

#[tokio::test]
async fn a_body_that_stands_still_is_told_so() {
    let server = Server::mirror().await;
    let mut config = config(&[&server]);
    config.connections.body_timeout = SOON;
    let gateway = Gateway::with(config).await;
    let mut client = gateway.client().await;
    let answer = client.ask("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nhello").await;
    assert_eq!(answer.status(), 408);
    assert_eq!(client.rest().await, "");
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_let_go() {
    let (sent, mut ended) = mpsc::unbounded_channel();
    let server = Server::start(move |_: Request<Incoming>| {
        let sent = sent.clone();
        async move {
            let (mut answer, body) = Channel::<Bytes, Infallible>::new(1);
            tokio::spawn(async move {
                let piece = Bytes::from(vec![0; 1 << 16]);
                while answer.send_data(piece.clone()).await.is_ok() {}
                let _ = sent.send(());
            });
            Response::new(body.map_err(|never| match never {}).boxed())
        }
    })
    .await;
    let mut config = config(&[&server]);
    config.connections.body_timeout = SOON;
    let gateway = Gateway::with(config).await;
    let mut client = gateway.client().await;
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    // The server has nobody to send to any more, though the client still holds its end.
    ended.recv().await.unwrap();
    drop(client);
}

#[tokio::test]
async fn a_stream_of_which_nothing_is_taken_is_let_go_and_others_are_not() {
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let (sent, mut ended) = mpsc::unbounded_channel();
    let server = Server::start(move |request: Request<Incoming>| {
        let sent = sent.clone();
        async move {
            if request.uri().path() != "/endless" {
                return Response::new(text("ok"));
            }
            let (mut answer, body) = Channel::<Bytes, Infallible>::new(1);
            tokio::spawn(async move {
                let piece = Bytes::from(vec![0; 1 << 16]);
                while answer.send_data(piece.clone()).await.is_ok() {}
                let _ = sent.send(());
            });
            Response::new(body.map_err(|never| match never {}).boxed())
        }
    })
    .await;
    let mut config = config(&[&server]);
    config.connections.body_timeout = SOON;
    let gateway = Gateway::with(config).await;
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let get = |path: &str| {
        Request::get(format!("http://a{path}")).body(http_body_util::Empty::<Bytes>::new()).unwrap()
    };
    let endless = sender.send_request(get("/endless")).await.unwrap();
    // The server has nobody to send to any more, though the client still holds its end.
    tokio::time::timeout(LONG, ended.recv()).await.unwrap().unwrap();
    let answer = sender.send_request(get("/")).await.unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ok");
    assert!(endless.into_body().collect().await.is_err());
}

#[tokio::test]
async fn what_is_too_large_is_refused() {
    let server = Server::mirror().await;
    let mut config = config(&[&server]);
    config.connections.body_size = Some(10);
    let gateway = Gateway::with(config).await;
    for (request, status) in [
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n0123456789".to_owned(), 200),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 11\r\n\r\n".to_owned(), 413),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n8\r\n01234567\r\n8\r\n01234567\r\n".to_owned(),
            413,
        ),
        (format!("GET / HTTP/1.1\r\nhost: a\r\nx-a: {}\r\n\r\n", "a".repeat(40_000)), 431),
        (format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", "a".repeat(70_000)), 431),
    ] {
        let mut client = gateway.client().await;
        client.send(&request).await;
        assert_eq!(client.answer().await.status(), status, "{}", &request[..request.len().min(80)]);
    }
}

#[tokio::test]
async fn connections_are_limited_per_client() {
    let server = Server::mirror().await;
    let mut config = config(&[&server]);
    config.connections.per_client = 2;
    let gateway = Gateway::with(config).await;
    let (mut first, mut second) = (gateway.client().await, gateway.client().await);
    assert_eq!(first.get("/").await.status(), 200);
    assert_eq!(second.get("/").await.status(), 200);
    let answer = gateway.client().await.get("/").await;
    assert_eq!((answer.status(), answer.header("connection")), (503, Some("close")));
    // Whoever says nothing is told nothing.
    assert_eq!(gateway.client().await.rest().await, "");
    drop(first);
    // Its place is free when the gateway has seen it go.
    loop {
        let mut third = gateway.client().await;
        third.send("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
        if third.rest().await.starts_with("HTTP/1.1 200 ") {
            return;
        }
    }
}

#[tokio::test]
async fn a_server_that_takes_too_long_is_not_waited_for() {
    let silent = Server::raw(|stream| async move {
        let held: Mutex<Option<TcpStream>> = Mutex::new(Some(stream));
        std::future::pending::<()>().await;
        drop(held);
    })
    .await;
    let mut slow = config(&[&silent]);
    slow.upstreams.get_mut("app").unwrap().timeouts.response = SOON;
    let gateway = Gateway::with(slow).await;
    assert_eq!(gateway.client().await.get("/").await.status(), 504);

    // In the middle of a body there is nothing left to say; the end is seen all the same.
    let stopping = Server::start(|_| async {
        let (mut answer, body) = Channel::<Bytes, Infallible>::new(1);
        tokio::spawn(async move {
            let _ = answer.send_data(Bytes::from_static(b"abc")).await;
            std::future::pending::<()>().await;
            drop(answer);
        });
        Response::new(body.map_err(|never| match never {}).boxed())
    })
    .await;
    let mut slow = config(&[&stopping]);
    slow.upstreams.get_mut("app").unwrap().timeouts.idle = SOON;
    let gateway = Gateway::with(slow).await;
    let mut client = gateway.client().await;
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(client.rest().await.ends_with("\r\n3\r\nabc\r\n"));
}

#[tokio::test]
async fn requests_in_flight_end_before_the_gateway_does() {
    let (arrived, mut arrivals) = mpsc::unbounded_channel();
    let go = Arc::new(tokio::sync::Notify::new());
    let let_go = go.clone();
    let server = Server::start(move |_| {
        let (arrived, go) = (arrived.clone(), let_go.clone());
        async move {
            let _ = arrived.send(());
            go.notified().await;
            Response::new(text("done"))
        }
    })
    .await;
    let mut gateway = Gateway::before(&[&server]).await;
    let (mut idle, mut busy) = (gateway.client().await, gateway.client().await);
    busy.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    arrivals.recv().await.unwrap();
    gateway.stop();
    assert_eq!(idle.rest().await, "");
    assert!(TcpStream::connect(gateway.address).await.is_err());
    go.notify_one();
    let answer = busy.answer().await;
    assert_eq!((answer.status(), answer.body.as_str()), (200, "done"));
    assert_eq!(answer.header("connection"), Some("close"));
    gateway.ended().await;
}

#[tokio::test]
async fn the_gateway_does_not_wait_for_ever() {
    let (arrived, mut arrivals) = mpsc::unbounded_channel();
    let server = Server::start(move |_| {
        let _ = arrived.send(());
        std::future::pending()
    })
    .await;
    let mut config = config(&[&server]);
    config.connections.drain_timeout = SOON;
    let mut gateway = Gateway::with(config).await;
    let mut client = gateway.client().await;
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    arrivals.recv().await.unwrap();
    gateway.stop();
    gateway.ended().await;
    assert_eq!(client.rest().await, "");
}
