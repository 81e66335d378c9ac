//! A body that moves no faster than all of some bandwidths allow.

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};
use tidegate_bandwidth::{Bandwidth, ShapedStream};

pin_project! {
    /// A body that moves no faster than all of some bandwidths allow; most have none.
    pub struct Paced<B> {
        #[pin]
        content: Content<B>,
    }
}

pin_project! {
    #[project = ContentProjection]
    enum Content<B> {
        Plain { #[pin] body: B },
        // One around the other, as many as there are.
        Shaped { body: Pin<Box<ShapedStream<Paced<B>>>> },
    }
}

impl<B> Paced<B> {
    pub(super) fn new(body: B, bandwidths: &[Bandwidth]) -> Self {
        let plain = Self { content: Content::Plain { body } };
        bandwidths.iter().fold(plain, |paced, bandwidth| Self {
            content: Content::Shaped { body: Box::pin(bandwidth.limit_reads(paced)) },
        })
    }
}

impl<B: Body> Body for Paced<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        match self.project().content.project() {
            ContentProjection::Plain { body } => body.poll_frame(context),
            ContentProjection::Shaped { body } => body.as_mut().poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Plain { body } => body.is_end_stream(),
            Content::Shaped { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Plain { body } => body.size_hint(),
            Content::Shaped { body } => body.size_hint(),
        }
    }
}

/// A body without a limit.
impl<B: Default> Default for Paced<B> {
    fn default() -> Self {
        Self::new(B::default(), &[])
    }
}

impl<B> fmt::Debug for Paced<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.content {
            Content::Plain { .. } => "Paced(as it comes)",
            Content::Shaped { .. } => "Paced(shaped)",
        })
    }
}
