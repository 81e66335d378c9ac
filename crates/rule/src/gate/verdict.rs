//! The decisions of all limits on one request, and what it holds until its response.

use super::{
    BodyCost, ChargePolicy, Gate, RequestLimit, ResponseValues, charge::FinalCost, queue::QueueGuard,
};
use crate::{Limited, Mode, NumberForm, PolicyFields, RejectionResponse, Rule, request::ResponseHead};
use std::{fmt, sync::Arc, time::Duration};
use tidegate_core::{Decision, Micros, Outcome, Quota, Retry, header::PolicyField};
use tidegate_limiter::{KeyId, Permit, Reservation, WaitError, background};
use tidegate_overload::CallError;

/// The decisions of all limits on one request, and what it holds until its response.
///
/// Dropping it without a response releases the slots of the request and charges what was reserved.
#[must_use = "dropping it releases the slots of the request"]
#[derive(Default)]
pub struct Verdict {
    first: Option<LimitDecision>,
    more: Vec<LimitDecision>,
    hold: Option<Box<RequestHold>>,
    wait_time: Micros,
}

/// The decision of one limit.
#[derive(Clone, Copy, Debug)]
pub struct LimitDecision {
    /// The index of the limit in [`Gate::limits`].
    pub limit: usize,
    /// Whether it was enforced.
    pub mode: Mode,
    /// The outcome of its check.
    pub outcome: LimitOutcome,
    /// Identifies the key in its limiter, where it was [prefetched](Gate::prepare).
    pub key: Option<KeyId>,
}

/// The outcome of the check of a limit.
#[derive(Clone, Copy, Debug)]
pub enum LimitOutcome {
    /// Its quotas decided this.
    Decided(Decision),
    /// The queue was full, or the request timed out in it.
    WaitFailed {
        /// The error.
        error: WaitError,
        /// The time until its tokens would have been available, if a rate is known.
        retry_after: Option<Micros>,
    },
    /// The request lacks the key, and the limit requires it.
    MissingKey,
}

/// What a request holds until its response.
#[derive(Default)]
pub(super) struct RequestHold {
    /// Tokens that are settled with the response, each with the index of its limit.
    pub(super) tokens: Vec<(usize, Reservation)>,
    pub(super) permits: Vec<Permit>,
    /// Queue entries, for a dry run whose caller ends the wait.
    pub(super) queue_entries: Vec<QueueGuard>,
}

impl LimitDecision {
    /// Creates the decision of an enforced limit by its quotas.
    #[inline]
    pub fn enforced(limit: usize, decision: Decision) -> Self {
        Self::new(limit, Mode::Enforce, LimitOutcome::Decided(decision))
    }

    #[inline]
    pub(super) fn new(limit: usize, mode: Mode, outcome: LimitOutcome) -> Self {
        Self { limit, mode, outcome, key: None }
    }

    /// Whether it denies the request.
    #[inline]
    pub fn is_denial(&self) -> bool {
        self.mode == Mode::Enforce && self.would_deny()
    }

    /// Whether it would deny the request if it were enforced.
    #[inline]
    pub fn would_deny(&self) -> bool {
        self.decision().is_none_or(|decision| !decision.is_granted())
    }

    /// The decision of its quotas; `None` without a decision.
    #[inline]
    pub fn decision(&self) -> Option<&Decision> {
        match &self.outcome {
            LimitOutcome::Decided(decision) => Some(decision),
            LimitOutcome::WaitFailed { .. } | LimitOutcome::MissingKey => None,
        }
    }

    /// How long the request waits for it.
    pub fn delay(&self) -> Duration {
        match self.decision().map(Decision::outcome) {
            Some(Outcome::Delay(wait)) => wait.to_duration(),
            _ => Duration::ZERO,
        }
    }

