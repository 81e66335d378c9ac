//! Tunnels of upgraded connections, such as WebSocket.

use super::{ClientConnection, ClientIo};
use bytes::Bytes;
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::Poll,
};
use tidegate_http_server::Stream;
use tokio::io::{AsyncWriteExt, copy_bidirectional};

/// The server side of an upgraded connection.
pub(crate) struct Tunnel {
    stream: Stream,
    /// Bytes that the server sent with its response head.
    server_data: Bytes,
}

impl Tunnel {
    pub(crate) fn new(stream: Stream, server_data: Bytes) -> Self {
        Self { stream, server_data }
    }

    /// Copies bytes in both directions until both sides close, both are idle for too long, or the drain timeout of the
    /// gateway expires.
    pub(super) async fn copy(self, mut io: ClientIo, client: &ClientConnection) {
        client.enter_tunnel();
        let Self { mut stream, server_data: buffered } = self;
        let copying = pin!(async {
            io.write_all(&buffered).await?;
            copy_bidirectional(&mut io, &mut stream).await
        });
        copy_until_idle(copying, client).await;
        client.on_response_end();
    }
}

/// Stops when both sides are idle for too long, or the client does not read.
async fn copy_until_idle<F: Future>(mut copying: Pin<&mut F>, client: &ClientConnection) {
    poll_fn(|context| {
        client.deadline.register(context);
        match copying.as_mut().poll(context) {
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending if client.deadline.is_expired() => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
}
