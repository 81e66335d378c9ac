//! How fast bodies move, and whose they are.

use crate::request::{RequestHead, RequestKey};
use std::sync::Arc;
use tidegate_bandwidth::{Bandwidth, KeyedBandwidth};

/// A bandwidth for the bodies of requests or of their answers: all of them together, or all of a client's.
///
/// ```
/// use tidegate_bandwidth::{Bandwidth, KeyedBandwidth};
/// use tidegate_rule::{request::key, middleware::RequestBandwidth};
///
/// let machine = RequestBandwidth::new(Bandwidth::new("100MB/s")?);
/// let each = RequestBandwidth::by_key(KeyedBandwidth::new("1MB/s")?, key::peer());
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RequestBandwidth {
    source: BandwidthSource,
}

/// Whose bandwidth it is.
#[derive(Clone, Debug)]
enum BandwidthSource {
    Shared(Bandwidth),
    ByKey(Arc<KeyedBandwidth>, RequestKey),
}

impl RequestBandwidth {
    /// One bandwidth for all bodies together.
    pub fn new(bandwidth: Bandwidth) -> Self {
        Self { source: BandwidthSource::Shared(bandwidth) }
    }

    /// A bandwidth for each key. Requests without one share a bandwidth.
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
