//! A backend: workers that serve one call at a time, and a queue in front of them.

use fastrand::Rng;
use std::collections::VecDeque;
use tidegate_core::{Micros, Percent};

/// What a backend is made of, and how it fares now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimulatedBackend {
    /// Calls that it works on at the same time.
    pub workers: u32,
    /// How long a call takes on average once it is worked on; single calls vary around it.
    pub service_time: Micros,
    /// How much slower everything becomes for each full set of workers that waits in the queue: memory, locks and
    /// collectors do not scale. Zero for a backend that only queues.
    pub contention: f64,
    /// How many times as long calls take at the moment.
    pub slowdown: f64,
    /// How many of the calls fail at the moment. They fail early, in a tenth of the time.
    pub failure_rate: Percent,
}

impl SimulatedBackend {
    /// What it can serve in a second at best, with nothing wrong.
    pub fn capacity(&self) -> f64 {
        f64::from(self.workers) * 1e6 / self.service_time.get() as f64
    }
}

/// How the work on a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CallEnd {
    Success,
    Error,
}

/// Calls at the backend.
#[derive(Debug, Default)]
pub(crate) struct WorkerPool {
    busy: u32,
    queue: VecDeque<usize>,
}

impl WorkerPool {
    /// A call arrives; says when it will end if a worker is free, else it waits.
    pub(crate) fn enqueue(
        &mut self,
        call: usize,
        backend: &SimulatedBackend,
        rng: &mut Rng,
    ) -> Option<ScheduledCall> {
        if self.busy >= backend.workers {
            self.queue.push_back(call);
            return None;
        }
        self.busy += 1;
        Some(self.start_call(call, backend, rng))
    }

    /// A call has ended; says which one is worked on next.
    pub(crate) fn finish_call(&mut self, backend: &SimulatedBackend, rng: &mut Rng) -> Option<ScheduledCall> {
        let next = self.queue.pop_front();
        match next {
            Some(call) => Some(self.start_call(call, backend, rng)),
            None => {
                self.busy -= 1;
                None
            }
        }
    }

    fn start_call(&self, call: usize, backend: &SimulatedBackend, rng: &mut Rng) -> ScheduledCall {
        let fails = rng.u32(..1_000_000) < backend.failure_rate.millionths();
        let sets_waiting = self.queue.len() as f64 / f64::from(backend.workers);
        // From a half to one and a half: calls differ, but none is endless.
        let mut time = backend.service_time.get() as f64 * (0.5 + rng.f64());
        time *= backend.slowdown * (1.0 + backend.contention * sets_waiting);
        let (ending, share) = if fails { (CallEnd::Error, 0.1) } else { (CallEnd::Success, 1.0) };
        ScheduledCall { call, duration: Micros::new((time * share) as u64 + 1), end: ending }
    }
}

/// A call that is worked on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScheduledCall {
    pub(crate) call: usize,
    pub(crate) duration: Micros,
    pub(crate) end: CallEnd,
}
