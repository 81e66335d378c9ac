//! Bodies of requests that are answered without them.

use crate::client::Client;
use hyper::body::{Body, Incoming};
use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

/// What is left of a body that nobody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    Nothing,
    /// Its connection cannot be used again.
    Something,
}

/// The largest body that is read for the sake of its connection.
const LARGEST: u64 = 64 * 1_024;
/// How long it is waited for, in milliseconds: most clients send a head and a small body in one go.
const MOMENT: u64 = 100;

/// Reads a small body, so that its connection can be used again.
pub(super) async fn skip(mut incoming: Incoming, client: &Client) -> Left {
    if incoming.size_hint().exact().is_none_or(|length| length > LARGEST) {
        return Left::Something;
    }
    let deadline = client.worker.watch.deadline();
    deadline.set(MOMENT);
    poll_fn(|context| match poll_end(&mut incoming, context) {
        Poll::Pending if deadline.is_over() => Poll::Ready(Left::Something),
        Poll::Pending => {
            deadline.listen(context);
            Poll::Pending
        }
        left => left,
    })
    .await
}

fn poll_end(incoming: &mut Incoming, context: &mut Context<'_>) -> Poll<Left> {
    loop {
        if incoming.is_end_stream() {
            return Poll::Ready(Left::Nothing);
        }
        match Pin::new(&mut *incoming).poll_frame(context) {
            Poll::Ready(Some(Ok(_))) => {}
            Poll::Ready(None) => return Poll::Ready(Left::Nothing),
            Poll::Ready(Some(Err(_))) => return Poll::Ready(Left::Something),
            Poll::Pending => return Poll::Pending,
        }
    }
}
