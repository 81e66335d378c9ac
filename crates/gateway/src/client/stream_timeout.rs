//! The timeout of an HTTP/2 stream whose client does not read.
//!
//! In HTTP/1.1 the whole connection blocks when a client does not read. In HTTP/2 one stream may block while others make
//! progress; hyper then does not poll its response again, and nothing would end it.

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

/// The timeout of one stream.
#[derive(Default)]
pub(crate) struct StreamTimeout(OnceCell<Deadline>);

impl StreamTimeout {
    /// Starts the timeout after a frame: the client must make room for the next one.
    pub(crate) fn start(&self, client: &ClientConnection) {
        let worker = &client.worker;
        self.0.get_or_init(|| worker.deadlines.new_deadline()).set(worker.settings.body_timeout);
    }

    /// Stops the timeout, because the client has read everything.
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

/// Runs the streams of one connection. A stream that times out is dropped, which resets it; other streams continue.
#[derive(Clone)]
pub(super) struct StreamExecutor(pub(super) Rc<ClientConnection>);

impl<F: Future<Output: 'static> + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        let (client, timeout) = (self.0.clone(), Rc::new(StreamTimeout::default()));
        tokio::task::spawn_local(async move {
            let mut stream = pin!(stream);
            poll_fn(|context| {
                client.stream_timeout.replace(Some(timeout.clone()));
                let polled = stream.as_mut().poll(context);
                client.stream_timeout.take();
                match polled {
                    Poll::Pending if !timeout.is_expired(context) => Poll::Pending,
                    _ => Poll::Ready(()),
                }
            })
            .await;
        });
    }
}
