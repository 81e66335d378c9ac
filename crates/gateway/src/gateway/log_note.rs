//! The decision in the access log and in traces.

use crate::LogNote;
use tidegate_core::Decision;
use tidegate_policy::{
    compile::{DenyReason, PolicyAdmission, PolicyGate, PolicyRefusal},
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
    let denied = |one: &&LimitDecision| {
        one.mode == Mode::Shadow && one.decision().is_some_and(|decision| !decision.is_granted())
    };
    if let Some(watching) = verdict.decisions().find(denied) {
        return build_note(name(watching), "would-be-limited", gate.gate(), head);
    }
    let left = |one: &&LimitDecision| one.decision().map_or(u64::MAX, Decision::remaining);
    match verdict.decisions().min_by_key(left) {
        Some(one) => build_note(name(one), "admitted", gate.gate(), head),
        None => LogNote { decision: Some("admitted".to_owned()), ..LogNote::default() },
    }
}

/// The note of a rejected request.
pub(super) fn refused_note(
    refusal: &PolicyRefusal,
    gate: &PolicyGate,
    head: &HttpRequestHead<'_>,
) -> LogNote {
    let decision = match refusal.reason {
        DenyReason::Limited => "limited",
        DenyReason::NoKey => "no-key",
        DenyReason::Denied => "denied",
        DenyReason::Banned => "banned",
        DenyReason::Guarded => "guarded",
    };
    build_note(&refusal.rule, decision, gate.gate(), head)
}

fn build_note(rule: &str, decision: &str, gate: &Gate, head: &HttpRequestHead<'_>) -> LogNote {
    let limit = gate.limits().iter().find(|limit| limit.rule().name() == rule);
    let key =
        limit.and_then(|limit| limit.resolve_key(head)).map(|key| format!("{:016x}", key_hash(rule, &key)));
    LogNote { rule: Some(rule.to_owned()), key, decision: Some(decision.to_owned()) }
}
