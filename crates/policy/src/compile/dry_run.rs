//! Dry runs of a policy at a time that the caller sets, as for replaying a log.

use super::{
    PolicyGate,
    evaluate::{EvaluationState, PolicyAdmission, PolicyRejection, RuleDecision, RuleResult},
};
use crate::matching::RequestView;
use std::{fmt, ops::Range, time::Duration};
use tidegate_rule::{Mode, PreparedCheck, RunMode, request::RequestHead};

/// The rules that apply to each of several requests, and the keys of their limits.
///
/// They depend neither on other requests nor on the time, so another thread may [prepare](PolicyGate::prepare) them.
#[derive(Debug, Default)]
pub struct Prefetch {
    /// The rules of all requests, concatenated.
    rules: Vec<usize>,
    checks: Vec<PreparedCheck>,
    /// The ends of the rules and the checks of each request.
    ends: Vec<(usize, usize)>,
    /// The rules of the current request.
    matched: Vec<usize>,
    limits: Vec<usize>,
}

impl Prefetch {
    /// The number of requests.
    #[inline]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no requests.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The total number of applying rules over all requests.
    pub fn rule_count(&self) -> usize {
        self.rules.len()
    }

    /// Removes all requests, and keeps the allocated memory.
    pub fn clear(&mut self) {
        self.rules.clear();
        self.checks.clear();
        self.ends.clear();
    }

    /// The indexes of all rules that match this request, in any mode.
    #[inline]
    pub fn matched_rules(&self, at: usize) -> &[usize] {
        self.get(at).0
    }

    #[inline]
    fn get(&self, at: usize) -> (&[usize], &[PreparedCheck]) {
        let (rules, checks) = match at.checked_sub(1) {
            Some(before) => self.ends.get(before).copied().unwrap_or_default(),
            None => (0, 0),
        };
        let (rules_end, checks_end) = self.ends.get(at).copied().unwrap_or((rules, checks));
        (&self.rules[rules..rules_end], &self.checks[checks..checks_end])
    }
}

/// The result of a dry run. Reuse it for the next request to keep the allocated memory.
pub struct DryRun {
    state: EvaluationState,
}

impl DryRun {
    /// A result for dry runs of this policy.
    pub fn new(gate: &PolicyGate) -> Self {
        Self { state: EvaluationState::new(gate) }
    }

    /// The decision of each rule that was checked.
    #[inline]
    pub fn decisions(&self) -> impl Iterator<Item = RuleDecision<'_>> {
        self.state.admission.decisions()
    }

    /// The index of the rule that denies the request; of several, the one with the longest wait. `None` if it is admitted.
    pub fn rejected_by(&self) -> Option<usize> {
        self.state.rejection.as_ref().map(|(rule, _)| *rule)
    }

    /// The rejection, if the request is rejected.
    pub fn rejection(&self, head: &dyn RequestHead) -> Option<Box<PolicyRejection>> {
        self.state.rejection(head.header("accept"))
    }

    /// The time that the request waits before it proceeds.
    pub fn delay(&self) -> Duration {
        let enforced = self.decisions().filter(|decision| decision.mode == Mode::Enforce);
        let delays = enforced.map(|decision| match decision.result {
            RuleResult::Delayed(delay) => delay,
            RuleResult::Admitted | RuleResult::Rejected(_) => Duration::ZERO,
        });
        delays.max().unwrap_or_default()
    }

    /// The permits of the admitted request until its response, and its places in queues until its wait is over; `None` without any.
    pub fn take_admission(&mut self) -> Option<Box<PolicyAdmission>> {
        let admission = &mut self.state.admission;
        admission.has_pending().then(|| {
            let next = PolicyAdmission::new(&admission.gate);
            Box::new(std::mem::replace(admission, next))
        })
    }
}

impl PolicyGate {
    /// Finds the rules that match this request, and the keys of their limits, and adds them to `prefetch`.
    pub fn prepare(&self, view: &RequestView<'_>, prefetch: &mut Prefetch) {
        let inner = &*self.inner;
        let Prefetch { rules, checks, ends, matched: found, limits } = prefetch;
        found.clear();
        limits.clear();
        inner.index.find(view, found);
        rules.extend_from_slice(found);
        let mut found = found.iter().filter_map(|index| inner.rules.get(*index));
        let is_plain = found.all(|rule| {
            limits.extend(rule.limit);
            rule.has_only_quotas()
        });
        if is_plain {
            inner.gate.prepare(view.head(), limits, checks);
        }
        ends.push((rules.len(), checks.len()));
    }

    /// Prefetches the counters of these requests into the CPU cache.
    pub fn prefetch(&self, prefetch: &Prefetch, requests: Range<usize>) {
        requests.for_each(|at| self.inner.gate.prefetch(prefetch.get(at).1));
    }

    /// Evaluates all rules for one of the [prepared](Self::prepare) requests, at the time of the clock, which the caller sets. No
    /// other thread may check this gate at the same time, and the gate must be that of the [`DryRun`].
    ///
    /// The steps are those of [`evaluate`](Self::evaluate) without waiting: a wait for a quota is reported as a delay, and a
    /// request that would wait for a slot is denied, because the time of its release is unknown.
    pub fn dry_run(&self, head: &dyn RequestHead, (prefetch, at): (&Prefetch, usize), dry_run: &mut DryRun) {
        let (rules, checks) = prefetch.get(at);
        dry_run.state.clear();
        let pending = dry_run.state.evaluate(&self.inner, head, rules, RunMode::DryRun(checks));
        debug_assert!(pending.is_none());
    }
}

impl fmt::Debug for DryRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.decisions()).finish()
    }
}
