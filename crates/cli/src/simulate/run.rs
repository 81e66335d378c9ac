//! Runs arrivals against one quota, in virtual time.

use super::{rate, window, window::BusiestWindow};
use tidegate_core::{AlgorithmKind, Demand, Micros, Outcome, Quota, Retry};
use tidegate_simulation::{SimulatedQuota, SimulatedRequest};

/// How callers behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallerBehavior {
    /// How long a caller waits, see [`effective_max_wait`]; `None` leaves it to the quota.
    pub(crate) max_wait: Option<Micros>,
    /// How long a caller holds a place in flight.
    pub(crate) hold_time: Micros,
}

/// What became of all arrivals at one quota.
#[derive(Debug)]
pub(crate) struct QuotaRun {
    /// The quota.
    pub(crate) quota: Quota,
    /// How long its callers were ready to wait.
    pub(crate) max_wait: Micros,
    /// Went at once.
    pub(crate) allowed: RequestCount,
    /// Went after a wait.
    pub(crate) delayed: RequestCount,
    /// Sent away.
    pub(crate) denied: RequestCount,
    /// Those of the denied that cost more than the quota ever grants.
    pub(crate) impossible: RequestCount,
    /// The longest wait of those that went.
    pub(crate) longest_wait: Micros,
    /// Everything that went, in the order it did.
    pub(crate) admitted: Vec<AdmittedRequest>,
    /// The length of time over which passages are added up: the window, or how long a place in flight is held.
    pub(crate) window: Micros,
    /// The stretch of that length in which most went; `None` when nothing did.
    pub(crate) worst: Option<BusiestWindow>,
    /// The most that the quota says it lets through in such a stretch; `None` when it promises nothing.
    pub(crate) bound: Option<u64>,
    /// What its rate alone lets through in such a stretch.
    pub(crate) nominal: u64,
}

/// One request that went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdmittedRequest {
    /// When it went.
    pub(crate) at: Micros,
    /// What it cost.
    pub(crate) cost: u64,
    /// Whether it had to wait.
    pub(crate) kind: AdmissionKind,
}

/// How a request went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdmissionKind {
    /// When it asked.
    Immediate,
    /// After a wait.
    Delayed,
}

/// So many requests, of so much cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestCount {
    /// How many.
    pub(crate) requests: u64,
    /// What they cost together.
    pub(crate) cost: u64,
}

impl RequestCount {
    /// Counts one more.
    pub(crate) fn add(&mut self, cost: u64) {
        self.requests += 1;
        self.cost = self.cost.saturating_add(cost);
    }

    /// Both together.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self { requests: self.requests + other.requests, cost: self.cost.saturating_add(other.cost) }
    }
}

/// How long the callers of a quota wait: what was asked for, or else what shows what the quota does. Those that
/// shape need patience for that: a queue has an end of its own, the others get a second. For a place in flight
/// nobody can wait: no one knows when it is given back.
fn effective_max_wait(quota: &Quota, requested: Option<Micros>) -> Micros {
    match (quota.kind(), requested) {
        (AlgorithmKind::Concurrency(_), _) => Micros::ZERO,
        (_, Some(asked)) => asked,
        (AlgorithmKind::LeakyBucket(_), None) => Micros::MAX,
        (AlgorithmKind::Smooth(_) | AlgorithmKind::WarmUp(_), None) => Micros::from_secs(1),
        _ => Micros::ZERO,
    }
}

/// What a quota promises for such arrivals.
fn expected_bound(quota: &Quota, arrivals: &[SimulatedRequest], window: Micros) -> Option<u64> {
    // The core saturates where nothing bounds a shaper that is faster than its clock.
    let bound = Some(quota.bound().max_in_window(window)).filter(|bound| *bound < u64::MAX)?;
    // What the core says of shapers is for calls that cost one; the last call may cost more.
    let last = match quota.kind() {
        AlgorithmKind::Smooth(_) | AlgorithmKind::WarmUp(_) => {
            arrivals.iter().map(|arrival| arrival.cost).max().unwrap_or(1)
        }
        _ => 1,
    };
    Some(bound.saturating_add(last.saturating_sub(1)))
}

/// Asks `quota` for every arrival, in order.
pub(crate) fn simulate_quota(
    quota: Quota,
    arrivals: &[SimulatedRequest],
    window: Micros,
    behavior: CallerBehavior,
) -> QuotaRun {
    let max_wait = effective_max_wait(&quota, behavior.max_wait);
    // What is in flight is what began within the last holding time.
    let window =
        if matches!(quota.kind(), AlgorithmKind::Concurrency(_)) { behavior.hold_time } else { window };
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
    run.admitted.sort_by_key(|passage| passage.at);
    run.worst = window::busiest_window(&run.admitted, window);
    run
}

impl QuotaRun {
    /// Whether more went in a stretch than the rate alone lets through.
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
                self.admitted.push(AdmittedRequest { at: at.plus(wait), cost, kind: AdmissionKind::Delayed });
            }
            Outcome::Deny(retry) => {
                self.denied.add(cost);
                if retry == Retry::Never {
                    self.impossible.add(cost);
                }
            }
        }
    }
}
