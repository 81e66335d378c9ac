//! The default controller: a gradient bounded by a latency target, failures and throughput.
//!
//! ```text
//!   calls ──▶ round ──▶ failures, or latency over the target?     decrease
//!                       limit not reached?                        stay, learn the latency without load
//!                       did the last step raise throughput?       if not, undo it
//!                       latency above the one without load?       shrink by the gradient, else grow by √limit
//! ```
//!
//! A ratio of latencies cannot detect that they have been bad for long. Three absolute signals can: a latency target,
//! failures, and throughput. Each step is an experiment. A higher limit must raise throughput, or it only made a queue; a
//! lower limit must cost little throughput, or the latency was not caused by a queue. A round counts only calls that
//! were admitted after the last step, so that earlier calls cannot affect the evaluation of a step.
//!
//! It never lowers the limit to measure the latency without load: it learns that while the limit is not reached. It
//! experiments only while the limit is reached, that is, while calls are rejected anyway.
//!
//! An ignored call is no evidence, unless it was cancelled after the target had passed: that counts as a failure.
//!
//! Without load the limit stays the same; it does not decay.

use super::{Bounds, CallSample, Controller};
use crate::call_outcome::CallOutcome;
use tidegate_core::{Micros, SettingError};

/// A gradient controller with a latency target, a throughput check and a count of failures.
#[derive(Clone, Debug)]
pub struct LatencyTarget {
    bounds: Bounds,
    target: f64,
    tolerance: f64,
    limit: f64,
    /// Latency without load in microseconds, if known.
    no_load_latency: Option<f64>,
    round: Round,
    last_change: LimitChange,
}

/// The calls since the last step.
#[derive(Clone, Debug, Default)]
struct Round {
    /// Calls that were admitted earlier are not counted.
    start: Micros,
    first_end: Option<Micros>,
    last_end: Micros,
    successes: u32,
    latency_sum: f64,
    losses: u32,
    is_saturated: bool,
}

/// The last step, and the measurements before it.
#[derive(Clone, Copy, Debug)]
enum LimitChange {
    /// No step to evaluate.
    Steady,
    Grow(RoundStats),
    Shrink(RoundStats),
    /// A step did not pay off: no experiment for this number of rounds.
    Cooldown(u32),
}

/// The measurements of one round.
#[derive(Clone, Copy, Debug)]
struct RoundStats {
    limit: f64,
    /// Successes per microsecond.
    throughput: f64,
    latency: f64,
}

/// Calls per slot of the limit that end a round, enough to average out noise.
const CALLS_PER_SLOT: u32 = 4;
/// Calls per slot that end a round when the limit must be decreased.
const BACKOFF_CALLS_PER_SLOT: u32 = 2;
/// The minimum number of calls of a round.
const MIN_CALLS: u32 = 16;
/// The maximum duration of a round.
const MAX_ROUND: Micros = Micros::from_secs(1);
/// The failure ratio that does not decrease the limit; random deviations from it do not either.
const LOSS_TOLERANCE: f64 = 0.01;
/// The factor of an experimental decrease, and the largest factor of a forced one.
const DECREASE_FACTOR: f64 = 0.9;
/// The smallest factor of any step.
const MIN_CHANGE_FACTOR: f64 = 0.5;
/// Rounds without an experiment after one that did not pay off.
const COOLDOWN_ROUNDS: u32 = 16;
/// The weight of a new, higher latency without load.
const LEARNING_RATE: f64 = 0.1;

impl LatencyTarget {
    /// Creates a controller for calls that should take at most `target`: the latency that you promise, not
    /// the one that you measure. The limit is 20 initially, and from 1 to 1000. If the backend misses the
    /// target even without load, the limit falls to its floor and stays there.
    pub fn new(target: Micros) -> Result<Self, SettingError> {
        SettingError::require_finite("a latency target", target)?;
        let bounds = Bounds::default();
        let target = target.get() as f64;
        Ok(Self {
            bounds,
            target,
            tolerance: 1.5,
            limit: bounds.initial().into(),
            no_load_latency: None,
            round: Round::default(),
            last_change: LimitChange::Steady,
        })
    }

