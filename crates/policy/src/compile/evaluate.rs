//! The evaluation of a policy for one request.
//!
//! Access lists and bans are checked first, because they are cheap; then circuit breakers and adaptive limits, whose permits
//! are released if a quota denies; then all quotas together. While a request waits for a quota it holds no permits of guards,
//! and acquires them again after the wait, where it may wait for them, too.
//!
//! A dry run takes the same steps without waiting.

use super::{
    PolicyGate, PolicyGateInner,
    guards::{CompiledRule, GuardPermit, GuardRejection},
    identity::{CredentialKinds, CredentialProblem, Unauthenticated},
    reject::{
        RejectAction, RejectionCause, RejectionKey, RejectionText, RetryTime, build_response, choose_body,
    },
};
use crate::matching::RequestView;
use std::{cell::Cell, fmt, future::ready, mem, sync::Arc, time::Duration};
use tidegate_access::AccessDecision;
use tidegate_bandwidth::Bandwidth;
use tidegate_core::{Decision, Micros, Quota, header::ceil_seconds};
use tidegate_limiter::{KeyId, WaitError};
use tidegate_overload::{CallError, CallOutcome, CallPermit, Rejection, error_rate::KeyedErrorRate};
use tidegate_rule::{
    Evaluation, Gate, HeaderStyle, Hole, LimitDecision, LimitOutcome, LimitSelection, Limited, Mode,
    NumberForm, PendingEvaluation, RejectionNumbers, RejectionResponse, RejectionTemplate, RequestPermits,
    Rule, RunMode, SharedRejection, Verdict, measure_wait,
    middleware::{AccessDenied, AdmittedClient, classify_client},
    request::{KeyValue, RequestHead, ResponseHead},
};

/// Whether a request is admitted.
#[derive(Debug)]
pub enum PolicyResult {
    /// The request is admitted, and holds this until its response.
    Admitted(PolicyAdmission),
    /// The request is denied.
    Rejected(Box<PolicyRejection>),
}

/// The permits and reservations of an admitted request. Dropping it without a response releases its slots and charges the
/// reservations.
#[must_use = "dropping it releases the slots of the request"]
pub struct PolicyAdmission {
    pub(super) gate: PolicyGate,
    pub(super) verdict: Verdict,
    pub(super) permits: Vec<GuardPermit>,
    /// Results of access lists, of guards, and of rules without quotas.
    pub(super) other_results: Vec<(usize, Mode, RuleResult)>,
    /// The time that it waited.
    wait_time: Micros,
    /// What few requests have.
    extras: Option<Box<AdmissionExtras>>,
}

/// What few requests have.
#[derive(Default)]
struct AdmissionExtras {
    /// The byte rates of its bodies.
    down: Vec<Bandwidth>,
    up: Vec<Bandwidth>,
    /// The calls that error rates count.
    counted_calls: Vec<CallPermit<Arc<KeyedErrorRate>>>,
}

/// The reason for denying a request, and the action.
#[derive(Debug)]
pub struct PolicyRejection {
    /// The rule that denies it.
    pub rule: Arc<str>,
    /// Its index in the policy.
    pub index: usize,
    /// The reason.
    pub reason: RejectReason,
    /// Why it has no valid credential, if that is the reason.
    pub credential: Option<CredentialProblem>,
    /// The action of the rule.
    pub action: RejectAction,
    /// The maximum age of a cached response that is sent instead, if the rule declares one. `None` if the client is denied.
    pub max_cache_age: Option<Micros>,
    /// The time after which a retry can succeed, if known.
    pub retry_after: Option<Duration>,
    /// The time that it waited.
    pub wait_time: Micros,
    /// The decision and its quota; `None` if no quota decided.
    pub decision: Option<(Decision, Option<Quota>)>,
}

/// The decision of one rule of a policy.
#[derive(Clone, Copy, Debug)]
pub struct RuleDecision<'a> {
    /// The index of the rule in the policy.
    pub rule: usize,
    /// Whether it is enforced for this request.
    pub mode: Mode,
    /// The result.
    pub result: RuleResult,
    /// The decision of its quotas, if it has any.
    pub decision: Option<&'a Decision>,
    /// The id of the key in the rule's limiter, if it was prefetched.
    pub key: Option<KeyId>,
}

