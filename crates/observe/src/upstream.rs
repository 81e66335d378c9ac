//! Health reports of upstream servers.

use crate::LatencyBuckets;
use tidegate_overload::BreakerSnapshot;

/// Reports the current health of all servers: the upstreams by name, and the servers of each.
pub type UpstreamReporter = dyn Fn() -> UpstreamReports + Send + Sync;

/// Upstreams by name, and the servers of each.
pub type UpstreamReports = Vec<(String, Vec<(String, HealthReport)>)>;

/// The health of a server at one time.
pub struct HealthReport {
    /// Whether it receives requests.
    pub state: ServerState,
    /// Responses by the first digit of their status, from 1xx to 5xx.
    pub responses: [u64; 5],
    /// Requests without a response.
    pub failures: u64,
    /// Health checks that it failed.
    pub failed_checks: u64,
    /// The time to the head of its responses.
    pub latency: LatencyBuckets,
    /// Requests in flight.
    pub in_flight: u64,
    /// Its circuit breaker.
    pub breaker: Option<BreakerSnapshot>,
}

/// Whether a server receives requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerState {
    /// It receives no requests.
    Down,
    /// It receives requests only if no server is healthy.
    Unhealthy,
    /// It receives requests.
    Healthy,
}
