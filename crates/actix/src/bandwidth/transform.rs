//! Bandwidths for the bodies of services.

use super::{
    body::ShapedBody,
    service::{BandwidthService, UploadService},
};
use actix_web::{
    Error,
    body::MessageBody,
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
};
use std::future::{Ready, ready};
use tidegate_rule::surface::RequestBandwidth;

/// Has the bodies of answers move no faster than a bandwidth allows: all of them together, or all of a client's.
///
/// ```
/// use tidegate_actix::{BandwidthMiddleware, RequestBandwidth};
/// use tidegate_bandwidth::{Bandwidth, Bandwidths};
/// use tidegate_rule::request::key;
///
/// let machine = Bandwidth::new("100MB/s")?;
/// let each = RequestBandwidth::by_key(Bandwidths::new("1MB/s")?, key::peer());
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
#[derive(Clone, Debug)]
pub struct BandwidthMiddleware {
    bandwidth: RequestBandwidth,
}

/// The same as [`BandwidthMiddleware`] for the bodies of requests: handlers read them only as fast as a bandwidth allows, and
/// the client feels the pressure. What has arrived at once passes whole, and is repaid before the next.
#[derive(Clone, Debug)]
pub struct UploadMiddleware {
    bandwidth: RequestBandwidth,
}

impl BandwidthMiddleware {
    /// A middleware with this bandwidth, for all bodies together or for each client.
    pub fn new(bandwidth: impl Into<RequestBandwidth>) -> Self {
        Self { bandwidth: bandwidth.into() }
    }
}

impl UploadMiddleware {
    /// A middleware with this bandwidth, for all bodies together or for each client.
    pub fn new(bandwidth: impl Into<RequestBandwidth>) -> Self {
        Self { bandwidth: bandwidth.into() }
    }
}

impl<S, B> Transform<S, ServiceRequest> for BandwidthMiddleware
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<ShapedBody<B>>;
    type Error = Error;
    type Transform = BandwidthService<S>;
    type InitError = ();
    type Future = Ready<Result<BandwidthService<S>, ()>>;

    fn new_transform(&self, inner: S) -> Self::Future {
        ready(Ok(BandwidthService::new(inner, self.bandwidth.clone())))
    }
}

impl<S, B> Transform<S, ServiceRequest> for UploadMiddleware
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<B>;
    type Error = Error;
    type Transform = UploadService<S>;
    type InitError = ();
    type Future = Ready<Result<UploadService<S>, ()>>;

    fn new_transform(&self, inner: S) -> Self::Future {
        ready(Ok(UploadService::new(inner, self.bandwidth.clone())))
    }
}
