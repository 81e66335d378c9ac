//! The current policy, which can be replaced at run time.

use super::{Compiler, PolicyError, PolicyGate, PolicyResult, error::ProblemCollector};
use crate::model::{JwtSpec, KeySetLocation, Policy, RuleSpec};
use arc_swap::{ArcSwap, Guard};
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};
use tidegate_core::{Micros, SettingError};
use tidegate_limiter::Clock;
use tidegate_rule::{Evaluation, request::RequestHead};

/// The current policy, which can be replaced while requests are evaluated.
///
/// Requests that the previous policy admitted are settled by it, and count in the same rules.
#[derive(Debug)]
pub struct LivePolicy {
    compiler: Compiler,
    current: ArcSwap<PolicyGate>,
    /// Serializes replacements.
    target: Mutex<PolicyTarget>,
    clock: Clock,
    /// The time of the next update of schedules, in microseconds of the clock.
    next_update: AtomicU64,
}

/// The kind of target that requests are forwarded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PolicyTarget {
    Upstreams,
    Service,
}

/// The interval between updates of schedules.
const SCHEDULE_INTERVAL: Micros = Micros::from_secs(1);

impl LivePolicy {
    /// Applies the first policy.
    pub fn new(compiler: Compiler, policy: &Policy) -> Result<Self, PolicyError> {
        let gate = compiler.compile(policy, None)?;
        let clock = compiler.clock.clone().unwrap_or_default();
        let next = AtomicU64::new(clock.now().saturating_add(SCHEDULE_INTERVAL).get());
        let target = Mutex::new(PolicyTarget::Upstreams);
        Ok(Self { compiler, current: ArcSwap::from_pointee(gate), target, clock, next_update: next })
    }

    /// The current policy.
    #[inline]
    pub fn current(&self) -> Guard<Arc<PolicyGate>> {
        self.current.load()
    }

    /// Evaluates the current policy. It updates schedules automatically, without a call of
    /// [`PolicyGate::update_schedules`].
    pub fn check(&self, head: &dyn RequestHead) -> Evaluation<PolicyResult> {
        let gate = self.current.load();
        if gate.has_schedules() {
            self.update_schedules(&gate);
        }
        gate.check(head)
    }

    /// Applies another policy. A policy with problems changes nothing.
    pub fn replace(&self, policy: &Policy) -> Result<(), PolicyError> {
        let target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        if *target == PolicyTarget::Service {
            let is_fetched =
                matches!(&policy.identity.jwt, Some(JwtSpec { keys: KeySetLocation::Url(_), .. }));
            reject_gateway_parts(&policy.rules, is_fetched)?;
        }
        let next = self.compiler.compile(policy, Some(&self.current.load()))?;
        self.current.store(Arc::new(next));
        Ok(())
    }

    /// Declares that the policy protects a service without upstreams. A policy with a fallback to an upstream or to
    /// stored responses, or with a key set at a URL, is rejected: this one now, and others when they would replace it.
    pub fn forbid_gateway_fallbacks(&self) -> Result<(), PolicyError> {
        let mut target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        let current = self.current.load();
        let rules = current.inner.rules.iter().map(|rule| &rule.source);
        reject_gateway_parts(rules, current.remote_key_set().is_some())?;
        *target = PolicyTarget::Service;
        Ok(())
    }

    /// Updates schedules if the interval has passed. Only one of several concurrent callers does.
    fn update_schedules(&self, gate: &PolicyGate) {
        let (now, due) = (self.clock.now(), self.next_update.load(Ordering::Relaxed));
        let next = now.saturating_add(SCHEDULE_INTERVAL).get();
        if now.get() >= due
            && self.next_update.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            gate.update_schedules();
        }
    }
}

fn reject_gateway_parts<'a>(
    rules: impl IntoIterator<Item = &'a RuleSpec>,
    is_key_set_fetched: bool,
) -> Result<(), PolicyError> {
    let mut problems = ProblemCollector::default();
    if is_key_set_fetched {
        let problem = "key set at a URL, but only a gateway fetches one";
        problems.add_at(&["identity", "jwt", "keys"], &SettingError::new(problem, "use a file"));
    }
    for rule in rules {
        if let Some(name) = rule.on_limit.fallback_upstream() {
            let problem =
                format!("fallback to upstream `{name}`, but a policy for a service has no upstreams");
            let fix = "use a fallback with `body`, or `status` or `redirect`";
            problems.add(Some(&rule.name), &SettingError::new(problem, fix));
        }
        if rule.on_limit.fallback_cache().is_some() {
            let problem = "fallback to cached responses, but only a gateway stores responses";
            problems.add(Some(&rule.name), &SettingError::new(problem, "remove `cache`, or use `body`"));
        }
    }
    problems.into_result()
}