/// The result of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleResult {
    /// The request may proceed.
    Admitted,
    /// The request may proceed after this wait.
    Delayed(Duration),
    /// The request is denied, or would be if the rule were enforced.
    Rejected(RejectReason),
}

/// The reason for denying a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// A quota is exceeded, or the wait for it would take too long.
    Limited,
    /// The queue of a quota is full, or the wait in it timed out.
    QueueFull,
    /// The store is unavailable, and the rule fails closed.
    StoreUnavailable,
    /// The request lacks the key, or has it several times.
    NoKey,
    /// The request lacks a valid credential, or its address sent too many invalid ones.
    Unauthenticated,
    /// The client is on a deny list.
    DenyListed,
    /// The client is banned.
    Banned,
    /// A breaker is open, an adaptive limit is reached, or the load of the machine is too high.
    Overloaded,
    /// The feature that the request uses is off.
    FeatureOff,
}

impl RejectReason {
    /// Whether the client may send the request, but not now.
    pub fn is_temporary(self) -> bool {
        match self {
            Self::Limited
            | Self::QueueFull
            | Self::StoreUnavailable
            | Self::Overloaded
            | Self::FeatureOff => true,
            Self::NoKey | Self::Unauthenticated | Self::DenyListed | Self::Banned => false,
        }
    }
}

thread_local! {
    /// The memory of a list of rules, which is reused.
    static RULES: Cell<Vec<usize>> = const { Cell::new(Vec::new()) };
}

impl PolicyGate {
    /// Evaluates all rules that apply to this request.
    pub fn check(&self, head: &dyn RequestHead) -> Evaluation<PolicyResult> {
        self.evaluate(&self.view_request(head))
    }

    /// Evaluates all rules that apply to this request. The caller can share the [view](Self::view_request) with its route lookup.
    pub fn evaluate(&self, view: &RequestView<'_>) -> Evaluation<PolicyResult> {
        let admitted = || Evaluation::Ready(PolicyResult::Admitted(PolicyAdmission::new(self)));
        self.evaluate_matching(view).unwrap_or_else(admitted)
    }

    /// The same; `None` if no rule applies to this request.
    #[inline]
    pub fn evaluate_matching(&self, view: &RequestView<'_>) -> Option<Evaluation<PolicyResult>> {
        let mut rules = RULES.take();
        self.inner.index.find(view, &mut rules);
        // Also if no rule applies: the credential may be a guess for one that would.
        if let Some(identity) = &self.inner.identity {
            identity.count_invalid(view);
        }
        let evaluation = (!rules.is_empty()).then(|| self.evaluate_rules(view, &rules));
        rules.clear();
        RULES.set(rules);
        evaluation
    }

    fn evaluate_rules(&self, view: &RequestView<'_>, rules: &[usize]) -> Evaluation<PolicyResult> {
        let mut state = EvaluationState::new(self);
        if let Err((rule, wait)) = self.limit_invalid(view, rules) {
            state.reject(rule, RuleRejection::InvalidCredentials(wait));
            return Evaluation::Ready(state.into_result(view.head().header("accept")));
        }
        match state.evaluate(&self.inner, view.head(), rules, RunMode::Live) {
            None => Evaluation::Ready(state.into_result(view.head().header("accept"))),
            Some(verdict) => Evaluation::Pending(state.wait(view.head(), verdict)),
        }
    }

    /// Verifies the credentials of a request for all rules that are enforced together, so that one credential counts once.
    /// Returns the first of these rules, and the time until the next attempt, if the address sent too many invalid ones.
    fn limit_invalid(&self, view: &RequestView<'_>, rules: &[usize]) -> Result<(), (usize, Duration)> {
        let Some(identity) = &self.inner.identity else { return Ok(()) };
        let (mut first, mut kinds) = (None, CredentialKinds::default());
        for index in rules {
            if let Some(rule) = self.inner.rules.get(*index)
                && !rule.verified_credentials.is_empty()
                && rule.mode(view.head()) == Mode::Enforce
            {
                first = first.or(Some(*index));
                kinds = kinds.union(rule.verified_credentials);
            }
        }
        let Some(first) = first else { return Ok(()) };
        identity.limit_invalid(view, kinds).map_err(|wait| (first, wait))
    }
}

