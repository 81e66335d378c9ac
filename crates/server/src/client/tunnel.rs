//! Two connections that have become one: WebSocket and other upgrades.

use super::{Client, ClientIo};
use crate::stream::Stream;
use bytes::Bytes;
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::Poll,
};
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

    /// Carries bytes both ways until both sides have ended, or the gateway has waited for them long enough.
    pub(super) async fn carry(self, mut io: ClientIo, client: &Client) {
        // Whoever upgrades may be silent for as long as they like; a pair of them knows best when it is over.
        client.asked();
        let Self { mut stream, said } = self;
        if io.write_all(&said).await.is_ok() {
            let copying = pin!(copy_bidirectional(&mut io, &mut stream));
            until_over(copying, client).await;
        }
        client.answered();
    }
}

/// A client that takes nothing for too long is let go.
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
