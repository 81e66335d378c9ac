//! What the log says of a decision.

use crate::LogNote;
use tidegate_core::Decision;
use tidegate_policy::{
    compile::{Admission, PolicyGate, Refusal, Why},
    head::RequestHead,
};
use tidegate_rule::{Gate, Mode, key_hash};

/// That of a request that was let through: the rule that has the least left, unless one would have refused it that only
/// watches.
pub(super) fn admitted(admission: &Admission, gate: &PolicyGate, head: &RequestHead<'_>) -> LogNote {
    let verdict = admission.verdict();
    let denied = |mode, ruling: &tidegate_rule::Ruling<'_>| {
        ruling.mode() == mode && ruling.decision().is_some_and(|decision| !decision.is_granted())
    };
    if let Some(watching) = verdict.rulings().find(|ruling| denied(Mode::Shadow, ruling)) {
        return note(watching.name(), "would-be-limited", gate.gate(), head);
    }
    let left = |ruling: &tidegate_rule::Ruling<'_>| ruling.decision().map(Decision::remaining);
    match verdict.rulings().min_by_key(|ruling| left(ruling).unwrap_or(u64::MAX)) {
        Some(ruling) => note(ruling.name(), "admitted", gate.gate(), head),
        None => LogNote { decision: Some("admitted".to_owned()), ..LogNote::default() },
    }
}

/// That of a request that was not.
pub(super) fn refused(refusal: &Refusal, gate: &PolicyGate, head: &RequestHead<'_>) -> LogNote {
    let decision = match refusal.why {
        Why::Limited => "limited",
        Why::NoKey => "no-key",
        Why::Denied => "denied",
        Why::Banned => "banned",
        Why::Guarded => "guarded",
    };
    note(&refusal.rule, decision, gate.gate(), head)
}

fn note(rule: &str, decision: &str, gate: &Gate, head: &RequestHead<'_>) -> LogNote {
    let limit = gate.limits().iter().find(|limit| limit.rule().name() == rule);
    let key = limit.and_then(|limit| limit.key_in(head)).map(|key| format!("{:016x}", key_hash(rule, &key)));
    LogNote { rule: Some(rule.to_owned()), key, decision: Some(decision.to_owned()) }
}
