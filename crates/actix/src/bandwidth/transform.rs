//! How fast bodies move, and whose they are.

use super::{
    body::ShapedBody,
    service::{BandwidthService, UploadService},
};
use actix_web::{
    Error,
    body::MessageBody,
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
};
use std::{
    future::{Ready, ready},
    sync::Arc,
};
use tidegate_engine::{Bandwidth, Bandwidths};
use tidegate_rule::request::{Head, Key};

/// Has the bodies of answers move no faster than a bandwidth allows: all of them together, or all of a client's.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_actix::BandwidthMiddleware;
/// use tidegate_engine::{Bandwidth, BandwidthBuilder};
/// use tidegate_rule::request::key;
///
/// let machine = Bandwidth::new("100MB/s")?;
/// let each = Arc::new(Bandwidth::builder().build_by_key("1MB/s")?);
/// let app = move || {
///     actix_web::App::new()
///         .wrap(BandwidthMiddleware::new(machine.clone()))
///         .wrap(BandwidthMiddleware::by_key(each.clone(), key::peer()))
/// };
/// # Ok::<(), tidegate_engine::BuildError>(())
/// ```
///
/// A body is pulled only as fast as it may be sent, so nothing piles up. It passes in pieces of 16 KiB at most, each of which
/// is repaid before the next. For the bodies of requests there is [`UploadMiddleware`].
#[derive(Clone, Debug)]
pub struct BandwidthMiddleware {
    source: Source,
}

/// The same as [`BandwidthMiddleware`] for the bodies of requests: handlers read them only as fast as a bandwidth allows, and
/// the client feels the pressure. What has arrived at once passes whole, and is repaid before the next.
#[derive(Clone, Debug)]
pub struct UploadMiddleware {
    source: Source,
}

/// Whose bandwidth it is.
#[derive(Clone, Debug)]
pub(super) enum Source {
    One(Bandwidth),
    ByKey(Arc<Bandwidths>, Key),
}

impl BandwidthMiddleware {
    /// One bandwidth for all bodies together.
    pub fn new(bandwidth: Bandwidth) -> Self {
        Self { source: Source::One(bandwidth) }
    }

    /// A bandwidth for each key. Requests without one share a bandwidth.
    pub fn by_key(bandwidths: impl Into<Arc<Bandwidths>>, key: Key) -> Self {
        Self { source: Source::ByKey(bandwidths.into(), key) }
    }
}

impl UploadMiddleware {
    /// One bandwidth for all bodies together.
    pub fn new(bandwidth: Bandwidth) -> Self {
        Self { source: Source::One(bandwidth) }
    }

    /// A bandwidth for each key. Requests without one share a bandwidth.
    pub fn by_key(bandwidths: impl Into<Arc<Bandwidths>>, key: Key) -> Self {
        Self { source: Source::ByKey(bandwidths.into(), key) }
    }
}

impl Source {
    pub(super) fn bandwidth(&self, head: &dyn Head) -> Bandwidth {
        match self {
            Self::One(bandwidth) => bandwidth.clone(),
            Self::ByKey(bandwidths, key) => bandwidths.key(&key.find(head)),
        }
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
        ready(Ok(BandwidthService::new(inner, self.source.clone())))
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
        ready(Ok(UploadService::new(inner, self.source.clone())))
    }
}
