//! Services whose bodies are shaped.

use super::future::DownloadFuture;
use crate::head::HttpHead;
use http::{Request, Response};
use std::task::{Context, Poll};
use tidegate_bandwidth::Shaped;
use tidegate_rule::surface::RequestBandwidth;
use tower_service::Service;

/// A service whose answers move no faster than a bandwidth allows; see [`BandwidthLayer`](super::BandwidthLayer).
#[derive(Clone, Debug)]
pub struct Downloads<S> {
    inner: S,
    bandwidth: RequestBandwidth,
}

/// A service that reads requests no faster than a bandwidth allows; see [`UploadLayer`](super::UploadLayer).
#[derive(Clone, Debug)]
pub struct Uploads<S> {
    inner: S,
    bandwidth: RequestBandwidth,
}

impl<S> Downloads<S> {
    pub(super) fn new(inner: S, bandwidth: RequestBandwidth) -> Self {
        Self { inner, bandwidth }
    }
}

impl<S> Uploads<S> {
    pub(super) fn new(inner: S, bandwidth: RequestBandwidth) -> Self {
        Self { inner, bandwidth }
    }
}

impl<S, B, R> Service<Request<B>> for Downloads<S>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Response = Response<Shaped<R>>;
    type Error = S::Error;
    type Future = DownloadFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let bandwidth = self.bandwidth.find(&HttpHead::of(&request));
        DownloadFuture::new(self.inner.call(request), bandwidth)
    }
}

impl<S, B> Service<Request<B>> for Uploads<S>
where
    S: Service<Request<Shaped<B>>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let bandwidth = self.bandwidth.find(&HttpHead::of(&request));
        self.inner.call(request.map(|body| bandwidth.limit_reads(body)))
    }
}