/// A request while it is evaluated.
pub(super) struct EvaluationState {
    /// Indexes of the limits that apply.
    limits: Vec<usize>,
    /// Rules with guards, each with the class of the request.
    guarded: Vec<(usize, usize)>,
    clients: Vec<(usize, AdmittedClient)>,
    pub(super) admission: PolicyAdmission,
    /// The rule that denies the request, and the reason.
    pub(super) rejection: Option<(usize, RuleRejection)>,
}

/// The reason why a rule denies a request. The response is built from it on demand.
pub(super) enum RuleRejection {
    DuplicateKey,
    Unauthenticated(Unauthenticated),
    /// The address sent too many invalid credentials. The next attempt is possible after this time.
    InvalidCredentials(Duration),
    Access(AccessDenied),
    Guard(GuardRejection),
    Limit(RejectReason),
}

impl EvaluationState {
    pub(super) fn new(gate: &PolicyGate) -> Self {
        Self {
            limits: Vec::new(),
            guarded: Vec::new(),
            clients: Vec::new(),
            admission: PolicyAdmission::new(gate),
            rejection: None,
        }
    }

    /// Clears the state for the next request, and keeps the allocated memory.
    pub(super) fn clear(&mut self) {
        self.limits.clear();
        self.guarded.clear();
        self.clients.clear();
        self.rejection = None;
        let PolicyAdmission { gate: _, verdict, permits, other_results: others, wait_time: waited, extras } =
            &mut self.admission;
        verdict.clear();
        permits.clear();
        others.clear();
        *waited = Micros::ZERO;
        *extras = None;
    }

    /// Evaluates all steps in order, for a live or a dry run. Returns the future to wait for, if any; never in a dry run.
    pub(super) fn evaluate(
        &mut self,
        inner: &PolicyGateInner,
        head: &dyn RequestHead,
        rules: &[usize],
        run: RunMode<'_>,
    ) -> Option<PendingEvaluation<Verdict>> {
        for rule in rules {
            if let Err(rejection) = self.check_access(inner, *rule, head, run) {
                self.reject(*rule, rejection);
                return None;
            }
        }
        let mut is_queued = false;
        for (index, class) in &self.guarded {
            let Some(rule) = inner.rules.get(*index) else { continue };
            match rule.acquire_guards(*class, &mut self.admission.permits) {
                Ok(()) => {}
                Err(GuardRejection::MustWait) if matches!(run, RunMode::Live) => {
                    is_queued = true;
                    break;
                }
                Err(rejection) => {
                    self.reject(*index, RuleRejection::Guard(rejection));
                    return None;
                }
            }
        }
        if self.limits.is_empty() && !is_queued {
            return None;
        }
        let verdict = &mut self.admission.verdict;
        match inner.gate.evaluate(head, LimitSelection::Indexes(&self.limits), run, verdict) {
            Some(pending) => Some(pending),
            None if is_queued => Some(Box::pin(ready(mem::take(verdict)))),
            None => {
                self.apply_verdict(inner);
                None
            }
        }
    }

    /// Checks the access list of a rule, and collects its other limits.
    fn check_access(
        &mut self,
        inner: &PolicyGateInner,
        index: usize,
        head: &dyn RequestHead,
        run: RunMode<'_>,
    ) -> Result<(), RuleRejection> {
        let Some(rule) = inner.rules.get(index) else { return Ok(()) };
        if rule.rejects_duplicates(head) {
            return Err(RuleRejection::DuplicateKey);
        }
        if rule.requires_credential(head) {
            let identity = inner.identity.as_deref();
            rule.credentials.require(identity, head).map_err(RuleRejection::Unauthenticated)?;
        }
        if rule.has_only_quotas() {
            self.limits.extend(rule.limit);
            return Ok(());
        }
        let mode = rule.mode(head);
        if mode == Mode::Off {
            return Ok(());
        }
        let mut result = RuleResult::Admitted;
        match rule.request_access.as_ref().map(|access| access.check(head)) {
            Some(Err(denied)) if mode == Mode::Enforce => return Err(RuleRejection::Access(denied)),
            Some(Err(denied)) => result = RuleResult::Rejected(RuleRejection::Access(denied).reason()),
            // An allowed client is exempt from all other limits of this rule.
            Some(Ok(client)) if client.decision() == AccessDecision::Allowed => return Ok(()),
            Some(Ok(client)) => self.clients.push((index, client)),
            None => {}
        }
        if mode == Mode::Shadow
            && let Err(rejection) = rule.check_load(rule.class_of(head))
        {
            result = RuleResult::Rejected(RuleRejection::Guard(rejection.into()).reason());
        }
        let has_quota = match &rule.error_rate {
            None => true,
            Some(rates) => {
                let key = rule.key_of(head).unwrap_or(KeyValue::All);
                let is_failing = rates.is_exceeded(&key);
                if matches!(run, RunMode::Live) {
                    let extras = self.admission.extras.get_or_insert_default();
                    extras.counted_calls.push(rates.start_call(&key));
                }
                is_failing
            }
        };
        match rule.limit {
            // A rule that would deny the client does not count it.
            Some(_) if result == RuleResult::Admitted && has_quota => {
                let class = if rule.reserve_limits.is_empty() { 0 } else { rule.class_of(head) };
                self.limits.extend(rule.limits_of(class));
            }
            Some(_) | None => self.admission.other_results.push((index, mode, result)),
        }
        if mode == Mode::Enforce {
            if rule.has_guards() {
                self.guarded.push((index, rule.class_of(head)));
            }
            let (down, up) = rule.bandwidth(head);
            if down.is_some() || up.is_some() {
                let rates = self.admission.extras.get_or_insert_default();
                rates.down.extend(down);
                rates.up.extend(up);
            }
        }
        Ok(())
    }

