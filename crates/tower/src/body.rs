//! The body of an answer: the service's own, or that of a refusal.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tidegate_rule::HeldSlots;

pin_project! {
    /// The body of an answer: the service's own, which holds the slots of its request until it has been sent or dropped, or
    /// the text of a refusal.
    pub struct GateBody<R> {
        #[pin]
        content: Content<R>,
    }
}

pin_project! {
    #[project = ContentProj]
    enum Content<R> {
        Own {
            #[pin]
            body: R,
            slots: Option<Box<HeldSlots>>,
        },
        Text { text: Bytes },
    }
}

impl<R> GateBody<R> {
    /// The service's own, which holds these slots until its end.
    #[inline]
    pub(crate) fn own(body: R, slots: Option<Box<HeldSlots>>) -> Self {
        Self { content: Content::Own { body, slots } }
    }

    /// A text.
    pub(crate) fn text(text: impl Into<Bytes>) -> Self {
        Self { content: Content::Text { text: text.into() } }
    }
}

impl<R> Body for GateBody<R>
where
    R: Body<Data = Bytes>,
{
    type Data = Bytes;
    type Error = R::Error;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, R::Error>>> {
        match self.project().content.project() {
            ContentProj::Own { mut body, slots } => {
                let frame = ready!(body.as_mut().poll_frame(context));
                let is_over = !matches!(frame, Some(Ok(_))) || body.is_end_stream();
                // Nobody asks for more after the end, and the connection may keep the body for a while.
                if is_over {
                    *slots = None;
                }
                Poll::Ready(frame)
            }
            ContentProj::Text { text } if text.is_empty() => Poll::Ready(None),
            ContentProj::Text { text } => Poll::Ready(Some(Ok(Frame::data(std::mem::take(text))))),
        }
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Own { body, .. } => body.is_end_stream(),
            Content::Text { text } => text.is_empty(),
        }
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Own { body, .. } => body.size_hint(),
            Content::Text { text } => SizeHint::with_exact(text.len() as u64),
        }
    }
}

/// A refusal that has nothing to say.
impl<R> Default for GateBody<R> {
    fn default() -> Self {
        Self::text(Bytes::new())
    }
}

impl<R> fmt::Debug for GateBody<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.content {
            Content::Own { slots, .. } => write!(f, "GateBody(own, {slots:?})"),
            Content::Text { text } => write!(f, "GateBody({} bytes)", text.len()),
        }
    }
}
