//! An answer whose body will be shaped.

use http::Response;
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    task::{Context, Poll},
};
use tidegate_bandwidth::{Bandwidth, Shaped};

pin_project! {
    /// The answer of a service, with a body that moves no faster than a bandwidth allows.
    #[derive(Debug)]
    pub struct DownloadFuture<F> {
        #[pin]
        inner: F,
        bandwidth: Bandwidth,
    }
}

impl<F> DownloadFuture<F> {
    pub(super) fn new(inner: F, bandwidth: Bandwidth) -> Self {
        Self { inner, bandwidth }
    }
}

impl<F, R, E> Future for DownloadFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<Shaped<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let shape = |response: Response<R>| response.map(|body| this.bandwidth.limit_reads(body));
        this.inner.poll(context).map_ok(shape)
    }
}
