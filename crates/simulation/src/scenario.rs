//! Scenarios: clients, a backend, and a temporary change.

use crate::{backend::SimulatedBackend, guard::SimulatedGuard, result::SimulationResult, simulation};
use tidegate_core::{Micros, Percent};

/// A scenario: the load, the behavior of the clients, the backend, and a change for a while.
///
/// Each scenario has a normal phase, then the change, then a phase to recover.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The name.
    pub name: &'static str,
    /// The request rate, as a multiple of the capacity of the backend.
    pub demand: f64,
    /// The clients.
    pub clients: Clients,
    /// The backend.
    pub backend: SimulatedBackend,
    /// The request rate during the change.
    pub changed_demand: f64,
    /// The backend during the change.
    pub changed_backend: SimulatedBackend,
    /// The start of the change.
    pub change_start: Micros,
    /// The end of the change.
    pub change_end: Micros,
    /// The end of the scenario.
    pub length: Micros,
    /// The seed of the random numbers.
    pub seed: u64,
}

/// The behavior of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clients {
    /// The timeout of an attempt.
    pub timeout: Micros,
    /// The maximum number of retries after a rejection, an error or a timeout.
    pub retries: u32,
    /// The wait before the first retry, doubled for each further one; zero to retry immediately.
    pub backoff: Micros,
}

/// The size of a surge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surge {
    /// From 0.7 to 1.4 times the capacity of the backend.
    Slight,
    /// To ten times the capacity.
    TenTimes,
}

/// A backend of 32 workers with a service time of a millisecond: 32,000 calls per second. Each 32 calls in its
/// queue slow it down by 5 %.
const DEFAULT_BACKEND: SimulatedBackend = SimulatedBackend {
    workers: 32,
    service_time: Micros::from_millis(1),
    contention: 0.05,
    slowdown: 1.0,
    failure_rate: Percent::ZERO,
};
const DEFAULT_CLIENTS: Clients =
    Clients { timeout: Micros::from_millis(100), retries: 2, backoff: Micros::from_millis(50) };

impl Scenario {
    /// The load exceeds the capacity of the backend.
    pub fn surge(surge: Surge) -> Self {
        let (name, changed_demand) = match surge {
            Surge::Slight => ("surge-1.4", 1.4),
            Surge::TenTimes => ("surge-10", 10.0),
        };
        Self { changed_demand, ..Self::baseline(name) }
    }

    /// The backend becomes five times slower.
    pub fn slow_backend() -> Self {
        Self {
            changed_backend: SimulatedBackend { slowdown: 5.0, ..DEFAULT_BACKEND },
            ..Self::baseline("slow-backend")
        }
    }

    /// 90 % of the calls fail.
    pub fn failing_backend() -> Self {
        let failing = Percent::from_ratio(9, 10);
        Self {
            changed_backend: SimulatedBackend { failure_rate: failing, ..DEFAULT_BACKEND },
            ..Self::baseline("failing-backend")
        }
    }

    /// The backend stalls for a short time, and clients retry immediately and repeatedly.
    pub fn retry_storm() -> Self {
        let clients = Clients { retries: 5, backoff: Micros::ZERO, ..DEFAULT_CLIENTS };
        let baseline = Self::baseline("retry-storm");
        let change_end = baseline.change_start.saturating_add(Micros::from_millis(200));
        Self {
            changed_backend: SimulatedBackend { slowdown: 50.0, ..DEFAULT_BACKEND },
            clients,
            change_end,
            ..baseline
        }
    }

    /// No change.
    pub fn healthy() -> Self {
        Self::baseline("healthy")
    }

    /// All scenarios.
    pub fn all() -> Vec<Self> {
        vec![
            Self::surge(Surge::Slight),
            Self::surge(Surge::TenTimes),
            Self::slow_backend(),
            Self::failing_backend(),
            Self::retry_storm(),
            Self::healthy(),
        ]
    }

    /// Returns the scenario scaled to this number of seconds.
    #[must_use]
    pub fn with_seconds(self, seconds: u64) -> Self {
        let length = Micros::from_secs(seconds.clamp(1, 3_600));
        let scale = |at: Micros| Micros::new(at.get() * length.get() / self.length.get());
        Self { change_start: scale(self.change_start), change_end: scale(self.change_end), length, ..self }
    }

    /// Runs the scenario with a guard in front of the backend.
    pub fn run(&self, mut guard: impl SimulatedGuard) -> SimulationResult {
        simulation::run(self, &mut guard)
    }

    /// The backend at a time.
    pub(crate) fn backend_at(&self, now: Micros) -> &SimulatedBackend {
        if self.is_changed(now) { &self.changed_backend } else { &self.backend }
    }

    /// The mean time between two requests at a time, in microseconds.
    pub(crate) fn arrival_gap(&self, now: Micros) -> f64 {
        let demand = if self.is_changed(now) { self.changed_demand } else { self.demand };
        1e6 / (self.backend.capacity() * demand)
    }

    fn is_changed(&self, now: Micros) -> bool {
        (self.change_start..self.change_end).contains(&now)
    }

    fn baseline(name: &'static str) -> Self {
        Self {
            name,
            demand: 0.7,
            clients: DEFAULT_CLIENTS,
            backend: DEFAULT_BACKEND,
            changed_demand: 0.7,
            changed_backend: DEFAULT_BACKEND,
            change_start: Micros::from_secs(1),
            change_end: Micros::from_secs(3),
            length: Micros::from_secs(5),
            seed: 7,
        }
    }
}
