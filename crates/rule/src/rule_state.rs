//! The effective state of a rule.

use crate::{Mode, RuleKey, permit::PendingCall, rule_update::ConcurrencyQuotas, settings::CallCheck};
use std::{sync::Arc, time::Duration};
use tidegate_core::Quota;
use tidegate_limiter::{Capacity, FailureMode, Limiter, Overflow, TokenPrefetch, Waiter};
use tidegate_overload::{BreakerSettings, error_rate::KeyedErrorRate};

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
    /// The quotas apply to a key only while its error rate is exceeded.
    pub(crate) error_rate: Option<Arc<KeyedErrorRate>>,
    /// The declared quotas, as its store supports them. Those of the limiter can be scaled.
    pub(crate) quotas: Arc<[Quota]>,
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

    /// The limiter for a call of this key, unless the rule is off or applies only while calls fail.
    pub(crate) fn limiter_for<K: RuleKey + ?Sized>(&self, key: &K) -> Option<&Limiter> {
        let limiter = self.active_limiter()?;
        self.error_rate.as_ref().is_none_or(|rates| rates.is_exceeded(key)).then_some(limiter)
    }

    /// Counts a call of this key, if the outcomes of calls are recorded.
    pub(crate) fn start_call<K: RuleKey + ?Sized>(&self, key: &K) -> PendingCall {
        let rates = self.error_rate.as_ref().filter(|_| self.mode != Mode::Off);
        PendingCall::new(rates.map(|rates| rates.start_call(key)))
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
