//! The task of a client connection.

use super::{ClientConnection, ClientIo, OpenConnection, http1, http2, lingering_close, preface};
use std::{
    future::Future,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tidegate_http_server::{ALPN_HTTP2, Certificate, Stream, tls_accept};
use tidegate_identity::parse_client_certificate;
use tokio::net::TcpStream;

/// Serves a connection until it ends. It is small, because each open connection has one.
pub(crate) enum ConnectionTask {
    /// Waits for the next request, without buffers; `None` if the connection has ended.
    Idle(Option<Box<IdleConnection>>),
    /// Does the TLS handshake or serves requests. Returns `None` when the connection has ended.
    Active(Pin<Box<dyn Future<Output = Option<Box<IdleConnection>>>>>),
}

/// A connection without HTTP state.
pub(crate) struct IdleConnection {
    stream: Stream,
    open: Rc<OpenConnection>,
    protocol: ConnectionProtocol,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnectionProtocol {
    /// The first bytes select it.
    Unknown,
    Http1,
}

impl ConnectionTask {
    pub(crate) fn new(
        stream: TcpStream,
        certificate: Option<Arc<Certificate>>,
        mut open: OpenConnection,
    ) -> Self {
        Self::Active(Box::pin(async move {
            let stream = tls_accept(stream, certificate, open.worker.settings.handshake_timeout).await?;
            open.connection_info.client_certificate =
                stream.peer_certificate().and_then(parse_client_certificate);
            Some(Box::new(IdleConnection {
                stream,
                open: Rc::new(open),
                protocol: ConnectionProtocol::Unknown,
            }))
        }))
    }
}

impl Future for ConnectionTask {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        loop {
            *self = match &mut *self {
                Self::Active(serving) => Self::Idle(ready!(serving.as_mut().poll(context))),
                Self::Idle(idle) => {
                    let Some(waiting) = idle else { return Poll::Ready(()) };
                    match ready!(waiting.poll_request(context)) {
                        IdleEnd::Closed => return Poll::Ready(()),
                        IdleEnd::Readable => {
                            let Some(idle) = idle.take() else { return Poll::Ready(()) };
                            Self::Active(Box::pin(idle.serve()))
                        }
                    }
                }
            };
        }
    }
}

/// Why a connection is no longer idle.
enum IdleEnd {
    /// Data is available.
    Readable,
    /// The client has disconnected, the idle timeout has expired, or the gateway shuts down.
    Closed,
}

impl IdleConnection {
    /// Waits for the next request.
    fn poll_request(&self, context: &mut Context<'_>) -> Poll<IdleEnd> {
        let deadline = &self.open.deadline;
        deadline.register(context);
        if deadline.is_expired() || self.open.worker.is_stopping() {
            return Poll::Ready(IdleEnd::Closed);
        }
        self.stream.poll_read_ready(context).map(|ready| match ready {
            Ok(()) => IdleEnd::Readable,
            Err(_) => IdleEnd::Closed,
        })
    }

    /// Serves requests until the connection is idle or has ended.
    async fn serve(self) -> Option<Box<Self>> {
        let Self { stream, open, protocol } = self;
        let is_http2 = stream.alpn_protocol() == Some(ALPN_HTTP2);
        let is_plain = matches!(stream, Stream::Plain(_));
        let client = ClientConnection::new(open.clone());
        let mut io = ClientIo::new(stream, client.clone());
        if protocol == ConnectionProtocol::Unknown
            && (is_http2 || is_plain && Box::pin(preface::has_http2_preface(&mut io, &client)).await)
        {
            client.idle_timeout.set(client.worker.settings.idle_timeout);
            Box::pin(http2::serve(io, client)).await;
            return None;
        }
        match http1::serve(io, client.clone()).await {
            http1::Http1End::Closed => None,
            http1::Http1End::Finished(io, sends) => {
                Box::pin(lingering_close::close(io, sends, &client)).await;
                None
            }
            http1::Http1End::Idle(stream) => {
                // A part of a TLS record, which is no request yet, does not extend the timeout.
                open.deadline.set_from(open.idle_since.get(), open.worker.settings.idle_timeout);
                Some(Box::new(Self { stream, open, protocol: ConnectionProtocol::Http1 }))
            }
            http1::Http1End::Tunnel(io, tunnel) => {
                Box::pin(tunnel.copy(io, &client)).await;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ConnectionTask;

    #[test]
    fn task_of_an_idle_connection_is_small() {
        assert!(size_of::<ConnectionTask>() <= 16, "{}", size_of::<ConnectionTask>());
    }
}
