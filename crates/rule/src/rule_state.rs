//! The effective state of a rule.

use crate::{Mode, rule_update::ConcurrencyQuotas, settings::CallCheck};
use std::{sync::Arc, time::Duration};
use tidegate_limiter::{Capacity, FailureMode, Limiter, Overflow, TokenPrefetch, Waiter};
use tidegate_overload::BreakerSettings;

/// The effective state of a rule, from its declaration and the settings.
#[derive(Clone)]
pub(crate) struct RuleState {
    pub(crate) mode: Mode,
    pub(crate) wait: Duration,
    pub(crate) message: Option<Arc<str>>,
    pub(crate) failure_mode: FailureMode,
    pub(crate) prefetch: Option<TokenPrefetch>,
    /// Which of its quotas count calls in flight.
    pub(crate) concurrency: ConcurrencyQuotas,
    /// The declared bounds of its memory.
    pub(crate) memory: MemoryBounds,
    /// The breaker settings of the policy, which replace the declared ones.
    pub(crate) breaker: Option<Arc<BreakerSettings>>,
    /// Rejects calls before any quota.
    pub(crate) call_check: Option<CallCheck>,
    /// `None` for a rule without quotas.
    pub(crate) limiter: Option<Limiter>,
}

/// The declared bounds of the memory of a rule.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryBounds {
    pub(crate) capacity: Option<Capacity>,
    pub(crate) overflow: Overflow,
}

impl RuleState {
    /// The limiter, unless the rule is off.
    pub(crate) fn active_limiter(&self) -> Option<&Limiter> {
        self.limiter.as_ref().filter(|_| self.mode != Mode::Off)
    }

    /// How long a call may wait. Calls do not wait for rules that are not enforced.
    pub(crate) fn max_wait(&self) -> Duration {
        match self.mode {
            Mode::Enforce => self.wait,
            Mode::Shadow | Mode::Off => Duration::ZERO,
        }
    }

    pub(crate) fn waiter(&self) -> Option<Waiter> {
        let max_wait = self.max_wait();
        (!max_wait.is_zero()).then(|| Waiter::new(1).deadline(max_wait))
    }
}
