//! Upgraded connections: over TLS, and while the gateway drains or reloads.

use crate::{
    admin_api::AdminGateway,
    harness::{RawClient, TEST_TIMEOUT, TestBackend},
    tls::{connect, start_tls_with, write_certificates},
};
use std::fmt::Display;
use tidegate_rule::Rules;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};

const UPGRADE: &[u8] = b"GET /chat HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";

/// Starts a server that switches protocols, and then sends back what it receives. It responds to other requests with its name.
async fn start_chat(name: &'static str) -> TestBackend {
    TestBackend::start_raw(move |stream| async move {
        let mut wire = RawClient::new(stream);
        loop {
            let head = wire.read_head().await;
            if head.contains("upgrade: websocket\r\n") {
                break;
            }
            wire.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}", name.len())).await;
        }
        wire.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
            .await;
        let (mut read, mut write) = wire.stream.split();
        let _ = tokio::io::copy(&mut read, &mut write).await;
        let _ = write.shutdown().await;
    })
    .await
}

/// Upgrades a connection.
async fn upgrade<T: AsyncRead + AsyncWrite + Unpin>(io: &mut T) {
    io.write_all(UPGRADE).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(timeout(TEST_TIMEOUT, io.read_u8()).await.unwrap().unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", head.escape_ascii());
}

/// Sends bytes through the tunnel and back.
async fn exchange<T: AsyncRead + AsyncWrite + Unpin>(io: &mut T, size: usize) {
    let sent = vec![b'x'; size];
    let mut received = vec![0; size];
    let (mut read, mut write) = tokio::io::split(io);
    let exchanged = async { tokio::join!(write.write_all(&sent), read.read_exact(&mut received)) };
    let (written, read) = timeout(TEST_TIMEOUT, exchanged).await.unwrap();
    written.unwrap();
    read.unwrap();
    assert_eq!(received, sent);
}

async fn read_to_end<T: AsyncRead + Unpin>(io: &mut T) -> Vec<u8> {
    let mut rest = Vec::new();
    timeout(TEST_TIMEOUT, io.read_to_end(&mut rest)).await.unwrap().unwrap();
    rest
}

#[tokio::test]
async fn upgrade_over_tls_tunnels_bytes_in_both_directions() {
    let (_directory, certificates) = write_certificates();
    let server = start_chat("a").await;
    let gateway = start_tls_with(&server, &certificates, None, "");
    let mut io = connect(gateway.address, &certificates.authority, b"http/1.1").await.unwrap();
    upgrade(&mut io).await;
    exchange(&mut io, 5).await;
    exchange(&mut io, 1 << 20).await;
    io.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut io).await, b"");
}

fn policy(server: &impl Display, rest: &str) -> String {
    format!(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nupstreams: {{ app: 'http://{server}' }}\nroutes: app\n{rest}\n"
    )
}

#[tokio::test]
async fn tunnel_survives_a_reload_that_replaces_the_workers() {
    let (one, two) = (start_chat("one").await, start_chat("two").await);
    let gateway = AdminGateway::start_policy(&policy(&one.address, ""), Rules::new());
    let mut client = gateway.connect().await;
    upgrade(&mut client.stream).await;
    exchange(&mut client.stream, 5).await;
    gateway.replace_policy(&policy(&two.address, "")).await;
    assert_eq!(gateway.connect().await.get("/").await.body, "two");
    exchange(&mut client.stream, 100_000).await;
    gateway.replace_policy(&policy(&one.address, "")).await;
    exchange(&mut client.stream, 5).await;
    client.stream.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut client.stream).await, b"");
    gateway.stop().await;
}

#[tokio::test]
async fn shutdown_waits_for_tunnel_until_the_drain_timeout() {
    let server = start_chat("a").await;
    // The tunnel ends before the timeout.
    let gateway = AdminGateway::start_policy(&policy(&server.address, ""), Rules::new());
    let (mut client, mut idle) = (gateway.connect().await, gateway.connect().await);
    assert_eq!(idle.get("/").await.status(), 200);
    upgrade(&mut client.stream).await;
    let stopped = tokio::spawn(gateway.stop());
    // The end of the idle connection shows that the gateway drains.
    assert_eq!(idle.read_to_end().await, "");
    exchange(&mut client.stream, 100_000).await;
    assert!(!stopped.is_finished());
    client.stream.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut client.stream).await, b"");
    timeout(TEST_TIMEOUT, stopped).await.unwrap().unwrap();
    // The tunnel does not end.
    let rest = "connections: { drain-timeout: 100ms }";
    let gateway = AdminGateway::start_policy(&policy(&server.address, rest), Rules::new());
    let mut client = gateway.connect().await;
    upgrade(&mut client.stream).await;
    timeout(TEST_TIMEOUT, gateway.stop()).await.unwrap();
    assert_eq!(read_to_end(&mut client.stream).await, b"");
}
