//! What a policy would do with a request, for programs.

use serde_json::{Map, Value, json as value};
use tidegate_policy::{Applied, Explained, Explanation, Finding, KeyFound, Listed, SpentQuota};
use tidegate_rule::request::Missing;

/// The explanation, in the words that people get.
pub(crate) fn json(explanation: &Explanation) -> Value {
    value!({
        "request": explanation.request,
        "outcome": {
            "text": explanation.outcome.to_string(),
            "status": explanation.outcome.status(),
            "upstream": explanation.outcome.upstream(),
            "location": explanation.outcome.location(),
            "rule": explanation.outcome.rule(),
        },
        "rules": explanation.rules.iter().map(rule).collect::<Vec<_>>(),
    })
}

fn rule(explained: &Explained) -> Value {
    let name = &explained.rule;
    match &explained.finding {
        Finding::Differs(mismatch) => {
            value!({ "name": name, "applies": false, "why": mismatch.to_string() })
        }
        Finding::Off => value!({ "name": name, "applies": false, "why": "it is off" }),
        Finding::Applies(applied) => value!({ "name": name, "applies": true, "how": how(applied) }),
    }
}

fn how(applied: &Applied) -> Value {
    let (key, missing) = match &applied.key {
        KeyFound::Key(key) => (Some(key), None),
        KeyFound::Address(key) => (Some(key), Some("ip")),
        KeyFound::Missing(Missing::Address) => (None, Some("ip")),
        KeyFound::Missing(Missing::Share) => (None, Some("share")),
        KeyFound::Missing(Missing::Skip) => (None, Some("skip")),
        KeyFound::Missing(Missing::Refuse) => (None, Some("refuse")),
    };
    value!({
        "path": applied.path,
        "key": key,
        "missing": missing,
        "mode": applied.mode.to_string(),
        "cost": applied.cost,
        "tier": applied.tier,
        "counted": applied.counted.to_string(),
        "quotas": applied.quotas.iter().map(quota).collect::<Vec<_>>(),
        "lists": applied.listed.as_ref().map(|listed| match listed {
            Listed::Allowed => "allowed",
            Listed::Denied => "denied",
            Listed::Unlisted => "unlisted",
        }),
        "more": applied.more.iter().map(|(key, text)| ((*key).to_owned(), text.as_str().into())).collect::<Map<_, _>>(),
    })
}

fn quota(spent: &SpentQuota) -> Value {
    value!({
        "quota": spent.quota.to_string(),
        "declared": spent.declared.map(|quota| quota.to_string()),
        "bound": spent.bound.to_string(),
        "spent": spent.spent.to_string(),
    })
}
