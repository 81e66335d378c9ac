//! Two connections that have become one: WebSocket and other upgrades.

use super::{Client, ClientIo};
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
    said: Bytes,
}

impl Tunnel {
    pub(crate) fn new(stream: Stream, said: Bytes) -> Self {
        Self { stream, said }
    }

    /// Carries bytes both ways until both sides have ended, nothing has come from either for too long, or the gateway has
    /// waited for them long enough.
    pub(super) async fn carry(self, mut io: ClientIo, client: &Client) {
        client.tunnels();
        let Self { mut stream, said } = self;
        let copying = pin!(async {
            io.write_all(&said).await?;
            copy_bidirectional(&mut io, &mut stream).await
        });
        until_over(copying, client).await;
        client.answered();
    }
}

/// Those who say nothing for too long are let go, and a client that takes nothing.
async fn until_over<F: Future>(mut copying: Pin<&mut F>, client: &Client) {
    poll_fn(|context| {
        client.deadline.listen(context);
        match copying.as_mut().poll(context) {
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending if client.deadline.is_over() => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
}
