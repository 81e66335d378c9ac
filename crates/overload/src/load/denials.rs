//! Whether anybody is turned away: the sign that a limit is used up.

use super::Probe;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use tidegate_core::{Decision, Micros, Percent};

/// Remembers that a limiter of many keys denied somebody, so that [`super::ScaledLimit`] knows that its limit is used up.
/// Clones share what they remember.
///
/// ```
/// use tidegate_overload::load::DenialProbe;
/// use tidegate_limiter::Limiter;
///
/// let (limiter, denials) = (Limiter::new("100/min")?, DenialProbe::new());
/// let decision = denials.record(limiter.check("alice"));
/// assert!(decision.is_allowed());
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct DenialProbe {
    count: Arc<AtomicU64>,
}

impl DenialProbe {
    /// None so far.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes note of a decision, and hands it on. A grant costs nothing.
    #[inline]
    pub fn record(&self, decision: Decision) -> Decision {
        if !decision.is_granted() {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        decision
    }
}

/// All of the limit is used if somebody was denied since the last reading, else none: smoothed, the share of time in
/// which it did not suffice.
impl Probe for DenialProbe {
    fn read(&mut self, _now: Micros) -> Option<Percent> {
        match self.count.swap(0, Ordering::Relaxed) {
            0 => Some(Percent::ZERO),
            _ => Some(Percent::FULL),
        }
    }
}
