//! Every order in which a store, two processes and their messages can meet, up to a depth: no stretch of time sees more
//! admissions than the bound that is stated for leases.
//!
//! The store is the core itself on the store's clock, the processes hold real balances on clocks of their own. Answers
//! come late, get lost, or come after a crash; a debit may be done twice; the store's clock jumps ahead, which the bound
//! counts as time that has passed, because the store does.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use super::Balance;
use std::sync::atomic::Ordering;
use tidegate_core::{Bound, Demand, Micros, Quota};

const TTL: Micros = Micros::from_millis(20);
/// Time passes in steps of half a life.
const STEP: Micros = Micros::from_millis(10);
/// How many events every order is tried of.
const DEPTH: usize = 9;

/// What can happen next.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A process asks for tokens, and the store debits them at once; the answer is on its way.
    Debit(usize),
    /// The same, but the store does it twice, and only one answer comes.
    DebitTwice(usize),
    /// The oldest answer arrives.
    Arrive(usize),
    /// The oldest answer gets lost.
    Lose(usize),
    /// A process spends one token.
    Spend(usize),
    /// A process dies with all it has, and another takes its place. Answers to the dead go nowhere.
    Crash(usize),
    /// Time passes, for all.
    Pass,
    /// The store's clock jumps ahead of the others.
    Jump,
}

const EVENTS: [Event; 11] = [
    Event::Debit(0),
    Event::Debit(1),
    Event::DebitTwice(0),
    Event::Arrive(0),
    Event::Arrive(1),
    Event::Lose(0),
    Event::Spend(0),
    Event::Spend(1),
    Event::Crash(0),
    Event::Pass,
    Event::Jump,
];

struct Process {
    balance: Balance,
    /// Answers on their way: how many tokens, and when they were asked for on this process's clock.
    on_the_way: Vec<(u64, Micros)>,
}

impl Process {
    fn new() -> Self {
        Self { balance: Balance::new("key", 2), on_the_way: Vec::new() }
    }
}

struct World {
    quota: Quota,
    state: Vec<u64>,
    /// The time that passes for all, and what the store's clock is ahead of it.
    now: Micros,
    ahead: Micros,
    processes: [Process; 2],
    /// When each admission was.
    admitted: Vec<Micros>,
}

impl World {
    fn new(quota: &str) -> Self {
        let quota: Quota = quota.parse().unwrap();
        let now = Micros::from_secs(1_000);
        let processes = [Process::new(), Process::new()];
        Self {
            quota,
            state: vec![0; quota.state_len()],
            now,
            ahead: Micros::ZERO,
            processes,
            admitted: Vec::new(),
        }
    }

    fn store_time(&self) -> Micros {
        self.now.plus(self.ahead)
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
    fn happens(&mut self, event: Event) -> bool {
        match event {
            Event::Debit(who) | Event::DebitTwice(who) => {
                if self.processes[who].on_the_way.len() > 1 {
                    return false;
                }
                if let Event::DebitTwice(_) = event {
                    self.debit();
                }
                let (tokens, asked) = (self.debit(), self.now);
                self.processes[who].on_the_way.push((tokens, asked));
                tokens > 0
            }
            Event::Arrive(who) => {
                let Process { balance, on_the_way } = &mut self.processes[who];
                if on_the_way.is_empty() {
                    return false;
                }
                let (tokens, asked) = on_the_way.remove(0);
                balance.put(self.now, asked, TTL, tokens);
                true
            }
            Event::Lose(who) => {
                !self.processes[who].on_the_way.is_empty() && {
                    self.processes[who].on_the_way.remove(0);
                    true
                }
            }
            Event::Spend(who) => {
                let spent = self.processes[who].balance.spend(self.now, 1).is_some();
                if spent {
                    self.admitted.push(self.now);
                }
                spent
            }
            Event::Crash(who) => {
                self.processes[who] = Process::new();
                true
            }
            Event::Pass => {
                self.now = self.now.plus(STEP);
                true
            }
            Event::Jump => {
                self.ahead = self.ahead.plus(Micros::from_millis(35));
                true
            }
        }
    }

    /// No stretch of time that ends with the last admission sees more than the bound.
    fn is_within(&self, bound: &Bound) -> bool {
        let Some(last) = self.admitted.last() else { return true };
        self.admitted.iter().enumerate().all(|(index, first)| {
            let count = (self.admitted.len() - index) as u64;
            count <= bound.max_in_window(last.since(*first).plus(self.ahead))
        })
    }
}

impl Clone for World {
    fn clone(&self) -> Self {
        let process = |process: &Process| {
            let copy = Process { on_the_way: process.on_the_way.clone(), ..Process::new() };
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

fn explore(world: &World, bound: &Bound, story: &mut Vec<Event>, most: &mut usize) {
    for event in EVENTS {
        let mut next = world.clone();
        if !next.happens(event) {
            continue;
        }
        story.push(event);
        assert!(next.is_within(bound), "{}: {story:?} admits {:?}", world.quota, next.admitted);
        *most = (*most).max(next.admitted.len());
        if story.len() < DEPTH {
            explore(&next, bound, story, most);
        }
        story.pop();
    }
}

#[test]
fn no_order_of_a_few_events_admits_too_much() {
    for quota in QUOTAS {
        let mut most = 0;
        explore(&World::new(quota), &bound_of(quota), &mut Vec::new(), &mut most);
        assert!(most >= 3, "{quota}: hardly anything was admitted");
    }
}

#[test]
fn no_long_story_admits_too_much() {
    let mut dice = 1_u64;
    let mut draw = || {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Spending is what may break the law: it happens often.
        match (dice >> 33) as usize % 20 {
            place @ 0..=10 => EVENTS[place],
            11..=15 => Event::Spend(0),
            _ => Event::Spend(1),
        }
    };
    for quota in QUOTAS {
        let bound = bound_of(quota);
        for _ in 0..2_000 {
            let mut world = World::new(quota);
            for _ in 0..100 {
                world.happens(draw());
                assert!(world.is_within(&bound), "{quota}: {:?}", world.admitted);
            }
        }
    }
}

/// The bound is no wider than it must be: without the time to live on top, some order breaks it.
#[test]
fn the_time_to_live_belongs_to_the_bound() {
    let strict = QUOTAS[0].parse::<Quota>().unwrap().bound();
    let mut world = World::new(QUOTAS[0]);
    let story = [
        Event::Debit(0),
        Event::Arrive(0),
        Event::Pass,
        Event::Debit(1),
        Event::Arrive(1),
        Event::Spend(0),
        Event::Spend(0),
        Event::Spend(1),
    ];
    assert!(story.into_iter().all(|event| world.happens(event)));
    assert!(!world.is_within(&strict) && world.is_within(&bound_of(QUOTAS[0])));
}
