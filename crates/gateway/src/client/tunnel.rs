//! Two connections that have become one: WebSocket and other upgrades.

use super::{ClientConnection, ClientIo};
use bytes::Bytes;
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::Poll,
};
use tidegate_http_server::Stream;
use tokio::io::{AsyncWriteExt, copy_bidirectional};

/// The half towards the server.
pub(crate) struct Tunnel {
    stream: Stream,
    /// What the server said already.
    server_data: Bytes,
}

impl Tunnel {
    pub(crate) fn new(stream: Stream, server_data: Bytes) -> Self {
        Self { stream, server_data }
    }

    /// Carries bytes both ways until both sides have ended, nothing has come from either for too long, or the gateway has
    /// waited for them long enough.
    pub(super) async fn copy(self, mut io: ClientIo, client: &ClientConnection) {
        client.enter_tunnel();
        let Self { mut stream, server_data: said } = self;
        let copying = pin!(async {
            io.write_all(&said).await?;
            copy_bidirectional(&mut io, &mut stream).await
        });
        copy_until_idle(copying, client).await;
        client.on_response_end();
    }
}

/// Those who say nothing for too long are let go, and a client that takes nothing.
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
