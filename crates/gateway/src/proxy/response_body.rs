//! The body of an answer, on its way to a client.

use super::{ResponseSource, counted_bytes::CountedBytes, head, request_body::IncompleteBody};
use crate::{
    RequestFilter,
    client::{ClientConnection, StreamTimeout},
    telemetry::RequestTelemetry,
    upstream::{InFlightGuard, ResponseDeadline, UpstreamConnection},
};
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header, response};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::{
    mem,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tidegate_bandwidth::{Bandwidth, ShapedStream};
use tidegate_observe::ResponseOrigin;

/// The body of a response, and all that belongs to a request until the exchange ends.
pub(crate) struct ProxyResponseBody<F: RequestFilter> {
    pub(super) source: BodySource,
    pub(super) filter: Arc<F>,
    /// `None` before the filter has decided.
    pub(super) context: Option<F::Context>,
    pub(super) telemetry: RequestTelemetry,
    pub(super) client: Rc<ClientConnection>,
    /// In HTTP/2.
    stream_timeout: Option<Rc<StreamTimeout>>,
}

/// Where an answer comes from.
pub(super) enum BodySource {
    Empty,
    Text(Bytes),
    Http1(Http1Body),
    Http2(Http2Body),
    /// One of these, slowed down.
    Throttled(Box<ShapedStream<Self>>),
}

/// An answer that comes over a line, which is kept for the next one when this one is complete.
pub(super) struct Http1Body {
    incoming: Incoming,
    connection: Option<Box<UpstreamConnection>>,
    in_flight: InFlightGuard,
    state: TransferState,
}

/// An answer that comes over a connection that it shares with others.
pub(super) struct Http2Body {
    incoming: Incoming,
    deadline: ResponseDeadline,
    _in_flight: InFlightGuard,
}

#[derive(PartialEq, Eq)]
enum TransferState {
    Flowing,
    /// Nothing more comes, though more was announced.
    Truncated,
}

impl<F: RequestFilter> ProxyResponseBody<F> {
    pub(super) fn new(client: Rc<ClientConnection>, filter: Arc<F>, telemetry: RequestTelemetry) -> Self {
        client.on_request();
        let turn = client.stream_timeout.borrow().clone();
        Self { source: BodySource::Empty, filter, context: None, telemetry, client, stream_timeout: turn }
    }

    /// A response with this head and body, to the request with this id.
    pub(super) fn respond(
        mut self,
        mut parts: response::Parts,
        source: BodySource,
        by: ResponseOrigin,
        id: &HeaderValue,
    ) -> Response<Self> {
        head::set_request_id(&mut parts.headers, id, &self.client);
        if self.client.worker.is_closing() && parts.status != StatusCode::SWITCHING_PROTOCOLS {
            parts.headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        self.telemetry.on_response(parts.status, by);
        self.source = source;
        Response::from_parts(parts, self)
    }
}

impl BodySource {
    pub(super) fn new(incoming: Incoming, via: ResponseSource) -> Self {
        match via {
            ResponseSource::Http1 { connection: line, in_flight: visit } => {
                let mut from = Http1Body {
                    incoming,
                    connection: Some(line),
                    in_flight: visit,
                    state: TransferState::Flowing,
                };
                if from.incoming.is_end_stream() {
                    from.finish();
                    return Self::Empty;
                }
                Self::Http1(from)
            }
            ResponseSource::Http2 { deadline: mut pace, in_flight: visit } => {
                pace.on_data();
                Self::Http2(Http2Body { incoming, deadline: pace, _in_flight: visit })
            }
        }
    }
}

impl BodySource {
    /// The same, no faster than any of these.
    pub(super) fn throttle(self, rates: &[Bandwidth]) -> Self {
        match (self, rates.split_first()) {
            (Self::Empty, _) => Self::Empty,
            (source, None) => source,
            (source, Some((first, others))) => {
                let shaped = first.limit_reads(source);
                Self::Throttled(Box::new(others.iter().fold(shaped, ShapedStream::limit_reads)))
            }
        }
    }
}

impl Http1Body {
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, IncompleteBody>>> {
        if self.state == TransferState::Truncated {
            return Poll::Ready(Some(Err(IncompleteBody)));
        }
        let Some(line) = &mut self.connection else { return Poll::Ready(None) };
        let polled = line.poll_frame(&mut self.incoming, context);
        match &polled {
            Poll::Pending => {}
            Poll::Ready(Some(Err(_))) => {
                self.connection = None;
                self.state = TransferState::Truncated;
                // What came before is sent first: hyper drops what it has not written when a body fails.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(Some(Ok(_))) if !self.incoming.is_end_stream() => {}
            Poll::Ready(_) => self.finish(),
        }
        polled.map(|frame| frame.map(|frame| frame.map_err(|_| IncompleteBody)))
    }

    fn finish(&mut self) {
        if let Some(line) = self.connection.take() {
            self.in_flight.server.return_idle(line);
        }
    }
}

impl Http2Body {
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, IncompleteBody>>> {
        match Pin::new(&mut self.incoming).poll_frame(context) {
            Poll::Ready(frame) => {
                self.deadline.on_data();
                Poll::Ready(frame.map(|frame| frame.map_err(|_| IncompleteBody)))
            }
            Poll::Pending if self.deadline.poll_expired(context) => Poll::Ready(Some(Err(IncompleteBody))),
            Poll::Pending => Poll::Pending,
        }
    }
}

// Nothing in it is pinned.
impl<F: RequestFilter> Unpin for ProxyResponseBody<F> {}

impl<F: RequestFilter> Body for ProxyResponseBody<F> {
    type Data = CountedBytes;
    type Error = IncompleteBody;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<CountedBytes>, IncompleteBody>>> {
        let Self { source, telemetry, client, stream_timeout: turn, .. } = self.get_mut();
        // In HTTP/2 a client grants a window for each answer; what all of them may hold is bounded.
        if turn.is_some() {
            ready!(client.poll_send_capacity(context));
        }
        let polled = Pin::new(source).poll_frame(context);
        if let Some(turn) = turn {
            match &polled {
                Poll::Ready(Some(Ok(_))) => turn.start(client),
                _ => turn.stop(),
            }
        }
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            telemetry.add_bytes(frame.data_ref().map_or(0, Bytes::len));
        }
        let is_counted = turn.is_some();
        let piece = |bytes| match is_counted {
            true => CountedBytes::counted(bytes, client),
            false => CountedBytes::uncounted(bytes),
        };
        polled.map_ok(|frame| frame.map_data(piece))
    }

    fn is_end_stream(&self) -> bool {
        self.source.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.source.size_hint()
    }
}

impl Body for BodySource {
    type Data = Bytes;
    type Error = IncompleteBody;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, IncompleteBody>>> {
        let source = self.get_mut();
        match source {
            Self::Http1(from) => from.poll_frame(context),
            Self::Http2(from) => from.poll_frame(context),
            Self::Throttled(slowed) => Pin::new(&mut **slowed).poll_frame(context),
            Self::Empty => Poll::Ready(None),
            Self::Text(_) => match mem::replace(source, Self::Empty) {
                Self::Text(text) => Poll::Ready(Some(Ok(Frame::data(text)))),
                _ => Poll::Ready(None),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Text(_) => false,
            // Not before the line is kept.
            Self::Http1(from) => from.connection.is_none() && from.incoming.is_end_stream(),
            Self::Http2(from) => from.incoming.is_end_stream(),
            Self::Throttled(slowed) => slowed.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Text(text) => SizeHint::with_exact(text.len() as u64),
            Self::Http1(from) => from.incoming.size_hint(),
            Self::Http2(from) => from.incoming.size_hint(),
            Self::Throttled(slowed) => slowed.size_hint(),
        }
    }
}

impl<F: RequestFilter> Drop for ProxyResponseBody<F> {
    fn drop(&mut self) {
        self.client.on_response_end();
        mem::take(&mut self.telemetry).record(&*self.filter, self.context.take(), &self.client.worker);
    }
}
