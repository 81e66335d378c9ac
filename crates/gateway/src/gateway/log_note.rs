//! The decision in the access log and in traces.

use crate::LogNote;
use tidegate_core::Decision;
use tidegate_policy::{
    compile::{PolicyAdmission, PolicyGate, PolicyRejection, RejectReason},
    head::HttpRequestHead,
};
use tidegate_rule::{Gate, LimitDecision, Mode, Rule, key_hash};

/// The note of an admitted request: the rule in shadow mode that would have denied it, or else the most restrictive rule.
pub(super) fn admitted_note(
    admission: &PolicyAdmission,
    gate: &PolicyGate,
    head: &HttpRequestHead<'_>,
) -> LogNote {
    let verdict = admission.verdict();
    let name = |one: &LimitDecision| one.rule(gate.gate()).map_or("", Rule::name);
    let is_shadow_denied = |one: &&LimitDecision| {
        one.mode == Mode::Shadow && one.decision().is_some_and(|decision| !decision.is_granted())
    };
    if let Some(shadow_denied) = verdict.decisions().find(is_shadow_denied) {
        return build_note(name(shadow_denied), "shadow-denied", gate.gate(), head);
    }
    let left = |one: &&LimitDecision| one.decision().map_or(u64::MAX, Decision::remaining);
    match verdict.decisions().min_by_key(left) {
        Some(one) => build_note(name(one), "admitted", gate.gate(), head),
        None => LogNote { decision: Some("admitted".to_owned()), ..LogNote::default() },
    }
}

/// The note of a rejected request.
pub(super) fn rejected_note(
    rejection: &PolicyRejection,
    gate: &PolicyGate,
    head: &HttpRequestHead<'_>,
) -> LogNote {
    let decision = match rejection.reason {
        RejectReason::Limited => "limited",
        RejectReason::NoKey => "no-key",
        RejectReason::Unauthenticated => "unauthenticated",
        RejectReason::DenyListed => "deny-list",
        RejectReason::Banned => "banned",
        RejectReason::Overloaded => "overloaded",
        RejectReason::QueueFull => "queue-full",
        RejectReason::StoreUnavailable => "store-unavailable",
        RejectReason::FeatureOff => "feature-off",
    };
    build_note(&rejection.rule, decision, gate.gate(), head)
}

fn build_note(rule: &str, decision: &str, gate: &Gate, head: &HttpRequestHead<'_>) -> LogNote {
    let limit = gate.limits().iter().find(|limit| limit.rule().name() == rule);
    let key =
        limit.and_then(|limit| limit.resolve_key(head)).map(|key| format!("{:016x}", key_hash(rule, &key)));
    LogNote { rule: Some(rule.to_owned()), key, decision: Some(decision.to_owned()), ..LogNote::default() }
}
