//! The default: a gradient that is anchored, so that it cannot run away.
//!
//! ```text
//!   calls ──▶ round ──▶ lost calls, or latency over the target?   brake
//!                       limit not reached?                        stay, learn the latency without load
//!                       did the last step pay in throughput?      if not, undo it
//!                       latency above what it was without load?   shrink by the gradient, else grow by √limit
//! ```
//!
//! A ratio of latencies cannot see that things have been bad for long. Three anchors can: a latency target in absolute
//! terms, lost calls, and throughput. Every step is an experiment. More in flight must bring more throughput, or it only
//! made a queue; less in flight must cost little throughput, or the latency was not a queue of ours. A round counts only
//! calls that were let in after the last step, so that no step is judged, or taken twice, by what came before it.
//!
//! It never lowers the limit to measure the latency without load: that is learnt while the limit is not reached. It
//! experiments only while the limit is reached, that is, while calls are refused anyway.
//!
//! A call that was ignored tells nothing, unless it was given up after the target had passed: that is a lost call.
//!
//! Its surprise: without any load it stays where it is. A limit that was needed once is kept.

use super::{Bounds, CallSample, Controller};
use crate::call_outcome::CallOutcome;
use tidegate_core::{Micros, SettingError};

/// A gradient with a latency target, a throughput check and a count of lost calls.
#[derive(Clone, Debug)]
pub struct LatencyTarget {
    bounds: Bounds,
    target: f64,
    tolerance: f64,
    limit: f64,
    /// Latency without load in microseconds, once it is known.
    no_load_latency: Option<f64>,
    round: Round,
    step: LimitStep,
}

/// The calls since the last step.
#[derive(Clone, Debug, Default)]
struct Round {
    /// Calls that were let in earlier do not count.
    start: Micros,
    first_end: Option<Micros>,
    last_end: Micros,
    successes: u32,
    latency_sum: f64,
    losses: u32,
    is_saturated: bool,
}

/// What was done last, and what was known before it.
#[derive(Clone, Copy, Debug)]
enum LimitStep {
    /// Nothing that needs to be judged.
    Steady,
    Grow(RoundStats),
    Shrink(RoundStats),
    /// A step did not pay: rest for so many rounds.
    Cooldown(u32),
}

/// What one round measured.
#[derive(Clone, Copy, Debug)]
struct RoundStats {
    limit: f64,
    /// Successes per microsecond.
    throughput: f64,
    latency: f64,
}

/// A round ends after so many calls for each place of the limit, so that chance does not judge an experiment, ...
const CALLS_PER_SLOT: u32 = 4;
/// ... after fewer if the brake is needed, ...
const BACKOFF_CALLS_PER_SLOT: u32 = 2;
/// ... but not before it has this many, ...
const MIN_CALLS: u32 = 16;
/// ... or after this time, with whatever it has.
const MAX_ROUND: Micros = Micros::from_secs(1);
/// So few lost calls are no reason to brake, nor is what chance makes of them.
const LOSS_TOLERANCE: f64 = 0.01;
/// What an experiment downwards leaves of the limit, and a brake at most.
const DECREASE_FACTOR: f64 = 0.9;
/// What a step leaves of the limit at least.
const MIN_STEP_FACTOR: f64 = 0.5;
/// Rounds without an experiment after one that did not pay.
const COOLDOWN_ROUNDS: u32 = 16;
/// How much of a new latency without load is taken over at once.
const LEARNING_RATE: f64 = 0.1;

