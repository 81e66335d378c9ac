//! The outcome of a load as JSON.

use super::{
    BenchOutcome,
    latency::LatencyHistogram,
    outcome::{ExpectedCounts, KeyDifference},
    text::{reached_rate, requested_rate},
};
use serde_json::{Map, Value, json as value};
use tidegate_core::Micros;

/// Renders the report. Times are in seconds.
pub(crate) fn render_json(outcome: &BenchOutcome, url: &str) -> Value {
    let statuses: Map<String, Value> =
        outcome.statuses.iter().map(|(status, count)| (status.to_string(), (*count).into())).collect();
    value!({
        "url": url,
        "scheduled": outcome.due,
        "sent": outcome.sent,
        "unsent": outcome.unsent,
        "abandoned": outcome.abandoned,
        "seconds": seconds(outcome.elapsed),
        "requested_rate": requested_rate(outcome),
        "reached_rate": reached_rate(outcome),
        "late": outcome.late,
        "max_lateness": seconds(outcome.max_lateness),
        "max_in_flight": outcome.max_in_flight,
        "statuses": statuses,
        "failures": outcome.failures,
        "latency": latency_json(&outcome.latency),
        "service": latency_json(&outcome.service),
        "admitted": outcome.admitted,
        "denied": outcome.denied,
        "denied_by": outcome.denied_by_rule,
        "expected": outcome.expected.as_ref().map(|expected| comparison_json(outcome, expected)),
    })
}

fn latency_json(latency: &LatencyHistogram) -> Value {
    let at = |permille| (latency.count() > 0).then(|| seconds(latency.permille(permille)));
    value!({
        "count": latency.count(), "mean": seconds(latency.mean()), "p50": at(500), "p90": at(900), "p99": at(990),
        "p999": at(999), "max": seconds(latency.max()),
    })
}

fn comparison_json(outcome: &BenchOutcome, expected: &ExpectedCounts) -> Value {
    let (keys, count) = outcome.differing_keys();
    let keys = keys.into_iter().map(|KeyDifference { key, admitted, expected }| {
        value!({ "key": key, "admitted": admitted, "expected": expected })
    });
    let rules = expected.rules.iter().map(|(name, denied)| {
        value!({ "name": name, "denied": outcome.denied_by_rule.get(name).copied().unwrap_or(0), "expected": denied })
    });
    value!({
        "admitted": expected.admitted,
        "denied": expected.denied,
        "difference": outcome.difference(),
        "rules": rules.collect::<Vec<_>>(),
        "keys": keys.collect::<Vec<_>>(),
        "differing_keys": count,
        "notes": expected.notes,
    })
}

fn seconds(length: Micros) -> f64 {
    length.get() as f64 / 1e6
}
