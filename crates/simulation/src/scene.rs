//! Clients and a backend, and what happens to them.

use crate::{backend::Backend, guard::Guard, play, story::Story};
use tidegate_core::{Micros, Share};

/// A scene: how many come, how they behave, what the backend can do, and what changes for a while.
///
/// Each scene has a quiet time, then the change, then time to recover.
#[derive(Clone, Debug, PartialEq)]
pub struct Scene {
    /// What it is called.
    pub name: &'static str,
    /// How many requests come in a second, as a multiple of what the backend can serve.
    pub demand: f64,
    /// Who makes them.
    pub clients: Clients,
    /// Who serves them.
    pub backend: Backend,
    /// The same during the change.
    pub changed_demand: f64,
    /// The backend during the change.
    pub changed: Backend,
    /// When the change begins.
    pub begins: Micros,
    /// When it ends.
    pub ends: Micros,
    /// When all ends.
    pub length: Micros,
    /// Where the random numbers start.
    pub seed: u64,
}

/// How clients behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clients {
    /// How long one waits for an answer.
    pub patience: Micros,
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
const BACKEND: Backend = Backend {
    workers: 32,
    service: Micros::from_millis(1),
    contention: 0.05,
    slowdown: 1.0,
    failing: Share::NONE,
};
const CLIENTS: Clients =
    Clients { patience: Micros::from_millis(100), retries: 2, backoff: Micros::from_millis(50) };

impl Scene {
    /// More come than the backend can serve.
    pub fn surge(surge: Surge) -> Self {
        let (name, changed_demand) = match surge {
            Surge::Slight => ("surge-1.4", 1.4),
            Surge::TenTimes => ("surge-10", 10.0),
        };
        Self { changed_demand, ..Self::quiet(name) }
    }

    /// The backend becomes five times as slow.
    pub fn slow_backend() -> Self {
        Self { changed: Backend { slowdown: 5.0, ..BACKEND }, ..Self::quiet("slow-backend") }
    }

    /// Nine in ten calls fail.
    pub fn failing_backend() -> Self {
        let failing = Share::ratio(9, 10);
        Self { changed: Backend { failing, ..BACKEND }, ..Self::quiet("failing-backend") }
    }

    /// The backend stalls for a moment, and clients without manners come back again and again.
    pub fn retry_storm() -> Self {
        let clients = Clients { retries: 5, backoff: Micros::ZERO, ..CLIENTS };
        let quiet = Self::quiet("retry-storm");
        let ends = quiet.begins.plus(Micros::from_millis(200));
        Self { changed: Backend { slowdown: 50.0, ..BACKEND }, clients, ends, ..quiet }
    }

    /// Nothing happens.
    pub fn healthy() -> Self {
        Self::quiet("healthy")
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
    pub fn seconds(self, seconds: u64) -> Self {
        let length = Micros::from_secs(seconds.clamp(1, 3_600));
        let scale = |at: Micros| Micros::new(at.get() * length.get() / self.length.get());
        Self { begins: scale(self.begins), ends: scale(self.ends), length, ..self }
    }

    /// Lets it happen with a guard before the backend.
    pub fn play(&self, guard: impl Guard) -> Story {
        play::play(self, guard)
    }

    /// The backend at a moment.
    pub(crate) fn backend_at(&self, now: Micros) -> &Backend {
        if self.is_changed(now) { &self.changed } else { &self.backend }
    }

    /// The mean time between two requests at a moment, in microseconds.
    pub(crate) fn gap_at(&self, now: Micros) -> f64 {
        let demand = if self.is_changed(now) { self.changed_demand } else { self.demand };
        1e6 / (self.backend.capacity() * demand)
    }

    fn is_changed(&self, now: Micros) -> bool {
        (self.begins..self.ends).contains(&now)
    }

    fn quiet(name: &'static str) -> Self {
        Self {
            name,
            demand: 0.7,
            clients: CLIENTS,
            backend: BACKEND,
            changed_demand: 0.7,
            changed: BACKEND,
            begins: Micros::from_secs(1),
            ends: Micros::from_secs(3),
            length: Micros::from_secs(5),
            seed: 7,
        }
    }
}
