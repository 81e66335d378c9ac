//! Rate-limited HTTP bodies. A frame of data is cut to the allowed size; trailers follow the last byte.

use super::shaped_stream::{BodyParts, ShapedStream};
use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

/// The frames of the inner body, in pieces that follow the rate. Frames of [`Bytes`] are cut without a copy.
///
/// The next frame is requested when the last byte of the previous one was passed. So it buffers at most one frame, and a
/// body that waits for its consumer, such as an HTTP/2 stream without a window, holds no bytes of the rate.
impl<B: Body> Body for ShapedStream<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let BodyParts { inner, rest, handle } = self.project_body();
        let Some(handle) = handle else {
            return inner.poll_frame(context).map_ok(|frame| frame.map_data(into_bytes));
        };
        if rest.is_empty() {
            match ready!(inner.poll_frame(context)) {
                Some(Ok(frame)) => match frame.map_data(into_bytes).into_data() {
                    Ok(data) if !data.is_empty() => *rest = data,
                    Ok(empty) => return Poll::Ready(Some(Ok(Frame::data(empty)))),
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        let allowed = ready!(handle.poll_allowance(rest.len(), context));
        let piece = rest.split_to(allowed.min(rest.len()));
        handle.record_piece(piece.len());
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest().is_empty() && self.get_ref().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, rest) = (self.get_ref().size_hint(), self.rest().len() as u64);
        let mut hint = SizeHint::new();
        // The upper bound first, because it must not be below the lower one.
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint.set_lower(inner.lower().saturating_add(rest));
        hint
    }
}

/// Does not copy if the data is [`Bytes`] already.
fn into_bytes(mut data: impl Buf) -> Bytes {
    data.copy_to_bytes(data.remaining())
}
