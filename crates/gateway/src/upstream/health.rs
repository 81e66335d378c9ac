//! What all workers know of a server: whether it answers, and whether it is worth asking.

use super::UpstreamEndpoint;
use http::{Request, StatusCode, header};
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
use tidegate_policy::model::HealthCheck;
use tokio::time;

/// How a server has done of late.
pub(crate) struct ServerHealth {
    /// What checks say; yes where there are none.
    is_up: AtomicBool,
    /// Failures in a row.
    failures: AtomicU64,
    /// Until when it gets nothing if others can take it, in the milliseconds of a worker's clock, which are the same for all.
    unavailable_until: AtomicU64,
    /// After how many failures in a row it is skipped, and for how many milliseconds; never after 0.
    max_fails: u64,
    fail_timeout: u64,
    breaker: Option<Arc<Breaker>>,
    /// What each worker counts.
    counters: Mutex<Vec<Arc<ServerCounters>>>,
    /// Checks that it failed.
    failed_checks: AtomicU64,
}

/// What one worker counts of a server; nobody else writes it.
#[derive(Default)]
pub(crate) struct ServerCounters {
    /// Requests that are with it.
    pub(super) in_flight: AtomicU64,
    /// Requests that it answered.
    pub(super) responses: SingleWriterCounter,
    /// Requests that it did not answer, or too late.
    pub(super) failures: SingleWriterCounter,
    /// From sending a request to the head of its answer.
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

    /// Where one more worker counts.
    pub(super) fn register_worker(&self) -> Arc<ServerCounters> {
        let counts = Arc::<ServerCounters>::default();
        self.counters.lock().unwrap_or_else(PoisonError::into_inner).push(counts.clone());
        counts
    }

    /// How it is now, in the milliseconds of a worker's clock.
    pub(crate) fn report(&self, now: u64) -> HealthReport {
        let counts = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let mut times = LatencyBuckets::default();
        counts.iter().for_each(|counts| times.add(&counts.latency.snapshot()));
        HealthReport {
            state: self.state(now),
            responses: counts.iter().map(|counts| counts.responses.get()).sum(),
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
            ServerState::Degraded
        } else {
            ServerState::Healthy
        }
    }

    /// Leave to ask it; `Err` while its breaker is open.
    pub(super) fn try_acquire(
        &self,
    ) -> Result<Option<CallPermit<Arc<Breaker>>>, tidegate_overload::Rejection> {
        self.breaker.as_ref().map(CallGuard::try_acquire_owned).transpose()
    }

    /// It answered.
    #[inline]
    pub(super) fn on_response(&self, name: &str) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.unavailable_until.store(0, Ordering::Relaxed);
            if self.failures.swap(0, Ordering::Relaxed) >= self.max_fails.max(1) {
                tracing::info!(server = name, "upstream server answers again");
            }
        }
    }

    /// It could not be reached, broke off or took too long.
    pub(super) fn on_failure(&self, now: u64, name: &str) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if self.max_fails == 0 {
            return;
        }
        if failures >= self.max_fails {
            self.unavailable_until.store(now.saturating_add(self.fail_timeout), Ordering::Relaxed);
        }
        if failures == self.max_fails {
            tracing::warn!(server = name, failures, "upstream server unhealthy");
        }
    }
}

/// Asks a server again and again whether it is well.
pub(crate) async fn run_health_checks(server: Rc<UpstreamEndpoint>, check: HealthCheck) {
    let (mut failures, mut successes) = (0, 0);
    loop {
        let health = server.health();
        match time::timeout(check.timeout, probe(&server, &check)).await {
            Ok(Some(status)) if status.is_success() || status.is_redirection() => {
                (failures, successes) = (0, successes + 1);
                if successes >= check.healthy_threshold && !health.is_up.swap(true, Ordering::Relaxed) {
                    tracing::info!(server = server.name(), "a server is well again");
                }
            }
            outcome => {
                (failures, successes) = (failures + 1, 0);
                health.failed_checks.fetch_add(1, Ordering::Relaxed);
                if failures >= check.unhealthy_threshold && health.is_up.swap(false, Ordering::Relaxed) {
                    let status = outcome.ok().flatten().map(|status| status.as_u16());
                    tracing::warn!(
                        server = server.name(),
                        status,
                        "a server is not well, and gets no requests"
                    );
                }
            }
        }
        time::sleep(check.interval.max(Duration::from_millis(10))).await;
    }
}

async fn probe(server: &Rc<UpstreamEndpoint>, check: &HealthCheck) -> Option<StatusCode> {
    let request = Request::get(check.path.as_str())
        .header(header::HOST, server.host_header())
        .header(header::USER_AGENT, "tidegate")
        .body(super::RequestBody::Empty)
        .ok()?;
    server.send_once(request).await
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
            [ServerState::Degraded, ServerState::Degraded, ServerState::Healthy]
        );
        health.on_failure(20, "a");
        health.on_response("a");
        assert_eq!(health.state(21), ServerState::Healthy);

        let never = ServerHealth::new(None, 0, 1_000);
        (0..9).for_each(|now| never.on_failure(now, "a"));
        assert_eq!(never.state(9), ServerState::Healthy);
    }
}