    fn reject(&mut self, rule: usize, rejection: RuleRejection) {
        self.admission.permits.clear();
        self.admission.record_calls(CallOutcome::Ignored);
        self.admission.other_results.retain(|(other, ..)| *other != rule);
        self.admission.other_results.push((rule, Mode::Enforce, RuleResult::Rejected(rejection.reason())));
        self.rejection = Some((rule, rejection));
    }

    /// Applies the verdict of the quotas.
    fn apply_verdict(&mut self, inner: &PolicyGateInner) {
        let PolicyAdmission { verdict, permits, wait_time: waited, .. } = &mut self.admission;
        *waited = waited.saturating_add(verdict.wait_time());
        if let Some(denial) = verdict.denial() {
            // Every rule that denies the request records it for the bans of its client.
            let denies = |rule: &usize| {
                verdict.denials().any(|denial| inner.limit_rules.get(denial.limit) == Some(rule))
            };
            let denied = self.clients.drain(..).filter(|(rule, _)| denies(rule));
            denied.for_each(|(_, client)| client.record_response(CallOutcome::Failure));
            let owner = inner.limit_rules.get(denial.limit).copied().unwrap_or(usize::MAX);
            self.rejection = Some((owner, RuleRejection::Limit(reject_reason(denial))));
            permits.clear();
            self.admission.record_calls(CallOutcome::Ignored);
        }
    }

    /// Waits for the quotas. Permits of guards are released meanwhile, because a waiting request does no work; their own queues
    /// are entered last.
    fn wait(
        mut self,
        head: &dyn RequestHead,
        verdict: PendingEvaluation<Verdict>,
    ) -> PendingEvaluation<PolicyResult> {
        let gate = self.admission.gate.clone();
        let accept = head.header("accept").map(<[u8]>::to_vec);
        let queue = |(index, class)| {
            let rule: &CompiledRule = gate.inner.rules.get(index)?;
            Some((index, class, rule.key_queue(head)))
        };
        let guarded: Vec<_> = self.guarded.drain(..).filter_map(queue).collect();
        self.admission.permits.clear();
        Box::pin(async move {
            self.admission.verdict = verdict.await;
            self.apply_verdict(&gate.inner);
            for (index, class, queue) in guarded {
                let Some(rule) = gate.inner.rules.get(index).filter(|_| self.rejection.is_none()) else {
                    break;
                };
                let PolicyAdmission { permits, wait_time: waited, .. } = &mut self.admission;
                if let Err(rejection) =
                    measure_wait(waited, rule.acquire_guards_queued(class, queue.as_ref(), permits)).await
                {
                    self.reject(index, RuleRejection::Guard(rejection));
                }
            }
            self.into_result(accept.as_deref())
        })
    }

    fn into_result(self, accept: Option<&[u8]>) -> PolicyResult {
        match self.rejection(accept) {
            Some(rejection) => PolicyResult::Rejected(rejection),
            None => PolicyResult::Admitted(self.admission),
        }
    }

