//! How long a client of HTTP/2 may leave a piece of an answer where it is.
//!
//! In HTTP/1.1 it is the connection that stands still when a client takes nothing. In HTTP/2 one stream may, while others
//! move: hyper then asks its answer for nothing more, and nobody would ever end it.

use super::ClientConnection;
use crate::deadline::Deadline;
use hyper::rt::Executor;
use std::{
    cell::OnceCell,
    future::{Future, poll_fn},
    pin::pin,
    rc::Rc,
    task::{Context, Poll},
};

/// The time of one stream.
#[derive(Default)]
pub(crate) struct StreamTimeout(OnceCell<Deadline>);

impl StreamTimeout {
    /// A piece was given, and the client is to make room for the next.
    pub(crate) fn start(&self, client: &ClientConnection) {
        let worker = &client.worker;
        self.0.get_or_init(|| worker.deadlines.new_deadline()).set(worker.settings.body_timeout);
    }

    /// The client has taken everything.
    pub(crate) fn stop(&self) {
        if let Some(deadline) = self.0.get() {
            deadline.clear();
        }
    }

    fn is_expired(&self, context: &Context<'_>) -> bool {
        self.0.get().is_some_and(|deadline| {
            deadline.register(context);
            deadline.is_expired()
        })
    }
}

/// Runs the streams of one connection. One that stands still for too long is dropped, which resets it; others go on.
#[derive(Clone)]
pub(super) struct StreamExecutor(pub(super) Rc<ClientConnection>);

impl<F: Future<Output: 'static> + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        let (client, turn) = (self.0.clone(), Rc::new(StreamTimeout::default()));
        tokio::task::spawn_local(async move {
            let mut stream = pin!(stream);
            poll_fn(|context| {
                client.stream_timeout.replace(Some(turn.clone()));
                let polled = stream.as_mut().poll(context);
                client.stream_timeout.take();
                match polled {
                    Poll::Pending if !turn.is_expired(context) => Poll::Pending,
                    _ => Poll::Ready(()),
                }
            })
            .await;
        });
    }
}
