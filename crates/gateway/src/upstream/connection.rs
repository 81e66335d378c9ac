//! One connection to a server, driven by the task that uses it.
//!
//! Usually a hyper connection is a task of its own, and each response needs three wake-ups. Here the task of the client
//! connection polls it: a response is read, processed and written in one poll, and an idle connection has no task.
//!
//! Wake-ups within the same poll are unnecessary, so the response future and the body are polled with a no-op waker; the
//! connection itself always has the real one.

use super::ResponseDeadline;
use crate::proxy::RequestBody;
use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response,
    header::{CONTENT_LENGTH, TRANSFER_ENCODING},
};
use hyper::{
    body::{Body, Frame, Incoming},
    client::conn::{TrySendError, http1},
};
use hyper_util::rt::TokioIo;
use std::{
    future::{Future, poll_fn},
    io,
    pin::Pin,
    task::{Context, Poll, Waker},
};
use tidegate_http_server::Stream;

/// An HTTP/1.1 connection to a server.
pub(crate) struct UpstreamConnection {
    sender: http1::SendRequest<RequestBody>,
    /// `None` after the connection has ended.
    connection: Option<http1::Connection<TokioIo<Stream>, RequestBody>>,
    state: Http1State,
    deadline: ResponseDeadline,
    /// The time of the last response.
    last_used: u64,
}

/// A request in flight on a connection.
pub(crate) struct PendingResponse {
    connection: Box<UpstreamConnection>,
    response: Pin<Box<SendFuture>>,
}

type SendFuture = dyn Future<Output = Result<Response<Incoming>, TrySendError<Request<RequestBody>>>>;

#[derive(PartialEq, Eq)]
enum Http1State {
    Open,
    Closed,
}

/// The error of a request to a server.
#[derive(Debug)]
pub(crate) enum UpstreamSendError {
    /// The connection was closed before the request was sent; returns the request.
    Closed(Box<Request<RequestBody>>),
    /// The connection failed; returns the request.
    Unreachable(io::Error, Box<Request<RequestBody>>),
    /// The response is incomplete or not HTTP.
    BadResponse,
    /// The server timed out.
    Timeout,
}

/// The read buffer of a response, and the maximum size of its head.
const READ_BUFFER_SIZE: usize = 64 * 1_024;

/// The maximum idle time of a connection, in milliseconds. Many servers close theirs after 60 seconds.
const MAX_IDLE_TIME: u64 = 30_000;
const STALE_IDLE_TIME: u64 = 1_000;

impl UpstreamConnection {
    pub(super) async fn new(stream: Stream, deadline: ResponseDeadline) -> hyper::Result<Box<Self>> {
        let (sender, connection) = http1::Builder::new()
            .writev(false)
            .max_buf_size(READ_BUFFER_SIZE)
            .handshake(TokioIo::new(stream))
            .await?;
        let mut connection = Box::new(Self {
            sender,
            connection: Some(connection),
            state: Http1State::Open,
            deadline,
            last_used: 0,
        });
        // The connection accepts a request only after a poll.
        connection.poll_connection(&mut Context::from_waker(Waker::noop()));
        Ok(connection)
    }

    /// Sends a request.
    pub(crate) fn send(mut self: Box<Self>, mut request: Request<RequestBody>) -> PendingResponse {
        // Without this header, hyper drops a body of unknown length for these methods.
        let has_body = !request.body().is_end_stream() && !request.headers().contains_key(CONTENT_LENGTH);
        if has_body && matches!(*request.method(), Method::GET | Method::HEAD) {
            request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        self.deadline.start(request.body().progress());
        let response = Box::pin(self.sender.try_send_request(request));
        PendingResponse { connection: self, response }
    }

    /// Polls for the next frame of a response.
    #[inline]
    pub(crate) fn poll_frame(
        &mut self,
        body: &mut Incoming,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamSendError>>> {
        let mut noop = Context::from_waker(Waker::noop());
        // The first poll of the body makes the connection read.
        let mut polled = Pin::new(&mut *body).poll_frame(&mut noop);
        if polled.is_pending() {
            self.poll_connection(context);
            polled = Pin::new(body).poll_frame(&mut noop);
        }
        match polled {
            Poll::Ready(frame) => {
                self.deadline.on_data();
                Poll::Ready(frame.map(|frame| frame.map_err(|_| UpstreamSendError::BadResponse)))
            }
            Poll::Pending if self.deadline.poll_expired(context) => {
                Poll::Ready(Some(Err(UpstreamSendError::Timeout)))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// Called when the response is complete; returns whether the connection can be reused.
    pub(super) fn finish_response(&mut self, now: u64) -> bool {
        self.last_used = now;
        self.deadline.clear();
        if !self.sender.is_ready() {
            self.poll_connection(&mut Context::from_waker(Waker::noop()));
        }
        self.sender.is_ready()
    }

    /// Whether the connection has been idle for so long that the server may be closing it.
    #[inline]
    pub(super) fn is_stale(&self, now: u64) -> bool {
        now.saturating_sub(self.last_used) > STALE_IDLE_TIME
    }

    /// Whether the connection is open and not idle for too long.
    pub(super) fn is_reusable(&mut self, now: u64) -> bool {
        self.poll_connection(&mut Context::from_waker(Waker::noop()));
        self.state == Http1State::Open && now.saturating_sub(self.last_used) < MAX_IDLE_TIME
    }

    /// Returns the stream after a 101 response, with the bytes that were already read.
    pub(crate) async fn into_stream(mut self: Box<Self>) -> Option<(Stream, Bytes)> {
        poll_fn(|context| {
            self.poll_connection(context);
            if self.state == Http1State::Closed { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let connection = self.connection.take()?;
        let parts = connection.into_parts();
        Some((parts.io.into_inner(), parts.read_buf))
    }

    #[inline]
    fn poll_connection(&mut self, context: &mut Context<'_>) {
        if self.state == Http1State::Open
            && let Some(connection) = &mut self.connection
            && connection.poll_without_shutdown(context).is_ready()
        {
            self.state = Http1State::Closed;
        }
    }
}

impl PendingResponse {
    /// Polls for the head of the response, within the timeout after the last frame of the request.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Response<Incoming>, UpstreamSendError>> {
        let Self { connection, response } = self;
        let mut noop = Context::from_waker(Waker::noop());
        connection.poll_connection(context);
        let mut polled = response.as_mut().poll(&mut noop);
        if polled.is_pending() && connection.state == Http1State::Closed {
            // Closed before it accepted the request; hyper returns the request when the connection is dropped.
            connection.connection = None;
            polled = response.as_mut().poll(&mut noop);
        }
        match polled {
            Poll::Ready(response) => {
                // The body will be polled next by this task, so no wake-up is needed. Small responses are complete already.
                if !connection.sender.is_ready() {
                    connection.poll_connection(&mut noop);
                }
                connection.deadline.on_data();
                Poll::Ready(response.map_err(UpstreamSendError::new))
            }
            Poll::Pending if connection.deadline.poll_expired(context) => {
                Poll::Ready(Err(UpstreamSendError::Timeout))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// Returns the connection after the response head.
    pub(crate) fn into_connection(self) -> Box<UpstreamConnection> {
        self.connection
    }
}

impl UpstreamSendError {
    pub(super) fn new(mut error: TrySendError<Request<RequestBody>>) -> Self {
        match error.take_message() {
            Some(request) => Self::Closed(Box::new(request)),
            None => Self::BadResponse,
        }
    }
}
