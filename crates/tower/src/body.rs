//! The body of an answer: the service's own, or that of a refusal.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::{
    fmt, mem,
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
    // Most bodies hold no slots. They take no more room than the service's own, because a response moves with its body.
    #[project = ContentProj]
    enum Content<R> {
        Own { #[pin] body: R },
        Other { other: Pin<Box<Other<R>>> },
    }
}

pin_project! {
    // The bodies that are rare.
    #[project = OtherProj]
    enum Other<R> {
        Holding { #[pin] body: R, slots: HeldSlots },
        Text { text: Bytes },
    }
}

impl<R> GateBody<R> {
    /// The service's own.
    #[inline]
    pub(crate) fn own(body: R) -> Self {
        Self { content: Content::Own { body } }
    }

    /// The service's own, which holds these slots until its end.
    pub(crate) fn holding(body: R, slots: HeldSlots) -> Self {
        if slots.is_empty() {
            return Self::own(body);
        }
        Self::other(Other::Holding { body, slots })
    }

    /// A text.
    pub(crate) fn text(text: impl Into<Bytes>) -> Self {
        Self::other(Other::Text { text: text.into() })
    }

    fn other(other: Other<R>) -> Self {
        Self { content: Content::Other { other: Box::pin(other) } }
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
            ContentProj::Own { body } => return body.poll_frame(context),
            ContentProj::Other { other } => other,
        };
        match other.as_mut().project() {
            OtherProj::Holding { mut body, slots } => {
                let frame = ready!(body.as_mut().poll_frame(context));
                let is_over = !matches!(frame, Some(Ok(_))) || body.is_end_stream();
                // The caller does not poll after the end, and the connection may keep the body for a while.
                if is_over {
                    drop(mem::take(slots));
                }
                Poll::Ready(frame)
            }
            OtherProj::Text { text } if text.is_empty() => Poll::Ready(None),
            OtherProj::Text { text } => Poll::Ready(Some(Ok(Frame::data(mem::take(text))))),
        }
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Own { body } => body.is_end_stream(),
            Content::Other { other } => match &*other.as_ref() {
                Other::Holding { body, .. } => body.is_end_stream(),
                Other::Text { text } => text.is_empty(),
            },
        }
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Own { body } => body.size_hint(),
            Content::Other { other } => match &*other.as_ref() {
                Other::Holding { body, .. } => body.size_hint(),
                Other::Text { text } => SizeHint::with_exact(text.len() as u64),
            },
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
        let other = match &self.content {
            Content::Own { .. } => return f.write_str("GateBody(own)"),
            Content::Other { other } => other,
        };
        match &*other.as_ref() {
            Other::Holding { slots, .. } => write!(f, "GateBody(own, {slots:?})"),
            Other::Text { text } => write!(f, "GateBody({} bytes)", text.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::GateBody;

    /// What a boxed body looks like: two pointers.
    type Boxed = Box<dyn std::fmt::Debug>;

    #[test]
    fn a_body_without_slots_takes_no_more_room_than_the_service_s_own() {
        assert_eq!(size_of::<GateBody<Boxed>>(), size_of::<Boxed>());
    }
}
