//! Every order in which a store, two processes and their messages can meet, up to a depth: no stretch of time sees more
//! admissions than the bound that is stated for leases.
//!
//! The store is the core itself on the store's clock, the processes hold real balances on clocks of their own. Answers
//! come late, get lost, or come after a crash; a debit may be done twice; the store's clock jumps ahead, which the bound
//! counts as time that has passed, because the store does.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use super::PrefetchedTokens;
use std::sync::atomic::Ordering;
use tidegate_core::{Bound, Demand, Micros, Quota};

const TTL: Micros = Micros::from_millis(20);
/// Time passes in steps of half a life.
const TIME_STEP: Micros = Micros::from_millis(10);
/// How many events every order is tried of.
const MAX_DEPTH: usize = 9;

/// What can happen next.
#[derive(Clone, Copy, Debug)]
enum ModelEvent {
    /// A process asks for tokens, and the store debits them at once; the answer is on its way.
    Debit(usize),
    /// The same, but the store does it twice, and only one answer comes.
    DebitTwice(usize),
    /// The oldest answer arrives.
    Deliver(usize),
    /// The oldest answer gets lost.
    LoseReply(usize),
    /// A process spends one token.
    Spend(usize),
    /// A process dies with all it has, and another takes its place. Answers to the dead go nowhere.
    Crash(usize),
    /// Time passes, for all.
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
    /// Answers on their way: how many tokens, and when they were asked for on this process's clock.
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
    /// The time that passes for all, and what the store's clock is ahead of it.
    now: Micros,
    clock_offset: Micros,
    processes: [ModelProcess; 2],
    /// When each admission was.
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
        self.now.plus(self.clock_offset)
    }

    /// Takes up to two tokens, as a store does.
    fn debit(&mut self) -> u64 {
        let now = self.store_time();
        let words = self.state.as_mut_slice();
        let left = self.quota.decide(words, now, Demand::probe(1)).decision;
        let amount = if left.is_allowed() { left.remaining().clamp(1, 2) } else { 0 };
        let granted = amount > 0 && self.quota.decide(words, now, Demand::new(amount)).decision.is_granted();
        if granted { amount } else { 0 }
    }

    /// Whether the event could happen.
    fn apply(&mut self, event: ModelEvent) -> bool {
        match event {
            ModelEvent::Debit(who) | ModelEvent::DebitTwice(who) => {
                if self.processes[who].in_transit.len() > 1 {
                    return false;
                }
                if let ModelEvent::DebitTwice(_) = event {
                    self.debit();
                }
                let (tokens, asked) = (self.debit(), self.now);
                self.processes[who].in_transit.push((tokens, asked));
                tokens > 0
            }
            ModelEvent::Deliver(who) => {
                let ModelProcess { balance, in_transit: on_the_way } = &mut self.processes[who];
                if on_the_way.is_empty() {
                    return false;
                }
                let (tokens, asked) = on_the_way.remove(0);
                balance.insert(self.now, asked, TTL, tokens);
                true
            }
            ModelEvent::LoseReply(who) => {
                !self.processes[who].in_transit.is_empty() && {
                    self.processes[who].in_transit.remove(0);
                    true
                }
            }
            ModelEvent::Spend(who) => {
                let spent = self.processes[who].balance.spend(self.now, 1).is_some();
                if spent {
                    self.admitted.push(self.now);
                }
                spent
            }
            ModelEvent::Crash(who) => {
                self.processes[who] = ModelProcess::new();
                true
            }
            ModelEvent::AdvanceTime => {
                self.now = self.now.plus(TIME_STEP);
                true
            }
            ModelEvent::ClockJump => {
                self.clock_offset = self.clock_offset.plus(Micros::from_millis(35));
                true
            }
        }
    }

    /// No stretch of time that ends with the last admission sees more than the bound.
    fn is_within(&self, bound: &Bound) -> bool {
        let Some(last) = self.admitted.last() else { return true };
        self.admitted.iter().enumerate().all(|(index, first)| {
            let count = (self.admitted.len() - index) as u64;
            count <= bound.max_in_window(last.since(*first).plus(self.clock_offset))
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

/// Small quotas, so that a few events reach their edges.
const QUOTAS: [&str; 3] = ["100/s burst 2", "2 per 30ms fixed-window", "2 per 30ms sliding-log"];

fn bound_of(quota: &str) -> Bound {
    quota.parse::<Quota>().unwrap().bound().with_prefetch(TTL)
}

fn explore(world: &PrefetchModel, bound: &Bound, trace: &mut Vec<ModelEvent>, max_admitted: &mut usize) {
    for event in EVENTS {
        let mut next = world.clone();
        if !next.apply(event) {
            continue;
        }
        trace.push(event);
        assert!(next.is_within(bound), "{}: {trace:?} admits {:?}", world.quota, next.admitted);
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
        let mut most = 0;
        explore(&PrefetchModel::new(quota), &bound_of(quota), &mut Vec::new(), &mut most);
        assert!(most >= 3, "{quota}: hardly anything was admitted");
    }
}

#[test]
fn long_event_sequences_stay_within_bound() {
    let mut dice = 1_u64;
    let mut draw = || {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Spending is what may break the law: it happens often.
        match (dice >> 33) as usize % 20 {
            place @ 0..=10 => EVENTS[place],
            11..=15 => ModelEvent::Spend(0),
            _ => ModelEvent::Spend(1),
        }
    };
    for quota in QUOTAS {
        let bound = bound_of(quota);
        for _ in 0..2_000 {
            let mut world = PrefetchModel::new(quota);
            for _ in 0..100 {
                world.apply(draw());
                assert!(world.is_within(&bound), "{quota}: {:?}", world.admitted);
            }
        }
    }
}

/// The bound is no wider than it must be: without the time to live on top, some order breaks it.
#[test]
fn bound_includes_time_to_live() {
    let strict = QUOTAS[0].parse::<Quota>().unwrap().bound();
    let mut world = PrefetchModel::new(QUOTAS[0]);
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
    assert!(trace.into_iter().all(|event| world.apply(event)));
    assert!(!world.is_within(&strict) && world.is_within(&bound_of(QUOTAS[0])));
}
