//! The event loop of a simulation.

use crate::{
    backend::{CallEnd, ScheduledCall, WorkerPool},
    guard::{GuardSide, SimulatedGuard, SimulatedPermit},
    result::SimulationResult,
    scenario::Scenario,
};
use fastrand::Rng;
use std::{cmp::Reverse, collections::BinaryHeap};
use tidegate_core::Micros;
use tidegate_overload::CallOutcome;

/// Runs a scenario.
pub(crate) fn run(scenario: &Scenario, guard: impl SimulatedGuard) -> SimulationResult {
    let mut simulation = SimulationRun {
        scenario,
        guard,
        rng: Rng::with_seed(scenario.seed),
        workers: WorkerPool::default(),
        events: BinaryHeap::new(),
        event_count: 0,
        calls: Vec::new(),
        result: SimulationResult::new(scenario),
    };
    simulation.schedule(Micros::ZERO, SimulationEvent::Request);
    while let Some(Reverse((now, _, event))) = simulation.events.pop() {
        if now >= scenario.length {
            break;
        }
        simulation.process(now, event);
    }
    simulation.result
}

struct SimulationRun<'a, G> {
    scenario: &'a Scenario,
    guard: G,
    rng: Rng,
    workers: WorkerPool,
    /// By time, and then in the order of scheduling.
    events: BinaryHeap<Reverse<(Micros, u64, SimulationEvent)>>,
    event_count: u64,
    calls: Vec<AdmittedAttempt>,
    result: SimulationResult,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

impl<G: SimulatedGuard> SimulationRun<'_, G> {
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
        self.schedule(now.saturating_add(self.scenario.clients.timeout), SimulationEvent::Timeout(call));
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
        self.event_count += 1;
        self.events.push(Reverse((at, self.event_count, event)));
    }

    fn count(&mut self, now: Micros, count: impl FnOnce(&mut crate::result::SimulationBin)) {
        if let Some(bin) = self.result.bin_mut(now) {
            count(bin);
        }
    }
}
