//! The health of a server, shared by all workers: passive failure detection, health checks and the circuit breaker.

use super::{UpstreamEndpoint, UpstreamRequest};
use crate::{events, proxy::RequestBody};
use http::{StatusCode, Version};
use std::{
    rc::Rc,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tidegate_observe::{HealthReport, LatencyBuckets, LatencyRecorder, ServerState, SingleWriterCounter};
use tidegate_overload::{Breaker, BreakerSettings, CallGuard, CallPermit};
use tidegate_policy::{head::ParsedRequest, model::HealthCheck};
use tokio::time;

/// The health of a server.
pub(crate) struct ServerHealth {
    /// The result of health checks; true without health checks.
    is_up: AtomicBool,
    /// Consecutive failures.
    failures: AtomicU64,
    /// Until this time, other servers are preferred. In milliseconds of the workers' clock, which is the same for all.
    unavailable_until: AtomicU64,
    /// The number of consecutive failures after which the server is skipped, and for how long in milliseconds; 0 disables it.
    max_fails: u64,
    fail_timeout: u64,
    breaker: Option<Arc<Breaker>>,
    /// The counters of each worker.
    counters: Mutex<Vec<Arc<ServerCounters>>>,
    /// Failed health checks.
    failed_checks: AtomicU64,
}

/// The counters of one worker for a server. Only this worker writes them.
#[derive(Default)]
pub(crate) struct ServerCounters {
    /// Requests in flight.
    pub(super) in_flight: AtomicU64,
    /// Responses by the first digit of their status.
    pub(super) responses: [SingleWriterCounter; 5],
    /// Requests without a response, or with a timeout.
    pub(super) failures: SingleWriterCounter,
    /// The time from sending a request to the head of its response.
    pub(super) latency: LatencyRecorder,
}

impl ServerHealth {
    pub(super) fn new(breaker: Option<BreakerSettings>, max_fails: u64, fail_timeout: u64) -> Self {
        Self {
            is_up: AtomicBool::new(true),
            failures: AtomicU64::new(0),
            unavailable_until: AtomicU64::new(0),
            max_fails,
            fail_timeout,
            breaker: breaker.map(|settings| Arc::new(Breaker::new(settings))),
            counters: Mutex::default(),
            failed_checks: AtomicU64::new(0),
        }
    }

    /// Creates the counters of a worker.
    pub(super) fn register_worker(&self) -> Arc<ServerCounters> {
        let counts = Arc::<ServerCounters>::default();
        self.counters.lock().unwrap_or_else(PoisonError::into_inner).push(counts.clone());
        counts
    }

    /// Reports the health at `now`, in milliseconds of a worker's clock.
    pub(crate) fn report(&self, now: u64) -> HealthReport {
        let counts = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let mut times = LatencyBuckets::default();
        counts.iter().for_each(|counts| times.add(&counts.latency.snapshot()));
        HealthReport {
            state: self.state(now),
            responses: std::array::from_fn(|class| {
                counts
                    .iter()
                    .filter_map(|counts| counts.responses.get(class))
                    .map(SingleWriterCounter::get)
                    .sum()
            }),
            failures: counts.iter().map(|counts| counts.failures.get()).sum(),
            failed_checks: self.failed_checks.load(Ordering::Relaxed),
            latency: times,
            in_flight: counts.iter().map(|counts| counts.in_flight.load(Ordering::Relaxed)).sum(),
            breaker: self.breaker.as_ref().map(|breaker| breaker.snapshot()),
        }
    }

    pub(super) fn state(&self, now: u64) -> ServerState {
        if !self.is_up.load(Ordering::Relaxed) {
            ServerState::Down
        } else if now < self.unavailable_until.load(Ordering::Relaxed) {
            ServerState::Unhealthy
        } else {
            ServerState::Healthy
        }
    }

    /// Acquires a permit of the circuit breaker; `Err` while it is open.
    pub(super) fn try_acquire(
        &self,
    ) -> Result<Option<CallPermit<Arc<Breaker>>>, tidegate_overload::Rejection> {
        self.breaker.as_ref().map(CallGuard::try_acquire_owned).transpose()
    }

    /// Records a response.
    #[inline]
    pub(super) fn on_response(&self, name: &str) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.unavailable_until.store(0, Ordering::Relaxed);
            if self.failures.swap(0, Ordering::Relaxed) >= self.max_fails.max(1) {
                events::UpstreamServerRecovered { server: name }.emit();
            }
        }
    }

    /// Records a failed connection, an incomplete response or a timeout.
    pub(super) fn on_failure(&self, now: u64, name: &str) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if self.max_fails == 0 {
            return;
        }
        if failures >= self.max_fails {
            self.unavailable_until.store(now.saturating_add(self.fail_timeout), Ordering::Relaxed);
        }
        if failures == self.max_fails {
            events::UpstreamServerUnhealthy { server: name, failures }.emit();
        }
    }
}

/// Runs the health checks of a server, forever.
pub(crate) async fn run_health_checks(server: Rc<UpstreamEndpoint>, check: HealthCheck) {
    let (mut failures, mut successes) = (0, 0);
    loop {
        let health = server.health();
        match time::timeout(check.timeout, probe(&server, &check)).await {
            Ok(Some(status)) if status.is_success() || status.is_redirection() => {
                (failures, successes) = (0, successes + 1);
                if successes >= check.healthy_threshold && !health.is_up.swap(true, Ordering::Relaxed) {
                    events::HealthCheckPassed { server: server.name() }.emit();
                }
            }
            outcome => {
                (failures, successes) = (failures + 1, 0);
                health.failed_checks.fetch_add(1, Ordering::Relaxed);
                if failures >= check.unhealthy_threshold && health.is_up.swap(false, Ordering::Relaxed) {
                    let status = outcome.ok().flatten().map(|status| status.as_u16());
                    events::HealthCheckFailed { server: server.name(), status }.emit();
                }
            }
        }
        time::sleep(check.interval.max(Duration::from_millis(10))).await;
    }
}

async fn probe(server: &Rc<UpstreamEndpoint>, check: &HealthCheck) -> Option<StatusCode> {
    let mut head = ParsedRequest::default();
    head.set_request_line("GET", &check.path, Version::HTTP_11);
    head.fields.push(b"host", server.name().as_bytes());
    head.fields.push(b"user-agent", b"tidegate");
    server.send_once(UpstreamRequest { head, body: RequestBody::Empty }).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_is_skipped_after_max_fails_for_fail_timeout() {
        let health = ServerHealth::new(None, 2, 1_000);
        health.on_failure(0, "a");
        assert_eq!(health.state(1), ServerState::Healthy);
        health.on_failure(10, "a");
        assert_eq!(
            [11, 1_009, 1_010].map(|now| health.state(now)),
            [ServerState::Unhealthy, ServerState::Unhealthy, ServerState::Healthy]
        );
        health.on_failure(20, "a");
        health.on_response("a");
        assert_eq!(health.state(21), ServerState::Healthy);

        let never = ServerHealth::new(None, 0, 1_000);
        (0..9).for_each(|now| never.on_failure(now, "a"));
        assert_eq!(never.state(9), ServerState::Healthy);
    }
}
