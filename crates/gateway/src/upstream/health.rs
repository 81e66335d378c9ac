//! What all workers know of a server: whether it answers, and whether it is worth asking.

use super::Server;
use http::{Request, StatusCode, header};
use std::{
    rc::Rc,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tidegate_observe::{Count, HealthReport, ServerState, Times, TimesRecorder};
use tidegate_overload::{Breaker, BreakerSettings, CallGuard, CallPermit};
use tidegate_policy::model::HealthCheck;
use tokio::time;

/// How a server has done of late.
pub(crate) struct Health {
    /// What checks say; yes where there are none.
    answers: AtomicBool,
    /// Failures in a row.
    failures: AtomicU64,
    /// Until when it gets nothing if others can take it, in the milliseconds of a worker's clock, which are the same for all.
    out_until: AtomicU64,
    /// After how many failures in a row it is skipped, and for how many milliseconds; never after 0.
    max_fails: u64,
    fail_timeout: u64,
    breaker: Option<Arc<Breaker>>,
    /// What each worker counts.
    counts: Mutex<Vec<Arc<ServerCounts>>>,
    /// Checks that it failed.
    failed_checks: AtomicU64,
}

/// What one worker counts of a server; nobody else writes it.
#[derive(Default)]
pub(crate) struct ServerCounts {
    /// Requests that are with it.
    pub(super) in_flight: AtomicU64,
    /// Requests that it answered.
    pub(super) answers: Count,
    /// Requests that it did not answer, or too late.
    pub(super) failures: Count,
    /// From sending a request to the head of its answer.
    pub(super) times: TimesRecorder,
}

impl Health {
    pub(super) fn new(breaker: Option<BreakerSettings>, max_fails: u64, fail_timeout: u64) -> Self {
        Self {
            answers: AtomicBool::new(true),
            failures: AtomicU64::new(0),
            out_until: AtomicU64::new(0),
            max_fails,
            fail_timeout,
            breaker: breaker.map(|settings| Arc::new(Breaker::new(settings))),
            counts: Mutex::default(),
            failed_checks: AtomicU64::new(0),
        }
    }

    /// Where one more worker counts.
    pub(super) fn counted(&self) -> Arc<ServerCounts> {
        let counts = Arc::<ServerCounts>::default();
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).push(counts.clone());
        counts
    }

    /// How it is now, in the milliseconds of a worker's clock.
    pub(crate) fn report(&self, now: u64) -> HealthReport {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut times = Times::default();
        counts.iter().for_each(|counts| times.add(&counts.times.times()));
        HealthReport {
            standing: self.standing(now),
            answers: counts.iter().map(|counts| counts.answers.get()).sum(),
            failures: counts.iter().map(|counts| counts.failures.get()).sum(),
            failed_checks: self.failed_checks.load(Ordering::Relaxed),
            times,
            in_flight: counts.iter().map(|counts| counts.in_flight.load(Ordering::Relaxed)).sum(),
            breaker: self.breaker.as_ref().map(|breaker| breaker.snapshot()),
        }
    }

    pub(super) fn standing(&self, now: u64) -> ServerState {
        if !self.answers.load(Ordering::Relaxed) {
            ServerState::Down
        } else if now < self.out_until.load(Ordering::Relaxed) {
            ServerState::Doubtful
        } else {
            ServerState::Good
        }
    }

    /// Leave to ask it; `Err` while its breaker is open.
    pub(super) fn pass(&self) -> Result<Option<CallPermit<Arc<Breaker>>>, tidegate_overload::Rejection> {
        self.breaker.as_ref().map(CallGuard::try_acquire_owned).transpose()
    }

    /// It answered.
    #[inline]
    pub(super) fn answered(&self, name: &str) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.out_until.store(0, Ordering::Relaxed);
            if self.failures.swap(0, Ordering::Relaxed) >= self.max_fails.max(1) {
                tracing::info!(server = name, "upstream server answers again");
            }
        }
    }

    /// It could not be reached, broke off or took too long.
    pub(super) fn failed(&self, now: u64, name: &str) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if self.max_fails == 0 {
            return;
        }
        if failures >= self.max_fails {
            self.out_until.store(now.saturating_add(self.fail_timeout), Ordering::Relaxed);
        }
        if failures == self.max_fails {
            tracing::warn!(server = name, failures, "upstream server unhealthy");
        }
    }
}

/// Asks a server again and again whether it is well.
pub(crate) async fn check(server: Rc<Server>, check: HealthCheck) {
    let (mut failures, mut successes) = (0, 0);
    loop {
        let health = server.health();
        match time::timeout(check.timeout, ask(&server, &check)).await {
            Ok(Some(status)) if status.is_success() || status.is_redirection() => {
                (failures, successes) = (0, successes + 1);
                if successes >= check.healthy_threshold && !health.answers.swap(true, Ordering::Relaxed) {
                    tracing::info!(server = server.name(), "a server is well again");
                }
            }
            outcome => {
                (failures, successes) = (failures + 1, 0);
                health.failed_checks.fetch_add(1, Ordering::Relaxed);
                if failures >= check.unhealthy_threshold && health.answers.swap(false, Ordering::Relaxed) {
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

async fn ask(server: &Rc<Server>, check: &HealthCheck) -> Option<StatusCode> {
    let request = Request::get(check.path.as_str())
        .header(header::HOST, server.host_header())
        .header(header::USER_AGENT, "tidegate")
        .body(super::RequestBody::Empty)
        .ok()?;
    server.ask_once(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_is_skipped_after_max_fails_for_fail_timeout() {
        let health = Health::new(None, 2, 1_000);
        health.failed(0, "a");
        assert_eq!(health.standing(1), ServerState::Good);
        health.failed(10, "a");
        assert_eq!(
            [11, 1_009, 1_010].map(|now| health.standing(now)),
            [ServerState::Doubtful, ServerState::Doubtful, ServerState::Good]
        );
        health.failed(20, "a");
        health.answered("a");
        assert_eq!(health.standing(21), ServerState::Good);

        let never = Health::new(None, 0, 1_000);
        (0..9).for_each(|now| never.failed(now, "a"));
        assert_eq!(never.standing(9), ServerState::Good);
    }
}
