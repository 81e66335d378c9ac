//! What stands between clients and the backend.

use std::fmt;
use tidegate_core::Micros;
use tidegate_overload::{
    BreakerSettings, CallOutcome, ClientThrottleSettings,
    adaptive::{CallSample, Controller},
    breaker::{BreakerMachine, Generation},
    error_rate::ClientThrottleState,
};

/// Decides which attempts reach the backend, and hears how they ended.
pub trait SimulatedGuard: fmt::Debug {
    /// Lets an attempt through, or not. `roll` is random, from 0 to just below 1.
    fn admit(&mut self, now: Micros, roll: f64) -> Option<SimulatedPermit>;

    /// An attempt that was let through has ended.
    fn finish(&mut self, pass: SimulatedPermit, now: Micros, report: CallOutcome);

    /// On which side it stands.
    fn side(&self) -> GuardSide {
        GuardSide::Server
    }

    /// How many may be in flight, if that is what it limits.
    fn limit(&self) -> Option<u32> {
        None
    }
}

/// Where a guard stands, and so when it hears of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardSide {
    /// Before the backend: an attempt ends when the backend is done with it, whether or not anyone still waits.
    Server,
    /// In the client: an attempt that takes too long has failed, whatever the backend does.
    Client,
}

/// What a guard knows of an attempt that it let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimulatedPermit {
    /// When.
    pub start: Micros,
    /// How many were in flight then, itself included.
    pub in_flight: u32,
    /// A mark of the guard's own.
    pub generation: u64,
}

/// Lets everything through.
#[derive(Clone, Copy, Debug)]
pub struct NoGuard;

impl SimulatedGuard for NoGuard {
    fn admit(&mut self, now: Micros, _roll: f64) -> Option<SimulatedPermit> {
        Some(SimulatedPermit { start: now, in_flight: 0, generation: 0 })
    }

    fn finish(&mut self, _pass: SimulatedPermit, _now: Micros, _report: CallOutcome) {}
}

/// So many in flight, always.
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
    fn admit(&mut self, now: Micros, _roll: f64) -> Option<SimulatedPermit> {
        (self.in_flight < self.limit).then(|| {
            self.in_flight += 1;
            SimulatedPermit { start: now, in_flight: self.in_flight, generation: 0 }
        })
    }

    fn finish(&mut self, _pass: SimulatedPermit, _now: Micros, _report: CallOutcome) {
        self.in_flight -= 1;
    }

    fn limit(&self) -> Option<u32> {
        Some(self.limit)
    }
}

/// As many in flight as a controller says. Errors of the backend are faults, not overload: the controller is not told.
#[derive(Debug)]
pub struct AdaptiveGuard {
    controller: Box<dyn Controller>,
    in_flight: u32,
}

impl AdaptiveGuard {
    /// At most as many as `controller` says.
    pub fn new(controller: impl Controller + 'static) -> Self {
        Self { controller: Box::new(controller), in_flight: 0 }
    }
}

impl SimulatedGuard for AdaptiveGuard {
    fn admit(&mut self, now: Micros, _roll: f64) -> Option<SimulatedPermit> {
        (self.in_flight < self.controller.limit()).then(|| {
            self.in_flight += 1;
            SimulatedPermit { start: now, in_flight: self.in_flight, generation: 0 }
        })
    }

    fn finish(&mut self, pass: SimulatedPermit, now: Micros, report: CallOutcome) {
        self.in_flight -= 1;
        let report = if report == CallOutcome::Failure { CallOutcome::Ignored } else { report };
        self.controller.record(CallSample {
            start: pass.start,
            end: now,
            in_flight: pass.in_flight,
            outcome: report,
        });
    }

    fn limit(&self) -> Option<u32> {
        Some(self.controller.limit())
    }
}

/// A circuit breaker in the client, which counts what takes too long as failed. Probes are spread by the rolls of the
/// attempts.
#[derive(Debug)]
pub struct BreakerGuard {
    breaker: BreakerMachine,
    /// The latest roll: what it is used for needs no better one.
    roll: f64,
}

impl BreakerGuard {
    /// A closed breaker.
    pub fn new(settings: BreakerSettings) -> Self {
        Self { breaker: BreakerMachine::new(settings), roll: 0.0 }
    }
}

impl SimulatedGuard for BreakerGuard {
    fn admit(&mut self, now: Micros, roll: f64) -> Option<SimulatedPermit> {
        self.roll = roll;
        let generation = self.breaker.try_acquire(now, roll).ok()?;
        Some(SimulatedPermit { start: now, in_flight: 0, generation: generation.0 })
    }

    fn finish(&mut self, pass: SimulatedPermit, now: Micros, report: CallOutcome) {
        self.breaker.record(Generation(pass.generation), report, now.since(pass.start), now, self.roll);
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
    /// One that has seen nothing yet.
    pub fn new(settings: ClientThrottleSettings) -> Self {
        Self { throttle: ClientThrottleState::new(settings) }
    }
}

impl SimulatedGuard for ThrottleGuard {
    fn admit(&mut self, now: Micros, roll: f64) -> Option<SimulatedPermit> {
        self.throttle.try_acquire(now, roll).ok()?;
        Some(SimulatedPermit { start: now, in_flight: 0, generation: 0 })
    }

    fn finish(&mut self, pass: SimulatedPermit, now: Micros, report: CallOutcome) {
        self.throttle.record(pass.start, report, now);
    }

    fn side(&self) -> GuardSide {
        GuardSide::Client
    }
}
