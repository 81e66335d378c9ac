//! The event loop of a simulation.

use crate::{
    backend::{CallEnd, ScheduledCall, WorkerPool},
    guard::{GuardSide, SimulatedGuard, SimulatedPermit},
    result::SimulationResult,
    scenario::Scenario,
};
use fastrand::Rng;
use std::{
    cmp::Ordering,
    collections::{BTreeMap, BinaryHeap, VecDeque},
};
use tidegate_core::Micros;
use tidegate_overload::CallOutcome;

/// Runs a scenario.
pub(crate) fn run(scenario: &Scenario, guard: &mut dyn SimulatedGuard) -> SimulationResult {
    let mut simulation = SimulationRun {
        scenario,
        guard,
        rng: Rng::with_seed(scenario.seed),
        workers: WorkerPool::default(),
        events: EventQueue::default(),
        timeouts: VecDeque::new(),
        event_count: 0,
        calls: Vec::new(),
        result: SimulationResult::new(scenario),
    };
    simulation.schedule(Micros::ZERO, SimulationEvent::Request);
    while let Some((now, event)) = simulation.next_event() {
        if now >= scenario.length {
            break;
        }
        simulation.process(now, event);
    }
    simulation.result
}

struct SimulationRun<'a> {
    scenario: &'a Scenario,
    guard: &'a mut dyn SimulatedGuard,
    rng: Rng,
    workers: WorkerPool,
    events: EventQueue,
    /// The calls that time out, in order: the timeout is the same for all. Every call has one, and most calls end before it.
    timeouts: VecDeque<(EventOrder, usize)>,
    event_count: u64,
    calls: Vec<AdmittedAttempt>,
    result: SimulationResult,
}

/// The time of an event in microseconds, and then the number of events scheduled before it: one number, because most of the
/// time of a simulation is spent on comparisons.
type EventOrder = u128;

/// The earliest one is the greatest one, for the heap.
struct ScheduledEvent {
    order: EventOrder,
    event: SimulationEvent,
}

impl Ord for ScheduledEvent {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        other.order.cmp(&self.order)
    }
}

impl PartialOrd for ScheduledEvent {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ScheduledEvent {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for ScheduledEvent {}

/// Events in order. Millions of retries can be scheduled, so only those of the current slot of time are in the heap: it fits the
/// cache of the processor.
#[derive(Default)]
struct EventQueue {
    /// The slot of the events in `current`. No later slot is in it.
    slot: u64,
    current: BinaryHeap<ScheduledEvent>,
    /// The events of each later slot, unordered.
    later: BTreeMap<u64, Vec<ScheduledEvent>>,
}

impl EventQueue {
    fn push(&mut self, event: ScheduledEvent) {
        // The time in about milliseconds.
        let slot = (event.order >> (64 + 10)) as u64;
        if slot <= self.slot {
            self.current.push(event);
        } else {
            self.later.entry(slot).or_default().push(event);
        }
    }

    /// The order of the next event.
    fn next_order(&mut self) -> Option<EventOrder> {
        if self.current.is_empty()
            && let Some((slot, events)) = self.later.pop_first()
        {
            self.slot = slot;
            self.current = events.into();
        }
        self.current.peek().map(|next| next.order)
    }

    fn pop(&mut self) -> Option<ScheduledEvent> {
        self.next_order()?;
        self.current.pop()
    }
}

#[derive(Clone, Copy, Debug)]
enum SimulationEvent {
    /// A new request.
    Request,
    /// A retry, with the number of earlier attempts.
    Attempt(u32),
    /// The backend completes an attempt.
    Completed(usize, CallEnd),
    /// The client times out an attempt.
    Timeout(usize),
}

/// An admitted attempt.
#[derive(Clone, Copy, Debug)]
struct AdmittedAttempt {
    permit: SimulatedPermit,
    retries: u32,
    /// Whether the client still waits.
    is_awaited: bool,
}

impl SimulationRun<'_> {
    fn next_event(&mut self) -> Option<(Micros, SimulationEvent)> {
        let timeout = self.timeouts.front().copied();
        let (order, event) = match (self.events.next_order(), timeout) {
            (next, Some((order, call))) if next.is_none_or(|next| order < next) => {
                self.timeouts.pop_front();
                (order, SimulationEvent::Timeout(call))
            }
            _ => self.events.pop().map(|next| (next.order, next.event))?,
        };
        Some((Micros::new((order >> 64) as u64), event))
    }

