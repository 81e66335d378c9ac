//! Who is waited for, for how long, and how a connection ends when nobody is waited for any more.

use crate::stage::{Gateway, LONG, Server, Wire, config, text};
use bytes::Bytes;
use http::{Request, Response, StatusCode, request};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::{future::pending, time::Duration};
use tidegate_gateway::Action;
use tidegate_policy::model::Protocol;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::timeout,
};

const SOON: Duration = Duration::from_millis(100);

/// Reads all of a body, and answers with its length, unless it is to be silent.
async fn length_of(request: Request<Incoming>) -> Response<crate::stage::Body> {
    let is_silent = request.uri().path() == "/silent";
    let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes);
    if is_silent {
        pending::<()>().await;
    }
    Response::new(text(body.map_or(0, |body| body.len()).to_string()))
}

async fn http2_server() -> Server {
    use hyper_util::rt::{TokioExecutor, TokioIo};
    Server::raw(|stream| async move {
        let service = hyper::service::service_fn(|request| async {
            Ok::<_, std::convert::Infallible>(length_of(request).await)
        });
        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = builder.serve_connection(TokioIo::new(stream), service).await;
    })
    .await
}

#[tokio::test]
async fn a_server_is_waited_for_from_the_last_piece_of_a_body_on() {
    for (protocol, server) in
        [(Protocol::Http1, Server::start(length_of).await), (Protocol::Http2, http2_server().await)]
    {
        let mut config = config(&[&server]);
        let app = config.upstreams.get_mut("app").unwrap();
        app.timeouts.response = SOON;
        app.protocol = protocol;
        let gateway = Gateway::with(config).await;
        let mut upload = gateway.client().await;
        upload.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\n").await;
        for _ in 0..3 {
            // Another one has run out of time meanwhile, so this one would have, too.
            assert_eq!(gateway.client().await.get("/silent").await.status(), 504);
            upload.send("a").await;
        }
        assert_eq!(upload.answer().await.body, "3");
        let silent = upload.ask("POST /silent HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\na").await;
        assert_eq!(silent.status(), 504);
    }
}

#[tokio::test]
async fn a_server_that_takes_nothing_of_a_body_is_not_waited_for() {
    let deaf = Server::raw(|stream| async move {
        pending::<()>().await;
        drop(stream);
    })
    .await;
    let mut config = config(&[&deaf]);
    config.upstreams.get_mut("app").unwrap().timeouts.idle = SOON;
    let gateway = Gateway::with(config).await;
    let mut client = gateway.client().await;
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000000\r\n\r\n").await;
    client.flood().await;
    assert_eq!(client.answer().await.status(), 504);
}

#[tokio::test]
async fn a_server_that_is_not_reached_in_time_is_not_waited_for() {
    let mute = Server::raw(|stream| async move {
        pending::<()>().await;
        drop(stream);
    })
    .await;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        // It does not get as far as TLS.
        let mut secret = config(&[&mute]);
        let app = secret.upstreams.get_mut("app").unwrap();
        app.servers[0].url = format!("https://{}", mute.address);
        app.timeouts.connect = SOON;
        app.protocol = protocol;
        let gateway = Gateway::with(secret).await;
        assert_eq!(gateway.client().await.get("/").await.status(), 504);
    }

    // Nor here as far as TCP: nobody accepts, and the line is full.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let full = socket.listen(1).unwrap();
    let address = full.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = timeout(SOON, TcpStream::connect(address)).await {
        waiting.push(stream.unwrap());
    }
    let mut unreachable = config(&[&mute]);
    let app = unreachable.upstreams.get_mut("app").unwrap();
    app.servers[0].url = format!("http://{address}");
    app.timeouts.connect = SOON;
    let gateway = Gateway::with(unreachable).await;
    assert_eq!(gateway.client().await.get("/").await.status(), 504);
}

