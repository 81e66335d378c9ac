//! What came of a scene, over time.

use crate::scenario::Scenario;
use tidegate_core::Micros;

/// What happened, in equal parts of time.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulationResult {
    /// The scene.
    pub scenario: Scenario,
    /// How long a bin is.
    pub bin_length: Micros,
    /// The bins, from the start to the end.
    pub bins: Vec<SimulationBin>,
}

/// What happened in one part of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SimulationBin {
    /// Requests that came: those that are tried again count once.
    pub requests: u32,
    /// Attempts at them.
    pub attempts: u32,
    /// Attempts that the guard refused.
    pub rejected: u32,
    /// Requests that were answered in time.
    pub succeeded: u32,
    /// Attempts that failed or were answered too late.
    pub failed: u32,
    /// The latencies of the good ones, added up.
    pub latency: Micros,
    /// The guard's limit at the end, if it has one.
    pub limit: Option<u32>,
}

/// Parts of a scene.
pub(crate) const BIN_COUNT: u64 = 5_000;

impl SimulationResult {
    pub(crate) fn new(scene: &Scenario) -> Self {
        let bin = Micros::new((scene.length.get() / BIN_COUNT).max(1));
        let bins = vec![SimulationBin::default(); scene.length.get().div_ceil(bin.get()) as usize];
        Self { scenario: scene.clone(), bin_length: bin, bins }
    }

    pub(crate) fn bin_mut(&mut self, now: Micros) -> Option<&mut SimulationBin> {
        self.bins.get_mut((now.get() / self.bin_length.get()) as usize)
    }

    /// Requests answered in time while the change lasted, as a share of what the backend can serve at best.
    pub fn goodput_during_change(&self) -> f64 {
        self.goodput(self.scenario.change_start, self.scenario.change_end)
    }

    /// Requests answered in time after the change, as a share of those that came.
    pub fn recovery_rate(&self) -> f64 {
        let bins = self.bins_between(self.scenario.change_end, self.scenario.length);
        let (good, all) =
            bins.iter().fold((0, 0), |(good, all), bin| (good + bin.succeeded, all + bin.requests));
        f64::from(good) / f64::from(all.max(1))
    }

    /// Requests answered in time from `start` to `end`, as a share of what the backend can serve at best.
    pub fn goodput(&self, start: Micros, end: Micros) -> f64 {
        let bins = self.bins_between(start, end);
        let good: u32 = bins.iter().map(|bin| bin.succeeded).sum();
        let seconds = bins.len() as f64 * self.bin_length.get() as f64 / 1e6;
        f64::from(good) / seconds.max(1e-6) / self.scenario.backend.capacity()
    }

    /// The mean latency of the requests that were answered in time from `start` to `end`.
    pub fn latency(&self, start: Micros, end: Micros) -> Micros {
        let bins = self.bins_between(start, end);
        let good: u64 = bins.iter().map(|bin| u64::from(bin.succeeded)).sum();
        let all: u64 = bins.iter().map(|bin| bin.latency.get()).sum();
        Micros::new(all / good.max(1))
    }

    /// How long after the change began things were settled: from then until its end, goodput in every stretch of twenty
    /// bins is at least four fifths of what it is in the second half, and latency at most one and a half times. `None` if
    /// that is not reached, or is next to nothing.
    pub fn settling_time(&self) -> Option<Micros> {
        let bins = self.bins_between(self.scenario.change_start, self.scenario.change_end);
        let (steady, usual) = mean_goodput_and_latency(bins.get(bins.len() / 2..)?);
        let is_off = |stretch: &[SimulationBin]| {
            let (good, latency) = mean_goodput_and_latency(stretch);
            good < 0.8 * steady || latency > 1.5 * usual
        };
        let settled = bins.windows(SETTLING_WINDOW_BINS).rposition(is_off).map_or(0, |last| last + 1);
        let capacity = self.scenario.backend.capacity() * self.bin_length.get() as f64 / 1e6;
        let is_settled = settled < bins.len() / 2 && steady > 0.1 * capacity;
        is_settled.then(|| Micros::new(settled as u64 * self.bin_length.get()))
    }

    fn bins_between(&self, start: Micros, end: Micros) -> &[SimulationBin] {
        let index = |at: Micros| ((at.get() / self.bin_length.get()) as usize).min(self.bins.len());
        self.bins.get(index(start)..index(end)).unwrap_or_default()
    }
}

/// Bins that are looked at together, so that chance evens out.
const SETTLING_WINDOW_BINS: usize = 20;

/// Good requests in a bin, and the latency of each.
fn mean_goodput_and_latency(bins: &[SimulationBin]) -> (f64, f64) {
    let good: f64 = bins.iter().map(|bin| f64::from(bin.succeeded)).sum();
    let latency: f64 = bins.iter().map(|bin| bin.latency.get() as f64).sum();
    (good / bins.len().max(1) as f64, latency / good.max(1.0))
}