    fn process(&mut self, now: Micros, event: SimulationEvent) {
        match event {
            SimulationEvent::Request => {
                // Poisson arrivals: the time to the next request is exponential.
                let gap = -self.scenario.arrival_gap(now) * (1.0 - self.rng.f64()).ln();
                self.schedule(now.saturating_add(Micros::new(gap as u64)), SimulationEvent::Request);
                self.count(now, |bin| bin.requests += 1);
                self.attempt(now, 0);
            }
            SimulationEvent::Attempt(retries) => self.attempt(now, retries),
            SimulationEvent::Completed(call, end) => self.complete(now, call, end),
            SimulationEvent::Timeout(call) => self.time_out(now, call),
        }
        if let (limit @ Some(_), Some(bin)) = (self.guard.limit(), self.result.bin_mut(now)) {
            bin.limit = limit;
        }
    }

    fn attempt(&mut self, now: Micros, retries: u32) {
        self.count(now, |bin| bin.attempts += 1);
        let random = self.rng.f64();
        let Some(permit) = self.guard.admit(now, random) else {
            self.count(now, |bin| bin.rejected += 1);
            return self.retry(now, retries);
        };
        let call = self.calls.len();
        self.calls.push(AdmittedAttempt { permit, retries, is_awaited: true });
        let timeout = self.order_at(now.saturating_add(self.scenario.clients.timeout));
        self.timeouts.push_back((timeout, call));
        let served = self.workers.enqueue(call, self.scenario.backend_at(now), &mut self.rng);
        self.schedule_completion(now, served);
    }

    fn complete(&mut self, now: Micros, call: usize, end: CallEnd) {
        let next = self.workers.finish_call(self.scenario.backend_at(now), &mut self.rng);
        self.schedule_completion(now, next);
        let AdmittedAttempt { permit, retries, is_awaited } = self.calls[call];
        self.calls[call].is_awaited = false;
        if self.guard.side() == GuardSide::Server || is_awaited {
            let outcome = if end == CallEnd::Success { CallOutcome::Success } else { CallOutcome::Failure };
            self.guard.finish(permit, now, outcome);
        }
        match end {
            _ if !is_awaited => {}
            CallEnd::Success => self.count(now, |bin| {
                bin.succeeded += 1;
                bin.latency = bin.latency.saturating_add(now.saturating_sub(permit.start));
            }),
            CallEnd::Error => self.fail(now, retries),
        }
    }

    fn time_out(&mut self, now: Micros, call: usize) {
        let AdmittedAttempt { permit, retries, is_awaited } = self.calls[call];
        if !is_awaited {
            return;
        }
        self.calls[call].is_awaited = false;
        if self.guard.side() == GuardSide::Client {
            self.guard.finish(permit, now, CallOutcome::Failure);
        }
        self.fail(now, retries);
    }

    fn fail(&mut self, now: Micros, retries: u32) {
        self.count(now, |bin| bin.failed += 1);
        self.retry(now, retries);
    }

    fn retry(&mut self, now: Micros, retries: u32) {
        let clients = self.scenario.clients;
        if retries < clients.retries {
            let wait = clients.backoff.get() << retries.min(16);
            // Jitter of 25 %, and at least a microsecond.
            let wait = (wait as f64 * (0.75 + self.rng.f64() / 2.0)) as u64 + 1;
            self.schedule(now.saturating_add(Micros::new(wait)), SimulationEvent::Attempt(retries + 1));
        }
    }

    fn schedule_completion(&mut self, now: Micros, scheduled: Option<ScheduledCall>) {
        if let Some(ScheduledCall { call, duration, end }) = scheduled {
            self.schedule(now.saturating_add(duration), SimulationEvent::Completed(call, end));
        }
    }

    fn schedule(&mut self, at: Micros, event: SimulationEvent) {
        let order = self.order_at(at);
        self.events.push(ScheduledEvent { order, event });
    }

    fn order_at(&mut self, at: Micros) -> EventOrder {
        self.event_count += 1;
        u128::from(at.get()) << 64 | u128::from(self.event_count)
    }

    fn count(&mut self, now: Micros, count: impl FnOnce(&mut crate::result::SimulationBin)) {
        if let Some(bin) = self.result.bin_mut(now) {
            count(bin);
        }
    }
}
