//! Detects HTTP/2 with prior knowledge, without ALPN.

use super::{ClientConnection, ClientIo};
use bytes::BytesMut;
use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};
use tidegate_http_server::HTTP2_PREFACE;
use tokio::io::AsyncReadExt;

/// Whether the client sends the HTTP/2 preface. The bytes that were read are returned to the connection.
pub(super) async fn has_http2_preface(io: &mut ClientIo, client: &ClientConnection) -> bool {
    let mut received = BytesMut::with_capacity(HTTP2_PREFACE.len());
    while received.len() < HTTP2_PREFACE.len() && HTTP2_PREFACE.starts_with(&received) {
        let read = {
            let mut reading = pin!(io.read_buf(&mut received));
            poll_fn(|context| {
                client.deadline.register(context);
                match reading.as_mut().poll(context) {
                    Poll::Pending if client.deadline.is_expired() || client.worker.is_stopping() => {
                        Poll::Ready(Ok(0))
                    }
                    polled => polled,
                }
            })
            .await
        };
        if !matches!(read, Ok(1..)) {
            break;
        }
    }
    let is_preface = received == HTTP2_PREFACE;
    io.unread(&received);
    is_preface
}
