//! A backend: workers that serve one call at a time, and a queue in front of them.

use fastrand::Rng;
use std::collections::VecDeque;
use tidegate_core::{Micros, Share};

/// What a backend is made of, and how it fares now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backend {
    /// Calls that it works on at the same time.
    pub workers: u32,
    /// How long a call takes on average once it is worked on; single calls vary around it.
    pub service: Micros,
    /// How much slower everything becomes for each full set of workers that waits in the queue: memory, locks and
    /// collectors do not scale. Zero for a backend that only queues.
    pub contention: f64,
    /// How many times as long calls take at the moment.
    pub slowdown: f64,
    /// How many of the calls fail at the moment. They fail early, in a tenth of the time.
    pub failing: Share,
}

impl Backend {
    /// What it can serve in a second at best, with nothing wrong.
    pub fn capacity(&self) -> f64 {
        f64::from(self.workers) * 1e6 / self.service.get() as f64
    }
}

/// How the work on a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ending {
    Answer,
    Error,
}

/// Calls at the backend.
#[derive(Debug, Default)]
pub(crate) struct Floor {
    busy: u32,
    queue: VecDeque<usize>,
}

impl Floor {
    /// A call arrives; says when it will end if a worker is free, else it waits.
    pub(crate) fn arrive(&mut self, call: usize, backend: &Backend, rng: &mut Rng) -> Option<Served> {
        if self.busy >= backend.workers {
            self.queue.push_back(call);
            return None;
        }
        self.busy += 1;
        Some(self.serve(call, backend, rng))
    }

    /// A call has ended; says which one is worked on next.
    pub(crate) fn leave(&mut self, backend: &Backend, rng: &mut Rng) -> Option<Served> {
        let next = self.queue.pop_front();
        match next {
            Some(call) => Some(self.serve(call, backend, rng)),
            None => {
                self.busy -= 1;
                None
            }
        }
    }

    fn serve(&self, call: usize, backend: &Backend, rng: &mut Rng) -> Served {
        let fails = rng.u32(..1_000_000) < backend.failing.millionths();
        let sets_waiting = self.queue.len() as f64 / f64::from(backend.workers);
        // From a half to one and a half: calls differ, but none is endless.
        let mut time = backend.service.get() as f64 * (0.5 + rng.f64());
        time *= backend.slowdown * (1.0 + backend.contention * sets_waiting);
        let (ending, share) = if fails { (Ending::Error, 0.1) } else { (Ending::Answer, 1.0) };
        Served { call, takes: Micros::new((time * share) as u64 + 1), ending }
    }
}

/// A call that is worked on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    pub(crate) call: usize,
    pub(crate) takes: Micros,
    pub(crate) ending: Ending,
}