    /// Its rule, in the gate that decided.
    #[inline]
    pub fn rule<'g>(&self, gate: &'g Gate) -> Option<&'g Rule> {
        gate.limits().get(self.limit).map(RequestLimit::rule)
    }

    /// The quota of the decision: the one that denied, or else the one with the least remaining.
    pub fn quota(&self, gate: &Gate) -> Option<Quota> {
        self.rule(gate)?.quota_at(self.decision()?.quota())
    }

    fn limited(&self, gate: &Gate) -> Option<Limited> {
        let rule = self.rule(gate)?;
        match &self.outcome {
            LimitOutcome::Decided(decision) => Some(rule.to_limited(decision)),
            LimitOutcome::WaitFailed { error, retry_after } => Some(
                Limited::new(rule.name(), CallError::from(*error))
                    .with_message(rule.message())
                    .with_retry_after(retry_after.map(Micros::to_duration)),
            ),
            LimitOutcome::MissingKey => None,
        }
    }

    /// The time after which a retry makes sense, if known.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        let cause: CallError = match &self.outcome {
            LimitOutcome::Decided(decision) => CallError::from_denial(*decision),
            LimitOutcome::WaitFailed { error, retry_after } => {
                let known: CallError = (*error).into();
                return known.retry_after().or(retry_after.map(Micros::to_duration));
            }
            LimitOutcome::MissingKey => return None,
        };
        cause.retry_after()
    }

    /// Orders denials by the wait they require; denials without a possible retry are the most severe.
    fn severity(&self) -> (u8, Micros) {
        match self.decision().map(Decision::outcome) {
            None => (3, Micros::ZERO),
            Some(Outcome::Deny(Retry::Never)) => (2, Micros::ZERO),
            Some(Outcome::Deny(Retry::WhenReleased)) => (1, Micros::ZERO),
            Some(Outcome::Deny(Retry::After(wait))) => (0, wait),
            Some(Outcome::Allow | Outcome::Delay(_)) => (0, Micros::ZERO),
        }
    }
}

impl Verdict {
    pub(super) fn from_parts(decisions: Vec<LimitDecision>, hold: RequestHold, wait_time: Micros) -> Self {
        let mut decisions = decisions.into_iter();
        let is_empty = hold.tokens.is_empty() && hold.permits.is_empty() && hold.queue_entries.is_empty();
        let hold = if is_empty { None } else { Some(Box::new(hold)) };
        Self { first: decisions.next(), more: decisions.collect(), hold, wait_time }
    }

    /// The verdict if there is no runtime to query a store on.
    pub(super) fn store_unavailable(limits: impl IntoIterator<Item = usize>) -> Self {
        let outcome = LimitOutcome::Decided(Decision::fail_closed(0, Micros::from_secs(1)));
        let closed = limits.into_iter().map(|limit| LimitDecision::new(limit, Mode::Enforce, outcome));
        Self::from_parts(closed.collect(), RequestHold::default(), Micros::ZERO)
    }

