//! The body of an answer: the service's own, or that of a refusal.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::{
    fmt, mem,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tidegate_rule::RequestPermits;

pin_project! {
    /// The body of an answer: the service's own, which holds the slots of its request until it has been sent or dropped, or
    /// the text of a refusal.
    pub struct GateBody<R> {
        #[pin]
        content: GateBodyContent<R>,
    }
}

pin_project! {
    // Most bodies hold no slots. They take no more room than the service's own, because a response moves with its body.
    #[project = GateBodyContentProj]
    enum GateBodyContent<R> {
        Inner { #[pin] body: R },
        Boxed { other: Pin<Box<BoxedContent<R>>> },
    }
}

pin_project! {
    // The bodies that are rare.
    #[project = BoxedContentProj]
    enum BoxedContent<R> {
        WithSlots { #[pin] body: R, slots: RequestPermits },
        Text { text: Bytes },
    }
}

impl<R> GateBody<R> {
    /// The service's own.
    #[inline]
    pub(crate) fn from_inner(body: R) -> Self {
        Self { content: GateBodyContent::Inner { body } }
    }

    /// The service's own, which holds these slots until its end.
    pub(crate) fn with_slots(body: R, slots: RequestPermits) -> Self {
        if slots.is_empty() {
            return Self::from_inner(body);
        }
        Self::boxed(BoxedContent::WithSlots { body, slots })
    }

    /// A text.
    pub(crate) fn from_text(text: impl Into<Bytes>) -> Self {
        Self::boxed(BoxedContent::Text { text: text.into() })
    }

    fn boxed(other: BoxedContent<R>) -> Self {
        Self { content: GateBodyContent::Boxed { other: Box::pin(other) } }
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
        let other = match self.project().content.project() {
            GateBodyContentProj::Inner { body } => return body.poll_frame(context),
            GateBodyContentProj::Boxed { other } => other,
        };
        match other.as_mut().project() {
            BoxedContentProj::WithSlots { mut body, slots } => {
                let frame = ready!(body.as_mut().poll_frame(context));
                let is_over = !matches!(frame, Some(Ok(_))) || body.is_end_stream();
                // The caller does not poll after the end, and the connection may keep the body for a while.
                if is_over {
                    drop(mem::take(slots));
                }
                Poll::Ready(frame)
            }
            BoxedContentProj::Text { text } if text.is_empty() => Poll::Ready(None),
            BoxedContentProj::Text { text } => Poll::Ready(Some(Ok(Frame::data(mem::take(text))))),
        }
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        match &self.content {
            GateBodyContent::Inner { body } => body.is_end_stream(),
            GateBodyContent::Boxed { other } => match &*other.as_ref() {
                BoxedContent::WithSlots { body, .. } => body.is_end_stream(),
                BoxedContent::Text { text } => text.is_empty(),
            },
        }
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        match &self.content {
            GateBodyContent::Inner { body } => body.size_hint(),
            GateBodyContent::Boxed { other } => match &*other.as_ref() {
                BoxedContent::WithSlots { body, .. } => body.size_hint(),
                BoxedContent::Text { text } => SizeHint::with_exact(text.len() as u64),
            },
        }
    }
}

/// A refusal that has nothing to say.
impl<R> Default for GateBody<R> {
    fn default() -> Self {
        Self::from_text(Bytes::new())
    }
}

impl<R> fmt::Debug for GateBody<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let other = match &self.content {
            GateBodyContent::Inner { .. } => return f.write_str("GateBody(inner)"),
            GateBodyContent::Boxed { other } => other,
        };
        match &*other.as_ref() {
            BoxedContent::WithSlots { slots, .. } => write!(f, "GateBody(inner, {slots:?})"),
            BoxedContent::Text { text } => write!(f, "GateBody({} bytes)", text.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::GateBody;

    /// What a boxed body looks like: two pointers.
    type Boxed = Box<dyn std::fmt::Debug>;

    #[test]
    fn body_without_slots_has_no_overhead() {
        assert_eq!(size_of::<GateBody<Boxed>>(), size_of::<Boxed>());
    }
}
