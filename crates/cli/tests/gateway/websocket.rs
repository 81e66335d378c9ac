//! WebSocket through the gateway, with a standard library on both sides.

use crate::common::{GatewayProcess, TEST_TIMEOUT, TestUpstream};
use futures_util::{SinkExt, StreamExt};
use std::io;
use tokio::time::timeout;
use tokio_tungstenite::{
    accept_async, connect_async,
    tungstenite::{
        Error, Message,
        protocol::{CloseFrame, frame::coding::CloseCode},
    },
};

async fn start_echo_server() -> TestUpstream {
    TestUpstream::start(|stream| async move {
        let mut socket = accept_async(stream).await.map_err(io::Error::other)?;
        while let Some(Ok(message)) = socket.next().await {
            if (message.is_text() || message.is_binary()) && socket.send(message).await.is_err() {
                break;
            }
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn messages_pass_both_ways_until_close() {
    let server = start_echo_server().await;
    let gateway = GatewayProcess::start(&format!("listen: 127.0.0.1:0\n{}", server.upstream_config())).await;
    let (mut socket, answer) = connect_async(format!("ws://{}/chat", gateway.address)).await.unwrap();
    assert_eq!(answer.status(), 101);
    for message in [
        Message::text("hello"),
        Message::binary(vec![7; 1 << 20]),
        Message::text("ü".repeat(100_000)),
        Message::binary(Vec::new()),
    ] {
        socket.send(message.clone()).await.unwrap();
        let came = timeout(TEST_TIMEOUT, socket.next()).await.unwrap().unwrap().unwrap();
        assert!(came == message, "{} bytes came for {}", came.len(), message.len());
    }
    socket.send(Message::Ping("are you there?".into())).await.unwrap();
    let came = timeout(TEST_TIMEOUT, socket.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(came, Message::Pong("are you there?".into()));

    let goodbye = CloseFrame { code: CloseCode::Away, reason: "enough".into() };
    socket.close(Some(goodbye.clone())).await.unwrap();
    let came = timeout(TEST_TIMEOUT, socket.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(came, Message::Close(Some(goodbye)));
    assert!(timeout(TEST_TIMEOUT, socket.next()).await.unwrap().is_none());
}

#[tokio::test]
async fn websocket_handshake_is_rate_limited() {
    let server = start_echo_server().await;
    let policy = format!(
        "listen: 127.0.0.1:0\n{}rules: [{{ name: few, key: ip, quota: 1/h }}]\n",
        server.upstream_config()
    );
    let gateway = GatewayProcess::start(&policy).await;
    let url = format!("ws://{}/", gateway.address);
    let (mut socket, _) = connect_async(&url).await.unwrap();
    match connect_async(&url).await {
        Err(Error::Http(answer)) => assert_eq!(answer.status(), 429),
        other => panic!("{other:?}"),
    }
    // The admitted connection stays open.
    socket.send(Message::text("hello")).await.unwrap();
    assert_eq!(timeout(TEST_TIMEOUT, socket.next()).await.unwrap().unwrap().unwrap(), Message::text("hello"));
}

#[tokio::test]
async fn idle_websocket_is_closed() {
    let server = start_echo_server().await;
    let policy = format!(
        "listen: 127.0.0.1:0\nconnections: {{ tunnel-timeout: 200ms }}\n{}",
        server.upstream_config()
    );
    let gateway = GatewayProcess::start(&policy).await;
    let (mut socket, _) = connect_async(format!("ws://{}/", gateway.address)).await.unwrap();
    let end = timeout(TEST_TIMEOUT, socket.next()).await.expect("it ends");
    assert!(matches!(end, None | Some(Err(_))), "{end:?}");
}
