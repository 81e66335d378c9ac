//! Closing a connection whose client may still be sending.
//!
//! A socket that is closed with something unread in it resets the connection, and the client may lose the answer that said
//! why. So the gateway says that it has ended, and reads on for a while what nobody wants.

use super::{Client, ClientIo};
use std::{future::poll_fn, task::Poll};

/// How long there may be nothing of what nobody wants, in milliseconds. All of it has as long as a body may stand still.
const SILENCE: u64 = 2_000;
/// What is read at once.
const PIECE: usize = 4_096;

/// What is known of a client when its last answer is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sends {
    /// It is in the middle of something.
    More,
    /// Nothing, as far as is known.
    Nothing,
}

/// Closes a connection.
pub(super) async fn close(mut io: ClientIo, mut sends: Sends, client: &Client) {
    if io.has_ended() {
        return;
    }
    let watch = &client.worker.watch;
    let end = watch.now().saturating_add(client.worker.terms.body);
    client.lingers(SILENCE);
    let mut piece = [0; PIECE];
    // hyper has said so where all went well.
    let mut said = if sends == Sends::Nothing { Said::End } else { Said::Nothing };
    poll_fn(|context| {
        client.deadline.listen(context);
        loop {
            if said == Said::Nothing && io.poll_end(context).is_ready() {
                said = Said::End;
            }
            match io.poll_discard(context, &mut piece) {
                Poll::Ready(Ok(1..)) if watch.now() < end => {
                    sends = Sends::More;
                    client.lingers(SILENCE.min(end - watch.now()));
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending if sends == Sends::Nothing || client.deadline.is_over() => {
                    return Poll::Ready(());
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await;
}

#[derive(PartialEq, Eq)]
enum Said {
    Nothing,
    /// That nothing more comes.
    End,
}
