//! Bandwidths for the bodies of services.

use super::service::{Downloads, Uploads};
use tidegate_rule::surface::RequestBandwidth;
use tower_layer::Layer;

/// Has the bodies of answers move no faster than a bandwidth allows: all of them together, or all of a client's.
///
/// ```
/// use tidegate_bandwidth::{Bandwidth, Bandwidths};
/// use tidegate_rule::request::key;
/// use tidegate_tower::{BandwidthLayer, RequestBandwidth};
///
/// let machine = BandwidthLayer::new(Bandwidth::new("100MB/s")?);
/// let each = BandwidthLayer::new(RequestBandwidth::by_key(Bandwidths::new("1MB/s")?, key::peer()));
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
///
/// A body is pulled only as fast as it may be sent, so nothing piles up. What a body yields at once passes whole, and is
/// repaid before the next; trailers pass as they are. For the bodies of requests there is [`UploadLayer`].
#[derive(Clone, Debug)]
pub struct BandwidthLayer {
    bandwidth: RequestBandwidth,
}

/// The same as [`BandwidthLayer`] for the bodies of requests: the service reads them only as fast as a bandwidth allows, and
/// the client feels the pressure.
#[derive(Clone, Debug)]
pub struct UploadLayer {
    bandwidth: RequestBandwidth,
}

impl BandwidthLayer {
    /// A layer with this bandwidth, for all bodies together or for each client.
    pub fn new(bandwidth: impl Into<RequestBandwidth>) -> Self {
        Self { bandwidth: bandwidth.into() }
    }
}

impl UploadLayer {
    /// A layer with this bandwidth, for all bodies together or for each client.
    pub fn new(bandwidth: impl Into<RequestBandwidth>) -> Self {
        Self { bandwidth: bandwidth.into() }
    }
}

impl<S> Layer<S> for BandwidthLayer {
    type Service = Downloads<S>;

    fn layer(&self, inner: S) -> Downloads<S> {
        Downloads::new(inner, self.bandwidth.clone())
    }
}

impl<S> Layer<S> for UploadLayer {
    type Service = Uploads<S>;

    fn layer(&self, inner: S) -> Uploads<S> {
        Uploads::new(inner, self.bandwidth.clone())
    }
}
