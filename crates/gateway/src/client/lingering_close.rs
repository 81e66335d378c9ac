//! Closing a connection whose client may still be sending.
//!
//! A socket that is closed with something unread in it resets the connection, and the client may lose the answer that said
//! why. So the gateway says that it has ended, and reads on for a while what nobody wants.

use super::{ClientConnection, ClientIo};
use std::{future::poll_fn, task::Poll};

/// How long there may be nothing of what nobody wants, in milliseconds. All of it has as long as a body may stand still.
const LINGER_TIMEOUT: u64 = 2_000;
/// What is read at once.
const DISCARD_BUFFER_SIZE: usize = 4_096;

/// What is known of a client when its last answer is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientInput {
    /// It is in the middle of something.
    Unread,
    /// Nothing, as far as is known.
    Done,
}

/// Closes a connection.
pub(super) async fn close(mut io: ClientIo, mut sends: ClientInput, client: &ClientConnection) {
    if io.is_read_closed() {
        return;
    }
    let watch = &client.worker.deadlines;
    let end = watch.now().saturating_add(client.worker.settings.body_timeout);
    client.start_linger(LINGER_TIMEOUT);
    let mut piece = [0; DISCARD_BUFFER_SIZE];
    // hyper has said so where all went well.
    let mut said = if sends == ClientInput::Done { WriteShutdown::Complete } else { WriteShutdown::Pending };
    poll_fn(|context| {
        client.deadline.register(context);
        loop {
            if said == WriteShutdown::Pending && io.poll_write_shutdown(context).is_ready() {
                said = WriteShutdown::Complete;
            }
            match io.poll_discard(context, &mut piece) {
                Poll::Ready(Ok(1..)) if watch.now() < end => {
                    sends = ClientInput::Unread;
                    client.start_linger(LINGER_TIMEOUT.min(end - watch.now()));
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending if sends == ClientInput::Done || client.deadline.is_expired() => {
                    return Poll::Ready(());
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await;
}

#[derive(PartialEq, Eq)]
enum WriteShutdown {
    Pending,
    /// That nothing more comes.
    Complete,
}
