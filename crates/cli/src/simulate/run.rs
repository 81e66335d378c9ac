//! Runs arrivals against one quota, in virtual time.

use super::{rate, window, window::Stretch};
use tidegate_core::{AlgorithmKind, Demand, Micros, Outcome, Quota, Retry};
use tidegate_simulation::{SimulatedQuota, SimulatedRequest};

/// How callers behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Manners {
    /// How long a caller waits, see [`patience`]; `None` leaves it to the quota.
    pub(crate) patience: Option<Micros>,
    /// How long a caller holds a place in flight.
    pub(crate) hold: Micros,
}

/// What became of all arrivals at one quota.
#[derive(Debug)]
pub(crate) struct Run {
    /// The quota.
    pub(crate) quota: Quota,
    /// How long its callers were ready to wait.
    pub(crate) patience: Micros,
    /// Went at once.
    pub(crate) allowed: Tally,
    /// Went after a wait.
    pub(crate) delayed: Tally,
    /// Sent away.
    pub(crate) denied: Tally,
    /// Those of the denied that cost more than the quota ever grants.
    pub(crate) hopeless: Tally,
    /// The longest wait of those that went.
    pub(crate) longest_wait: Micros,
    /// Everything that went, in the order it did.
    pub(crate) passages: Vec<Passage>,
    /// The length of time over which passages are added up: the window, or how long a place in flight is held.
    pub(crate) window: Micros,
    /// The stretch of that length in which most went; `None` when nothing did.
    pub(crate) worst: Option<Stretch>,
    /// The most that the quota says it lets through in such a stretch; `None` when it promises nothing.
    pub(crate) bound: Option<u64>,
    /// What its rate alone lets through in such a stretch.
    pub(crate) nominal: u64,
}

/// One request that went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passage {
    /// When it went.
    pub(crate) at: Micros,
    /// What it cost.
    pub(crate) cost: u64,
    /// Whether it had to wait.
    pub(crate) pace: Pace,
}

/// How a request went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// When it asked.
    AtOnce,
    /// After a wait.
    Waited,
}

/// So many requests, of so much cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// How many.
    pub(crate) requests: u64,
    /// What they cost together.
    pub(crate) cost: u64,
}

impl Tally {
    /// Counts one more.
    pub(crate) fn add(&mut self, cost: u64) {
        self.requests += 1;
        self.cost = self.cost.saturating_add(cost);
    }

    /// Both together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { requests: self.requests + other.requests, cost: self.cost.saturating_add(other.cost) }
    }
}

/// How long the callers of a quota wait: what was asked for, or else what shows what the quota does. Those that
/// shape need patience for that: a queue has an end of its own, the others get a second. For a place in flight
/// nobody can wait: no one knows when it is given back.
fn patience(quota: &Quota, asked: Option<Micros>) -> Micros {
    match (quota.kind(), asked) {
        (AlgorithmKind::Concurrency(_), _) => Micros::ZERO,
        (_, Some(asked)) => asked,
        (AlgorithmKind::LeakyBucket(_), None) => Micros::MAX,
        (AlgorithmKind::Smooth(_) | AlgorithmKind::WarmUp(_), None) => Micros::from_secs(1),
        _ => Micros::ZERO,
    }
}

/// What a quota promises for such arrivals.
fn bound(quota: &Quota, arrivals: &[SimulatedRequest], window: Micros) -> Option<u64> {
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
pub(crate) fn run(quota: Quota, arrivals: &[SimulatedRequest], window: Micros, manners: Manners) -> Run {
    let patience = patience(&quota, manners.patience);
    // What is in flight is what began within the last holding time.
    let window = if matches!(quota.kind(), AlgorithmKind::Concurrency(_)) { manners.hold } else { window };
    let tally = Tally::default();
    let mut run = Run {
        quota,
        patience,
        allowed: tally,
        delayed: tally,
        denied: tally,
        hopeless: tally,
        longest_wait: Micros::ZERO,
        passages: Vec::new(),
        window,
        worst: None,
        bound: bound(&quota, arrivals, window),
        nominal: rate::nominal(&quota, window),
    };

    let mut simulated = SimulatedQuota::new(quota, manners.hold);
    for arrival in arrivals {
        let decision = simulated.decide(arrival.at, Demand::with_max_wait(arrival.cost, patience));
        run.note(*arrival, decision.outcome());
    }
    // Requests of different cost may overtake each other.
    run.passages.sort_by_key(|passage| passage.at);
    run.worst = window::worst(&run.passages, window);
    run
}

impl Run {
    /// Whether more went in a stretch than the rate alone lets through.
    pub(crate) fn exceeds_nominal(&self) -> bool {
        self.worst.is_some_and(|worst| worst.cost > self.nominal)
    }

    fn note(&mut self, arrival: SimulatedRequest, outcome: Outcome) {
        let SimulatedRequest { at, cost } = arrival;
        match outcome {
            Outcome::Allow => {
                self.allowed.add(cost);
                self.passages.push(Passage { at, cost, pace: Pace::AtOnce });
            }
            Outcome::Delay(wait) => {
                self.delayed.add(cost);
                self.longest_wait = self.longest_wait.max(wait);
                self.passages.push(Passage { at: at.plus(wait), cost, pace: Pace::Waited });
            }
            Outcome::Deny(retry) => {
                self.denied.add(cost);
                if retry == Retry::Never {
                    self.hopeless.add(cost);
                }
            }
        }
    }
}
