//! Bodies that move no faster than a bandwidth allows.

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
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};
use tidegate_bandwidth::Bandwidth;
use tidegate_rule::middleware::RequestBandwidth;

/// Has the bodies of answers move no faster than a bandwidth allows: all of them together, or all of a client's.
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
/// A body is pulled only as fast as it may be sent, so nothing piles up. It passes in pieces of 16 KiB at most, each of which
/// is repaid before the next. For the bodies of requests there is [`UploadMiddleware`].
pub type BandwidthMiddleware = Middleware<RequestBandwidth>;

/// The same as [`BandwidthMiddleware`] for the bodies of requests: handlers read them only as fast as a bandwidth allows, and
/// the client feels the pressure. What has arrived at once passes whole, and is repaid before the next.
pub type UploadMiddleware = Middleware<PayloadBandwidth>;

/// A bandwidth for the bodies of requests.
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
        // What has no body needs no bandwidth.
        if !matches!(payload, Payload::None) {
            let bandwidth = self.0.find(&ActixRequestHead::new(&request));
            request.set_payload(Payload::Stream { payload: Box::pin(bandwidth.limit_reads(payload)) });
        }
        inner.call(request)
    }
}

pin_project! {
    /// The answer of a service, with a body that moves no faster than a bandwidth allows.
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
