//! Bandwidth limits for bodies.

use crate::{
    head::TowerRequestHead,
    middleware::{MiddlewareLayer, MiddlewareService},
};
use http::{Request, Response};
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    task::{Context, Poll},
};
use tidegate_bandwidth::{Bandwidth, ShapedStream};
use tidegate_rule::middleware::RequestBandwidth;
use tower_service::Service;

/// Limits the bandwidth of response bodies, for all together or per key.
///
/// ```
/// use tidegate_bandwidth::{Bandwidth, KeyedBandwidth};
/// use tidegate_rule::request::key;
/// use tidegate_tower::{BandwidthLayer, RequestBandwidth};
///
/// let machine = BandwidthLayer::new(Bandwidth::new("100MB/s")?);
/// let each = BandwidthLayer::new(RequestBandwidth::by_key(KeyedBandwidth::new("1MB/s")?, key::peer()));
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
///
/// Frames are cut to the allowed size, without a copy, and the next frame is polled after the last byte of the previous
/// one, so at most one frame is buffered. Trailers follow the last byte. For request bodies, use [`UploadLayer`].
pub type BandwidthLayer = MiddlewareLayer<RequestBandwidth>;

/// Limits the bandwidth of request bodies. The service reads them only as fast as the limit allows, which applies
/// backpressure to the client: the server reads ahead by one frame, and by what its own buffers hold.
pub type UploadLayer = MiddlewareLayer<UploadBandwidth>;

/// The bandwidth of request bodies.
#[derive(Clone, Debug)]
pub struct UploadBandwidth(RequestBandwidth);

impl<T> From<T> for UploadBandwidth
where
    RequestBandwidth: From<T>,
{
    fn from(bandwidth: T) -> Self {
        Self(bandwidth.into())
    }
}

impl<S, B, R> Service<Request<B>> for MiddlewareService<S, RequestBandwidth>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Response = Response<ShapedStream<R>>;
    type Error = S::Error;
    type Future = DownloadFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let bandwidth = self.settings.find(&TowerRequestHead::new(&request));
        DownloadFuture { inner: self.inner.call(request), bandwidth }
    }
}

impl<S, B> Service<Request<B>> for MiddlewareService<S, UploadBandwidth>
where
    S: Service<Request<ShapedStream<B>>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let bandwidth = self.settings.0.find(&TowerRequestHead::new(&request));
        self.inner.call(request.map(|body| bandwidth.limit_reads(body)))
    }
}

pin_project! {
    /// The response of the service, with a bandwidth limit for its body.
    #[derive(Debug)]
    pub struct DownloadFuture<F> {
        #[pin]
        inner: F,
        bandwidth: Bandwidth,
    }
}

impl<F, R, E> Future for DownloadFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<ShapedStream<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let shape = |response: Response<R>| response.map(|body| this.bandwidth.limit_reads(body));
        this.inner.poll(context).map_ok(shape)
    }
}