    /// Removes all decisions, and keeps the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.first = None;
        self.more.clear();
        self.hold = None;
        self.wait_time = Micros::ZERO;
    }

    #[inline]
    pub(super) fn push(&mut self, decision: LimitDecision) {
        match self.first {
            None => self.first = Some(decision),
            Some(_) => self.more.push(decision),
        }
    }

    #[inline]
    pub(super) fn decisions_mut(&mut self) -> impl Iterator<Item = &mut LimitDecision> {
        self.first.iter_mut().chain(&mut self.more)
    }

    /// Whether the request is admitted.
    #[inline]
    pub fn is_admitted(&self) -> bool {
        !self.decisions().any(LimitDecision::is_denial)
    }

    /// The decision of each limit that was checked, in the order of the gate; those in shadow mode too.
    #[inline]
    pub fn decisions(&self) -> impl Iterator<Item = &LimitDecision> {
        self.first.iter().chain(&self.more)
    }

    /// The only decision, if there is one.
    #[inline]
    pub fn single(&self) -> Option<&LimitDecision> {
        self.first.as_ref().filter(|_| self.more.is_empty())
    }

    /// All limits that deny the request.
    pub fn denials(&self) -> impl Iterator<Item = &LimitDecision> {
        self.decisions().filter(|decision| decision.is_denial())
    }

    /// The limit that denies the request: of several, the one with the longest wait. `None` if it is admitted.
    pub fn denial(&self) -> Option<&LimitDecision> {
        self.denials().reduce(|worst, other| if other.severity() > worst.severity() { other } else { worst })
    }

    /// The error of the [denial](Self::denial). `None` if the request is admitted, or if it lacks a key that a limit
    /// requires, which is no limit.
    pub fn to_limited(&self, gate: &Gate) -> Option<Limited> {
        self.denial()?.limited(gate)
    }

    /// The time after which a retry makes sense, if known: the longest of all waits. `None` if a limit will
    /// never admit it.
    pub fn retry_after(&self) -> Option<Duration> {
        let never = |one: &LimitDecision| {
            matches!(one.decision().map(Decision::outcome), Some(Outcome::Deny(Retry::Never)))
        };
        match self.denials().any(never) {
            true => None,
            false => self.denials().filter_map(LimitDecision::retry_after).max(),
        }
    }

    /// The default response to a denied request: 429 with the rate limit headers, 503 if the store is
    /// unavailable or the wait timed out, or 400 if its key is missing. [`Gate::rejection_response`] returns
    /// the gate's own response, if set.
    pub fn rejection_response(&self, gate: &Gate) -> RejectionResponse {
        self.rejection_response_in(gate, NumberForm::Digits)
    }

    /// The same, with this form of the numbers.
    pub(super) fn rejection_response_in(&self, gate: &Gate, form: NumberForm) -> RejectionResponse {
        match self.to_limited(gate) {
            Some(limited) => {
                let quotas = self.quotas(gate);
                RejectionResponse::from_decisions_in(
                    form,
                    &limited,
                    quotas.iter().filter_map(QuotaHeaders::remaining),
                    gate.header_style(),
                    gate.wall_clock(),
                )
            }
            None => RejectionResponse::missing_key(),
        }
    }

    /// Writes the rate limit headers: calls `each` with a name in lower case and a value. Rules in shadow
    /// mode are left out.
    pub fn write_headers(&self, gate: &Gate, mut each: impl FnMut(&'static str, &str)) {
        let (fields, quotas) = (gate.header_style(), self.quotas(gate));
        fields.write_policies(quotas.iter().flat_map(QuotaHeaders::policies), &mut each);
        fields.write_remaining(quotas.iter().filter_map(QuotaHeaders::remaining), gate.wall_clock(), each);
    }

    fn quotas(&self, gate: &Gate) -> Vec<QuotaHeaders<'_>> {
        let enforced = self.decisions().filter(|one| one.mode == Mode::Enforce);
        let quotas = enforced.filter_map(|one| {
            let labels = one.rule(gate)?.policy_fields().clone();
            Some(QuotaHeaders { labels, decision: one.decision() })
        });
        quotas.collect()
    }

    /// How long the request waited. The latency of a store is not included.
    #[inline]
    pub fn wait_time(&self) -> Micros {
        self.wait_time
    }

    /// Whether it holds anything that is settled or released with the response.
    #[inline]
    pub fn has_hold(&self) -> bool {
        self.hold.is_some()
    }

    /// Leaves the queues of a dry run when the wait is over.
    pub fn leave_queues(&mut self) {
        if let Some(hold) = &mut self.hold {
            hold.queue_entries.clear();
        }
    }

    /// Settles the reservations with the response: refunds or charges the difference. The result holds the slots of the request,
    /// and tokens whose cost the body of the response states; drop it when the body has been sent.
    #[inline]
    pub fn settle(mut self, gate: &Gate, response: &dyn ResponseHead) -> RequestPermits {
        match self.hold.take() {
            None => RequestPermits::default(),
            Some(hold) => hold.settle(gate, response),
        }
    }
}

/// A verdict of one decision that holds nothing.
impl From<LimitDecision> for Verdict {
    #[inline]
    fn from(decision: LimitDecision) -> Self {
        Self { first: Some(decision), ..Self::default() }
    }
}

/// The quotas of one rule as rate limit headers.
struct QuotaHeaders<'a> {
    labels: Arc<PolicyFields>,
    decision: Option<&'a Decision>,
}

impl QuotaHeaders<'_> {
    /// The policies that apply.
    fn policies(&self) -> impl Iterator<Item = &PolicyField> {
        let selected = self.decision.and_then(|decision| self.labels.selected(decision.quota()));
        let all = self.labels.iter().filter(move |_| selected.is_none());
        selected.and_then(|quota| self.labels.get(quota)).into_iter().chain(all)
    }

    /// The quota of the decision and its remaining tokens; `None` if the store is unavailable.
    fn remaining(&self) -> Option<(&PolicyField, &Decision)> {
        let decision = self.decision.filter(|decision| !decision.is_fail_closed())?;
        self.labels.get(decision.quota()).map(|label| (label, decision))
    }
}

