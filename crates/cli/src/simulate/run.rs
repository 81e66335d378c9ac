//! Runs arrivals against one quota, in virtual time.

use super::{rate, window, window::BusiestWindow};
use tidegate_core::{AlgorithmKind, Demand, Micros, Outcome, Quota, Retry};
use tidegate_simulation::{SimulatedQuota, SimulatedRequest};

/// The behavior of callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallerBehavior {
    /// How long a caller waits, see [`effective_max_wait`]; `None` for the default of the quota.
    pub(crate) max_wait: Option<Micros>,
    /// How long a request is in flight.
    pub(crate) hold_time: Micros,
}

/// The result of all arrivals with one quota.
#[derive(Debug)]
pub(crate) struct QuotaRun {
    pub(crate) quota: Quota,
    /// How long callers may wait.
    pub(crate) max_wait: Micros,
    /// Admitted at once.
    pub(crate) allowed: RequestCount,
    /// Admitted after a wait.
    pub(crate) delayed: RequestCount,
    pub(crate) denied: RequestCount,
    /// Denied requests that cost more than the quota ever grants.
    pub(crate) impossible: RequestCount,
    /// The longest wait of an admitted request.
    pub(crate) longest_wait: Micros,
    /// The admitted requests, ordered by time.
    pub(crate) admitted: Vec<AdmittedRequest>,
    /// The length over which admitted cost is summed: the window, or the hold time of a slot.
    pub(crate) window: Micros,
    /// The window of that length with the highest cost; `None` if nothing was admitted.
    pub(crate) worst: Option<BusiestWindow>,
    /// The bound of the quota in such a window; `None` if it has none.
    pub(crate) bound: Option<u64>,
    /// What the rate alone admits in such a window.
    pub(crate) nominal: u64,
}

/// One admitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdmittedRequest {
    /// The time of admission.
    pub(crate) at: Micros,
    pub(crate) cost: u64,
    pub(crate) kind: AdmissionKind,
}

/// Whether an admitted request had to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdmissionKind {
    /// Admitted on arrival.
    Immediate,
    /// Admitted after a wait.
    Delayed,
}

/// A number of requests and their total cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestCount {
    pub(crate) requests: u64,
    /// The total cost.
    pub(crate) cost: u64,
}

impl RequestCount {
    /// Adds a request.
    pub(crate) fn add(&mut self, cost: u64) {
        self.requests += 1;
        self.cost = self.cost.saturating_add(cost);
    }

    /// The sum of both.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self { requests: self.requests + other.requests, cost: self.cost.saturating_add(other.cost) }
    }
}

/// How long callers of a quota wait: as requested, or a default that shows the effect of the quota. Shapers need a wait: a
/// queue bounds it itself, the others get a second. Callers never wait for concurrency slots, since their release time is
/// unknown.
fn effective_max_wait(quota: &Quota, requested: Option<Micros>) -> Micros {
    match (quota.kind(), requested) {
        (AlgorithmKind::Concurrency(_), _) => Micros::ZERO,
        (_, Some(requested)) => requested,
        (AlgorithmKind::LeakyBucket(_), None) => Micros::MAX,
        (AlgorithmKind::Smooth(_) | AlgorithmKind::WarmUp(_), None) => Micros::from_secs(1),
        _ => Micros::ZERO,
    }
}

/// The bound of a quota for these arrivals.
fn expected_bound(quota: &Quota, arrivals: &[SimulatedRequest], window: Micros) -> Option<u64> {
    // The bound saturates for a shaper that is faster than its clock.
    let bound = Some(quota.bound().max_in_window(window)).filter(|bound| *bound < u64::MAX)?;
    // The bound of shapers assumes a cost of one; the last request may cost more.
    let last = match quota.kind() {
        AlgorithmKind::Smooth(_) | AlgorithmKind::WarmUp(_) => {
            arrivals.iter().map(|arrival| arrival.cost).max().unwrap_or(1)
        }
        _ => 1,
    };
    Some(bound.saturating_add(last.saturating_sub(1)))
}

/// Decides every arrival with `quota`, in order.
pub(crate) fn simulate_quota(
    quota: Quota,
    arrivals: &[SimulatedRequest],
    window: Micros,
    behavior: CallerBehavior,
) -> QuotaRun {
    let max_wait = effective_max_wait(&quota, behavior.max_wait);
    // The requests in flight are those that started within the last hold time.
    let window = if quota.is_concurrency() { behavior.hold_time } else { window };
    let zero = RequestCount::default();
    let mut run = QuotaRun {
        quota,
        max_wait,
        allowed: zero,
        delayed: zero,
        denied: zero,
        impossible: zero,
        longest_wait: Micros::ZERO,
        admitted: Vec::new(),
        window,
        worst: None,
        bound: expected_bound(&quota, arrivals, window),
        nominal: rate::nominal(&quota, window),
    };

    let mut simulated = SimulatedQuota::new(quota, behavior.hold_time);
    for arrival in arrivals {
        let decision = simulated.decide(arrival.at, Demand::with_max_wait(arrival.cost, max_wait));
        run.record(*arrival, decision.outcome());
    }
    // Requests of different cost may overtake each other.
    run.admitted.sort_by_key(|request| request.at);
    run.worst = window::busiest_window(&run.admitted, window);
    run
}

impl QuotaRun {
    /// Whether the worst window exceeds what the rate alone admits.
    pub(crate) fn exceeds_nominal(&self) -> bool {
        self.worst.is_some_and(|worst| worst.cost > self.nominal)
    }

    fn record(&mut self, arrival: SimulatedRequest, outcome: Outcome) {
        let SimulatedRequest { at, cost } = arrival;
        match outcome {
            Outcome::Allow => {
                self.allowed.add(cost);
                self.admitted.push(AdmittedRequest { at, cost, kind: AdmissionKind::Immediate });
            }
            Outcome::Delay(wait) => {
                self.delayed.add(cost);
                self.longest_wait = self.longest_wait.max(wait);
                self.admitted.push(AdmittedRequest {
                    at: at.saturating_add(wait),
                    cost,
                    kind: AdmissionKind::Delayed,
                });
            }
            Outcome::Deny(retry) => {
                self.denied.add(cost);
                if retry == Retry::Never && cost > self.quota.limit() {
                    self.impossible.add(cost);
                }
            }
        }
    }
}
