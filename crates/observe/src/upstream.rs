//! What operators see of the servers of an upstream.

use crate::LatencyBuckets;
use tidegate_overload::BreakerSnapshot;

/// Says how all servers are at this moment: the upstreams by name, and the servers of each.
pub type UpstreamReporter = dyn Fn() -> UpstreamReports + Send + Sync;

/// Upstreams by name, and the servers of each.
pub type UpstreamReports = Vec<(String, Vec<(String, HealthReport)>)>;

/// How a server is at one moment.
pub struct HealthReport {
    /// Whether it gets requests.
    pub state: ServerState,
    /// Requests that it answered.
    pub responses: u64,
    /// Requests that it did not answer.
    pub failures: u64,
    /// Health checks that it failed.
    pub failed_checks: u64,
    /// How long its responses took.
    pub latency: LatencyBuckets,
    /// Requests that it has not answered yet.
    pub in_flight: u64,
    /// Its circuit breaker.
    pub breaker: Option<BreakerSnapshot>,
}

/// Whether a server is to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerState {
    /// Not at all.
    Down,
    /// If there is no other.
    Degraded,
    /// Like every other.
    Healthy,
}
