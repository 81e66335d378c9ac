//! The body of an answer, with whatever is held until its end.

use super::terms::Held;
use actix_web::body::{BodySize, MessageBody};
use bytes::Bytes;
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tidegate_overload::Report;

pin_project! {
    /// The body of an answer: that of the service, or that of the middleware where it answered itself.
    ///
    /// What a request holds while it is served is given back when the body has ended, or is dropped.
    pub struct HeldBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindProjection]
    enum Kind<B> {
        Served { #[pin] body: B, held: Option<Holding> },
        Answered { body: Bytes },
    }
}

/// What is held, and what will be said of it if nothing goes wrong on the way.
struct Holding {
    held: Box<dyn Held>,
    report: Report,
}

impl<B: MessageBody> HeldBody<B> {
    /// A body that holds nothing.
    pub(crate) fn free(body: B) -> Self {
        Self { kind: Kind::Served { body, held: None } }
    }

    /// A body that holds something until its end, unless there is none.
    pub(crate) fn holding(body: B, held: impl Held, report: Report) -> Self {
        if body.size().is_eof() {
            Box::new(held).end(report);
            return Self::free(body);
        }
        Self { kind: Kind::Served { body, held: Some(Holding { held: Box::new(held), report }) } }
    }
}

impl<B> HeldBody<B> {
    /// The middleware's own.
    pub(crate) fn answered(body: Bytes) -> Self {
        Self { kind: Kind::Answered { body } }
    }
}

impl<B: MessageBody> MessageBody for HeldBody<B> {
    type Error = B::Error;

    fn size(&self) -> BodySize {
        match &self.kind {
            Kind::Served { body, .. } => body.size(),
            Kind::Answered { body } => BodySize::Sized(body.len() as u64),
        }
    }

    fn poll_next(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let (body, held) = match self.project().kind.project() {
            KindProjection::Served { body, held } => (body, held),
            KindProjection::Answered { body } => {
                let rest = std::mem::take(body);
                return Poll::Ready(Some(rest).filter(|rest| !rest.is_empty()).map(Ok));
            }
        };
        let chunk = ready!(body.poll_next(context));
        let broken = match &chunk {
            Some(Ok(_)) => return Poll::Ready(chunk),
            Some(Err(_)) => Some(Report::Failure),
            None => None,
        };
        if let Some(Holding { held, report }) = held.take() {
            held.end(broken.unwrap_or(report));
        }
        Poll::Ready(chunk)
    }

    /// A body that holds something is not taken for its bytes, which would give it back before they are sent.
    fn try_into_bytes(self) -> Result<Bytes, Self> {
        match self.kind {
            Kind::Served { body, held: None } => body.try_into_bytes().map_err(Self::free),
            Kind::Answered { body } => Ok(body),
            kind => Err(Self { kind }),
        }
    }
}

impl<B> fmt::Debug for HeldBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.kind {
            Kind::Served { held: Some(_), .. } => "HeldBody(holding)",
            Kind::Served { held: None, .. } => "HeldBody(free)",
            Kind::Answered { .. } => "HeldBody(answered)",
        })
    }
}
