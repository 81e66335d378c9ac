//! Explores the interleavings of a store, two processes and their messages, up to a depth: in no window are more calls
//! admitted than the bound for prefetched tokens allows.
//!
//! The store is the core itself on the store's clock; the processes hold real `PrefetchedTokens` on their own clocks.
//! Replies are delayed, lost, or arrive after a crash; a debit can be executed twice; the store's clock can jump ahead,
//! which the bound counts as elapsed time, because the store does.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use super::PrefetchedTokens;
use std::sync::atomic::Ordering;
use tidegate_core::{Bound, Demand, Micros, Quota};

const TTL: Micros = Micros::from_millis(20);
/// Time advances in steps of half a time to live.
const TIME_STEP: Micros = Micros::from_millis(10);
/// The number of events in each explored sequence.
const MAX_DEPTH: usize = 9;

/// An event of the model.
#[derive(Clone, Copy, Debug)]
enum ModelEvent {
    /// A process requests tokens, and the store debits them at once; the reply is in transit.
    Debit(usize),
    /// Like `Debit`, but the store debits twice and sends one reply.
    DebitTwice(usize),
    /// The oldest reply arrives.
    Deliver(usize),
    /// The oldest reply is lost.
    LoseReply(usize),
    /// A process spends one token.
    Spend(usize),
    /// A process crashes, loses its tokens and replies, and is restarted.
    Crash(usize),
    /// Time advances for all.
    AdvanceTime,
    /// The store's clock jumps ahead of the others.
    ClockJump,
}

const EVENTS: [ModelEvent; 11] = [
    ModelEvent::Debit(0),
    ModelEvent::Debit(1),
    ModelEvent::DebitTwice(0),
    ModelEvent::Deliver(0),
    ModelEvent::Deliver(1),
    ModelEvent::LoseReply(0),
    ModelEvent::Spend(0),
    ModelEvent::Spend(1),
    ModelEvent::Crash(0),
    ModelEvent::AdvanceTime,
    ModelEvent::ClockJump,
];

struct ModelProcess {
    balance: PrefetchedTokens,
    /// Replies in transit: the tokens, and when they were requested on the clock of this process.
    in_transit: Vec<(u64, Micros)>,
}

impl ModelProcess {
    fn new() -> Self {
        Self { balance: PrefetchedTokens::new("key", 2), in_transit: Vec::new() }
    }
}

struct PrefetchModel {
    quota: Quota,
    state: Vec<u64>,
    /// The common time, and how far the store's clock is ahead of it.
    now: Micros,
    clock_offset: Micros,
    processes: [ModelProcess; 2],
    /// The time of each admission.
    admitted: Vec<Micros>,
}

impl PrefetchModel {
    fn new(quota: &str) -> Self {
        let quota: Quota = quota.parse().unwrap();
        let now = Micros::from_secs(1_000);
        let processes = [ModelProcess::new(), ModelProcess::new()];
        Self {
            quota,
            state: vec![0; quota.state_len()],
            now,
            clock_offset: Micros::ZERO,
            processes,
            admitted: Vec::new(),
        }
    }

    fn store_time(&self) -> Micros {
        self.now.saturating_add(self.clock_offset)
    }

    /// Debits up to two tokens, as a store does.
    fn debit(&mut self) -> u64 {
        let now = self.store_time();
        let state = self.state.as_mut_slice();
        let left = self.quota.decide(state, now, Demand::peek(1)).decision;
        let amount = if left.is_allowed() { left.remaining().clamp(1, 2) } else { 0 };
        let granted = amount > 0 && self.quota.decide(state, now, Demand::new(amount)).decision.is_granted();
        if granted { amount } else { 0 }
    }

    /// Applies an event; returns whether it was possible.
    fn apply(&mut self, event: ModelEvent) -> bool {
        match event {
            ModelEvent::Debit(process) | ModelEvent::DebitTwice(process) => {
                if self.processes[process].in_transit.len() > 1 {
                    return false;
                }
                if let ModelEvent::DebitTwice(_) = event {
                    self.debit();
                }
                let (tokens, requested_at) = (self.debit(), self.now);
                self.processes[process].in_transit.push((tokens, requested_at));
                tokens > 0
            }
            ModelEvent::Deliver(process) => {
                let ModelProcess { balance, in_transit } = &mut self.processes[process];
                if in_transit.is_empty() {
                    return false;
                }
                let (tokens, requested_at) = in_transit.remove(0);
                balance.insert(self.now, requested_at, TTL, tokens);
                true
            }
            ModelEvent::LoseReply(process) => {
                !self.processes[process].in_transit.is_empty() && {
                    self.processes[process].in_transit.remove(0);
                    true
                }
            }
            ModelEvent::Spend(process) => {
                let spent = self.processes[process].balance.spend(self.now, 1).is_some();
                if spent {
                    self.admitted.push(self.now);
                }
                spent
            }
            ModelEvent::Crash(process) => {
                self.processes[process] = ModelProcess::new();
                true
            }
            ModelEvent::AdvanceTime => {
                self.now = self.now.saturating_add(TIME_STEP);
                true
            }
            ModelEvent::ClockJump => {
                self.clock_offset = self.clock_offset.saturating_add(Micros::from_millis(35));
                true
            }
        }
    }

