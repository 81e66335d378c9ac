//! Bodies with a bandwidth limit.

use actix_web::{
    body::{BodySize, MessageBody},
    dev::Payload,
    error::PayloadError,
};
use bytes::Bytes;
use futures_core::Stream;
use http_body::{Body, Frame};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};
use tidegate_bandwidth::{Bandwidth, ShapedStream};

pin_project! {
    /// A response body with a bandwidth limit.
    pub struct ShapedBody<B> {
        #[pin]
        shaped: ShapedStream<ResponseFrames<B>>,
    }
}

pin_project! {
    /// The payload of a request with a bandwidth limit.
    pub(super) struct ShapedPayload {
        #[pin]
        shaped: ShapedStream<PayloadFrames>,
    }
}

pin_project! {
    /// A response body as frames, which are cut to the allowed size.
    struct ResponseFrames<B> {
        #[pin]
        body: B,
    }
}

/// A payload as frames, which are cut to the allowed size.
struct PayloadFrames(Payload);

impl<B> ShapedBody<B> {
    pub(super) fn new(body: B, bandwidth: &Bandwidth) -> Self {
        Self { shaped: bandwidth.limit_reads(ResponseFrames { body }) }
    }
}

impl ShapedPayload {
    pub(super) fn new(payload: Payload, bandwidth: &Bandwidth) -> Self {
        Self { shaped: bandwidth.limit_reads(PayloadFrames(payload)) }
    }
}

impl<B: MessageBody> Body for ResponseFrames<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.project().body.poll_next(context).map_ok(Frame::data)
    }
}

impl Body for PayloadFrames {
    type Data = Bytes;
    type Error = PayloadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, PayloadError>>> {
        Pin::new(&mut self.0).poll_next(context).map_ok(Frame::data)
    }
}

impl<B: MessageBody> MessageBody for ShapedBody<B> {
    type Error = B::Error;

    fn size(&self) -> BodySize {
        self.shaped.get_ref().body.size()
    }

    fn poll_next(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        poll_data(self.project().shaped, context)
    }
}

impl Stream for ShapedPayload {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        poll_data(self.project().shaped, context)
    }
}

/// The data of the next frame. These bodies have no other frames.
fn poll_data<B: Body<Data = Bytes>>(
    body: Pin<&mut B>,
    context: &mut Context<'_>,
) -> Poll<Option<Result<Bytes, B::Error>>> {
    body.poll_frame(context).map_ok(|frame| frame.into_data().unwrap_or_default())
}

impl<B> fmt::Debug for ShapedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShapedBody")
    }
}
