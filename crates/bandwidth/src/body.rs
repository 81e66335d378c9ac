//! Rate-limited HTTP bodies. A frame is passed whole and unchanged; the next frame waits until its bytes are repaid.

use super::shaped_stream::{DirectionParts, ShapedStream};
use bytes::Buf as _;
use http_body::{Body, Frame, SizeHint};
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

impl<B: Body> Body for ShapedStream<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let DirectionParts { inner, handle } = self.project_read();
        let Some(handle) = handle else { return inner.poll_frame(context) };
        ready!(handle.poll_item(context));
        let end = inner.poll_frame(context);
        let data = match &end {
            Poll::Ready(Some(Ok(frame))) => frame.data_ref(),
            _ => None,
        };
        match data {
            Some(data) => handle.record_item(data.remaining()),
            None => handle.release_unused(),
        }
        end
    }

    fn is_end_stream(&self) -> bool {
        self.get_ref().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.get_ref().size_hint()
    }
}
