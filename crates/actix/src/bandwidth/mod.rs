//! Bandwidth limits for bodies.

mod body;

pub use body::ShapedBody;

use crate::{
    head::ActixRequestHead,
    middleware::{InnerService, Middleware, MiddlewareHandler},
};
use actix_web::{
    Error, HttpMessage as _,
    body::MessageBody,
    dev::{Payload, ServiceRequest, ServiceResponse},
};
use body::ShapedPayload;
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};
use tidegate_bandwidth::Bandwidth;
use tidegate_rule::middleware::RequestBandwidth;

/// Limits the bandwidth of response bodies, for all together or per key.
///
/// ```
/// use tidegate_actix::{BandwidthMiddleware, RequestBandwidth};
/// use tidegate_bandwidth::{Bandwidth, KeyedBandwidth};
/// use tidegate_rule::request::key;
///
/// let machine = Bandwidth::new("100MB/s")?;
/// let each = RequestBandwidth::by_key(KeyedBandwidth::new("1MB/s")?, key::peer());
/// let app = move || {
///     actix_web::App::new()
///         .wrap(BandwidthMiddleware::new(machine.clone()))
///         .wrap(BandwidthMiddleware::new(each.clone()))
/// };
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
///
/// Chunks are cut to the allowed size, without a copy, and the next chunk is polled after the last byte of the previous
/// one, so at most one chunk is buffered. For request bodies, use [`UploadMiddleware`].
pub type BandwidthMiddleware = Middleware<RequestBandwidth>;

/// Limits the bandwidth of request bodies. Handlers read them only as fast as the limit allows, which applies
/// backpressure to the client: the server reads ahead by one chunk, and by what its own buffers hold.
pub type UploadMiddleware = Middleware<PayloadBandwidth>;

/// The bandwidth of request bodies.
#[derive(Clone, Debug)]
pub struct PayloadBandwidth(RequestBandwidth);

impl<T> From<T> for PayloadBandwidth
where
    RequestBandwidth: From<T>,
{
    fn from(bandwidth: T) -> Self {
        Self(bandwidth.into())
    }
}

impl MiddlewareHandler for RequestBandwidth {
    type Body<B: MessageBody> = ShapedBody<B>;
    type Future<S: InnerService<B>, B: MessageBody + 'static> = BandwidthFuture<S::Future>;

    fn call<S: InnerService<B>, B: MessageBody + 'static>(
        &self,
        inner: &Rc<S>,
        request: ServiceRequest,
    ) -> Self::Future<S, B> {
        let bandwidth = self.find(&ActixRequestHead::new(&request));
        BandwidthFuture { inner: inner.call(request), bandwidth }
    }
}

impl MiddlewareHandler for PayloadBandwidth {
    type Body<B: MessageBody> = B;
    type Future<S: InnerService<B>, B: MessageBody + 'static> = S::Future;

    fn call<S: InnerService<B>, B: MessageBody + 'static>(
        &self,
        inner: &Rc<S>,
        mut request: ServiceRequest,
    ) -> Self::Future<S, B> {
        let payload = request.take_payload();
        // A request without a body needs no bandwidth.
        if !matches!(payload, Payload::None) {
            let bandwidth = self.0.find(&ActixRequestHead::new(&request));
            request
                .set_payload(Payload::Stream { payload: Box::pin(ShapedPayload::new(payload, &bandwidth)) });
        }
        inner.call(request)
    }
}

pin_project! {
    /// The response of the service, with a bandwidth limit for its body.
    #[derive(Debug)]
    pub struct BandwidthFuture<F> {
        #[pin]
        inner: F,
        bandwidth: Bandwidth,
    }
}

impl<F, B> Future for BandwidthFuture<F>
where
    F: Future<Output = Result<ServiceResponse<B>, Error>>,
    B: MessageBody,
{
    type Output = Result<ServiceResponse<ShapedBody<B>>, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let shape =
            |response: ServiceResponse<B>| response.map_body(|_, body| ShapedBody::new(body, this.bandwidth));
        this.inner.poll(context).map_ok(shape)
    }
}
