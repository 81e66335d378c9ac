//! A suggestion for programs.

use super::{Suggested, Suggestion, Trial, WINDOWS, say::reasons};
use serde_json::{Value, json as value};

/// The suggestion as JSON.
pub fn json(suggestion: &Suggestion) -> Value {
    let Suggestion { wish, log, groups, policy } = suggestion;
    value!({
        "files": log.names,
        "requests": log.requests,
        "broken": log.broken,
        "key": wish.key_text,
        "target_denied": f64::from(wish.target.millionths()) / 1e6,
        "groups": groups.iter().map(group).collect::<Vec<_>>(),
        "policy": policy.print(tidegate_policy::Format::Yaml),
    })
}

fn group(group: &Suggested) -> Value {
    let peaks = group.peaks.iter().zip(WINDOWS).map(|(peaks, (seconds, _))| {
        value!({
            "window": seconds,
            "p50": peaks.half,
            "p90": peaks.nine_of_ten,
            "p99": peaks.ninety_nine,
            "most": peaks.most,
        })
    });
    let outliers = group.outliers.iter().map(|(key, most)| value!({ "key": key, "most": most }));
    value!({
        "name": group.group.name,
        "path": group.group.path,
        "except": group.group.except,
        "requests": group.requests,
        "keys": group.keys,
        "quota": group.quota.to_string(),
        "denied": group.denied,
        "within_target": group.is_within,
        "peaks": peaks.collect::<Vec<_>>(),
        "knee": { "rate": group.knee.rate, "share": group.knee.share, "above": group.knee.above },
        "outliers": outliers.collect::<Vec<_>>(),
        "candidates": group.trials.iter().map(trial).collect::<Vec<_>>(),
        "why": reasons(group),
    })
}

fn trial(trial: &Trial) -> Value {
    value!({ "quota": trial.quota.to_string(), "denied": trial.denied, "keys": trial.keys })
}
