//! What the text of a response to a denied request depends on.

use super::{Gate, LimitDecision, LimitOutcome, Verdict};
use crate::{
    Mode,
    rejection::{Hole, MAX_GROUPS, MAX_TEMPLATE_QUOTAS, RejectionNumbers, RetrySeconds, is_more_restrictive},
};
use tidegate_core::Decision;

/// What the text of a response to a denied request depends on, beside its numbers. Denials by one gate with the same shape have
/// the same text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejectionShape {
    /// The limit that denies the request.
    limit: usize,
    cause: DenialCause,
    has_retry_after: bool,
    /// The quotas in the headers.
    quotas: [Option<QuotaShape>; MAX_TEMPLATE_QUOTAS],
    /// The index of the one in the headers of each group, in headers that have only one.
    most_restrictive: [Option<usize>; MAX_GROUPS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DenialCause {
    Quota,
    Unavailable,
    MissingKey,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct QuotaShape {
    /// The id of the header fields of its rule.
    fields: u64,
    index: usize,
    is_granted: bool,
    has_reset: bool,
}

impl RejectionShape {
    /// The shape and the numbers of the response to a denied request. `None` if it is not denied, or has too many quotas.
    pub(super) fn of(verdict: &Verdict, gate: &Gate) -> Option<(Self, RejectionNumbers)> {
        let denial = verdict.denial()?;
        let mut shape = Self {
            limit: denial.limit,
            cause: DenialCause::of(denial),
            has_retry_after: false,
            quotas: [None; MAX_TEMPLATE_QUOTAS],
            most_restrictive: [None; MAX_GROUPS],
        };
        let mut numbers = RejectionNumbers::default();
        if shape.cause == DenialCause::MissingKey {
            return Some((shape, numbers));
        }
        let style = gate.header_style();
        let mut retry_after = RetrySeconds::default();
        let mut most_restrictive = [None; MAX_GROUPS];
        let enforced = verdict.decisions().filter(|one| one.mode == Mode::Enforce);
        let decided = enforced.filter_map(|one| {
            let decision = one.decision().filter(|decision| !decision.is_fail_closed())?;
            let fields = one.rule(gate)?.policy_fields();
            fields.get(decision.quota()).is_some().then_some((fields, decision))
        });
        for (index, (fields, decision)) in decided.enumerate() {
            let label = fields.get(decision.quota())?;
            let reset = style.reset(label, decision, gate.wall_clock());
            *shape.quotas.get_mut(index)? = Some(QuotaShape {
                fields: fields.id(),
                index: decision.quota(),
                is_granted: decision.is_granted(),
                has_reset: reset.is_some(),
            });
            let left = label.remaining(decision);
            numbers = numbers
                .with(Hole::remaining(index), left.remaining)
                .with(style.reset_hole(index), reset.unwrap_or_default());
            if !decision.is_granted() {
                retry_after.add(decision);
            }
            let group = style.group(label).and_then(|group| most_restrictive.get_mut(group));
            let left = (left, decision.is_granted());
            if let Some(group) = group
                && group.is_none_or(|(_, one)| is_more_restrictive(one, left))
            {
                *group = Some((index, left));
            }
        }
        shape.most_restrictive = most_restrictive.map(|one| one.map(|(index, _)| index));
        if let Some(seconds) = retry_after.finish(denial.retry_after()) {
            shape.has_retry_after = true;
            numbers = numbers.with(Hole::RETRY_AFTER, seconds);
        }
        Some((shape, numbers))
    }
}

impl DenialCause {
    fn of(denial: &LimitDecision) -> Self {
        match denial.outcome {
            LimitOutcome::MissingKey => Self::MissingKey,
            LimitOutcome::Decided(decision) if !Decision::is_fail_closed(&decision) => Self::Quota,
            LimitOutcome::Decided(_) | LimitOutcome::WaitFailed { .. } => Self::Unavailable,
        }
    }
}
