//! The body of an answer, on its way to a client.

use super::{Via, head, piece::Piece, request_body::CutOff};
use crate::{
    RequestFilter,
    client::{Client, Turn},
    telemetry::RequestTelemetry,
    upstream::{Line, Pace, Visit},
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
use tidegate_observe::AnsweredBy;

/// The body of a response, and all that belongs to a request until the exchange ends.
pub(crate) struct AnswerBody<F: RequestFilter> {
    pub(super) source: Source,
    pub(super) filter: Arc<F>,
    /// `None` before the filter has decided.
    pub(super) context: Option<F::Context>,
    pub(super) telemetry: RequestTelemetry,
    pub(super) client: Rc<Client>,
    /// In HTTP/2.
    turn: Option<Rc<Turn>>,
}

/// Where an answer comes from.
pub(super) enum Source {
    Empty,
    Text(Bytes),
    Line(FromLine),
    Shared(FromShared),
    /// One of these, slowed down.
    Slowed(Box<ShapedStream<Self>>),
}

/// An answer that comes over a line, which is kept for the next one when this one is complete.
pub(super) struct FromLine {
    incoming: Incoming,
    line: Option<Box<Line>>,
    visit: Visit,
    state: State,
}

/// An answer that comes over a connection that it shares with others.
pub(super) struct FromShared {
    incoming: Incoming,
    pace: Pace,
    _visit: Visit,
}

#[derive(PartialEq, Eq)]
enum State {
    Flowing,
    /// Nothing more comes, though more was announced.
    CutOff,
}

impl<F: RequestFilter> AnswerBody<F> {
    pub(super) fn new(client: Rc<Client>, filter: Arc<F>, telemetry: RequestTelemetry) -> Self {
        client.asked();
        let turn = client.turn.borrow().clone();
        Self { source: Source::Empty, filter, context: None, telemetry, client, turn }
    }

    /// A response with this head and body, to the request with this id.
    pub(super) fn respond(
        mut self,
        mut parts: response::Parts,
        source: Source,
        by: AnsweredBy,
        id: &HeaderValue,
    ) -> Response<Self> {
        head::name(&mut parts.headers, id, &self.client);
        if self.client.worker.is_ending() && parts.status != StatusCode::SWITCHING_PROTOCOLS {
            parts.headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        self.telemetry.on_response(parts.status, by);
        self.source = source;
        Response::from_parts(parts, self)
    }
}

impl Source {
    pub(super) fn of(incoming: Incoming, via: Via) -> Self {
        match via {
            Via::Line { line, visit } => {
                let mut from = FromLine { incoming, line: Some(line), visit, state: State::Flowing };
                if from.incoming.is_end_stream() {
                    from.finish();
                    return Self::Empty;
                }
                Self::Line(from)
            }
            Via::Shared { mut pace, visit } => {
                pace.arrived();
                Self::Shared(FromShared { incoming, pace, _visit: visit })
            }
        }
    }
}

impl Source {
    /// The same, no faster than any of these.
    pub(super) fn slowed(self, rates: &[Bandwidth]) -> Self {
        match (self, rates.split_first()) {
            (Self::Empty, _) => Self::Empty,
            (source, None) => source,
            (source, Some((first, others))) => {
                let shaped = first.limit_reads(source);
                Self::Slowed(Box::new(others.iter().fold(shaped, ShapedStream::limit_reads)))
            }
        }
    }
}

impl FromLine {
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        if self.state == State::CutOff {
            return Poll::Ready(Some(Err(CutOff)));
        }
        let Some(line) = &mut self.line else { return Poll::Ready(None) };
        let polled = line.poll_frame(&mut self.incoming, context);
        match &polled {
            Poll::Pending => {}
            Poll::Ready(Some(Err(_))) => {
                self.line = None;
                self.state = State::CutOff;
                // What came before is sent first: hyper drops what it has not written when a body fails.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(Some(Ok(_))) if !self.incoming.is_end_stream() => {}
            Poll::Ready(_) => self.finish(),
        }
        polled.map(|frame| frame.map(|frame| frame.map_err(|_| CutOff)))
    }

    fn finish(&mut self) {
        if let Some(line) = self.line.take() {
            self.visit.server.keep(line);
        }
    }
}

impl FromShared {
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        match Pin::new(&mut self.incoming).poll_frame(context) {
            Poll::Ready(frame) => {
                self.pace.arrived();
                Poll::Ready(frame.map(|frame| frame.map_err(|_| CutOff)))
            }
            Poll::Pending if self.pace.is_late(context) => Poll::Ready(Some(Err(CutOff))),
            Poll::Pending => Poll::Pending,
        }
    }
}

// Nothing in it is pinned.
impl<F: RequestFilter> Unpin for AnswerBody<F> {}

impl<F: RequestFilter> Body for AnswerBody<F> {
    type Data = Piece;
    type Error = CutOff;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, CutOff>>> {
        let Self { source, telemetry, client, turn, .. } = self.get_mut();
        // In HTTP/2 a client grants a window for each answer; what all of them may hold is bounded.
        if turn.is_some() {
            ready!(client.poll_room(context));
        }
        let polled = Pin::new(source).poll_frame(context);
        if let Some(turn) = turn {
            match &polled {
                Poll::Ready(Some(Ok(_))) => turn.given(client),
                _ => turn.awaited(),
            }
        }
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            telemetry.add_bytes(frame.data_ref().map_or(0, Bytes::len));
        }
        let is_counted = turn.is_some();
        let piece = |bytes| match is_counted {
            true => Piece::counted(bytes, client),
            false => Piece::uncounted(bytes),
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

impl Body for Source {
    type Data = Bytes;
    type Error = CutOff;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        let source = self.get_mut();
        match source {
            Self::Line(from) => from.poll_frame(context),
            Self::Shared(from) => from.poll_frame(context),
            Self::Slowed(slowed) => Pin::new(&mut **slowed).poll_frame(context),
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
            Self::Line(from) => from.line.is_none() && from.incoming.is_end_stream(),
            Self::Shared(from) => from.incoming.is_end_stream(),
            Self::Slowed(slowed) => slowed.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Text(text) => SizeHint::with_exact(text.len() as u64),
            Self::Line(from) => from.incoming.size_hint(),
            Self::Shared(from) => from.incoming.size_hint(),
            Self::Slowed(slowed) => slowed.size_hint(),
        }
    }
}

impl<F: RequestFilter> Drop for AnswerBody<F> {
    fn drop(&mut self) {
        self.client.answered();
        mem::take(&mut self.telemetry).record(&*self.filter, self.context.take(), &self.client.worker);
    }
}