    /// Sets other bounds.
    #[must_use]
    pub fn bounds(self, bounds: Bounds) -> Self {
        Self { bounds, limit: bounds.initial().into(), ..self }
    }

    /// Sets the tolerated multiple of the latency without load, from 1 to 10; 1.5 by default.
    pub fn tolerance(self, tolerance: f64) -> Result<Self, SettingError> {
        SettingError::require_in_range("a tolerance", tolerance, 1.0, 10.0)?;
        Ok(Self { tolerance, ..self })
    }

    fn end_round(&mut self) {
        let round = core::mem::take(&mut self.round);
        let before = self.limit;
        let change = self.adjust_limit(&round);
        self.limit = self.bounds.clamp(self.limit);
        self.last_change = change;
        // Calls in flight now were admitted under the previous limit.
        self.round.start = if self.limit == before { round.start } else { round.last_end };
    }

    /// Changes the limit and returns the step.
    fn adjust_limit(&mut self, round: &Round) -> LimitChange {
        let factor = round.decrease_factor(self.target);
        if factor < 1.0 {
            self.limit *= factor.clamp(MIN_CHANGE_FACTOR, DECREASE_FACTOR);
            // An increase that ends in a decrease did not pay off either; it must be recorded, or it would be
            // repeated.
            let LimitChange::Grow(before) = self.last_change else { return LimitChange::Steady };
            self.limit = self.limit.min(before.limit * DECREASE_FACTOR);
            return LimitChange::Shrink(before);
        }
        let Some(stats) = round.measure(self.limit) else { return LimitChange::Steady };
        if !round.is_saturated {
            self.update_no_load_latency(stats.latency);
            return self.last_change.skip_round();
        }
        let unloaded = *self
            .no_load_latency
            .insert(self.no_load_latency.map_or(stats.latency, |it| it.min(stats.latency)));
        match self.last_change {
            LimitChange::Grow(before) if stats.has_longer_queue_than(&before) => {
                self.limit = before.limit * DECREASE_FACTOR;
                LimitChange::Shrink(before)
            }
            LimitChange::Shrink(before) if stats.is_worse_than(&before) => {
                // The latency is not caused by our queue: a call takes that long now.
                self.no_load_latency = Some(unloaded.max(stats.latency));
                self.limit = before.limit;
                LimitChange::Cooldown(COOLDOWN_ROUNDS)
            }
            LimitChange::Shrink(_) => {
                self.limit *= self.gradient(&stats, unloaded).min(DECREASE_FACTOR);
                LimitChange::Shrink(stats)
            }
            LimitChange::Cooldown(rounds) if rounds > 0 && self.gradient(&stats, unloaded) >= 1.0 => {
                LimitChange::Cooldown(rounds - 1)
            }
            _ => {
                let target = self.limit * self.gradient(&stats, unloaded) + headroom(self.limit);
                let grows = target > self.limit;
                self.limit = target;
                if grows { LimitChange::Grow(stats) } else { LimitChange::Shrink(stats) }
            }
        }
    }

    fn gradient(&self, stats: &RoundStats, unloaded: f64) -> f64 {
        (self.tolerance * unloaded / stats.latency).clamp(MIN_CHANGE_FACTOR, 1.0)
    }

    fn update_no_load_latency(&mut self, latency: f64) {
        let known = self.no_load_latency.get_or_insert(latency);
        // A lower latency is adopted at once, a higher one gradually.
        let weight = if latency < *known { 1.0 } else { LEARNING_RATE };
        *known += (latency - *known) * weight;
    }
}

impl Controller for LatencyTarget {
    fn limit(&self) -> u32 {
        self.limit as u32
    }

