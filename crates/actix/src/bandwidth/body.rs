//! A response body with a bandwidth limit.

use actix_web::body::{BodySize, MessageBody};
use bytes::Bytes;
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tidegate_bandwidth::{Bandwidth, ShapedStream};

/// The maximum chunk size. A handler that responds with a string yields all of it in one chunk.
const MAX_CHUNK_BYTES: usize = 16 * 1_024;

pin_project! {
    /// A response body with a bandwidth limit.
    pub struct ShapedBody<B> {
        #[pin]
        chunks: ShapedStream<ChunkedBody<B>>,
    }
}

pin_project! {
    /// A body as a stream of chunks that are small enough for traffic shaping.
    struct ChunkedBody<B> {
        #[pin]
        body: B,
        rest: Bytes,
    }
}

impl<B> ShapedBody<B> {
    pub(super) fn new(body: B, bandwidth: &Bandwidth) -> Self {
        Self { chunks: bandwidth.limit_reads(ChunkedBody { body, rest: Bytes::new() }) }
    }
}

impl<B: MessageBody> Stream for ChunkedBody<B> {
    type Item = Result<Bytes, B::Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        if this.rest.is_empty() {
            match ready!(this.body.poll_next(context)) {
                Some(Ok(chunk)) => *this.rest = chunk,
                end => return Poll::Ready(end),
            }
        }
        let chunk = this.rest.split_to(this.rest.len().min(MAX_CHUNK_BYTES));
        Poll::Ready(Some(Ok(chunk)))
    }
}

impl<B: MessageBody> MessageBody for ShapedBody<B> {
    type Error = B::Error;

    fn size(&self) -> BodySize {
        self.chunks.get_ref().body.size()
    }

    fn poll_next(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        self.project().chunks.poll_next(context)
    }
}

impl<B> fmt::Debug for ShapedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShapedBody")
    }
}
