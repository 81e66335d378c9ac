//! The body of a response to a client.

use super::{
    ProxyResponse, ResponseSource,
    counted_bytes::CountedBytes,
    head::{self, RequestId},
    request_body::{IncompleteBody, poll_http2_frame},
};
use crate::{
    FilterContext, Rates, ResponseCopy, ResponseReader,
    client::{ClientConnection, Http2Stream},
    http1::{ParsedResponse, strip_response_trailers},
    telemetry::RequestTelemetry,
    upstream::{Http2Permit, InFlightGuard, ResponseDeadline, UpstreamConnection},
};
use bytes::Bytes;
use http::StatusCode;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::{
    cell::RefCell,
    mem,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};
use tidegate_bandwidth::{Bandwidth, ShapedStream};
use tidegate_observe::{ResponseEnd, ResponseOrigin};

/// The body of a response, with the state of the request until the exchange ends.
pub(crate) struct ProxyResponseBody {
    pub(super) source: BodySource,
    /// `None` before the filter has decided, and for a request without a state.
    pub(super) context: Option<Box<dyn FilterContext>>,
    /// Reads the response, if it states the cost of the request.
    pub(super) reader: Option<Box<ResponseReader>>,
    pub(super) telemetry: RequestTelemetry,
    pub(super) client: Rc<ClientConnection>,
    /// Set for HTTP/2.
    stream: Option<Rc<Http2Stream>>,
}

/// The source of a response body.
pub(super) enum BodySource {
    Empty,
    Text(Bytes),
    Http1(Http1Body),
    Http2(Http2Body),
    /// Another source with a bandwidth limit. Its frames are cut to the allowed size.
    Throttled(Box<ShapedStream<Self>>),
    /// Another source whose data are copied.
    Copied(Box<CopiedBody>),
    /// Another source, which also sends the rest of its request while the response is not read.
    Shared(Rc<RefCell<Self>>),
}

/// The rest of a request whose response has begun.
pub(crate) struct SharedUpload(Rc<RefCell<BodySource>>);

/// A body whose copy is stored when it is complete.
pub(super) struct CopiedBody {
    source: BodySource,
    /// `None` if the body cannot be stored, or is stored already.
    copy: Option<ResponseCopy>,
}

/// A body on an HTTP/1.1 connection, which is reused when the body is complete.
pub(super) struct Http1Body {
    connection: Option<Box<UpstreamConnection>>,
    in_flight: InFlightGuard,
    state: TransferState,
}

/// A body on a stream of a shared HTTP/2 connection.
pub(super) struct Http2Body {
    incoming: Incoming,
    deadline: ResponseDeadline,
    _in_flight: InFlightGuard,
    _permit: Rc<Http2Permit>,
}

#[derive(PartialEq, Eq)]
enum TransferState {
    Flowing,
    /// The body ended too early.
    Truncated,
}

impl ProxyResponseBody {
    pub(super) fn new(client: Rc<ClientConnection>, telemetry: RequestTelemetry) -> Self {
        client.on_request();
        let stream = client.stream.borrow().clone();
        Self { source: BodySource::Empty, context: None, reader: None, telemetry, client, stream }
    }

    /// The bandwidth limits of both bodies.
    pub(super) fn rates(&self) -> Rates<'_> {
        self.context.as_ref().map(|context| context.rates()).unwrap_or_default()
    }

    /// Builds the response with this head and body, to the request with this id.
    pub(super) fn respond(
        mut self,
        mut head: ParsedResponse,
        source: BodySource,
        by: ResponseOrigin,
        id: &RequestId,
    ) -> ProxyResponse {
        head::set_request_id(&mut head.fields, id, &self.client);
        if self.client.worker.is_closing() && head.status != StatusCode::SWITCHING_PROTOCOLS {
            head.fields.set(b"connection", b"close");
        }
        self.telemetry.on_response(head.status, by);
        self.source = source;
        ProxyResponse { head, body: self }
    }
}

