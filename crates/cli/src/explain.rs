//! The explanation of a request as JSON.

use serde_json::{Map, Value, json as value};
use tidegate_policy::{
    Applicability, AppliedRule, Explanation, ListMatch, QuotaExplanation, ResolvedKey, RuleExplanation,
};
use tidegate_rule::request::MissingKey;

/// Renders an explanation, with the same texts as the plain output.
pub(crate) fn explanation_json(explanation: &Explanation) -> Value {
    value!({
        "request": explanation.request,
        "outcome": {
            "text": explanation.outcome.to_string(),
            "status": explanation.outcome.status(),
            "upstream": explanation.outcome.upstream(),
            "location": explanation.outcome.location(),
            "rule": explanation.outcome.rule(),
        },
        "rules": explanation.rules.iter().map(rule_json).collect::<Vec<_>>(),
    })
}

fn rule_json(explained: &RuleExplanation) -> Value {
    let name = &explained.rule;
    match &explained.applicability {
        Applicability::Mismatch(mismatch) => {
            value!({ "name": name, "applies": false, "reason": mismatch.to_string() })
        }
        Applicability::Off => value!({ "name": name, "applies": false, "reason": "mode is off" }),
        Applicability::Applies(applied) => {
            value!({ "name": name, "applies": true, "details": applied_json(applied) })
        }
    }
}

fn applied_json(applied: &AppliedRule) -> Value {
    let (key, missing) = match &applied.key {
        ResolvedKey::Key(key) => (Some(key), None),
        ResolvedKey::Address(key) => (Some(key), Some("ip")),
        ResolvedKey::Missing(MissingKey::Ip) => (None, Some("ip")),
        ResolvedKey::Missing(MissingKey::Shared) => (None, Some("share")),
        ResolvedKey::Missing(MissingKey::Skip) => (None, Some("skip")),
        ResolvedKey::Missing(MissingKey::Reject) => (None, Some("reject")),
    };
    let settings = applied.details.iter().map(|(key, text)| ((*key).to_owned(), Value::from(text.as_str())));
    value!({
        "path": applied.path,
        "key": key,
        "missing": missing,
        "mode": applied.mode.to_string(),
        "cost": applied.cost,
        "tier": applied.tier,
        "counter": applied.counter_location.to_string(),
        "quotas": applied.quotas.iter().map(quota_json).collect::<Vec<_>>(),
        "lists": applied.list_match.as_ref().map(|listed| match listed {
            ListMatch::Allowed => "allowed",
            ListMatch::Denied => "denied",
            ListMatch::Unlisted => "unlisted",
        }),
        "settings": settings.collect::<Map<_, _>>(),
    })
}

fn quota_json(spent: &QuotaExplanation) -> Value {
    value!({
        "quota": spent.quota.to_string(),
        "declared": spent.declared.map(|quota| quota.to_string()),
        "bound": spent.bound.to_string(),
        "on_exhausted": spent.on_exhausted.to_string(),
    })
}
