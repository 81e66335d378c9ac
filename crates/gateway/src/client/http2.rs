//! Requests of HTTP/2 on a connection, many at a time.

use super::{ClientConnection, ClientIo, stream_timeout::StreamExecutor};
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
const MAX_CONCURRENT_STREAMS: u32 = 128;
/// Bytes of an answer that may wait to be sent, whatever window the client grants: this and one piece of an answer is the most that
/// a stream holds.
const SEND_BUFFER_SIZE: usize = 16 * 1_024;

/// Runs tasks on the thread of the worker.
#[derive(Clone, Copy)]
pub(crate) struct LocalExecutor;

impl<F: Future<Output: 'static> + 'static> Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

pub(super) async fn serve<F: RequestFilter>(io: ClientIo, client: Rc<ClientConnection>, filter: Arc<F>) {
    let service_client = client.clone();
    let service = service_fn(move |request| {
        let (service_client, filter) = (service_client.clone(), filter.clone());
        // When its stream is looked at, not before.
        async move { proxy::serve_request(service_client, filter, request).await }
    });
    let header_size = u32::try_from(client.worker.settings.max_header_size).unwrap_or(u32::MAX);
    let connection = http2::Builder::new(StreamExecutor(client.clone()))
        .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
        .max_send_buf_size(SEND_BUFFER_SIZE)
        .max_header_list_size(header_size)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = pin!(connection);

    let mut stage = ShutdownState::Serving;
    poll_fn(|context| {
        client.deadline.register(context);
        if client.worker.is_closing() && stage == ShutdownState::Serving {
            stage = ShutdownState::ShuttingDown;
            connection.as_mut().graceful_shutdown();
        }
        match connection.as_mut().poll(context) {
            Poll::Ready(_) => Poll::Ready(()),
            // Idle for too long, or it takes nothing of what is sent.
            Poll::Pending if client.deadline.is_expired() => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
}

#[derive(PartialEq, Eq)]
enum ShutdownState {
    Serving,
    ShuttingDown,
}
