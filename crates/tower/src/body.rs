//! The response body: that of the service, or that of a rejection.

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
    /// The response body: that of the service, which holds the slots of its request until it is sent or dropped, or the
    /// text of a rejection.
    pub struct GateBody<R> {
        #[pin]
        content: GateBodyContent<R>,
    }
}

pin_project! {
    // Most bodies hold no slots. They are no larger than the inner body, because a response is moved with its body.
    #[project = GateBodyContentProj]
    enum GateBodyContent<R> {
        Inner { #[pin] body: R },
        Boxed { other: Pin<Box<BoxedContent<R>>> },
    }
}

pin_project! {
    // Boxed, because these bodies are rare.
    #[project = BoxedContentProj]
    enum BoxedContent<R> {
        WithPermits { #[pin] body: R, permits: RequestPermits },
        Text { text: Bytes },
    }
}

impl<R> GateBody<R> {
    /// Wraps the body of the service.
    #[inline]
    pub(crate) fn from_inner(body: R) -> Self {
        Self { content: GateBodyContent::Inner { body } }
    }

    /// Wraps the body of the service, which holds these slots until its end.
    pub(crate) fn with_permits(body: R, permits: RequestPermits) -> Self {
        if permits.is_empty() {
            return Self::from_inner(body);
        }
        Self::boxed(BoxedContent::WithPermits { body, permits })
    }

    /// Creates the body of a rejection.
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
            BoxedContentProj::WithPermits { mut body, permits } => {
                let frame = ready!(body.as_mut().poll_frame(context));
                let is_over = !matches!(frame, Some(Ok(_))) || body.is_end_stream();
                // Release the slots now, because the connection may drop the body later.
                if is_over {
                    drop(mem::take(permits));
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
                BoxedContent::WithPermits { body, .. } => body.is_end_stream(),
                BoxedContent::Text { text } => text.is_empty(),
            },
        }
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        match &self.content {
            GateBodyContent::Inner { body } => body.size_hint(),
            GateBodyContent::Boxed { other } => match &*other.as_ref() {
                BoxedContent::WithPermits { body, .. } => body.size_hint(),
                BoxedContent::Text { text } => SizeHint::with_exact(text.len() as u64),
            },
        }
    }
}

/// An empty body.
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
            BoxedContent::WithPermits { permits, .. } => write!(f, "GateBody(inner, {permits:?})"),
            BoxedContent::Text { text } => write!(f, "GateBody({} bytes)", text.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::GateBody;

    /// Has the size of a boxed body: two pointers.
    type Boxed = Box<dyn std::fmt::Debug>;

    #[test]
    fn body_without_slots_has_no_overhead() {
        assert_eq!(size_of::<GateBody<Boxed>>(), size_of::<Boxed>());
    }
}
