//! Runs arrivals against one quota, in virtual time.

use super::{load::Arrival, rate, window, window::Stretch};
use std::collections::BTreeMap;
use tidegate_core::{Demand, Kind, Micros, Outcome, Quota, Receipt, Retry};

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
        (Kind::Concurrency(_), _) => Micros::ZERO,
        (_, Some(asked)) => asked,
        (Kind::LeakyBucket(_), None) => Micros::MAX,
        (Kind::Smooth(_) | Kind::WarmUp(_), None) => Micros::from_secs(1),
        _ => Micros::ZERO,
    }
}

/// What a quota promises for such arrivals.
fn bound(quota: &Quota, arrivals: &[Arrival], window: Micros) -> Option<u64> {
    // The core saturates where nothing bounds a shaper that is faster than its clock.
    let bound = Some(quota.bound().in_any(window)).filter(|bound| *bound < u64::MAX)?;
    // What the core says of shapers is for calls that cost one; the last call may cost more.
    let last = match quota.kind() {
        Kind::Smooth(_) | Kind::WarmUp(_) => arrivals.iter().map(|arrival| arrival.cost).max().unwrap_or(1),
        _ => 1,
    };
    Some(bound.saturating_add(last.saturating_sub(1)))
}

/// Asks `quota` for every arrival, in order.
pub(crate) fn run(quota: Quota, arrivals: &[Arrival], window: Micros, manners: Manners) -> Run {
    let patience = patience(&quota, manners.patience);
    // What is in flight is what began within the last holding time.
    let window = if matches!(quota.kind(), Kind::Concurrency(_)) { manners.hold } else { window };
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

    let mut state = vec![0; quota.width()];
    let mut flight = Flight { hold: manners.hold, taken: 0, held: BTreeMap::new() };
    for arrival in arrivals {
        flight.go_on(&quota, &mut state, arrival.at);
        let step = quota.decide(state.as_mut_slice(), arrival.at, Demand::within(arrival.cost, patience));
        run.note(*arrival, step.decision.outcome());
        flight.take_off(&quota, arrival.at, step.receipt);
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

    fn note(&mut self, arrival: Arrival, outcome: Outcome) {
        let Arrival { at, cost } = arrival;
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

/// A lease is renewed so often before it ends, as by the permits of a shared limiter.
const RENEWALS: u64 = 3;

/// Places in flight, by the moment at which something is to be done with them.
struct Flight {
    hold: Micros,
    taken: u64,
    held: BTreeMap<(Micros, u64), Place>,
}

/// A place in flight.
struct Place {
    end: Micros,
    receipt: Receipt,
}

impl Flight {
    fn take_off(&mut self, quota: &Quota, at: Micros, receipt: Receipt) {
        if receipt.cost > 0 {
            self.hold_on(quota, at, Place { end: at.plus(self.hold), receipt });
        }
    }

    /// Keeps a place until it is given back, or is to be renewed before that.
    fn hold_on(&mut self, quota: &Quota, now: Micros, place: Place) {
        let Kind::Concurrency(places) = quota.kind() else { return };
        let renewal = places.lease().map(|lease| now.plus(Micros::new((lease.get() / RENEWALS).max(1))));
        let next = renewal.map_or(place.end, |renewal| renewal.min(place.end));
        self.taken += 1;
        self.held.insert((next, self.taken), place);
    }

    /// Does everything that is due by `now`.
    fn go_on(&mut self, quota: &Quota, state: &mut [u64], now: Micros) {
        while let Some(first) = self.held.first_entry().filter(|first| first.key().0 <= now) {
            let ((at, _), Place { end, receipt }) = first.remove_entry();
            if at >= end {
                quota.refund(state, at, receipt, receipt.cost);
            } else if let Some(receipt) = quota.renew(state, at, receipt) {
                self.hold_on(quota, at, Place { end, receipt });
            }
        }
    }
}
