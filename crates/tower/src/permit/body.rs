//! The response body, which holds the permit of its request until its end.

use super::release::RequestPermit;
use crate::grpc::GRPC_STATUS;
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
use tidegate_overload::CallOutcome;
use tidegate_rule::{middleware::MiddlewareOptions, request::ResponseHead};

pin_project! {
    /// The response body: that of the service, or that of a rejection by the layer.
    ///
    /// It holds the permit of the request until it ends or is dropped.
    pub struct PermitBody<R> {
        #[pin]
        kind: PermitBodyKind<R>,
    }
}

pin_project! {
    #[project = PermitBodyKindProjection]
    enum PermitBodyKind<R> {
        Inner { #[pin] body: R, permit: Option<PendingRelease> },
        Local { body: Option<Bytes> },
    }
}

/// A permit, and the outcome to record if the body ends without an error.
struct PendingRelease {
    release: Box<dyn FnOnce(CallOutcome) + Send + Sync>,
    report: CallOutcome,
    options: Arc<MiddlewareOptions>,
}

impl PendingRelease {
    /// Updates the outcome: a body error counts as an error, and a gRPC status in the trailers replaces the HTTP status.
    fn record_frame<E>(&mut self, frame: &Result<Frame<Bytes>, E>) {
        match frame.as_ref().map(Frame::trailers_ref) {
            Err(_) => self.report = (self.options.classify)(None),
            Ok(Some(trailers)) if trailers.contains_key(GRPC_STATUS) => {
                self.report = (self.options.classify)(Some(&Trailers(trailers)));
            }
            Ok(_) => {}
        }
    }
}

/// Trailers as a response head.
struct Trailers<'a>(&'a HeaderMap);

impl ResponseHead for Trailers<'_> {
    fn status(&self) -> u16 {
        200
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(http::HeaderValue::as_bytes)
    }
}

impl<R: Body> PermitBody<R> {
    /// Wraps a body without a permit.
    pub(crate) fn without_permit(body: R) -> Self {
        Self { kind: PermitBodyKind::Inner { body, permit: None } }
    }

    /// Wraps a body that holds a permit until its end. Releases the permit if the body has already ended.
    pub(crate) fn with_permit(
        body: R,
        permit: impl RequestPermit,
        report: CallOutcome,
        options: &Arc<MiddlewareOptions>,
    ) -> Self {
        if has_ended(&body) {
            permit.release(report);
            return Self::without_permit(body);
        }
        let pending = PendingRelease {
            release: Box::new(|report| permit.release(report)),
            report,
            options: options.clone(),
        };
        Self { kind: PermitBodyKind::Inner { body, permit: Some(pending) } }
    }

    /// Creates the body of a rejection.
    pub(crate) fn from_bytes(body: Bytes) -> Self {
        Self { kind: PermitBodyKind::Local { body: Some(body).filter(|body| !body.is_empty()) } }
    }
}

impl<R: Body<Data = Bytes>> Body for PermitBody<R> {
    type Data = Bytes;
    type Error = R::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, R::Error>>> {
        let (mut body, permit) = match self.project().kind.project() {
            PermitBodyKindProjection::Inner { body, permit } => (body, permit),
            PermitBodyKindProjection::Local { body } => {
                return Poll::Ready(body.take().map(|body| Ok(Frame::data(body))));
            }
        };
        let frame = ready!(body.as_mut().poll_frame(context));
        let Some(pending) = permit else { return Poll::Ready(frame) };
        if let Some(frame) = &frame {
            pending.record_frame(frame);
        }
        let is_last = !matches!(frame, Some(Ok(_))) || has_ended(&*body);
        if is_last && let Some(PendingRelease { release: end, report, .. }) = permit.take() {
            end(report);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            PermitBodyKind::Inner { body, .. } => body.is_end_stream(),
            PermitBodyKind::Local { body } => body.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            PermitBodyKind::Inner { body, .. } => body.size_hint(),
            PermitBodyKind::Local { body } => {
                SizeHint::with_exact(body.as_ref().map_or(0, Bytes::len) as u64)
            }
        }
    }
}

/// Whether the body has ended. A server stops at the known length without polling for the end.
fn has_ended(body: &impl Body) -> bool {
    body.is_end_stream() || body.size_hint().exact() == Some(0)
}

impl<R> fmt::Debug for PermitBody<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.kind {
            PermitBodyKind::Inner { permit: Some(_), .. } => "PermitBody(with permit)",
            PermitBodyKind::Inner { permit: None, .. } => "PermitBody(without permit)",
            PermitBodyKind::Local { .. } => "PermitBody(local)",
        })
    }
}
