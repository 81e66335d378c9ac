//! The policy that is in force now.

use super::{Compiler, PolicyError, PolicyGate, PolicyResult, error::Problems};
use crate::model::{Fallback, OnLimit, Policy, Rule};
use arc_swap::{ArcSwap, Guard};
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};
use tidegate_core::{Micros, SettingError};
use tidegate_limiter::Clock;
use tidegate_rule::{Evaluation, request::Head};

/// The policy that is in force now, to be replaced while requests come in.
///
/// Requests that were let in by the policy before are settled by it, and count in the same rules.
#[derive(Debug)]
pub struct LivePolicy {
    compiler: Compiler,
    now: ArcSwap<PolicyGate>,
    /// One replaces it after the other.
    turn: Mutex<Stands>,
    clock: Clock,
    /// When schedules are to be followed next, in microseconds of the clock.
    next: AtomicU64,
}

/// What is behind a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    BeforeUpstreams,
    BeforeService,
}

/// How often schedules are followed.
const MOMENT: Micros = Micros::from_secs(1);

impl LivePolicy {
    /// Puts a first policy in force.
    pub fn new(compiler: Compiler, policy: &Policy) -> Result<Self, PolicyError> {
        let gate = compiler.compile(policy, None)?;
        let clock = compiler.clock.clone().unwrap_or_default();
        let next = AtomicU64::new(clock.now().plus(MOMENT).get());
        let turn = Mutex::new(Stands::BeforeUpstreams);
        Ok(Self { compiler, now: ArcSwap::from_pointee(gate), turn, clock, next })
    }

    /// What is in force now.
    #[inline]
    pub fn now(&self) -> Guard<Arc<PolicyGate>> {
        self.now.load()
    }

    /// Evaluates what is in force now. Its schedules have followed the time, without a call of
    /// [`PolicyGate::follow_time`].
    pub fn check(&self, head: &dyn Head) -> Evaluation<PolicyResult> {
        let gate = self.now.load();
        if gate.has_schedules() {
            self.follow_time(&gate);
        }
        gate.check(head)
    }

    /// Puts another policy in force; one that is wrong changes nothing.
    pub fn replace(&self, policy: &Policy) -> Result<(), PolicyError> {
        let stands = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if *stands == Stands::BeforeService {
            refuse_upstreams(&policy.rules)?;
        }
        let next = self.compiler.compile(policy, Some(&self.now.load()))?;
        self.now.store(Arc::new(next));
        Ok(())
    }

    /// Says that it stands in front of a service, where there are no upstreams: a policy in which a rule falls back to one is
    /// refused, this one now and others when they are to replace it.
    pub fn stand_before_service(&self) -> Result<(), PolicyError> {
        let mut stands = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        refuse_upstreams(self.now.load().inner.rules.iter().map(|rule| &rule.source))?;
        *stands = Stands::BeforeService;
        Ok(())
    }

    /// Whoever comes first after a moment has schedules follow the time, once for all.
    fn follow_time(&self, gate: &PolicyGate) {
        let (now, due) = (self.clock.now(), self.next.load(Ordering::Relaxed));
        let next = now.plus(MOMENT).get();
        if now.get() >= due
            && self.next.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            gate.follow_time();
        }
    }
}

fn refuse_upstreams<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> Result<(), PolicyError> {
    let mut problems = Problems::default();
    for rule in rules {
        if let OnLimit::Fallback(Fallback::Upstream(name)) = &rule.on_limit {
            let problem = format!(
                "it falls back to the upstream `{name}`, and a policy in front of a service has none"
            );
            let fix = "give the fallback a `body`, or use `status` or `redirect`";
            problems.add(Some(&rule.name), &SettingError::new(problem, fix));
        }
    }
    problems.none()
}
