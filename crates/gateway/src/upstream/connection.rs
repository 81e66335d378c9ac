//! One connection to a server, driven by whoever uses it.
//!
//! Usually a connection of hyper is a task of its own, and each answer passes through three wake-ups. Here the task of the
//! client's connection polls it: an answer is read, turned and written in one go, and an idle connection is no task at all.
//!
//! What hyper's connection wakes inside of the same poll need not be woken for again, so what it hands over is polled
//! with a waker that does nothing; the connection itself always has the real one.

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

/// A connection of HTTP/1.1 to a server.
pub(crate) struct UpstreamConnection {
    sender: http1::SendRequest<RequestBody>,
    /// Until it has ended, and its wire is of no use to anybody.
    connection: Option<http1::Connection<TokioIo<Stream>, RequestBody>>,
    state: Http1State,
    deadline: ResponseDeadline,
    /// When it was used last.
    last_used: u64,
}

/// A request that was sent over a line.
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

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum UpstreamSendError {
    /// The connection was closed before anything was sent; here is the request again.
    Closed(Box<Request<RequestBody>>),
    /// No connection came about; here is the request again.
    Unreachable(io::Error, Box<Request<RequestBody>>),
    /// The connection broke, or what came is no HTTP.
    BadResponse,
    /// It took too long.
    Timeout,
}

/// The most that is read of an answer before its client has taken it, and the largest head of one.
const READ_BUFFER_SIZE: usize = 64 * 1_024;

/// How long a connection is kept without being used, in milliseconds. Many servers close theirs after 60 seconds.
const MAX_IDLE_TIME: u64 = 30_000;
const STALE_IDLE_TIME: u64 = 1_000;

impl UpstreamConnection {
    pub(super) async fn new(stream: Stream, pace: ResponseDeadline) -> hyper::Result<Box<Self>> {
        let (sender, connection) = http1::Builder::new()
            .writev(false)
            .max_buf_size(READ_BUFFER_SIZE)
            .handshake(TokioIo::new(stream))
            .await?;
        let mut line = Box::new(Self {
            sender,
            connection: Some(connection),
            state: Http1State::Open,
            deadline: pace,
            last_used: 0,
        });
        // It takes a request when it has been polled.
        line.poll_connection(&mut Context::from_waker(Waker::noop()));
        Ok(line)
    }

    /// Sends a request, whose answer is waited for.
    pub(crate) fn send(mut self: Box<Self>, mut request: Request<RequestBody>) -> PendingResponse {
        // By itself hyper drops the body of these methods where its length is not known.
        let has_body = !request.body().is_end_stream() && !request.headers().contains_key(CONTENT_LENGTH);
        if has_body && matches!(*request.method(), Method::GET | Method::HEAD) {
            request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        self.deadline.start(request.body().progress());
        let answer = Box::pin(self.sender.try_send_request(request));
        PendingResponse { connection: self, response: answer }
    }

    /// The next part of an answer.
    #[inline]
    pub(crate) fn poll_frame(
        &mut self,
        body: &mut Incoming,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamSendError>>> {
        let mut quiet = Context::from_waker(Waker::noop());
        // The first look tells the connection that something is wanted.
        let mut polled = Pin::new(&mut *body).poll_frame(&mut quiet);
        if polled.is_pending() {
            self.poll_connection(context);
            polled = Pin::new(body).poll_frame(&mut quiet);
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

    /// Its answer is complete: whether it can have the next request.
    pub(super) fn finish_response(&mut self, now: u64) -> bool {
        self.last_used = now;
        self.deadline.clear();
        if !self.sender.is_ready() {
            self.poll_connection(&mut Context::from_waker(Waker::noop()));
        }
        self.sender.is_ready()
    }

    /// Whether it has been idle for so long that its server may be closing it.
    #[inline]
    pub(super) fn is_stale(&self, now: u64) -> bool {
        now.saturating_sub(self.last_used) > STALE_IDLE_TIME
    }

    /// Whether it is worth keeping.
    pub(super) fn is_reusable(&mut self, now: u64) -> bool {
        self.poll_connection(&mut Context::from_waker(Waker::noop()));
        self.state == Http1State::Open && now.saturating_sub(self.last_used) < MAX_IDLE_TIME
    }

    /// After the answer 101: what is left of the connection is the wire, and what the server said on it already.
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
    /// The head of the answer, if it comes in time after the last piece of the request.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Response<Incoming>, UpstreamSendError>> {
        let Self { connection: line, response: answer } = self;
        let mut quiet = Context::from_waker(Waker::noop());
        line.poll_connection(context);
        let mut polled = answer.as_mut().poll(&mut quiet);
        if polled.is_pending() && line.state == Http1State::Closed {
            // Closed before it took the request, which is given back when nobody can take it any more.
            line.connection = None;
            polled = answer.as_mut().poll(&mut quiet);
        }
        match polled {
            Poll::Ready(answer) => {
                // Whoever looks at the body tells the connection that it is wanted. That need not wake this task,
                // which polls the connection next anyway. Small answers are there already.
                if !line.sender.is_ready() {
                    line.poll_connection(&mut quiet);
                }
                line.deadline.on_data();
                Poll::Ready(answer.map_err(UpstreamSendError::new))
            }
            Poll::Pending if line.deadline.poll_expired(context) => {
                Poll::Ready(Err(UpstreamSendError::Timeout))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// The line, when the answer is there.
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
