//! What came of a scene, over time.

use crate::scene::Scene;
use tidegate_core::Micros;

/// What happened, in equal parts of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Story {
    /// The scene.
    pub scene: Scene,
    /// How long a bin is.
    pub bin: Micros,
    /// The bins, from the start to the end.
    pub bins: Vec<Bin>,
}

/// What happened in one part of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bin {
    /// Requests that came: those that are tried again count once.
    pub requests: u32,
    /// Attempts at them.
    pub attempts: u32,
    /// Attempts that the guard refused.
    pub refused: u32,
    /// Requests that were answered in time.
    pub good: u32,
    /// Attempts that failed or were answered too late.
    pub bad: u32,
    /// The latencies of the good ones, added up.
    pub latency: Micros,
    /// The guard's limit at the end, if it has one.
    pub limit: Option<u32>,
}

/// Parts of a scene.
pub(crate) const BINS: u64 = 5_000;

impl Story {
    pub(crate) fn new(scene: &Scene) -> Self {
        let bin = Micros::new((scene.length.get() / BINS).max(1));
        let bins = vec![Bin::default(); scene.length.get().div_ceil(bin.get()) as usize];
        Self { scene: scene.clone(), bin, bins }
    }

    pub(crate) fn at(&mut self, now: Micros) -> Option<&mut Bin> {
        self.bins.get_mut((now.get() / self.bin.get()) as usize)
    }

    /// Requests answered in time while the change lasted, as a share of what the backend can serve at best.
    pub fn goodput_of_the_change(&self) -> f64 {
        self.goodput(self.scene.begins, self.scene.ends)
    }

    /// Requests answered in time after the change, as a share of those that came.
    pub fn recovered(&self) -> f64 {
        let bins = self.between(self.scene.ends, self.scene.length);
        let (good, all) = bins.iter().fold((0, 0), |(good, all), bin| (good + bin.good, all + bin.requests));
        f64::from(good) / f64::from(all.max(1))
    }

    /// Requests answered in time from `start` to `end`, as a share of what the backend can serve at best.
    pub fn goodput(&self, start: Micros, end: Micros) -> f64 {
        let bins = self.between(start, end);
        let good: u32 = bins.iter().map(|bin| bin.good).sum();
        let seconds = bins.len() as f64 * self.bin.get() as f64 / 1e6;
        f64::from(good) / seconds.max(1e-6) / self.scene.backend.capacity()
    }

    /// The mean latency of the requests that were answered in time from `start` to `end`.
    pub fn latency(&self, start: Micros, end: Micros) -> Micros {
        let bins = self.between(start, end);
        let good: u64 = bins.iter().map(|bin| u64::from(bin.good)).sum();
        let all: u64 = bins.iter().map(|bin| bin.latency.get()).sum();
        Micros::new(all / good.max(1))
    }

    /// How long after the change began things were settled: from then until its end, goodput in every stretch of twenty
    /// bins is at least four fifths of what it is in the second half, and latency at most one and a half times. `None` if
    /// that is not reached, or is next to nothing.
    pub fn settled_after(&self) -> Option<Micros> {
        let bins = self.between(self.scene.begins, self.scene.ends);
        let (steady, usual) = means(bins.get(bins.len() / 2..)?);
        let is_off = |stretch: &[Bin]| {
            let (good, latency) = means(stretch);
            good < 0.8 * steady || latency > 1.5 * usual
        };
        let settled = bins.windows(STRETCH).rposition(is_off).map_or(0, |last| last + 1);
        let capacity = self.scene.backend.capacity() * self.bin.get() as f64 / 1e6;
        let is_settled = settled < bins.len() / 2 && steady > 0.1 * capacity;
        is_settled.then(|| Micros::new(settled as u64 * self.bin.get()))
    }

    fn between(&self, start: Micros, end: Micros) -> &[Bin] {
        let index = |at: Micros| ((at.get() / self.bin.get()) as usize).min(self.bins.len());
        self.bins.get(index(start)..index(end)).unwrap_or_default()
    }
}

/// Bins that are looked at together, so that chance evens out.
const STRETCH: usize = 20;

/// Good requests in a bin, and the latency of each.
fn means(bins: &[Bin]) -> (f64, f64) {
    let good: f64 = bins.iter().map(|bin| f64::from(bin.good)).sum();
    let latency: f64 = bins.iter().map(|bin| bin.latency.get() as f64).sum();
    (good / bins.len().max(1) as f64, latency / good.max(1.0))
}