impl RequestHold {
    fn settle(mut self, gate: &Gate, response: &dyn ResponseHead) -> RequestPermits {
        let (mut unsettled, mut settled) = (Vec::new(), Vec::new());
        background::enter(|| {
            for (limit, tokens) in self.tokens.drain(..) {
                let Some(request_limit) = gate.limits().get(limit) else {
                    tokens.keep();
                    continue;
                };
                let charge = request_limit.charge_policy();
                match charge.final_cost(request_limit.rule().name(), tokens.cost(), response) {
                    FinalCost::Known(cost) => {
                        tokens.commit(cost);
                    }
                    FinalCost::Stated(stated) => settled.push(commit(limit, tokens, charge, stated)),
                    FinalCost::InBody(stated) => {
                        unsettled.push(UnsettledCost { limit, tokens, charge: charge.clone(), stated });
                    }
                }
            }
        });
        RequestPermits { permits: std::mem::take(&mut self.permits), unsettled, settled }
    }
}

/// Without a response, the reservations are charged.
impl Drop for RequestHold {
    fn drop(&mut self) {
        for (_, tokens) in self.tokens.drain(..) {
            tokens.keep();
        }
        let mut released = RequestPermits::default();
        released.permits = std::mem::take(&mut self.permits);
    }
}

/// What a request holds until the body of its response has ended: its slots, and tokens whose cost the body states. Dropping it
/// releases the slots, and charges the tokens.
#[must_use = "dropping it releases the slots"]
#[derive(Default)]
pub struct RequestPermits {
    permits: Vec<Permit>,
    unsettled: Vec<UnsettledCost>,
    /// The costs that the head of the response stated.
    settled: Vec<SettledCost>,
}

/// Tokens of one limit whose cost the body of the response states.
struct UnsettledCost {
    limit: usize,
    tokens: Reservation,
    charge: ChargePolicy,
    stated: Arc<BodyCost>,
}

/// How the tokens of one limit were settled by a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettledCost {
    /// The index of the limit in [`Gate::limits`].
    pub limit: usize,
    /// The cost before the call.
    pub reserved: u64,
    /// The cost that the response states; `None` if it states none.
    pub stated: Option<u64>,
    /// The cost that was charged.
    pub charged: u64,
}

/// Charges a stated cost, or that of the request.
fn commit(limit: usize, tokens: Reservation, charge: &ChargePolicy, stated: Option<u64>) -> SettledCost {
    let reserved = tokens.cost();
    let charged = charge.limit_debt(reserved, stated);
    tokens.commit(charged);
    SettledCost { limit, reserved, stated, charged }
}

impl RequestPermits {
    /// Whether there is nothing to release.
    pub fn is_empty(&self) -> bool {
        self.permits.is_empty() && self.unsettled.is_empty()
    }

    /// Removes and returns the costs that the head of the response settled.
    pub fn take_settled(&mut self) -> Vec<SettledCost> {
        std::mem::take(&mut self.settled)
    }

    /// The costs that the body of the response states.
    pub fn body_costs(&self) -> impl Iterator<Item = &BodyCost> {
        self.unsettled.iter().map(|cost| &*cost.stated)
    }

    /// Settles the tokens when the body has ended, and returns how. Without a stated cost they are charged.
    pub fn settle(&mut self, values: &ResponseValues) -> Vec<SettledCost> {
        if self.unsettled.is_empty() {
            return Vec::new();
        }
        let settle = |cost: UnsettledCost| {
            let stated = (cost.stated.compute)(values);
            commit(cost.limit, cost.tokens, &cost.charge, stated)
        };
        background::enter(|| self.unsettled.drain(..).map(settle).collect()).unwrap_or_default()
    }
}

/// A slot in a store is released on the current runtime, or otherwise on our own.
impl Drop for RequestPermits {
    #[inline]
    fn drop(&mut self) {
        for cost in self.unsettled.drain(..) {
            cost.tokens.keep();
        }
        if !self.permits.is_empty() {
            background::enter(|| self.permits.clear());
        }
    }
}

impl fmt::Debug for RequestPermits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestPermits({})", self.permits.len())
    }
}

impl fmt::Debug for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.decisions()).finish()
    }
}
