//! Requests of HTTP/2 on a connection, many at a time.

use super::{Client, ClientIo, turn::Turns};
use crate::{RequestFilter, proxy};
use hyper::{rt::Executor, server::conn::http2, service::service_fn};
use hyper_util::rt::TokioIo;
use std::{
    future::{Future, poll_fn},
    pin::pin,
    rc::Rc,
    sync::Arc,
    task::Poll,
};

/// Requests that a client may have in flight on one connection.
const AT_ONCE: u32 = 128;
/// Bytes of an answer that may wait to be sent, whatever window the client grants: this and one piece of an answer is the most that
/// a stream holds.
const SEND_BUFFER: usize = 16 * 1_024;

/// Runs tasks on the thread of the worker.
#[derive(Clone, Copy)]
pub(crate) struct HereOnly;

impl<F: Future<Output: 'static> + 'static> Executor<F> for HereOnly {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

pub(super) async fn serve<F: RequestFilter>(io: ClientIo, client: Rc<Client>, filter: Arc<F>) {
    let asked = client.clone();
    let service = service_fn(move |request| {
        let (asked, filter) = (asked.clone(), filter.clone());
        // When its stream is looked at, not before.
        async move { proxy::answer(asked, filter, request).await }
    });
    let header_size = u32::try_from(client.worker.terms.header_size).unwrap_or(u32::MAX);
    let connection = http2::Builder::new(Turns(client.clone()))
        .max_concurrent_streams(AT_ONCE)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(header_size)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = pin!(connection);

    let mut stage = Stage::Serving;
    poll_fn(|context| {
        client.deadline.listen(context);
        if client.worker.is_ending() && stage == Stage::Serving {
            stage = Stage::Ending;
            connection.as_mut().graceful_shutdown();
        }
        match connection.as_mut().poll(context) {
            Poll::Ready(_) => Poll::Ready(()),
            // Idle for too long, or it takes nothing of what is sent.
            Poll::Pending if client.deadline.is_over() => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
}

#[derive(PartialEq, Eq)]
enum Stage {
    Serving,
    Ending,
}
