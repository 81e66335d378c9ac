//! Detects denials, which show that a limit is used up.

use super::LoadSource;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use tidegate_core::{Decision, Micros, Percent};

/// Records denials of a limiter with many keys, so that [`super::ScaledLimit`] can detect that the limit is
/// used up. Clones share the count.
///
/// ```
/// use tidegate_overload::load::DenialLoad;
/// use tidegate_limiter::Limiter;
///
/// let (limiter, denials) = (Limiter::new("100/min")?, DenialLoad::new());
/// let decision = denials.record(limiter.check("alice"));
/// assert!(decision.is_allowed());
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct DenialLoad {
    count: Arc<AtomicU64>,
}

impl DenialLoad {
    /// Creates a source without denials.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a decision and returns it. A grant costs nothing.
    #[inline]
    pub fn record(&self, decision: Decision) -> Decision {
        if !decision.is_granted() {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        decision
    }
}

/// Returns 100 % if there was a denial since the last reading, otherwise 0 %: smoothed, the share of time in
/// which the limit was used up.
impl LoadSource for DenialLoad {
    fn read(&mut self, _now: Micros) -> Option<Percent> {
        match self.count.swap(0, Ordering::Relaxed) {
            0 => Some(Percent::ZERO),
            _ => Some(Percent::FULL),
        }
    }
}
