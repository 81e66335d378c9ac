//! The policy that is in force now.

use super::{Compiler, PolicyError, PolicyGate, PolicyResult, error::ProblemCollector};
use crate::model::{Fallback, OnLimit, Policy, RuleSpec};
use arc_swap::{ArcSwap, Guard};
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};
use tidegate_core::{Micros, SettingError};
use tidegate_limiter::Clock;
use tidegate_rule::{Evaluation, request::RequestHead};

/// The policy that is in force now, to be replaced while requests come in.
///
/// Requests that were let in by the policy before are settled by it, and count in the same rules.
#[derive(Debug)]
pub struct LivePolicy {
    compiler: Compiler,
    current: ArcSwap<PolicyGate>,
    /// One replaces it after the other.
    target: Mutex<PolicyTarget>,
    clock: Clock,
    /// When schedules are to be followed next, in microseconds of the clock.
    next_update: AtomicU64,
}

/// What is behind a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PolicyTarget {
    Upstreams,
    Service,
}

/// How often schedules are followed.
const SCHEDULE_INTERVAL: Micros = Micros::from_secs(1);

impl LivePolicy {
    /// Puts a first policy in force.
    pub fn new(compiler: Compiler, policy: &Policy) -> Result<Self, PolicyError> {
        let gate = compiler.compile(policy, None)?;
        let clock = compiler.clock.clone().unwrap_or_default();
        let next = AtomicU64::new(clock.now().plus(SCHEDULE_INTERVAL).get());
        let turn = Mutex::new(PolicyTarget::Upstreams);
        Ok(Self { compiler, current: ArcSwap::from_pointee(gate), target: turn, clock, next_update: next })
    }

    /// What is in force now.
    #[inline]
    pub fn current(&self) -> Guard<Arc<PolicyGate>> {
        self.current.load()
    }

    /// Evaluates what is in force now. Its schedules have followed the time, without a call of
    /// [`PolicyGate::update_schedules`].
    pub fn check(&self, head: &dyn RequestHead) -> Evaluation<PolicyResult> {
        let gate = self.current.load();
        if gate.has_schedules() {
            self.update_schedules(&gate);
        }
        gate.check(head)
    }

    /// Puts another policy in force; one that is wrong changes nothing.
    pub fn replace(&self, policy: &Policy) -> Result<(), PolicyError> {
        let target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        if *target == PolicyTarget::Service {
            reject_upstream_fallbacks(&policy.rules)?;
        }
        let next = self.compiler.compile(policy, Some(&self.current.load()))?;
        self.current.store(Arc::new(next));
        Ok(())
    }

    /// Says that it stands in front of a service, where there are no upstreams: a policy in which a rule falls back to one is
    /// refused, this one now and others when they are to replace it.
    pub fn forbid_upstream_fallbacks(&self) -> Result<(), PolicyError> {
        let mut target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        reject_upstream_fallbacks(self.current.load().inner.rules.iter().map(|rule| &rule.source))?;
        *target = PolicyTarget::Service;
        Ok(())
    }

    /// Whoever comes first after a moment has schedules follow the time, once for all.
    fn update_schedules(&self, gate: &PolicyGate) {
        let (now, due) = (self.clock.now(), self.next_update.load(Ordering::Relaxed));
        let next = now.plus(SCHEDULE_INTERVAL).get();
        if now.get() >= due
            && self.next_update.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            gate.update_schedules();
        }
    }
}

fn reject_upstream_fallbacks<'a>(rules: impl IntoIterator<Item = &'a RuleSpec>) -> Result<(), PolicyError> {
    let mut problems = ProblemCollector::default();
    for rule in rules {
        if let OnLimit::Fallback(Fallback::Upstream(name)) = &rule.on_limit {
            let problem = format!(
                "it falls back to the upstream `{name}`, and a policy in front of a service has none"
            );
            let fix = "give the fallback a `body`, or use `status` or `redirect`";
            problems.add(Some(&rule.name), &SettingError::new(problem, fix));
        }
    }
    problems.into_result()
}
