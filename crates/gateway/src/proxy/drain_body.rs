//! Reads the rest of a request body that is not forwarded.

use super::request_body::IncomingBody;
use crate::client::ClientConnection;
use std::{
    future::poll_fn,
    task::{Context, Poll},
};

/// Whether a body was read completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DrainResult {
    Drained,
    /// The connection cannot be reused.
    Unread,
}

/// The largest body that is read to reuse the connection.
const MAX_DRAINED_BODY: u64 = 64 * 1_024;
/// The timeout, in milliseconds: most clients send a head and a small body together.
const DRAIN_TIMEOUT: u64 = 100;

/// Reads a small body, so that its connection can be reused.
pub(super) async fn drain(mut incoming: IncomingBody, client: &ClientConnection) -> DrainResult {
    if incoming.size_hint().exact().is_none_or(|length| length > MAX_DRAINED_BODY) {
        return DrainResult::Unread;
    }
    let deadline = client.worker.deadlines.new_deadline();
    deadline.set(DRAIN_TIMEOUT);
    poll_fn(|context| match poll_end(&mut incoming, context) {
        Poll::Pending if deadline.is_expired() => Poll::Ready(DrainResult::Unread),
        Poll::Pending => {
            deadline.register(context);
            Poll::Pending
        }
        left => left,
    })
    .await
}

fn poll_end(incoming: &mut IncomingBody, context: &mut Context<'_>) -> Poll<DrainResult> {
    loop {
        if incoming.is_end_stream() {
            return Poll::Ready(DrainResult::Drained);
        }
        match incoming.poll_frame(context) {
            Poll::Ready(Some(Ok(_))) => {}
            Poll::Ready(None) => return Poll::Ready(DrainResult::Drained),
            Poll::Ready(Some(Err(_))) => return Poll::Ready(DrainResult::Unread),
            Poll::Pending => return Poll::Pending,
        }
    }
}