    /// The rejection, if the request is rejected.
    pub(super) fn rejection(&self, accept: Option<&[u8]>) -> Option<Box<PolicyRejection>> {
        let (index, rejection) = self.rejection.as_ref()?;
        Some(rejection.to_policy_rejection(*index, &self.admission, accept))
    }
}

impl RuleRejection {
    pub(super) fn reason(&self) -> RejectReason {
        match self {
            Self::DuplicateKey => RejectReason::NoKey,
            Self::Unauthenticated(_) | Self::InvalidCredentials(_) => RejectReason::Unauthenticated,
            Self::Access(denied) if denied.retry_after().is_some() => RejectReason::Banned,
            Self::Access(_) => RejectReason::DenyListed,
            Self::Guard(GuardRejection::Immediate(Rejection::FeatureOff)) => RejectReason::FeatureOff,
            Self::Guard(_) => RejectReason::Overloaded,
            Self::Limit(reason) => *reason,
        }
    }

    fn credential_problem(&self) -> Option<CredentialProblem> {
        match self {
            Self::Unauthenticated(unauthenticated) => Some(unauthenticated.problem),
            Self::InvalidCredentials(_) => Some(CredentialProblem::Limited),
            Self::DuplicateKey | Self::Access(_) | Self::Guard(_) | Self::Limit(_) => None,
        }
    }

    #[cold]
    fn to_policy_rejection(
        &self,
        index: usize,
        admission: &PolicyAdmission,
        accept: Option<&[u8]>,
    ) -> Box<PolicyRejection> {
        let (rule, verdict) = (admission.gate.inner.rules.get(index), &admission.verdict);
        let denial = match self {
            Self::Limit(_) => verdict.denial(),
            _ => None,
        };
        let (text, numbers) = self.text(rule, denial, admission, accept);
        let RejectionText { rule: name, quota, template } = text;
        let special = rule.and_then(|rule| RejectAction::without_response(&rule.source.on_limit));
        Box::new(PolicyRejection {
            rule: name,
            index,
            reason: self.reason(),
            credential: self.credential_problem(),
            action: special
                .unwrap_or_else(|| RejectAction::Response(SharedRejection::new(template, numbers))),
            max_cache_age: rule
                .filter(|_| self.reason().is_temporary())
                .and_then(|rule| rule.source.on_limit.fallback_cache())
                .map(Into::into),
            retry_after: match self {
                Self::Limit(_) => verdict.retry_after(),
                _ => self.retry_after(),
            },
            wait_time: admission.wait_time,
            decision: denial.and_then(|denial| Some((*denial.decision()?, quota))),
        })
    }

    /// The text of the response, and its numbers.
    fn text(
        &self,
        rule: Option<&CompiledRule>,
        denial: Option<&LimitDecision>,
        admission: &PolicyAdmission,
        accept: Option<&[u8]>,
    ) -> (RejectionText, RejectionNumbers) {
        let gate = &admission.gate.inner.gate;
        let body = rule.and_then(|rule| choose_body(&rule.source.on_limit, accept));
        let render = |form| {
            let default = self.default_response(rule, admission, form);
            match rule {
                Some(rule) => build_response(&rule.source.on_limit, default, body),
                None => default,
            }
        };
        let describe = || {
            let limit_rule = denial.and_then(|denial| denial.rule(gate));
            let name = || rule.map_or("", CompiledRule::name).into();
            (limit_rule.map_or_else(name, Rule::shared_name), denial.and_then(|denial| denial.quota(gate)))
        };
        match rule.zip(self.cause(gate, &admission.verdict)) {
            Some((rule, (cause, numbers))) => {
                let key = RejectionKey { cause, body };
                (rule.rejections.get_or_render(key, &numbers, render, describe), numbers)
            }
            None => {
                let (rule, quota) = describe();
                let template = RejectionTemplate::fixed(render(NumberForm::Digits)).into();
                (RejectionText { rule, quota, template }, RejectionNumbers::default())
            }
        }
    }

