//! Requests of HTTP/1.1 on a connection, for as long as they come one after the other.

use super::{Age, Client, ClientIo, Phase, Sends, Tunnel, Write};
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
pub(super) enum End {
    Closed,
    /// The last answer is gone. Its client may be sending all the same.
    Over(ClientIo, Sends),
    /// None has come for a moment.
    Quiet(ClientIo),
    /// Both sides agreed to speak of something else.
    Tunnel(ClientIo, Box<Tunnel>),
}

pub(super) async fn serve<F: RequestFilter>(io: ClientIo, client: Rc<Client>, filter: Arc<F>) -> End {
    let _whole = Whole::new(&client);
    let service = service_fn(|request| proxy::answer(client.clone(), filter.clone(), request));
    // Most heads and bodies are small: one buffer is cheaper to send than two.
    let mut connection = http1::Builder::new()
        .max_header_size(client.worker.terms.header_size)
        .max_buf_size(client.worker.terms.header_size.max(LEAST_BUFFER))
        .writev(false)
        .serve_connection(TokioIo::new(io), service);

    let mut keep_alive = KeepAlive::Yes;
    let why = poll_fn(|context| {
        client.deadline.listen(context);
        if client.worker.is_draining() && keep_alive == KeepAlive::Yes {
            keep_alive = KeepAlive::No;
            Pin::new(&mut connection).graceful_shutdown();
        }
        match Pin::new(&mut connection).poll(context) {
            Poll::Ready(Ok(())) => Poll::Ready(Why::Ended(client.sends.get())),
            Poll::Ready(Err(error)) if error.is_user() => Poll::Ready(Why::Cut),
            Poll::Ready(Err(error)) => {
                // hyper has responded by itself to a head that it cannot read.
                if error.is_parse() {
                    RequestTelemetry::refused(StatusCode::BAD_REQUEST).record(&*filter, None, &client.worker);
                }
                Poll::Ready(Why::Ended(Sends::More))
            }
            Poll::Pending => match (client.phase.get(), client.write.get()) {
                (Phase::Idle, Write::Flows)
                    if client.deadline.is_over() || client.worker.whole.get() > MANY =>
                {
                    Poll::Ready(Why::Quiet)
                }
                _ if client.deadline.is_over() => Poll::Ready(Why::Slow),
                _ => Poll::Pending,
            },
        }
    })
    .await;

    let tunnel = client.tunnel.take();
    match (why, tunnel) {
        (Why::Quiet, _) => End::Quiet(wire_of(connection.into_parts())),
        (Why::Ended(_), Some(tunnel)) => End::Tunnel(wire_of(connection.into_parts()), tunnel),
        (Why::Ended(sends), None) => End::Over(connection.into_parts().io.into_inner(), sends),
        (Why::Cut, _) => {
            // To an old client the end of a connection is that of a body.
            if client.age.get() == Age::Old {
                connection.into_parts().io.into_inner().reset();
            }
            End::Closed
        }
        (Why::Slow, _) => End::Closed,
    }
}

/// The wire, with what was read of it and not understood yet.
fn wire_of<S>(parts: http1::Parts<TokioIo<ClientIo>, S>) -> ClientIo {
    let mut io = parts.io.into_inner();
    io.again(&parts.read_buf);
    io
}

/// Connections of a worker beyond which those that become idle are taken apart at once. Under load few are idle for long,
/// and to put one together costs about a microsecond; a crowd that comes in one moment must not leave its buffers behind.
const MANY: usize = 512;

/// A connection with all that requests need, until it is dropped.
struct Whole<'a>(&'a Client);

impl<'a> Whole<'a> {
    fn new(client: &'a Client) -> Self {
        client.worker.whole.update(|whole| whole + 1);
        Self(client)
    }
}

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        self.0.worker.whole.update(|whole| whole - 1);
    }
}

/// The smallest buffer that hyper takes.
const LEAST_BUFFER: usize = 8_192;

enum Why {
    Ended(Sends),
    /// An answer breaks off, or there is none.
    Cut,
    Quiet,
    /// The client takes too long to send a head, or to take an answer.
    Slow,
}

#[derive(PartialEq, Eq)]
enum KeepAlive {
    Yes,
    No,
}
