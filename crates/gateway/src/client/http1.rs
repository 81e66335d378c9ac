//! Requests of HTTP/1.1 on a connection, for as long as they come one after the other.

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

/// Why there are no more requests.
pub(super) enum Http1End {
    Closed,
    /// The last answer is gone. Its client may be sending all the same.
    Finished(ClientIo, ClientInput),
    /// None has come for a moment.
    Idle(ClientIo),
    /// Both sides agreed to speak of something else.
    Tunnel(ClientIo, Box<Tunnel>),
}

pub(super) async fn serve<F: RequestFilter>(
    io: ClientIo,
    client: Rc<ClientConnection>,
    filter: Arc<F>,
) -> Http1End {
    let _whole = ActiveConnection::new(&client);
    let service = service_fn(|request| proxy::serve_request(client.clone(), filter.clone(), request));
    // Most heads and bodies are small: one buffer is cheaper to send than two.
    let mut connection = http1::Builder::new()
        .max_header_size(client.worker.settings.max_header_size)
        .max_buf_size(client.worker.settings.max_header_size.max(MIN_BUFFER_SIZE))
        .writev(false)
        .serve_connection(TokioIo::new(io), service);

    let mut keep_alive = KeepAlive::Yes;
    let why = poll_fn(|context| {
        client.deadline.register(context);
        if client.worker.is_draining() && keep_alive == KeepAlive::Yes {
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
    match (why, tunnel) {
        (CloseReason::Idle, _) => Http1End::Idle(into_client_io(connection.into_parts())),
        (CloseReason::Ended(_), Some(tunnel)) => {
            Http1End::Tunnel(into_client_io(connection.into_parts()), tunnel)
        }
        (CloseReason::Ended(sends), None) => {
            Http1End::Finished(connection.into_parts().io.into_inner(), sends)
        }
        (CloseReason::ResponseAborted, _) => {
            // To an old client the end of a connection is that of a body.
            if client.version.get() == HttpVersion::Http10 {
                connection.into_parts().io.into_inner().reset();
            }
            Http1End::Closed
        }
        (CloseReason::Timeout, _) => Http1End::Closed,
    }
}

/// The wire, with what was read of it and not understood yet.
fn into_client_io<S>(parts: http1::Parts<TokioIo<ClientIo>, S>) -> ClientIo {
    let mut io = parts.io.into_inner();
    io.unread(&parts.read_buf);
    io
}

/// Connections of a worker beyond which those that become idle are taken apart at once. Under load few are idle for long,
/// and to put one together costs about a microsecond; a crowd that comes in one moment must not leave its buffers behind.
const MAX_ACTIVE_CONNECTIONS: usize = 512;

/// A connection with all that requests need, until it is dropped.
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

/// The smallest buffer that hyper takes.
const MIN_BUFFER_SIZE: usize = 8_192;

enum CloseReason {
    Ended(ClientInput),
    /// An answer breaks off, or there is none.
    ResponseAborted,
    Idle,
    /// The client takes too long to send a head, or to take an answer.
    Timeout,
}

#[derive(PartialEq, Eq)]
enum KeepAlive {
    Yes,
    No,
}
