//! Closes a connection whose client may still be sending.
//!
//! Closing a socket with unread data resets the connection, and the client may lose the response. So the gateway shuts down
//! its write side, and discards input for a while.

use super::{ClientConnection, ClientIo};
use std::{future::poll_fn, task::Poll};

/// How long the client may pause, in milliseconds. `body-timeout` limits the total time.
const LINGER_TIMEOUT: u64 = 2_000;
/// The size of one read.
const DISCARD_BUFFER_SIZE: usize = 4_096;

/// The state of the input after the last response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientInput {
    /// A request was not read completely.
    Unread,
    /// All requests were read.
    Done,
}

/// Closes a connection.
pub(super) async fn close(mut io: ClientIo, mut input: ClientInput, client: &ClientConnection) {
    if io.is_read_closed() {
        return;
    }
    let deadlines = &client.worker.deadlines;
    let end = deadlines.now().saturating_add(client.worker.settings.body_timeout);
    client.start_linger(LINGER_TIMEOUT);
    let mut buffer = [0; DISCARD_BUFFER_SIZE];
    let mut write_shutdown = WriteShutdown::Pending;
    poll_fn(|context| {
        client.deadline.register(context);
        loop {
            if write_shutdown == WriteShutdown::Pending && io.poll_write_shutdown(context).is_ready() {
                write_shutdown = WriteShutdown::Complete;
            }
            match io.poll_discard(context, &mut buffer) {
                Poll::Ready(Ok(1..)) if deadlines.now() < end => {
                    input = ClientInput::Unread;
                    client.start_linger(LINGER_TIMEOUT.min(end - deadlines.now()));
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => {
                    // The end of a TLS connection waits until the client reads.
                    let is_done = input == ClientInput::Done && write_shutdown == WriteShutdown::Complete;
                    let is_closed = is_done || client.deadline.is_expired();
                    return if is_closed { Poll::Ready(()) } else { Poll::Pending };
                }
            }
        }
    })
    .await;
}

#[derive(PartialEq, Eq)]
enum WriteShutdown {
    Pending,
    Complete,
}
