//! What holds for a rule, until settings say otherwise.

use crate::{Mode, rule_update::ConcurrencyQuotas};
use std::{sync::Arc, time::Duration};
use tidegate_limiter::{Capacity, FailureMode, Limiter, Overflow, Waiter};
use tidegate_overload::BreakerSettings;

/// What holds for a rule now.
#[derive(Clone)]
pub(crate) struct RuleState {
    pub(crate) mode: Mode,
    pub(crate) wait: Duration,
    pub(crate) message: Option<Arc<str>>,
    pub(crate) outage: FailureMode,
    /// Which of its quotas count calls in flight.
    pub(crate) concurrency: ConcurrencyQuotas,
    /// What is declared of the memory that it takes.
    pub(crate) memory: MemoryBounds,
    /// The settings of the policy that replace those of a breaker.
    pub(crate) breaker: Option<Arc<BreakerSettings>>,
    /// `None` for a rule without numbers.
    pub(crate) limiter: Option<Limiter>,
}

/// What is declared of the memory that a rule takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryBounds {
    pub(crate) capacity: Option<Capacity>,
    pub(crate) overflow: Overflow,
}

impl RuleState {
    /// The limiter, unless there is nothing to be asked.
    pub(crate) fn active_limiter(&self) -> Option<&Limiter> {
        self.limiter.as_ref().filter(|_| self.mode != Mode::Off)
    }

    /// How long a call waits. What is not enforced does not make anybody wait.
    pub(crate) fn max_wait(&self) -> Duration {
        match self.mode {
            Mode::Enforce => self.wait,
            Mode::Shadow | Mode::Off => Duration::ZERO,
        }
    }

    pub(crate) fn waiter(&self) -> Option<Waiter> {
        let patience = self.max_wait();
        (!patience.is_zero()).then(|| Waiter::new(1).deadline(patience))
    }
}
