//! A suggestion as JSON.

use super::{GroupSuggestion, SuggestTarget, Suggestion, Trial, WINDOWS, text};
use serde_json::{Value, json as value};

/// Returns the suggestion as JSON.
pub fn to_json(suggestion: &Suggestion) -> Value {
    let Suggestion { request, log, groups, policy } = suggestion;
    value!({
        "files": log.names,
        "requests": log.requests,
        "invalid_lines": log.broken,
        "key": request.key_text,
        "target": match request.target {
            SuggestTarget::Keys(share) => value!({ "keys_never_denied": share.as_f64() }),
            SuggestTarget::Requests(share) => value!({ "requests_denied": share.as_f64() }),
        },
        "headroom": request.headroom.as_f64(),
        "warnings": text::log_warnings(suggestion),
        "groups": groups.iter().map(group_to_json).collect::<Vec<_>>(),
        "policy": policy.print(tidegate_policy::PolicyFormat::Yaml),
    })
}

fn group_to_json(group: &GroupSuggestion) -> Value {
    let peaks = group.peaks.iter().zip(WINDOWS).map(|(peaks, (seconds, _))| {
        value!({
            "window": seconds,
            "p50": peaks.p50,
            "p90": peaks.p90,
            "p99": peaks.p99,
            "max": peaks.max,
        })
    });
    let outliers = group.outliers.iter().map(|(key, max)| value!({ "key": key, "max": max }));
    value!({
        "name": group.group.name,
        "path": group.group.path,
        "except": group.group.except,
        "requests": group.requests,
        "keys": group.keys,
        "min_quota": group.min_quota.to_string(),
        "quota": group.quota.to_string(),
        "denied": group.denied,
        "within_target": group.is_within_target,
        "peaks": peaks.collect::<Vec<_>>(),
        "knee": { "rate": group.knee.rate, "share": group.knee.share, "above": group.knee.above },
        "outliers": outliers.collect::<Vec<_>>(),
        "outlier_count": group.outlier_count,
        "warnings": text::group_warnings(group),
        "candidates": group.trials.iter().map(trial_to_json).collect::<Vec<_>>(),
        "explanation": text::explain_quota(group),
    })
}

fn trial_to_json(trial: &Trial) -> Value {
    value!({
        "quota": trial.quota.to_string(),
        "denied": trial.denied,
        "keys": trial.keys,
        "outliers": trial.outliers,
    })
}