impl BodySource {
    pub(super) fn new(source: ResponseSource) -> Self {
        match source {
            ResponseSource::Http1 { connection, in_flight } => {
                let is_empty = connection.is_response_complete();
                let mut from =
                    Http1Body { connection: Some(connection), in_flight, state: TransferState::Flowing };
                if is_empty {
                    from.finish();
                    return Self::Empty;
                }
                Self::Http1(from)
            }
            ResponseSource::Http2 { incoming, mut deadline, in_flight, permit } => {
                deadline.on_data();
                Self::Http2(Http2Body { incoming, deadline, _in_flight: in_flight, _permit: permit })
            }
        }
    }

    /// Limits the body by all of these rates, each around the previous one.
    pub(super) fn throttle(self, rates: &[Bandwidth]) -> Self {
        match self {
            Self::Empty => Self::Empty,
            source => {
                rates.iter().fold(source, |source, rate| Self::Throttled(Box::new(rate.limit_reads(source))))
            }
        }
    }

    /// See [`ProxyResponseBody::poll_upload`]. A connection with HTTP/2 has a task of its own.
    fn poll_upload(&mut self, context: &mut Context<'_>) {
        match self {
            Self::Http1(Http1Body { connection: Some(connection), .. }) => connection.poll_upload(context),
            Self::Throttled(throttled) => throttled.get_mut().poll_upload(context),
            Self::Copied(copied) => copied.source.poll_upload(context),
            Self::Shared(shared) => shared.borrow_mut().poll_upload(context),
            Self::Http1(_) | Self::Http2(_) | Self::Empty | Self::Text(_) => {}
        }
    }

    /// Whether a part of the request is not sent.
    fn has_upload(&self) -> bool {
        match self {
            Self::Http1(Http1Body { connection: Some(connection), .. }) => !connection.is_request_sent(),
            Self::Throttled(throttled) => throttled.get_ref().has_upload(),
            Self::Copied(copied) => copied.source.has_upload(),
            Self::Shared(shared) => shared.borrow().has_upload(),
            Self::Http1(_) | Self::Http2(_) | Self::Empty | Self::Text(_) => false,
        }
    }

    /// Copies the body, if a copy is to be stored.
    pub(super) fn copy_to(self, copy: Option<ResponseCopy>) -> Self {
        match copy {
            None => self,
            Some(copy) if self.is_end_stream() => {
                copy.store();
                self
            }
            copy => Self::Copied(Box::new(CopiedBody { source: self, copy })),
        }
    }
}

impl SharedUpload {
    /// Sends what is ready of the request.
    pub(crate) fn poll(&self, context: &mut Context<'_>) {
        self.0.borrow_mut().poll_upload(context);
    }
}

impl From<Bytes> for BodySource {
    fn from(text: Bytes) -> Self {
        if text.is_empty() { Self::Empty } else { Self::Text(text) }
    }
}

impl CopiedBody {
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, IncompleteBody>>> {
        let polled = Pin::new(&mut self.source).poll_frame(context);
        let is_complete = match &polled {
            Poll::Pending => false,
            Poll::Ready(None) => true,
            Poll::Ready(Some(frame)) => {
                // A copy of a body that is incomplete, too large or has trailers is dropped.
                let data = frame.as_ref().ok().and_then(Frame::data_ref);
                self.copy.take_if(|copy| !data.is_some_and(|data| copy.push(data)));
                self.source.is_end_stream()
            }
        };
        if is_complete && let Some(copy) = self.copy.take() {
            copy.store();
        }
        polled
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
        let Some(connection) = &mut self.connection else { return Poll::Ready(None) };
        let polled = connection.poll_frame(context);
        match &polled {
            Poll::Pending => {}
            Poll::Ready(Some(Err(_))) => {
                self.connection = None;
                self.state = TransferState::Truncated;
            }
            Poll::Ready(Some(Ok(frame))) if frame.is_data() && !connection.is_response_complete() => {}
            Poll::Ready(_) => self.finish(),
        }
        polled.map(|frame| frame.map(|frame| frame.map_err(|_| IncompleteBody)))
    }

    fn is_complete(&self) -> bool {
        self.connection.is_none() && self.state == TransferState::Flowing
    }

    fn size_hint(&self) -> SizeHint {
        let remaining = match &self.connection {
            Some(connection) => connection.remaining(),
            None => Some(0),
        };
        remaining.map(SizeHint::with_exact).unwrap_or_default()
    }

    fn finish(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.in_flight.server.return_idle(connection);
        }
    }
}

