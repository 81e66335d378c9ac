//! How fast bodies move, and whose they are.

use super::service::{Downloads, Uploads};
use std::sync::Arc;
use tidegate_engine::{Bandwidth, Bandwidths};
use tidegate_rule::request::{Head, Key};
use tower_layer::Layer;

/// Has the bodies of answers move no faster than a bandwidth allows: all of them together, or all of a client's.
///
/// ```
/// use tidegate_engine::{Bandwidth, Bandwidths};
/// use tidegate_rule::request::key;
/// use tidegate_tower::BandwidthLayer;
///
/// let machine = BandwidthLayer::new(Bandwidth::new("100MB/s")?);
/// let each = BandwidthLayer::by_key(Bandwidths::new("1MB/s")?, key::peer());
/// # Ok::<(), tidegate_engine::BuildError>(())
/// ```
///
/// A body is pulled only as fast as it may be sent, so nothing piles up. What a body yields at once passes whole, and is
/// repaid before the next; trailers pass as they are. For the bodies of requests there is [`UploadLayer`].
#[derive(Clone, Debug)]
pub struct BandwidthLayer {
    source: Source,
}

/// The same as [`BandwidthLayer`] for the bodies of requests: the service reads them only as fast as a bandwidth allows, and
/// the client feels the pressure.
#[derive(Clone, Debug)]
pub struct UploadLayer {
    source: Source,
}

/// Whose bandwidth it is.
#[derive(Clone, Debug)]
pub(super) enum Source {
    One(Bandwidth),
    ByKey(Arc<Bandwidths>, Key),
}

impl BandwidthLayer {
    /// One bandwidth for all bodies together.
    pub fn new(bandwidth: Bandwidth) -> Self {
        Self { source: Source::One(bandwidth) }
    }

    /// A bandwidth for each key. Requests without one share a bandwidth.
    pub fn by_key(bandwidths: impl Into<Arc<Bandwidths>>, key: Key) -> Self {
        Self { source: Source::ByKey(bandwidths.into(), key) }
    }
}

impl UploadLayer {
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

impl<S> Layer<S> for BandwidthLayer {
    type Service = Downloads<S>;

    fn layer(&self, inner: S) -> Downloads<S> {
        Downloads::new(inner, self.source.clone())
    }
}

impl<S> Layer<S> for UploadLayer {
    type Service = Uploads<S>;

    fn layer(&self, inner: S) -> Uploads<S> {
        Uploads::new(inner, self.source.clone())
    }
}
