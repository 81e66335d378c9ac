//! Bandwidth limits of bodies.

use crate::request::{RequestHead, RequestKey};
use std::sync::Arc;
use tidegate_bandwidth::{Bandwidth, KeyedBandwidth};

/// A bandwidth limit on request or response bodies: all together, or per client.
///
/// ```
/// use tidegate_bandwidth::{Bandwidth, KeyedBandwidth};
/// use tidegate_rule::{request::key, middleware::RequestBandwidth};
///
/// let machine = RequestBandwidth::new(Bandwidth::new("100MB/s")?);
/// let per_client = RequestBandwidth::by_key(KeyedBandwidth::new("1MB/s")?, key::peer());
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RequestBandwidth {
    source: BandwidthSource,
}

/// The bandwidth to use.
#[derive(Clone, Debug)]
enum BandwidthSource {
    Shared(Bandwidth),
    ByKey(Arc<KeyedBandwidth>, RequestKey),
}

impl RequestBandwidth {
    /// Creates one bandwidth for all bodies together.
    pub fn new(bandwidth: Bandwidth) -> Self {
        Self { source: BandwidthSource::Shared(bandwidth) }
    }

    /// Creates a bandwidth per key. Requests without a key share one.
    pub fn by_key(bandwidths: impl Into<Arc<KeyedBandwidth>>, key: RequestKey) -> Self {
        Self { source: BandwidthSource::ByKey(bandwidths.into(), key) }
    }

    /// The bandwidth of this request.
    pub fn find(&self, head: &dyn RequestHead) -> Bandwidth {
        match &self.source {
            BandwidthSource::Shared(bandwidth) => bandwidth.clone(),
            BandwidthSource::ByKey(bandwidths, key) => bandwidths.key(&key.find(head)),
        }
    }
}

/// One bandwidth for all bodies together.
impl From<Bandwidth> for RequestBandwidth {
    fn from(bandwidth: Bandwidth) -> Self {
        Self::new(bandwidth)
    }
}