    /// What the text of the response depends on, and its numbers. `None` if the text is not shared.
    fn cause(&self, gate: &Gate, verdict: &Verdict) -> Option<(RejectionCause, RejectionNumbers)> {
        let cause = match self {
            Self::DuplicateKey => RejectionCause::DuplicateKey,
            Self::Unauthenticated(Unauthenticated { challenge, .. }) => {
                RejectionCause::Unauthenticated(*challenge)
            }
            Self::InvalidCredentials(_) => RejectionCause::InvalidCredentials,
            Self::Access(denied) if denied.retry_after().is_some() => RejectionCause::Banned,
            Self::Access(_) => RejectionCause::DenyListed,
            Self::Guard(_) if self.retry_after().is_some() => RejectionCause::Guard(RetryTime::Known),
            Self::Guard(_) => RejectionCause::Guard(RetryTime::Unknown),
            Self::Limit(_) => {
                let (shape, numbers) = gate.rejection_shape(verdict)?;
                return Some((RejectionCause::Limit(shape), numbers));
            }
        };
        let numbers = RejectionNumbers::default();
        Some(match self.retry_after() {
            Some(wait) => (cause, numbers.with(Hole::RETRY_AFTER, ceil_seconds(wait.into()))),
            None => (cause, numbers),
        })
    }

    /// The response of a rule without `on-limit`.
    fn default_response(
        &self,
        rule: Option<&CompiledRule>,
        admission: &PolicyAdmission,
        form: NumberForm,
    ) -> RejectionResponse {
        match self {
            Self::DuplicateKey => RejectionResponse::duplicate_key(),
            Self::Unauthenticated(Unauthenticated { challenge, .. }) => match challenge {
                Some(challenge) => RejectionResponse::unauthorized(challenge),
                None => RejectionResponse::no_client_certificate(),
            },
            Self::InvalidCredentials(wait) => RejectionResponse::invalid_credentials(*wait, form),
            Self::Access(denied) => RejectionResponse::access_denied(denied.decision, form),
            Self::Guard(rejection) => {
                let limited = rejection.to_limited(rule);
                let response = RejectionResponse::from_limited_in(form, &limited, HeaderStyle::default());
                match response.get("retry-after") {
                    Some(_) => response,
                    None => response.header("retry-after", "1"),
                }
            }
            Self::Limit(_) => {
                let gate = &admission.gate.inner.gate;
                gate.rejection_response_in(&admission.verdict, form)
            }
        }
    }

    /// The time after which a retry can succeed, if it is known. That of quotas is in the verdict.
    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::InvalidCredentials(wait) => Some(*wait),
            Self::Access(denied) => denied.retry_after(),
            Self::Guard(rejection) => rejection.to_error().retry_after(),
            Self::DuplicateKey | Self::Unauthenticated(_) | Self::Limit(_) => None,
        }
    }
}

impl GuardRejection {
    fn to_error(self) -> CallError {
        match self {
            Self::Immediate(rejection) => CallError::GuardRejected(rejection),
            Self::WaitFailed(error) => CallError::WaitFailed(error),
            Self::MustWait => CallError::GuardRejected(Rejection::ConcurrencyLimitReached),
        }
    }

    fn to_limited(self, rule: Option<&CompiledRule>) -> Limited {
        let cause = self.to_error();
        let message = rule.and_then(|rule| rule.source.message.as_deref()).map(Into::into);
        Limited::new(rule.map_or("", CompiledRule::name), cause).with_message(message)
    }
}

fn reject_reason(denial: &LimitDecision) -> RejectReason {
    match denial.outcome {
        LimitOutcome::MissingKey => RejectReason::NoKey,
        LimitOutcome::Decided(decision) if decision.is_fail_closed() => RejectReason::StoreUnavailable,
        LimitOutcome::WaitFailed { error: WaitError::StoreUnavailable(_), .. } => {
            RejectReason::StoreUnavailable
        }
        LimitOutcome::Decided(_) => RejectReason::Limited,
        LimitOutcome::WaitFailed { .. } => RejectReason::QueueFull,
    }
}

fn rule_result(decision: &LimitDecision) -> RuleResult {
    match decision.decision() {
        Some(decision) if decision.is_allowed() => RuleResult::Admitted,
        _ if decision.would_deny() => RuleResult::Rejected(reject_reason(decision)),
        _ => RuleResult::Delayed(decision.delay()),
    }
}

impl PolicyResult {
    /// The time that the request waited.
    pub fn wait_time(&self) -> Micros {
        match self {
            Self::Admitted(admission) => admission.wait_time,
            Self::Rejected(rejection) => rejection.wait_time,
        }
    }
}

impl RuleDecision<'_> {
    /// Whether the request is denied because of it.
    pub fn is_rejection(&self) -> bool {
        self.mode == Mode::Enforce && matches!(self.result, RuleResult::Rejected(_))
    }
}

