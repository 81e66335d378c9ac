//! A report for programs.

use super::{Report, TOP, denials, share};
use crate::{
    compare::Difference,
    log::LogStats,
    run::{RuleTally, Tally, Timeline},
};
use serde_json::{Value, json};
use tidegate_core::Micros;
use tidegate_limiter::TopKey;

/// The report as JSON. Moments are seconds since the epoch, lengths of time are seconds.
pub fn json(report: &Report<'_>) -> Value {
    let mut value = json!({
        "log": log(&report.play.log),
        "policy": policy(report.policy, &report.play.tally),
        "notes": report.play.notes,
    });
    if let (Some(name), Some((tally, difference))) = (report.against, &report.play.against) {
        value["against"] = policy(name, tally);
        value["difference"] = self::difference(difference);
    }
    value
}

fn seconds(micros: Micros) -> f64 {
    micros.get() as f64 / 1e6
}

fn log(log: &LogStats) -> Value {
    let sample =
        |(file, line, text): &(String, u64, String)| json!({ "file": file, "line": line, "text": text });
    let formats: serde_json::Map<String, Value> =
        log.formats.iter().map(|(name, lines)| (name.clone(), (*lines).into())).collect();
    json!({
        "files": log.names,
        "lines": log.lines,
        "requests": log.requests,
        "broken": log.broken,
        "broken_samples": log.samples.iter().map(sample).collect::<Vec<_>>(),
        "formats": formats,
        "reordered": log.reordered,
        "late": log.late,
        "latest": seconds(log.latest),
        "start": log.start.map(seconds),
        "end": log.end.map(seconds),
    })
}

fn policy(name: &str, tally: &Tally) -> Value {
    json!({
        "name": name,
        "total": {
            "requests": tally.requests(),
            "admitted": tally.admitted,
            "delayed": tally.delayed,
            "denied": tally.denied,
            "shadow": tally.shadow,
            "waited": seconds(tally.waited),
        },
        "timeline": timeline(&tally.all),
        "rules": tally.rules.iter().map(rule).collect::<Vec<_>>(),
    })
}

fn rule(rule: &RuleTally) -> Value {
    let (lengths, open, longest, missed) = rule.episodes.finish();
    let all = denials(rule);
    let key = |key: &TopKey| json!({ "key": key.name, "denied": key.min_count(), "doubt": key.error, "share": share(key.min_count(), all) / 100.0 });
    json!({
        "name": rule.name,
        "asked": rule.asked,
        "admitted": rule.admitted,
        "delayed": rule.delayed,
        "denied": rule.denied,
        "shadow": rule.shadow,
        "stopped_elsewhere": rule.stopped_elsewhere(),
        "longest_wait": seconds(rule.longest_wait),
        "keys": rule.keys.top().iter().take(TOP * 5).map(key).collect::<Vec<_>>(),
        "episodes": {
            "ended": lengths.count(),
            "p50": seconds(lengths.percentile(50)),
            "p90": seconds(lengths.percentile(90)),
            "p99": seconds(lengths.percentile(99)),
            "longest": seconds(lengths.longest()),
            "never_passed_again": open,
            "longest_of_those": seconds(longest),
            "not_followed": missed,
        },
        "timeline": timeline(&rule.timeline),
    })
}

fn timeline(timeline: &Timeline) -> Value {
    let bin = |bin: &crate::run::Bin| json!([bin.admitted, bin.delayed, bin.denied, bin.shadow]);
    json!({
        "start": seconds(timeline.start()),
        "width": seconds(timeline.width()),
        "columns": ["admitted", "delayed", "denied", "shadow"],
        "bins": timeline.bins().iter().map(bin).collect::<Vec<_>>(),
    })
}

fn difference(difference: &Difference) -> Value {
    let key = |key: &crate::KeyChange| {
        json!({
            "key": key.key,
            "newly_denied": key.newly_denied,
            "no_longer_denied": key.no_longer_denied,
            "doubt": key.doubt,
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
