//! The response body, which holds the permit of its request until its end.

use super::admission::BodyPermit;
use actix_web::body::{BodySize, MessageBody};
use bytes::Bytes;
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tidegate_overload::CallOutcome;

pin_project! {
    /// The response body: that of the service, or that of a rejection by the middleware.
    ///
    /// It holds the permit of the request until it ends or is dropped.
    pub struct PermitMessageBody<B> {
        #[pin]
        kind: MessageBodyKind<B>,
    }
}

pin_project! {
    #[project = MessageBodyKindProjection]
    enum MessageBodyKind<B> {
        Inner { #[pin] body: B, permit: Option<PendingRelease> },
        Local { body: Bytes },
    }
}

/// A permit, and the outcome to record if the body ends without an error.
struct PendingRelease {
    permit: Box<dyn BodyPermit>,
    report: CallOutcome,
}

impl<B: MessageBody> PermitMessageBody<B> {
    /// Wraps a body without a permit.
    pub(crate) fn without_permit(body: B) -> Self {
        Self { kind: MessageBodyKind::Inner { body, permit: None } }
    }

    /// Wraps a body that holds a permit until its end. Releases the permit if the body is empty.
    pub(crate) fn with_permit(body: B, permit: impl BodyPermit, report: CallOutcome) -> Self {
        if body.size().is_eof() {
            Box::new(permit).release(report);
            return Self::without_permit(body);
        }
        Self {
            kind: MessageBodyKind::Inner {
                body,
                permit: Some(PendingRelease { permit: Box::new(permit), report }),
            },
        }
    }
}

impl<B> PermitMessageBody<B> {
    /// Creates the body of a rejection.
    pub(crate) fn from_bytes(body: Bytes) -> Self {
        Self { kind: MessageBodyKind::Local { body } }
    }
}

impl<B: MessageBody> MessageBody for PermitMessageBody<B> {
    type Error = B::Error;

    fn size(&self) -> BodySize {
        match &self.kind {
            MessageBodyKind::Inner { body, .. } => body.size(),
            MessageBodyKind::Local { body } => BodySize::Sized(body.len() as u64),
        }
    }

    fn poll_next(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let (body, permit) = match self.project().kind.project() {
            MessageBodyKindProjection::Inner { body, permit } => (body, permit),
            MessageBodyKindProjection::Local { body } => {
                let rest = std::mem::take(body);
                return Poll::Ready(Some(rest).filter(|rest| !rest.is_empty()).map(Ok));
            }
        };
        let chunk = ready!(body.poll_next(context));
        let broken = match &chunk {
            Some(Ok(_)) => return Poll::Ready(chunk),
            Some(Err(_)) => Some(CallOutcome::Failure),
            None => None,
        };
        if let Some(PendingRelease { permit, report }) = permit.take() {
            permit.release(broken.unwrap_or(report));
        }
        Poll::Ready(chunk)
    }

    /// Fails for a body with a permit, because the conversion would release it before the bytes are sent.
    fn try_into_bytes(self) -> Result<Bytes, Self> {
        match self.kind {
            MessageBodyKind::Inner { body, permit: None } => {
                body.try_into_bytes().map_err(Self::without_permit)
            }
            MessageBodyKind::Local { body } => Ok(body),
            kind => Err(Self { kind }),
        }
    }
}

impl<B> fmt::Debug for PermitMessageBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.kind {
            MessageBodyKind::Inner { permit: Some(_), .. } => "PermitMessageBody(with permit)",
            MessageBodyKind::Inner { permit: None, .. } => "PermitMessageBody(without permit)",
            MessageBodyKind::Local { .. } => "PermitMessageBody(local)",
        })
    }
}
