//! The result of a search as JSON.

use super::{FindOutcome, MissedTarget};
use serde_json::{Value, json};
use tidegate_core::Micros;

/// Renders the report. Times are in seconds, rates per second, errors and denials are shares of the requests.
pub(crate) fn render_json(outcome: &FindOutcome) -> Value {
    let steps = outcome.steps.iter().map(|step| {
        json!({
            "requested_rate": step.rate,
            "reached_rate": step.reached_rate,
            "p50": seconds(step.p50),
            "p99": seconds(step.p99),
            "errors": step.errors,
            "denied": step.denied,
            "missed": step.missed.map(|missed| match missed {
                MissedTarget::Latency => "latency",
                MissedTarget::Errors => "errors",
                MissedTarget::Denied => "denied",
            }),
        })
    });
    json!({
        "url": outcome.url,
        "target": { "p99": seconds(outcome.target.max_latency), "errors": outcome.target.max_errors.as_f64() },
        "steps": steps.collect::<Vec<_>>(),
        "knee": outcome.knee,
        "is_max_rate": outcome.is_max_rate,
        "quota": outcome.quota().map(|(rate, burst)| format!("{rate}/s burst {burst}")),
    })
}

fn seconds(length: Micros) -> f64 {
    length.get() as f64 / 1e6
}
