//! The body of an answer, with whatever is held until its end.

use super::terms::Held;
use crate::grpc::STATUS;
use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tidegate_overload::Report;
use tidegate_rule::{request::Reply, surface::Terms};

pin_project! {
    /// The body of an answer: that of the service, or that of the layer where it answered itself.
    ///
    /// What a request holds while it is served is given back when the body has ended, or is dropped.
    pub struct HeldBody<R> {
        #[pin]
        kind: Kind<R>,
    }
}

pin_project! {
    #[project = KindProjection]
    enum Kind<R> {
        Served { #[pin] body: R, held: Option<Holding> },
        Answered { body: Option<Bytes> },
    }
}

/// What is held, and what will be said of it if nothing goes wrong on the way.
struct Holding {
    end: Box<dyn FnOnce(Report) + Send + Sync>,
    report: Report,
    terms: Arc<Terms>,
}

impl Holding {
    /// A body that breaks off is an error instead of an answer, and a status of gRPC in the trailers is the answer's.
    fn hear<E>(&mut self, frame: &Result<Frame<Bytes>, E>) {
        match frame.as_ref().map(Frame::trailers_ref) {
            Err(_) => self.report = (self.terms.classify)(None),
            Ok(Some(trailers)) if trailers.contains_key(STATUS) => {
                self.report = (self.terms.classify)(Some(&Trailers(trailers)));
            }
            Ok(_) => {}
        }
    }
}

/// Trailers as what an answer says.
struct Trailers<'a>(&'a HeaderMap);

impl Reply for Trailers<'_> {
    fn status(&self) -> u16 {
        200
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(http::HeaderValue::as_bytes)
    }
}

impl<R: Body> HeldBody<R> {
    /// A body that holds nothing.
    pub(crate) fn free(body: R) -> Self {
        Self { kind: Kind::Served { body, held: None } }
    }

    /// A body that holds something until its end, unless it has ended.
    pub(crate) fn holding(body: R, held: impl Held, report: Report, terms: &Arc<Terms>) -> Self {
        if is_over(&body) {
            held.end(report);
            return Self::free(body);
        }
        let holding = Holding { end: Box::new(|report| held.end(report)), report, terms: terms.clone() };
        Self { kind: Kind::Served { body, held: Some(holding) } }
    }

    /// The layer's own.
    pub(crate) fn answered(body: Bytes) -> Self {
        Self { kind: Kind::Answered { body: Some(body).filter(|body| !body.is_empty()) } }
    }
}

impl<R: Body<Data = Bytes>> Body for HeldBody<R> {
    type Data = Bytes;
    type Error = R::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, R::Error>>> {
        let (mut body, held) = match self.project().kind.project() {
            KindProjection::Served { body, held } => (body, held),
            KindProjection::Answered { body } => {
                return Poll::Ready(body.take().map(|body| Ok(Frame::data(body))));
            }
        };
        let frame = ready!(body.as_mut().poll_frame(context));
        let Some(holding) = held else { return Poll::Ready(frame) };
        if let Some(frame) = &frame {
            holding.hear(frame);
        }
        let is_last = !matches!(frame, Some(Ok(_))) || is_over(&*body);
        if is_last && let Some(Holding { end, report, .. }) = held.take() {
            end(report);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Served { body, .. } => body.is_end_stream(),
            Kind::Answered { body } => body.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Served { body, .. } => body.size_hint(),
            Kind::Answered { body } => SizeHint::with_exact(body.as_ref().map_or(0, Bytes::len) as u64),
        }
    }
}

/// Whether nothing more will come. A server that knows a length stops there, and does not ask for the end.
fn is_over(body: &impl Body) -> bool {
    body.is_end_stream() || body.size_hint().exact() == Some(0)
}

impl<R> fmt::Debug for HeldBody<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.kind {
            Kind::Served { held: Some(_), .. } => "HeldBody(holding)",
            Kind::Served { held: None, .. } => "HeldBody(free)",
            Kind::Answered { .. } => "HeldBody(answered)",
        })
    }
}
