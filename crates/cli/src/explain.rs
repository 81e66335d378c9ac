//! What a policy would do with a request, for programs.

use serde_json::{Value, json as value};
use tidegate_policy::{Applied, Explained, Explanation, Finding, KeyFound, SpentQuota, compile::Instead};
use tidegate_rule::request::Missing;

/// The explanation, in the words that people get.
pub(crate) fn json(explanation: &Explanation) -> Value {
    value!({
        "request": explanation.request,
        "upstream": explanation.upstream,
        "respond": explanation.respond.as_ref().map(respond),
        "rules": explanation.rules.iter().map(rule).collect::<Vec<_>>(),
    })
}

/// What the gateway answers itself.
fn respond(respond: &Instead) -> Value {
    match respond {
        Instead::Answer(answer) => value!({ "status": answer.status, "location": answer.get("location") }),
        _ => value!("drop"),
    }
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
        "more": applied.more,
    })
}

fn quota(spent: &SpentQuota) -> Value {
    value!({
        "quota": spent.quota.to_string(),
        "bound": spent.bound.to_string(),
        "spent": spent.spent.to_string(),
    })
}
