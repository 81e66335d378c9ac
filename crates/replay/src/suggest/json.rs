//! A suggestion for programs.

use super::{Suggested, Suggestion, Target, Trial, WINDOWS, say};
use serde_json::{Value, json as value};

/// The suggestion as JSON.
pub fn json(suggestion: &Suggestion) -> Value {
    let Suggestion { wish, log, groups, policy } = suggestion;
    value!({
        "files": log.names,
        "requests": log.requests,
        "broken": log.broken,
        "key": wish.key_text,
        "target": match wish.target {
            Target::Keys(share) => value!({ "keys_never_denied": share.as_f64() }),
            Target::Requests(share) => value!({ "requests_denied": share.as_f64() }),
        },
        "headroom": wish.headroom.as_f64(),
        "warnings": say::log_warnings(suggestion),
        "groups": groups.iter().map(group).collect::<Vec<_>>(),
        "policy": policy.print(tidegate_policy::PolicyFormat::Yaml),
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
        "needed": group.needed.to_string(),
        "quota": group.quota.to_string(),
        "denied": group.denied,
        "within_target": group.is_within,
        "peaks": peaks.collect::<Vec<_>>(),
        "knee": { "rate": group.knee.rate, "share": group.knee.share, "above": group.knee.above },
        "outliers": outliers.collect::<Vec<_>>(),
        "outlier_count": group.outlier_count,
        "warnings": say::warnings(group),
        "candidates": group.trials.iter().map(trial).collect::<Vec<_>>(),
        "why": say::reasons(group),
    })
}

fn trial(trial: &Trial) -> Value {
    value!({
        "quota": trial.quota.to_string(),
        "denied": trial.denied,
        "keys": trial.keys,
        "outliers": trial.outliers,
    })
}
