//! A body with bandwidth limits.

use bytes::{Buf as _, Bytes};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};
use tidegate_bandwidth::{Bandwidth, ShapedStream};

pin_project! {
    /// A body with zero or more bandwidth limits. Its frames are cut to the allowed size.
    pub struct BandwidthBody<B> {
        #[pin]
        content: BandwidthBodyContent<B>,
    }
}

pin_project! {
    #[project = BandwidthBodyContentProjection]
    enum BandwidthBodyContent<B> {
        Plain { #[pin] body: B },
        // One nested wrapper for each bandwidth.
        Shaped { body: Pin<Box<ShapedStream<BandwidthBody<B>>>> },
    }
}

impl<B> BandwidthBody<B> {
    pub(super) fn new(body: B, bandwidths: &[Bandwidth]) -> Self {
        let plain = Self { content: BandwidthBodyContent::Plain { body } };
        bandwidths.iter().fold(plain, |paced, bandwidth| Self {
            content: BandwidthBodyContent::Shaped { body: Box::pin(bandwidth.limit_reads(paced)) },
        })
    }
}

impl<B: Body> Body for BandwidthBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().content.project() {
            // Does not copy `Bytes`.
            BandwidthBodyContentProjection::Plain { body } => body
                .poll_frame(context)
                .map_ok(|frame| frame.map_data(|mut data| data.copy_to_bytes(data.remaining()))),
            BandwidthBodyContentProjection::Shaped { body } => body.as_mut().poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            BandwidthBodyContent::Plain { body } => body.is_end_stream(),
            BandwidthBodyContent::Shaped { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            BandwidthBodyContent::Plain { body } => body.size_hint(),
            BandwidthBodyContent::Shaped { body } => body.size_hint(),
        }
    }
}

/// A body without a limit.
impl<B: Default> Default for BandwidthBody<B> {
    fn default() -> Self {
        Self::new(B::default(), &[])
    }
}

impl<B> fmt::Debug for BandwidthBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.content {
            BandwidthBodyContent::Plain { .. } => "BandwidthBody(plain)",
            BandwidthBodyContent::Shaped { .. } => "BandwidthBody(shaped)",
        })
    }
}
