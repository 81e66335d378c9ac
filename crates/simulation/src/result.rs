//! The result of a scenario over time.

use crate::scenario::Scenario;
use tidegate_core::Micros;

/// The counts of a scenario, in bins of equal length.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulationResult {
    /// The scenario.
    pub scenario: Scenario,
    /// The length of a bin.
    pub bin_length: Micros,
    /// The bins in the order of time.
    pub bins: Vec<SimulationBin>,
}

/// The counts of one bin.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SimulationBin {
    /// New requests, without retries.
    pub requests: u32,
    /// Attempts, including retries.
    pub attempts: u32,
    /// Attempts that the guard rejected.
    pub rejected: u32,
    /// Requests that succeeded before the timeout.
    pub succeeded: u32,
    /// Attempts that failed or timed out.
    pub failed: u32,
    /// The sum of the latencies of the requests that succeeded.
    pub latency: Micros,
    /// The concurrency limit of the guard at the end of the bin, if it has one.
    pub limit: Option<u32>,
}

/// The number of bins of a scenario.
pub(crate) const BIN_COUNT: u64 = 5_000;

impl SimulationResult {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let bin = Micros::new((scenario.length.get() / BIN_COUNT).max(1));
        let bins = vec![SimulationBin::default(); scenario.length.get().div_ceil(bin.get()) as usize];
        Self { scenario: scenario.clone(), bin_length: bin, bins }
    }

    pub(crate) fn bin_mut(&mut self, now: Micros) -> Option<&mut SimulationBin> {
        self.bins.get_mut((now.get() / self.bin_length.get()) as usize)
    }

    /// The goodput during the change, as a fraction of the capacity of the backend.
    pub fn goodput_during_change(&self) -> f64 {
        self.goodput(self.scenario.change_start, self.scenario.change_end)
    }

    /// The requests that succeeded after the change, as a fraction of all requests.
    pub fn recovery_rate(&self) -> f64 {
        let bins = self.bins_between(self.scenario.change_end, self.scenario.length);
        let (good, all) =
            bins.iter().fold((0, 0), |(good, all), bin| (good + bin.succeeded, all + bin.requests));
        f64::from(good) / f64::from(all.max(1))
    }

    /// The goodput from `start` to `end`, as a fraction of the capacity of the backend.
    pub fn goodput(&self, start: Micros, end: Micros) -> f64 {
        let bins = self.bins_between(start, end);
        let good: u32 = bins.iter().map(|bin| bin.succeeded).sum();
        let seconds = bins.len() as f64 * self.bin_length.get() as f64 / 1e6;
        f64::from(good) / seconds.max(1e-6) / self.scenario.backend.capacity()
    }

    /// The mean latency of the requests that succeeded from `start` to `end`.
    pub fn latency(&self, start: Micros, end: Micros) -> Micros {
        let bins = self.bins_between(start, end);
        let good: u64 = bins.iter().map(|bin| u64::from(bin.succeeded)).sum();
        let all: u64 = bins.iter().map(|bin| bin.latency.get()).sum();
        Micros::new(all / good.max(1))
    }

    /// The time from the start of the change until the system is stable.
    ///
    /// From then until the end of the change, in every window of twenty bins, the goodput is at least 80 % of that
    /// of the second half, and the latency at most 150 %. `None` if the system does not become stable, or its
    /// goodput is close to zero.
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

/// The number of bins in a window, to average out random variation.
const SETTLING_WINDOW_BINS: usize = 20;

/// The mean number of successful requests per bin, and their mean latency.
fn mean_goodput_and_latency(bins: &[SimulationBin]) -> (f64, f64) {
    let good: f64 = bins.iter().map(|bin| f64::from(bin.succeeded)).sum();
    let latency: f64 = bins.iter().map(|bin| bin.latency.get() as f64).sum();
    (good / bins.len().max(1) as f64, latency / good.max(1.0))
}
