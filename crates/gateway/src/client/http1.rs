//! HTTP/1.1 requests on a client connection, until it is idle or ends.

use super::{ClientConnection, ClientInput, ClientIo, ConnectionPhase, HttpVersion, Tunnel, WriteState};
use crate::{RequestFilter, proxy, telemetry::RequestTelemetry};
use http::StatusCode;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use std::{
    future::{Future, poll_fn},
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::Poll,
};

/// Why the connection serves no more requests for now.
pub(super) enum Http1End {
    Closed,
    /// The last response is sent. The client may still be sending.
    Finished(ClientIo, ClientInput),
    /// The connection is idle, and its buffers can be released.
    Idle(ClientIo),
    /// The connection was upgraded to another protocol.
    Tunnel(ClientIo, Box<Tunnel>),
}

pub(super) async fn serve<F: RequestFilter>(
    io: ClientIo,
    client: Rc<ClientConnection>,
    filter: Arc<F>,
) -> Http1End {
    let _active = ActiveConnection::new(&client);
    let service = service_fn(|request| proxy::serve_request(client.clone(), filter.clone(), request));
    // Most heads and bodies are small; one buffer is cheaper to send than two.
    let mut connection = http1::Builder::new()
        .max_header_size(client.worker.settings.max_header_size)
        .max_buf_size(client.worker.settings.max_header_size.max(MIN_BUFFER_SIZE))
        .writev(false)
        .serve_connection(TokioIo::new(io), service);

    let mut keep_alive = KeepAlive::Yes;
    let reason = poll_fn(|context| {
        client.deadline.register(context);
        if client.worker.is_stopping() && keep_alive == KeepAlive::Yes {
            keep_alive = KeepAlive::No;
            Pin::new(&mut connection).graceful_shutdown();
        }
        match Pin::new(&mut connection).poll(context) {
            Poll::Ready(Ok(())) => Poll::Ready(CloseReason::Ended(client.input.get())),
            Poll::Ready(Err(error)) if error.is_user() => Poll::Ready(CloseReason::ResponseAborted),
            Poll::Ready(Err(error)) => {
                // hyper has responded by itself to a head that it cannot read.
                if error.is_parse() {
                    RequestTelemetry::rejected(StatusCode::BAD_REQUEST).record(
                        &*filter,
                        None,
                        &client.worker,
                    );
                }
                Poll::Ready(CloseReason::Ended(ClientInput::Unread))
            }
            Poll::Pending => match (client.phase.get(), client.write.get()) {
                (ConnectionPhase::Idle, WriteState::Ready)
                    if client.deadline.is_expired()
                        || client.worker.active_connections.get() > MAX_ACTIVE_CONNECTIONS =>
                {
                    Poll::Ready(CloseReason::Idle)
                }
                _ if client.deadline.is_expired() => Poll::Ready(CloseReason::Timeout),
                _ => Poll::Pending,
            },
        }
    })
    .await;

    let tunnel = client.tunnel.take();
    match (reason, tunnel) {
        (CloseReason::Idle, _) => Http1End::Idle(into_client_io(connection.into_parts())),
        (CloseReason::Ended(_), Some(tunnel)) => {
            Http1End::Tunnel(into_client_io(connection.into_parts()), tunnel)
        }
        (CloseReason::Ended(sends), None) => {
            Http1End::Finished(connection.into_parts().io.into_inner(), sends)
        }
        (CloseReason::ResponseAborted, _) => {
            // An HTTP/1.0 client would take the close for the end of the body, so the connection is reset.
            if client.version.get() == HttpVersion::Http10 {
                connection.into_parts().io.into_inner().reset();
            }
            Http1End::Closed
        }
        (CloseReason::Timeout, _) => Http1End::Closed,
    }
}

/// Returns the connection, with the bytes that were read and not parsed.
fn into_client_io<S>(parts: http1::Parts<TokioIo<ClientIo>, S>) -> ClientIo {
    let mut io = parts.io.into_inner();
    io.unread(&parts.read_buf);
    io
}

/// The number of connections of a worker beyond which idle ones release their buffers at once. Under load few are idle for
/// long, and new buffers cost about a microsecond; a burst of connections must not keep its buffers.
const MAX_ACTIVE_CONNECTIONS: usize = 512;

/// Counts a connection with buffers, until it is dropped.
struct ActiveConnection<'a>(&'a ClientConnection);

impl<'a> ActiveConnection<'a> {
    fn new(client: &'a ClientConnection) -> Self {
        client.worker.active_connections.update(|whole| whole + 1);
        Self(client)
    }
}

impl Drop for ActiveConnection<'_> {
    fn drop(&mut self) {
        self.0.worker.active_connections.update(|whole| whole - 1);
    }
}

/// The smallest buffer that hyper accepts.
const MIN_BUFFER_SIZE: usize = 8_192;

enum CloseReason {
    Ended(ClientInput),
    /// A response was aborted, or dropped.
    ResponseAborted,
    Idle,
    /// The client is too slow to send a head or to read a response.
    Timeout,
}

#[derive(PartialEq, Eq)]
enum KeepAlive {
    Yes,
    No,
}