    fn record(&mut self, call: CallSample) -> u32 {
        let is_late = call.latency().get() as f64 > self.target;
        let report = match call.outcome {
            CallOutcome::Ignored if is_late => CallOutcome::Failure,
            report => report,
        };
        // Ends arrive in order. If this one does not, the clock was set back, and calls before the old start
        // count again.
        self.round.start = self.round.start.min(call.end);
        if report != CallOutcome::Ignored && call.start >= self.round.start {
            self.round.add(&CallSample { outcome: report, ..call }, self.limit());
            let is_overloaded = self.round.decrease_factor(self.target) < 1.0;
            if self.round.is_complete(self.limit(), is_overloaded) {
                self.end_round();
            }
        }
        self.limit()
    }
}

impl Round {
    fn add(&mut self, call: &CallSample, limit: u32) {
        self.first_end.get_or_insert(call.end);
        self.last_end = self.last_end.max(call.end);
        self.is_saturated |= call.in_flight >= limit;
        match call.outcome {
            CallOutcome::Success => {
                self.successes += 1;
                self.latency_sum += call.latency().get() as f64;
            }
            CallOutcome::Failure => self.losses += 1,
            CallOutcome::Ignored => {}
        }
    }

    fn is_complete(&self, limit: u32, is_overloaded: bool) -> bool {
        let per_slot = if is_overloaded { BACKOFF_CALLS_PER_SLOT } else { CALLS_PER_SLOT };
        let enough = MIN_CALLS.max(limit.saturating_mul(per_slot));
        self.successes + self.losses >= enough || self.elapsed() >= MAX_ROUND
    }

    /// The factor for the limit: below 1 when calls failed or the latency exceeds the target.
    fn decrease_factor(&self, target: f64) -> f64 {
        let (successes, losses) = (f64::from(self.successes), f64::from(self.losses));
        let calls = successes + losses;
        let tolerated = calls * LOSS_TOLERANCE;
        // Significant only above three standard deviations, and never for a single call.
        let excess = (losses - tolerated).max(0.0);
        let is_lossy = self.losses > 1 && excess * excess > 9.0 * tolerated;
        let factor = if is_lossy { 1.0 - losses / calls } else { 1.0 };
        // Without a success there is no latency to compare.
        if self.successes == 0 { factor } else { factor.min(target * successes / self.latency_sum) }
    }

    fn elapsed(&self) -> Micros {
        self.first_end.map_or(Micros::ZERO, |first| self.last_end.saturating_sub(first))
    }

    /// The measurements; `None` if nothing succeeded.
    fn measure(&self, limit: f64) -> Option<RoundStats> {
        let successes = f64::from(self.successes);
        (self.successes > 0).then(|| RoundStats {
            limit,
            throughput: successes / self.elapsed().max(Micros::new(1)).get() as f64,
            latency: self.latency_sum / successes,
        })
    }
}

impl RoundStats {
    /// Whether a higher limit made a queue: at least half of the increase went into latency instead of
    /// throughput.
    fn has_longer_queue_than(&self, before: &Self) -> bool {
        let half = (self.limit / before.limit - 1.0) / 2.0;
        self.latency > before.latency * (1.0 + half) && self.throughput < before.throughput * (1.0 + half)
    }

    /// Whether a lower limit hurt: throughput fell, or latency did not improve, by at least half of the
    /// decrease.
    fn is_worse_than(&self, before: &Self) -> bool {
        let half = (1.0 - self.limit / before.limit) / 2.0;
        self.throughput < before.throughput * (1.0 - half) || self.latency > before.latency * (1.0 - half)
    }
}

impl LimitChange {
    /// A round in which the limit was not reached does not evaluate an experiment.
    fn skip_round(self) -> Self {
        match self {
            Self::Cooldown(rounds) => Self::Cooldown(rounds.saturating_sub(1)),
            _ => Self::Steady,
        }
    }
}

/// The increase of one step.
fn headroom(limit: f64) -> f64 {
    f64::from((limit as u32).isqrt().max(1))
}
