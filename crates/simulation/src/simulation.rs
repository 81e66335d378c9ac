//! One event after the other.

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

/// Lets a scene happen.
pub(crate) fn run(scene: &Scenario, guard: impl SimulatedGuard) -> SimulationResult {
    let mut play = SimulationRun {
        scenario: scene,
        guard,
        rng: Rng::with_seed(scene.seed),
        workers: WorkerPool::default(),
        events: BinaryHeap::new(),
        event_count: 0,
        calls: Vec::new(),
        result: SimulationResult::new(scene),
    };
    play.schedule(Micros::ZERO, SimulationEvent::Request);
    while let Some(Reverse((now, _, event))) = play.events.pop() {
        if now >= scene.length {
            break;
        }
        play.process(now, event);
    }
    play.result
}

struct SimulationRun<'a, G> {
    scenario: &'a Scenario,
    guard: G,
    rng: Rng,
    workers: WorkerPool,
    /// By time; those of one moment in the order in which they were scheduled.
    events: BinaryHeap<Reverse<(Micros, u64, SimulationEvent)>>,
    event_count: u64,
    calls: Vec<AdmittedAttempt>,
    result: SimulationResult,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SimulationEvent {
    /// Somebody comes for the first time.
    Request,
    /// Somebody tries; so often before.
    Attempt(u32),
    /// The backend is done with an attempt.
    Completed(usize, CallEnd),
    /// The client stops to wait for an attempt.
    Timeout(usize),
}

/// An attempt that was let through.
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
                // Poisson: the time to the next is exponential.
                let gap = -self.scenario.arrival_gap(now) * (1.0 - self.rng.f64()).ln();
                self.schedule(now.plus(Micros::new(gap as u64)), SimulationEvent::Request);
                self.count(now, |bin| bin.requests += 1);
                self.attempt(now, 0);
            }
            SimulationEvent::Attempt(tries) => self.attempt(now, tries),
            SimulationEvent::Completed(call, ending) => self.complete(now, call, ending),
            SimulationEvent::Timeout(call) => self.time_out(now, call),
        }
        if let (limit @ Some(_), Some(bin)) = (self.guard.limit(), self.result.bin_mut(now)) {
            bin.limit = limit;
        }
    }

    fn attempt(&mut self, now: Micros, tries: u32) {
        self.count(now, |bin| bin.attempts += 1);
        let roll = self.rng.f64();
        let Some(pass) = self.guard.admit(now, roll) else {
            self.count(now, |bin| bin.rejected += 1);
            return self.retry(now, tries);
        };
        let call = self.calls.len();
        self.calls.push(AdmittedAttempt { permit: pass, retries: tries, is_awaited: true });
        self.schedule(now.plus(self.scenario.clients.timeout), SimulationEvent::Timeout(call));
        let served = self.workers.enqueue(call, self.scenario.backend_at(now), &mut self.rng);
        self.schedule_completion(now, served);
    }

    fn complete(&mut self, now: Micros, call: usize, ending: CallEnd) {
        let next = self.workers.finish_call(self.scenario.backend_at(now), &mut self.rng);
        self.schedule_completion(now, next);
        let AdmittedAttempt { permit: pass, retries: tries, is_awaited } = self.calls[call];
        self.calls[call].is_awaited = false;
        if self.guard.side() == GuardSide::Server || is_awaited {
            let report = if ending == CallEnd::Success { CallOutcome::Success } else { CallOutcome::Failure };
            self.guard.finish(pass, now, report);
        }
        match ending {
            _ if !is_awaited => {}
            CallEnd::Success => self.count(now, |bin| {
                bin.succeeded += 1;
                bin.latency = bin.latency.plus(now.since(pass.start));
            }),
            CallEnd::Error => self.fail(now, tries),
        }
    }

    fn time_out(&mut self, now: Micros, call: usize) {
        let AdmittedAttempt { permit: pass, retries: tries, is_awaited } = self.calls[call];
        if !is_awaited {
            return;
        }
        self.calls[call].is_awaited = false;
        if self.guard.side() == GuardSide::Client {
            self.guard.finish(pass, now, CallOutcome::Failure);
        }
        self.fail(now, tries);
    }

    fn fail(&mut self, now: Micros, tries: u32) {
        self.count(now, |bin| bin.failed += 1);
        self.retry(now, tries);
    }

    fn retry(&mut self, now: Micros, tries: u32) {
        let clients = self.scenario.clients;
        if tries < clients.retries {
            let wait = clients.backoff.get() << tries.min(16);
            // Spread by a half, and never in the same moment.
            let wait = (wait as f64 * (0.75 + self.rng.f64() / 2.0)) as u64 + 1;
            self.schedule(now.plus(Micros::new(wait)), SimulationEvent::Attempt(tries + 1));
        }
    }

    fn schedule_completion(&mut self, now: Micros, scheduled: Option<ScheduledCall>) {
        if let Some(ScheduledCall { call, duration: takes, end: ending }) = scheduled {
            self.schedule(now.plus(takes), SimulationEvent::Completed(call, ending));
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
