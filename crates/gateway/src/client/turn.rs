//! How long a client of HTTP/2 may leave a piece of an answer where it is.
//!
//! In HTTP/1.1 it is the connection that stands still when a client takes nothing. In HTTP/2 one stream may, while others
//! move: hyper then asks its answer for nothing more, and nobody would ever end it.

use super::Client;
use crate::watch::Deadline;
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
pub(crate) struct Turn(OnceCell<Deadline>);

impl Turn {
    /// A piece was given, and the client is to make room for the next.
    pub(crate) fn given(&self, client: &Client) {
        let worker = &client.worker;
        self.0.get_or_init(|| worker.watch.deadline()).set(worker.terms.body);
    }

    /// The client has taken everything.
    pub(crate) fn awaited(&self) {
        if let Some(deadline) = self.0.get() {
            deadline.clear();
        }
    }

    fn is_over(&self, context: &Context<'_>) -> bool {
        self.0.get().is_some_and(|deadline| {
            deadline.listen(context);
            deadline.is_over()
        })
    }
}

/// Runs the streams of one connection. One that stands still for too long is dropped, which resets it; others go on.
#[derive(Clone)]
pub(super) struct Turns(pub(super) Rc<Client>);

impl<F: Future<Output: 'static> + 'static> Executor<F> for Turns {
    fn execute(&self, stream: F) {
        let (client, turn) = (self.0.clone(), Rc::new(Turn::default()));
        tokio::task::spawn_local(async move {
            let mut stream = pin!(stream);
            poll_fn(|context| {
                client.turn.replace(Some(turn.clone()));
                let polled = stream.as_mut().poll(context);
                client.turn.take();
                match polled {
                    Poll::Pending if !turn.is_over(context) => Poll::Pending,
                    _ => Poll::Ready(()),
                }
            })
            .await;
        });
    }
}
