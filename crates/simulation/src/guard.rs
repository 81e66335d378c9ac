//! The guards between clients and the backend.

use std::fmt;
use tidegate_core::Micros;
use tidegate_overload::{
    BreakerSettings, CallOutcome, ClientThrottleSettings,
    adaptive::{CallSample, Controller},
    breaker::{BreakerMachine, Generation},
    error_rate::ClientThrottleState,
};

/// Decides which attempts reach the backend, and records their outcomes.
pub trait SimulatedGuard: fmt::Debug {
    /// Admits or rejects an attempt. `random` is a random number from 0 to just below 1.
    fn admit(&mut self, now: Micros, random: f64) -> Option<SimulatedPermit>;

    /// Records the outcome of an admitted attempt.
    fn finish(&mut self, permit: SimulatedPermit, now: Micros, outcome: CallOutcome);

    /// The side of the guard.
    fn side(&self) -> GuardSide {
        GuardSide::Server
    }

    /// The concurrency limit, if it has one.
    fn limit(&self) -> Option<u32> {
        None
    }
}

/// The location of a guard, which determines when it records an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardSide {
    /// In front of the backend: an attempt ends when the backend completes it, even if the client timed out.
    Server,
    /// In the client: an attempt fails when it times out, even if the backend completes it later.
    Client,
}

/// The state of an admitted attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimulatedPermit {
    /// The time of the admission.
    pub start: Micros,
    /// The number of attempts in flight at that time, including this one.
    pub in_flight: u32,
    /// A value of the guard.
    pub generation: u64,
}

/// Admits everything.
#[derive(Clone, Copy, Debug)]
pub struct NoGuard;

impl SimulatedGuard for NoGuard {
    fn admit(&mut self, now: Micros, _random: f64) -> Option<SimulatedPermit> {
        Some(SimulatedPermit { start: now, in_flight: 0, generation: 0 })
    }

    fn finish(&mut self, _permit: SimulatedPermit, _now: Micros, _outcome: CallOutcome) {}
}

/// A fixed concurrency limit.
#[derive(Clone, Copy, Debug)]
pub struct FixedGuard {
    limit: u32,
    in_flight: u32,
}

impl FixedGuard {
    /// At most `limit` in flight.
    pub fn new(limit: u32) -> Self {
        Self { limit, in_flight: 0 }
    }
}

impl SimulatedGuard for FixedGuard {
    fn admit(&mut self, now: Micros, _random: f64) -> Option<SimulatedPermit> {
        (self.in_flight < self.limit).then(|| {
            self.in_flight += 1;
            SimulatedPermit { start: now, in_flight: self.in_flight, generation: 0 }
        })
    }

    fn finish(&mut self, _permit: SimulatedPermit, _now: Micros, _outcome: CallOutcome) {
        self.in_flight -= 1;
    }

    fn limit(&self) -> Option<u32> {
        Some(self.limit)
    }
}

/// A concurrency limit that a controller adapts. Errors of the backend are not overload, so the controller ignores
/// them.
#[derive(Debug)]
pub struct AdaptiveGuard {
    controller: Box<dyn Controller>,
    in_flight: u32,
}

impl AdaptiveGuard {
    /// A guard with the limit of `controller`.
    pub fn new(controller: impl Controller + 'static) -> Self {
        Self { controller: Box::new(controller), in_flight: 0 }
    }
}

impl SimulatedGuard for AdaptiveGuard {
    fn admit(&mut self, now: Micros, _random: f64) -> Option<SimulatedPermit> {
        (self.in_flight < self.controller.limit()).then(|| {
            self.in_flight += 1;
            SimulatedPermit { start: now, in_flight: self.in_flight, generation: 0 }
        })
    }

    fn finish(&mut self, permit: SimulatedPermit, now: Micros, outcome: CallOutcome) {
        self.in_flight -= 1;
        let outcome = if outcome == CallOutcome::Failure { CallOutcome::Ignored } else { outcome };
        self.controller.record(CallSample {
            start: permit.start,
            end: now,
            in_flight: permit.in_flight,
            outcome,
        });
    }

    fn limit(&self) -> Option<u32> {
        Some(self.controller.limit())
    }
}

/// A circuit breaker in the client, which counts a timeout as a failure. The random numbers of the attempts are its random
/// numbers.
#[derive(Debug)]
pub struct BreakerGuard {
    breaker: BreakerMachine,
    /// The latest random number, also used to record outcomes.
    random: f64,
}

impl BreakerGuard {
    /// A closed breaker.
    pub fn new(settings: BreakerSettings) -> Self {
        Self { breaker: BreakerMachine::new(settings), random: 0.0 }
    }
}

impl SimulatedGuard for BreakerGuard {
    fn admit(&mut self, now: Micros, random: f64) -> Option<SimulatedPermit> {
        self.random = random;
        let generation = self.breaker.try_acquire(now, random).ok()?;
        Some(SimulatedPermit { start: now, in_flight: 0, generation: generation.0 })
    }

    fn finish(&mut self, permit: SimulatedPermit, now: Micros, outcome: CallOutcome) {
        self.breaker.record(
            Generation(permit.generation),
            outcome,
            now.saturating_sub(permit.start),
            now,
            self.random,
        );
    }

    fn side(&self) -> GuardSide {
        GuardSide::Client
    }
}

/// The client-side throttle of Google's SRE book.
#[derive(Debug)]
pub struct ThrottleGuard {
    throttle: ClientThrottleState,
}

impl ThrottleGuard {
    /// A throttle without history.
    pub fn new(settings: ClientThrottleSettings) -> Self {
        Self { throttle: ClientThrottleState::new(settings) }
    }
}

impl SimulatedGuard for ThrottleGuard {
    fn admit(&mut self, now: Micros, random: f64) -> Option<SimulatedPermit> {
        self.throttle.try_acquire(now, random).ok()?;
        Some(SimulatedPermit { start: now, in_flight: 0, generation: 0 })
    }

    fn finish(&mut self, permit: SimulatedPermit, now: Micros, outcome: CallOutcome) {
        self.throttle.record(permit.start, outcome, now);
    }

    fn side(&self) -> GuardSide {
        GuardSide::Client
    }
}