    /// Whether every window that ends with the last admission is within the bound.
    fn is_within(&self, bound: &Bound) -> bool {
        let Some(last) = self.admitted.last() else { return true };
        self.admitted.iter().enumerate().all(|(index, first)| {
            let count = (self.admitted.len() - index) as u64;
            count <= bound.max_in_window(last.saturating_sub(*first).saturating_add(self.clock_offset))
        })
    }
}

impl Clone for PrefetchModel {
    fn clone(&self) -> Self {
        let process = |process: &ModelProcess| {
            let copy = ModelProcess { in_transit: process.in_transit.clone(), ..ModelProcess::new() };
            for (copy, slot) in copy.balance.slots.iter().zip(&process.balance.slots) {
                copy.store(slot.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            copy
        };
        let processes = [process(&self.processes[0]), process(&self.processes[1])];
        Self { state: self.state.clone(), processes, admitted: self.admitted.clone(), ..*self }
    }
}

/// Small quotas, so that a few events reach their limits.
const QUOTAS: [&str; 3] = ["100/s burst 2", "2 per 30ms fixed-window", "2 per 30ms sliding-log"];

fn bound_of(quota: &str) -> Bound {
    quota.parse::<Quota>().unwrap().bound().with_prefetch(TTL)
}

fn explore(model: &PrefetchModel, bound: &Bound, trace: &mut Vec<ModelEvent>, max_admitted: &mut usize) {
    for event in EVENTS {
        let mut next = model.clone();
        if !next.apply(event) {
            continue;
        }
        trace.push(event);
        assert!(next.is_within(bound), "{}: {trace:?} admits {:?}", model.quota, next.admitted);
        *max_admitted = (*max_admitted).max(next.admitted.len());
        if trace.len() < MAX_DEPTH {
            explore(&next, bound, trace, max_admitted);
        }
        trace.pop();
    }
}

#[test]
fn short_event_sequences_stay_within_bound() {
    for quota in QUOTAS {
        let mut max_admitted = 0;
        explore(&PrefetchModel::new(quota), &bound_of(quota), &mut Vec::new(), &mut max_admitted);
        assert!(max_admitted >= 3, "{quota}: too few admissions to test the bound");
    }
}

#[test]
fn long_event_sequences_stay_within_bound() {
    let mut random = 1_u64;
    let mut draw = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Spending can violate the bound, so it is the most frequent event.
        match (random >> 33) as usize % 20 {
            index @ 0..=10 => EVENTS[index],
            11..=15 => ModelEvent::Spend(0),
            _ => ModelEvent::Spend(1),
        }
    };
    for quota in QUOTAS {
        let bound = bound_of(quota);
        for _ in 0..2_000 {
            let mut model = PrefetchModel::new(quota);
            for _ in 0..100 {
                model.apply(draw());
                assert!(model.is_within(&bound), "{quota}: {:?}", model.admitted);
            }
        }
    }
}

/// The bound is tight: without the time to live, some sequence exceeds it.
#[test]
fn bound_includes_time_to_live() {
    let strict = QUOTAS[0].parse::<Quota>().unwrap().bound();
    let mut model = PrefetchModel::new(QUOTAS[0]);
    let trace = [
        ModelEvent::Debit(0),
        ModelEvent::Deliver(0),
        ModelEvent::AdvanceTime,
        ModelEvent::Debit(1),
        ModelEvent::Deliver(1),
        ModelEvent::Spend(0),
        ModelEvent::Spend(0),
        ModelEvent::Spend(1),
    ];
    assert!(trace.into_iter().all(|event| model.apply(event)));
    assert!(!model.is_within(&strict) && model.is_within(&bound_of(QUOTAS[0])));
}