impl LatencyTarget {
    /// A controller for calls that should take at most `target`: the latency that you promise, not the one that you
    /// see. From 1 to 1000 in flight, 20 at the start. Under a target that the backend misses even without load the limit
    /// falls to its floor, and stays there.
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
            step: LimitStep::Steady,
        })
    }

    /// The same, between other ends.
    #[must_use]
    pub fn bounds(self, bounds: Bounds) -> Self {
        Self { bounds, limit: bounds.initial().into(), ..self }
    }

    /// How many times the latency without load is still fine; 1.5 unless told otherwise, from 1 to 10.
    pub fn tolerance(self, tolerance: f64) -> Result<Self, SettingError> {
        SettingError::require_in_range("a tolerance", tolerance, 1.0, 10.0)?;
        Ok(Self { tolerance, ..self })
    }

    fn end_round(&mut self) {
        let round = core::mem::take(&mut self.round);
        let before = self.limit;
        let step = self.take_step(&round);
        self.limit = self.bounds.clamp(self.limit);
        self.step = step;
        // Calls that are in flight now belong to the limit before.
        self.round.start = if self.limit == before { round.start } else { round.last_end };
    }

    /// Moves the limit, and says what was done.
    fn take_step(&mut self, round: &Round) -> LimitStep {
        let left = round.decrease_factor(self.target);
        if left < 1.0 {
            self.limit *= left.clamp(MIN_STEP_FACTOR, DECREASE_FACTOR);
            // A step up that ends in a brake did not pay either: forgotten, it would be tried again and again.
            let LimitStep::Grow(before) = self.step else { return LimitStep::Steady };
            self.limit = self.limit.min(before.limit * DECREASE_FACTOR);
            return LimitStep::Shrink(before);
        }
        let Some(mark) = round.measure(self.limit) else { return LimitStep::Steady };
        if !round.is_saturated {
            self.update_no_load_latency(mark.latency);
            return self.step.skip_round();
        }
        let unloaded = *self
            .no_load_latency
            .insert(self.no_load_latency.map_or(mark.latency, |it| it.min(mark.latency)));
        match self.step {
            LimitStep::Grow(before) if mark.has_longer_queue_than(&before) => {
                self.limit = before.limit * DECREASE_FACTOR;
                LimitStep::Shrink(before)
            }
            LimitStep::Shrink(before) if mark.is_worse_than(&before) => {
                // The latency is not our queue: it is what a call takes now.
                self.no_load_latency = Some(unloaded.max(mark.latency));
                self.limit = before.limit;
                LimitStep::Cooldown(COOLDOWN_ROUNDS)
            }
            LimitStep::Shrink(_) => {
                self.limit *= self.gradient(&mark, unloaded).min(DECREASE_FACTOR);
                LimitStep::Shrink(mark)
            }
            LimitStep::Cooldown(rounds) if rounds > 0 && self.gradient(&mark, unloaded) >= 1.0 => {
                LimitStep::Cooldown(rounds - 1)
            }
            _ => {
                let wanted = self.limit * self.gradient(&mark, unloaded) + headroom(self.limit);
                let grows = wanted > self.limit;
                self.limit = wanted;
                if grows { LimitStep::Grow(mark) } else { LimitStep::Shrink(mark) }
            }
        }
    }

    fn gradient(&self, mark: &RoundStats, unloaded: f64) -> f64 {
        (self.tolerance * unloaded / mark.latency).clamp(MIN_STEP_FACTOR, 1.0)
    }

    fn update_no_load_latency(&mut self, latency: f64) {
        let known = self.no_load_latency.get_or_insert(latency);
        // Faster is news at once; slower has to last.
        let part = if latency < *known { 1.0 } else { LEARNING_RATE };
        *known += (latency - *known) * part;
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
        // Ends come in order; if this one does not, time was set back, and calls from before a far future count again.
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
        let per_place = if is_overloaded { BACKOFF_CALLS_PER_SLOT } else { CALLS_PER_SLOT };
        let enough = MIN_CALLS.max(limit.saturating_mul(per_place));
        self.successes + self.losses >= enough || self.elapsed() >= MAX_ROUND
    }

    /// What the anchors leave of a limit: less than 1 when calls were lost or the latency is over the target.
    fn decrease_factor(&self, target: f64) -> f64 {
        let (successes, losses) = (f64::from(self.successes), f64::from(self.losses));
        let calls = successes + losses;
        let endured = calls * LOSS_TOLERANCE;
        // More than chance makes of so few: by three times its spread, and never by a single call.
        let excess = (losses - endured).max(0.0);
        let is_lossy = self.losses > 1 && excess * excess > 9.0 * endured;
        let kept = if is_lossy { 1.0 - losses / calls } else { 1.0 };
        // Without a success there is no latency, and everything is lost.
        if self.successes == 0 { kept } else { kept.min(target * successes / self.latency_sum) }
    }

    fn elapsed(&self) -> Micros {
        self.first_end.map_or(Micros::ZERO, |first| self.last_end.since(first))
    }

    /// What it measured; `None` if nothing succeeded.
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
    /// Whether a larger limit made a queue: half of what was added or more came out as latency, and not as throughput.
    fn has_longer_queue_than(&self, before: &Self) -> bool {
        let half = (self.limit / before.limit - 1.0) / 2.0;
        self.latency > before.latency * (1.0 + half) && self.throughput < before.throughput * (1.0 + half)
    }

    /// Whether a smaller limit cost something: half of what was taken or more is missing in throughput, or was not
    /// gained in latency.
    fn is_worse_than(&self, before: &Self) -> bool {
        let half = (1.0 - self.limit / before.limit) / 2.0;
        self.throughput < before.throughput * (1.0 - half) || self.latency > before.latency * (1.0 - half)
    }
}

impl LimitStep {
    /// After a round in which the limit was not reached, an experiment has no result.
    fn skip_round(self) -> Self {
        match self {
            Self::Cooldown(rounds) => Self::Cooldown(rounds.saturating_sub(1)),
            _ => Self::Steady,
        }
    }
}

/// How much a limit grows in one step.
fn headroom(limit: f64) -> f64 {
    f64::from((limit as u32).isqrt().max(1))
}
