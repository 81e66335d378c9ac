//! A simulated backend: workers that serve one call at a time, and a queue.

use fastrand::Rng;
use std::collections::VecDeque;
use tidegate_core::{Micros, Percent};

/// The properties of a backend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimulatedBackend {
    /// The number of calls that it serves at the same time.
    pub workers: u32,
    /// The mean service time of a call; single calls vary around it.
    pub service_time: Micros,
    /// How much slower all calls become for each full set of workers in the queue, because memory, locks and
    /// garbage collectors do not scale. Zero for a backend that only queues.
    pub contention: f64,
    /// The current factor of the service time.
    pub slowdown: f64,
    /// The current failure rate. A call fails after a tenth of its service time.
    pub failure_rate: Percent,
}

impl SimulatedBackend {
    /// The maximum number of calls per second of a healthy backend.
    pub fn capacity(&self) -> f64 {
        f64::from(self.workers) * 1e6 / self.service_time.get() as f64
    }
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallEnd {
    Success,
    Error,
}

/// The calls at the backend.
#[derive(Debug, Default)]
pub(crate) struct WorkerPool {
    busy: u32,
    queue: VecDeque<usize>,
}

impl WorkerPool {
    /// Adds a call. Returns its end if a worker is free, else queues it.
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

    /// Ends a call. Returns the end of the next one, if any.
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
        // From 0.5 to 1.5: calls differ, but are bounded.
        let mut time = backend.service_time.get() as f64 * (0.5 + rng.f64());
        time *= backend.slowdown * (1.0 + backend.contention * sets_waiting);
        let (end, share) = if fails { (CallEnd::Error, 0.1) } else { (CallEnd::Success, 1.0) };
        ScheduledCall { call, duration: Micros::new((time * share) as u64 + 1), end }
    }
}

/// A call in service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScheduledCall {
    pub(crate) call: usize,
    pub(crate) duration: Micros,
    pub(crate) end: CallEnd,
}
