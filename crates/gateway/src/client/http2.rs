//! HTTP/2 requests on a client connection.

use super::{ClientConnection, ClientIo, http2_stream::StreamExecutor};
use crate::proxy::{self, ConnectionDropped, IncomingBody};
use http::{Method, Request};
use hyper::{body::Incoming, rt::Executor, server::conn::http2, service::service_fn};
use hyper_util::rt::TokioIo;
use std::{
    future::{Future, poll_fn},
    pin::pin,
    rc::Rc,
    task::Poll,
};
use tidegate_policy::head::ParsedRequest;

/// The maximum number of requests in flight on one connection.
const MAX_CONCURRENT_STREAMS: u32 = 128;
/// The bytes of request bodies that a client may send before the server reads them: of one stream, and of all of a connection.
const STREAM_WINDOW: u32 = 64 * 1_024;
const CONNECTION_WINDOW: u32 = 512 * 1_024;
/// The send buffer of a stream, whatever window the client grants. A frame is buffered if a part of it can be sent, so that a stream
/// holds at most two frames.
const SEND_BUFFER_SIZE: usize = 16 * 1_024;

/// Runs tasks on the thread of the worker.
#[derive(Clone, Copy)]
pub(crate) struct LocalExecutor;

impl<F: Future<Output: 'static> + 'static> Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

pub(super) async fn serve(io: ClientIo, client: Rc<ClientConnection>) {
    let service_client = client.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let service_client = service_client.clone();
        let is_head = request.method() == Method::HEAD;
        // Lazily, when the stream is polled.
        async move {
            let (parts, incoming) = request.into_parts();
            let (request, incoming) = (ParsedRequest::from(&parts), IncomingBody::Http2(incoming));
            let response = proxy::serve_request(service_client, request, incoming).await?;
            let response = if is_head { response.without_body() } else { response };
            Ok::<_, ConnectionDropped>(response.into_http2())
        }
    });
    let header_size = u32::try_from(client.worker.settings.max_header_size).unwrap_or(u32::MAX);
    let connection = http2::Builder::new(StreamExecutor(client.clone()))
        .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
        .max_send_buf_size(SEND_BUFFER_SIZE)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(header_size)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = pin!(connection);

    let mut shutdown = ShutdownState::Serving;
    poll_fn(|context| {
        client.deadline.register(context);
        // The buffers of the client's other connections may have room again.
        client.wake_blocked();
        if client.worker.is_closing() && shutdown == ShutdownState::Serving {
            shutdown = ShutdownState::ShuttingDown;
            connection.as_mut().graceful_shutdown();
        }
        match connection.as_mut().poll(context) {
            Poll::Ready(_) => Poll::Ready(()),
            // Idle for too long, or the client does not read.
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
