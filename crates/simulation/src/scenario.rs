//! Clients and a backend, and what happens to them.

use crate::{backend::SimulatedBackend, guard::SimulatedGuard, result::SimulationResult, simulation};
use tidegate_core::{Micros, Percent};

/// A scene: how many come, how they behave, what the backend can do, and what changes for a while.
///
/// Each scene has a quiet time, then the change, then time to recover.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// What it is called.
    pub name: &'static str,
    /// How many requests come in a second, as a multiple of what the backend can serve.
    pub demand: f64,
    /// Who makes them.
    pub clients: Clients,
    /// Who serves them.
    pub backend: SimulatedBackend,
    /// The same during the change.
    pub changed_demand: f64,
    /// The backend during the change.
    pub changed_backend: SimulatedBackend,
    /// When the change begins.
    pub change_start: Micros,
    /// When it ends.
    pub change_end: Micros,
    /// When all ends.
    pub length: Micros,
    /// Where the random numbers start.
    pub seed: u64,
}

/// How clients behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clients {
    /// How long one waits for an answer.
    pub timeout: Micros,
    /// How often it tries again after a refusal, an error or no answer in time.
    pub retries: u32,
    /// How long it waits before it tries again, twice as long each time; zero for clients without manners.
    pub backoff: Micros,
}

/// How large a surge is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surge {
    /// From 0.7 to 1.4 times what the backend can serve.
    Slight,
    /// To ten times what it can serve.
    TenTimes,
}

/// A service of 32 workers and a millisecond a call: 32,000 calls in a second. Each 32 in its queue slow it down by a
/// twentieth.
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
    /// More come than the backend can serve.
    pub fn surge(surge: Surge) -> Self {
        let (name, changed_demand) = match surge {
            Surge::Slight => ("surge-1.4", 1.4),
            Surge::TenTimes => ("surge-10", 10.0),
        };
        Self { changed_demand, ..Self::baseline(name) }
    }

    /// The backend becomes five times as slow.
    pub fn slow_backend() -> Self {
        Self {
            changed_backend: SimulatedBackend { slowdown: 5.0, ..DEFAULT_BACKEND },
            ..Self::baseline("slow-backend")
        }
    }

    /// Nine in ten calls fail.
    pub fn failing_backend() -> Self {
        let failing = Percent::from_ratio(9, 10);
        Self {
            changed_backend: SimulatedBackend { failure_rate: failing, ..DEFAULT_BACKEND },
            ..Self::baseline("failing-backend")
        }
    }

    /// The backend stalls for a moment, and clients without manners come back again and again.
    pub fn retry_storm() -> Self {
        let clients = Clients { retries: 5, backoff: Micros::ZERO, ..DEFAULT_CLIENTS };
        let quiet = Self::baseline("retry-storm");
        let ends = quiet.change_start.plus(Micros::from_millis(200));
        Self {
            changed_backend: SimulatedBackend { slowdown: 50.0, ..DEFAULT_BACKEND },
            clients,
            change_end: ends,
            ..quiet
        }
    }

    /// Nothing happens.
    pub fn healthy() -> Self {
        Self::baseline("healthy")
    }

    /// All of them.
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

    /// The same, stretched or shortened to so many seconds.
    #[must_use]
    pub fn with_seconds(self, seconds: u64) -> Self {
        let length = Micros::from_secs(seconds.clamp(1, 3_600));
        let scale = |at: Micros| Micros::new(at.get() * length.get() / self.length.get());
        Self { change_start: scale(self.change_start), change_end: scale(self.change_end), length, ..self }
    }

    /// Lets it happen with a guard before the backend.
    pub fn run(&self, guard: impl SimulatedGuard) -> SimulationResult {
        simulation::run(self, guard)
    }

    /// The backend at a moment.
    pub(crate) fn backend_at(&self, now: Micros) -> &SimulatedBackend {
        if self.is_changed(now) { &self.changed_backend } else { &self.backend }
    }

    /// The mean time between two requests at a moment, in microseconds.
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