#[tokio::test]
async fn a_client_that_is_still_sending_gets_to_read_why_nobody_listens() {
    let server = Server::start(length_of).await;
    let mut config = config(&[&server]);
    config.connections.body_size = Some(1_000);
    let app = config.target("app").unwrap();
    let gateway = Gateway::judged(config, move |head: &request::Parts| match head.uri.path() {
        "/limited" => {
            let mut answer = Response::new(Bytes::from_static(b"Later."));
            *answer.status_mut() = StatusCode::TOO_MANY_REQUESTS;
            Action::Respond(answer)
        }
        _ => Action::Forward(app),
    })
    .await;
    for (head, status) in [
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000000\r\n\r\n", 413),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1000000\r\n", 413),
        ("POST /limited HTTP/1.1\r\nhost: a\r\ncontent-length: 900\r\ncontent-length: 901\r\n\r\n", 400),
        ("POST /limited HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1000000\r\n", 429),
        ("GET / HTTP/1.1\r\nhost: a\r\nx-a: ", 431),
        ("POST / HTTP/1.1\r\ncontent-length: 900\r\n\r\n", 400),
    ] {
        let mut client = gateway.client().await;
        client.send(head).await;
        // A reset would end this, or take away the answer.
        client.flood().await;
        let answer = client.answer().await;
        assert_eq!(answer.status(), status, "{head}");
        assert_eq!(answer.header("connection"), Some("close"), "{head}");
        assert_eq!(client.rest().await, "", "{head}");
    }
}

#[tokio::test]
async fn a_connection_is_kept_when_a_small_body_is_refused() {
    let gateway = Gateway::judged(config(&[&Server::nobody().await]), |_: &request::Parts| {
        Action::Respond(Response::new(Bytes::from_static(b"Later.")))
    })
    .await;
    let mut client = gateway.client().await;
    for _ in 0..3 {
        let head = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\n";
        assert_eq!(client.ask(&format!("{head}body")).await.body, "Later.");
        // Not together with its head.
        client.send(head).await;
        tokio::task::yield_now().await;
        assert_eq!(client.ask("body").await.body, "Later.");
    }
    // Nobody who waits to be asked for a body is asked.
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\nexpect: 100-continue\r\n\r\n").await;
    let answer = client.rest().await;
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("connection: close\r\n"),
        "{answer}"
    );
}

#[tokio::test]
async fn an_old_client_cannot_take_a_part_for_all() {
    let server = Server::raw(|stream| async move {
        let mut wire = Wire::of(stream);
        wire.head().await;
        wire.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n").await;
    })
    .await;
    let gateway = Gateway::before(&[&server]).await;
    let mut client = gateway.client().await;
    client.send("GET / HTTP/1.0\r\n\r\n").await;
    let mut came = Vec::new();
    let end = timeout(LONG, client.stream.read_to_end(&mut came)).await.unwrap();
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset, "after {came:?}");
}

#[tokio::test]
async fn a_tunnel_in_which_nothing_is_said_is_closed() {
    let server = Server::raw(|stream| async move {
        let mut wire = Wire::of(stream);
        wire.head().await;
        wire.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n").await;
        let (mut read, mut write) = wire.stream.split();
        let _ = tokio::io::copy(&mut read, &mut write).await;
    })
    .await;
    let mut config = config(&[&server]);
    config.connections.tunnel_timeout = SOON;
    config.connections.idle_timeout = LONG;
    let gateway = Gateway::with(config).await;
    let upgrade = "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    let (mut talking, mut silent) = (gateway.client().await, gateway.client().await);
    for tunnel in [&mut talking, &mut silent] {
        tunnel.send(upgrade).await;
        assert!(tunnel.head().await.starts_with("HTTP/1.1 101 "));
    }
    let mut byte = [0];
    let silence = silent.stream.read(&mut byte);
    let talk = async {
        loop {
            talking.send("ping").await;
            talking.until(b"ping").await;
        }
    };
    tokio::select! {
        end = timeout(LONG, silence) => assert_eq!(end.unwrap().unwrap(), 0),
        () = talk => {}
    }
    talking.send("pong").await;
    talking.until(b"pong").await;
    talking.stream.shutdown().await.unwrap();
}
