//! The report as JSON.

use super::{ReplayReport, TOP_KEYS, count_denials, share};
use crate::{
    compare::PolicyDifference,
    log::LogStats,
    run::{PolicyStats, RuleStats, Timeline},
};
use serde_json::{Value, json};
use tidegate_core::Micros;
use tidegate_limiter::TopKey;

/// Returns the report as JSON. Times are seconds since the epoch, durations are seconds.
pub fn to_json(report: &ReplayReport<'_>) -> Value {
    let mut value = json!({
        "log": log_to_json(&report.result.log),
        "policy": policy_to_json(report.policy, &report.result.stats),
        "notes": report.result.notes,
    });
    if let (Some(name), Some((stats, difference))) = (report.baseline, &report.result.comparison) {
        value["baseline"] = policy_to_json(name, stats);
        value["difference"] = self::difference_to_json(difference);
    }
    value
}

fn to_seconds(micros: Micros) -> f64 {
    micros.get() as f64 / 1e6
}

fn log_to_json(log: &LogStats) -> Value {
    let sample =
        |(file, line, text): &(String, u64, String)| json!({ "file": file, "line": line, "text": text });
    let formats: serde_json::Map<String, Value> =
        log.formats.iter().map(|(name, lines)| (name.clone(), (*lines).into())).collect();
    json!({
        "files": log.names,
        "lines": log.lines,
        "requests": log.requests,
        "invalid_lines": log.broken,
        "invalid_samples": log.samples.iter().map(sample).collect::<Vec<_>>(),
        "formats": formats,
        "reordered": log.reordered,
        "late": log.late,
        "max_lateness": to_seconds(log.max_lateness),
        "outliers": log.outliers,
        "start": log.start.map(to_seconds),
        "end": log.end.map(to_seconds),
    })
}

fn policy_to_json(name: &str, stats: &PolicyStats) -> Value {
    json!({
        "name": name,
        "total": {
            "requests": stats.requests(),
            "admitted": stats.admitted,
            "delayed": stats.delayed,
            "denied": stats.denied,
            "shadow": stats.shadow,
            "total_wait": to_seconds(stats.total_wait),
        },
        "timeline": timeline_to_json(&stats.timeline),
        "rules": stats.rules.iter().map(rule_to_json).collect::<Vec<_>>(),
    })
}

fn rule_to_json(rule: &RuleStats) -> Value {
    let (lengths, open, longest, missed) = rule.episodes.summarize();
    let all = count_denials(rule);
    let key = |key: &TopKey| json!({ "key": key.name, "denied": key.min_count(), "error": key.error, "share": share(key.min_count(), all) / 100.0 });
    json!({
        "name": rule.name,
        "requests": rule.requests,
        "admitted": rule.admitted,
        "delayed": rule.delayed,
        "denied": rule.denied,
        "shadow": rule.shadow,
        "denied_by_other_rules": rule.denied_by_other_rules(),
        "longest_wait": to_seconds(rule.longest_wait),
        "keys": rule.keys.top().iter().take(TOP_KEYS * 5).map(key).collect::<Vec<_>>(),
        "episodes": {
            "finished": lengths.count(),
            "p50": to_seconds(lengths.percentile(50)),
            "p90": to_seconds(lengths.percentile(90)),
            "p99": to_seconds(lengths.percentile(99)),
            "longest": to_seconds(lengths.longest()),
            "unfinished": open,
            "longest_unfinished": to_seconds(longest),
            "untracked": missed,
        },
        "timeline": timeline_to_json(&rule.timeline),
    })
}

fn timeline_to_json(timeline: &Timeline) -> Value {
    let bin = |bin: &crate::run::TimelineBin| json!([bin.admitted, bin.delayed, bin.denied, bin.shadow]);
    json!({
        "start": to_seconds(timeline.start()),
        "width": to_seconds(timeline.width()),
        "columns": ["admitted", "delayed", "denied", "shadow"],
        "bins": timeline.bins().iter().map(bin).collect::<Vec<_>>(),
    })
}

fn difference_to_json(difference: &PolicyDifference) -> Value {
    let key = |key: &crate::KeyChange| {
        json!({
            "key": key.key,
            "newly_denied": key.newly_denied,
            "no_longer_denied": key.no_longer_denied,
            "error": key.error,
        })
    };
    json!({
        "newly_denied": difference.newly_denied,
        "no_longer_denied": difference.no_longer_denied,
        "denied_by_both": difference.denied_by_both,
        "newly_delayed": difference.newly_delayed,
        "no_longer_delayed": difference.no_longer_delayed,
        "keys": difference.keys.iter().map(key).collect::<Vec<_>>(),
    })
}