impl PolicyAdmission {
    pub(super) fn new(gate: &PolicyGate) -> Self {
        Self {
            gate: gate.clone(),
            verdict: Verdict::default(),
            permits: Vec::new(),
            other_results: Vec::new(),
            wait_time: Micros::ZERO,
            extras: None,
        }
    }

    /// The decision of each rule that was checked.
    #[inline]
    pub fn decisions(&self) -> impl Iterator<Item = RuleDecision<'_>> {
        let inner = &*self.gate.inner;
        let quotas = self.verdict.decisions().filter_map(|one| {
            let rule = *inner.limit_rules.get(one.limit)?;
            let compiled = inner.rules.get(rule)?;
            // A rule has one decision: that of its quotas, or of a reserve that would deny.
            let one = match compiled.reserve_limits.is_empty() {
                true => one,
                false if compiled.limit != Some(one.limit) => return None,
                false => self.worst_decision(compiled, one),
            };
            let (mode, result, decision) = (one.mode, rule_result(one), one.decision());
            Some(RuleDecision { rule, mode, result, decision, key: one.key })
        });
        let others = self.other_results.iter().map(|(rule, mode, result)| RuleDecision {
            rule: *rule,
            mode: *mode,
            result: *result,
            decision: None,
            key: None,
        });
        quotas.chain(others)
    }

    fn has_counted_calls(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| !extras.counted_calls.is_empty())
    }

    /// Records the outcome in the error rates.
    fn record_calls(&mut self, outcome: CallOutcome) {
        let calls = self.extras.iter_mut().flat_map(|extras| extras.counted_calls.drain(..));
        calls.for_each(|call| call.record(outcome));
    }

    /// Of the decisions of a rule, one that would deny, or else that of its own limit.
    fn worst_decision<'v>(&'v self, rule: &CompiledRule, own: &'v LimitDecision) -> &'v LimitDecision {
        let is_reserve = |limit: usize| rule.reserve_limits.iter().any(|(_, reserve)| *reserve == limit);
        let mut reserves = self.verdict.decisions().filter(|one| is_reserve(one.limit));
        reserves.find(|one| one.would_deny()).filter(|_| !own.would_deny()).unwrap_or(own)
    }

    /// The decisions of its quotas.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// Writes the rate limit headers; see [`Verdict::write_headers`].
    pub fn write_headers(&self, each: impl FnMut(&'static str, &str)) {
        self.verdict.write_headers(&self.gate.inner.gate, each);
    }

    /// The style of the rate limit headers.
    #[inline]
    pub fn header_style(&self) -> HeaderStyle {
        self.gate.inner.gate.header_style()
    }

    /// The limits that decided.
    pub fn gate(&self) -> &tidegate_rule::Gate {
        &self.gate.inner.gate
    }

    /// The byte rates of its response. All of them apply.
    pub fn response_rates(&self) -> &[Bandwidth] {
        self.extras.as_deref().map_or(&[], |rates| &rates.down)
    }

    /// The byte rates of its request body. All of them apply.
    pub fn request_rates(&self) -> &[Bandwidth] {
        self.extras.as_deref().map_or(&[], |rates| &rates.up)
    }

    /// Whether there are permits or reservations to settle with the response.
    pub fn has_pending(&self) -> bool {
        self.verdict.has_hold() || !self.permits.is_empty() || self.has_counted_calls()
    }

    /// Leaves the queues of a dry run, because the wait is over.
    pub fn leave_queues(&mut self) {
        self.verdict.leave_queues();
    }

    /// Reports the response to its guards, and settles the reservations. The result holds its slots; drop it when the body has
    /// been sent.
    pub fn settle(mut self, reply: &dyn ResponseHead) -> RequestPermits {
        let report = classify_client(Some(reply));
        self.permits.drain(..).for_each(|permit| permit.report(report));
        self.record_calls(report);
        self.verdict.settle(&self.gate.inner.gate, reply)
    }

    /// Reports a failure without a response to its guards, and charges the reservations.
    pub fn fail(mut self) {
        self.permits.drain(..).for_each(|permit| permit.report(CallOutcome::Failure));
        self.record_calls(CallOutcome::Failure);
    }
}

impl fmt::Debug for PolicyAdmission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyAdmission").field("verdict", &self.verdict).finish_non_exhaustive()
    }
}