impl Http2Body {
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, IncompleteBody>>> {
        match poll_http2_frame(&mut self.incoming, context) {
            Poll::Ready(frame) => {
                self.deadline.on_data();
                Poll::Ready(frame)
            }
            Poll::Pending if self.deadline.poll_expired(context) => Poll::Ready(Some(Err(IncompleteBody))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl ProxyResponseBody {
    /// Appends the whole body to `out`, if it is small and was received from a server with HTTP/1.1.
    #[inline]
    pub(crate) fn take_received(&mut self, out: &mut Vec<u8>) -> Option<usize> {
        let BodySource::Http1(from) = &mut self.source else { return None };
        let length = from.connection.as_mut()?.take_received_body(out)?;
        from.finish();
        if let Some(reader) = &mut self.reader {
            reader.push(&out[out.len() - length..]);
        }
        self.telemetry.add_bytes(length);
        Some(length)
    }

    /// Polls for the next frame, and counts its bytes.
    #[inline]
    pub(crate) fn poll_data(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, IncompleteBody>>> {
        let mut polled = Pin::new(&mut self.source).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &mut polled {
            if let Some(reader) = &mut self.reader {
                reader.push_frame(frame);
            }
            match frame.trailers_mut() {
                Some(trailers) => strip_response_trailers(trailers),
                None => self.telemetry.add_bytes(frame.data_ref().map_or(0, Bytes::len)),
            }
        }
        polled
    }

    /// Sends what is ready of the request, while the client does not read the response.
    pub(crate) fn poll_upload(&mut self, context: &mut Context<'_>) {
        self.source.poll_upload(context);
    }

    /// Lets the task of the HTTP/2 stream send the rest of the request: hyper polls the body only when the client reads it.
    pub(super) fn share_upload(&mut self) {
        if let Some(stream) = &self.stream
            && self.source.has_upload()
        {
            let source = Rc::new(RefCell::new(mem::replace(&mut self.source, BodySource::Empty)));
            stream.set_upload(SharedUpload(source.clone()));
            self.source = BodySource::Shared(source);
        }
    }
}

// Nothing in it is pinned.
impl Unpin for ProxyResponseBody {}

/// The body of a response over HTTP/2.
impl Body for ProxyResponseBody {
    type Data = CountedBytes;
    type Error = IncompleteBody;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<CountedBytes>, IncompleteBody>>> {
        let body = self.get_mut();
        // A client grants a window per response; this bounds the buffers of all responses together.
        ready!(body.client.poll_send_capacity(context));
        let polled = body.poll_data(context);
        let stream = body.stream.get_or_insert_with(|| Http2Stream::new(&body.client));
        polled.map_ok(|frame| frame.map_data(|bytes| CountedBytes::new(bytes, stream)))
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
            Self::Throttled(throttled) => Pin::new(&mut **throttled).poll_frame(context),
            Self::Copied(copied) => copied.poll_frame(context),
            Self::Shared(shared) => Pin::new(&mut *shared.borrow_mut()).poll_frame(context),
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
            Self::Http1(from) => from.is_complete(),
            Self::Http2(from) => from.incoming.is_end_stream(),
            Self::Throttled(throttled) => throttled.is_end_stream(),
            Self::Copied(copied) => copied.source.is_end_stream(),
            Self::Shared(shared) => shared.borrow().is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Text(text) => SizeHint::with_exact(text.len() as u64),
            Self::Http1(from) => from.size_hint(),
            Self::Http2(from) => from.incoming.size_hint(),
            Self::Throttled(throttled) => throttled.size_hint(),
            Self::Copied(copied) => copied.source.size_hint(),
            Self::Shared(shared) => shared.borrow().size_hint(),
        }
    }
}

impl Drop for ProxyResponseBody {
    fn drop(&mut self) {
        self.client.on_response_end();
        if let (Some(reader), Some(context)) = (self.reader.take(), &mut self.context) {
            let end = match self.source.is_end_stream() {
                true => ResponseEnd::Complete,
                false => ResponseEnd::Aborted,
            };
            context.settle_response(&reader.finish(), end);
        }
        mem::take(&mut self.telemetry).record(&*self.client.filter, self.context.take(), &self.client.worker);
    }
}
