//! A suggestion as text.

use super::{GroupSuggestion, Suggestion, WINDOWS};
use crate::report::{format_timestamp, pluralize};
use std::fmt::Write as _;

/// A sample with fewer requests or keys is small.
const MIN_REQUESTS: u64 = 300;
const MIN_KEYS: u64 = 50;
/// A day, in microseconds.
const DAY_MICROS: u64 = 86_400_000_000;
/// The number of candidates of a group that are reported.
const MAX_CANDIDATES: usize = 12;

/// Returns the suggestion as text.
pub fn to_text(suggestion: &Suggestion) -> String {
    let Suggestion { request, log, groups, .. } = suggestion;
    let span = match (log.start, log.end) {
        (Some(start), Some(end)) => format!(", {} to {} UTC", format_timestamp(start), format_timestamp(end)),
        _ => String::new(),
    };
    // Writing to a string does not fail.
    let mut text = format!(
        "{}: {} requests{span}; by {}, {}, headroom {}\n",
        log.names.join(", "),
        log.requests,
        request.key_text,
        request.target,
        request.headroom
    );
    if log.broken > 0 {
        let _ = writeln!(text, "{} lines could not be read", log.broken);
    }
    log_warnings(suggestion).iter().for_each(|warning| _ = writeln!(text, "warning: {warning}"));
    groups.iter().for_each(|group| write_group(&mut text, group));
    let (denied, requests): (u64, u64) =
        groups.iter().fold((0, 0), |sum, group| (sum.0 + group.denied, sum.1 + group.requests));
    let share = format_share(denied, requests);
    let _ = writeln!(text, "\nall rules together deny {denied} of {requests} requests ({share})");
    text
}

fn write_group(text: &mut String, group: &GroupSuggestion) {
    let path = group.group.path.as_deref().unwrap_or("all other paths");
    let _ =
        writeln!(text, "\n{} ({path}): {} requests of {} keys", group.group.name, group.requests, group.keys);
    let _ = writeln!(text, "  peak per key in        p50    p90    p99    max");
    for (peaks, (_, name)) in group.peaks.iter().zip(WINDOWS) {
        let (half, ninety, last, most) = (peaks.p50, peaks.p90, peaks.p99, peaks.max);
        let _ = writeln!(text, "    {name:<14} {half:>8} {ninety:>6} {last:>6} {most:>6}");
    }
    let _ = writeln!(text, "  candidates          denied    share   keys  outliers");
    for trial in nearest_trials(group) {
        let mark = if trial.quota == group.quota { '>' } else { ' ' };
        let quota = trial.quota.to_string();
        let share = format_share(trial.denied, group.requests);
        let (keys, outliers) = (trial.keys, trial.outliers);
        let _ = writeln!(text, "  {mark} {quota:<18} {:>6} {share:>8} {keys:>6} {outliers:>9}", trial.denied);
    }
    group_warnings(group).iter().for_each(|warning| _ = writeln!(text, "  warning: {warning}"));
    explain_quota(group).iter().for_each(|reason| _ = writeln!(text, "  {reason}"));
}

/// Returns the candidates closest to the chosen one.
fn nearest_trials(group: &GroupSuggestion) -> Vec<&super::Trial> {
    let distance = |trial: &&super::Trial| {
        let ratio = (trial.denied.max(1) as f64 / group.denied.max(1) as f64).ln().abs();
        let is_chosen = trial.quota == group.quota;
        (!is_chosen, (ratio * 1_000.0) as u64)
    };
    let mut near: Vec<&super::Trial> = group.trials.iter().collect();
    near.sort_by_key(distance);
    near.truncate(MAX_CANDIDATES);
    near.sort_by_key(|trial| trial.candidate());
    near
}

/// Explains the choice of the quota, one sentence each.
pub(super) fn explain_quota(group: &GroupSuggestion) -> Vec<String> {
    let window = WINDOWS[group.window].1;
    let unit = window.trim_start_matches("1 ");
    let knee = group.knee;
    let mut reasons = Vec::new();
    if knee.above > 0 {
        reasons.push(format!(
            "knee at {} in {window}: {:.1} % of keys are at or below it, {} above",
            knee.rate,
            knee.share * 100.0,
            knee.above
        ));
    } else {
        reasons.push(format!("no knee: no key exceeds {} in {window}", knee.rate));
    }
    if !group.outliers.is_empty() {
        let each = group.outliers.iter().map(|(key, most)| format!("{} ({most})", key.escape_debug()));
        let rest = group.outlier_count.saturating_sub(group.outliers.len() as u64);
        let rest = if rest > 0 { format!(" and {rest} more") } else { String::new() };
        reasons.push(format!(
            "{} excluded from the target, with peaks in {window}: {}{rest}",
            pluralize(group.outlier_count, "outlier"),
            each.collect::<Vec<_>>().join(", ")
        ));
    }
    let chosen = group.trials.iter().find(|trial| trial.quota == group.quota);
    let (keys, outliers) = chosen.map_or((0, 0), |trial| (trial.keys, trial.outliers));
    let affected = match outliers {
        0 => pluralize(keys, "key"),
        outliers => format!("{} and {}", pluralize(keys, "key"), pluralize(outliers, "outlier")),
    };
    let share = format_share(group.denied, group.requests);
    match group.is_within_target {
        true => reasons.push(format!(
            "{}: {} is the smallest quota per {unit} within the target, with the smallest burst; the remainder is headroom. It \
             denies {} ({share}), of {affected}",
            group.quota, group.min_quota, group.denied
        )),
        false => reasons.push(format!(
            "{}: no candidate is within the target; {} denies the fewest keys, the remainder is headroom. It denies {} \
             ({share}), of {affected}",
            group.quota, group.min_quota, group.denied
        )),
    }
    if group.trials.iter().any(|trial| trial.overflowed > 0) {
        reasons.push(
            "the key tables of some candidates were full, so their denials are overestimated; the suggestion was replayed \
             with a larger table"
                .to_owned(),
        );
    }
    reasons
}

/// Returns warnings about the log, one sentence each.
pub(super) fn log_warnings(suggestion: &Suggestion) -> Vec<String> {
    let span = match (suggestion.log.start, suggestion.log.end) {
        (Some(start), Some(end)) => end.get().saturating_sub(start.get()),
        _ => 0,
    };
    match span < DAY_MICROS {
        true => vec!["the log covers less than a day; it may miss peaks at other times".to_owned()],
        false => Vec::new(),
    }
}

/// Returns warnings about the sample of a group, one sentence each.
pub(super) fn group_warnings(group: &GroupSuggestion) -> Vec<String> {
    let mut warnings = Vec::new();
    if group.requests < MIN_REQUESTS || group.keys < MIN_KEYS {
        let requests = pluralize(group.requests, "request");
        warnings.push(format!(
            "small sample: {requests} of {}; use a log with at least {MIN_REQUESTS} requests of {MIN_KEYS} keys",
            pluralize(group.keys, "key")
        ));
    }
    if let Some((key, requests)) = &group.dominant {
        let share = format_share(*requests, group.requests);
        warnings.push(format!("one key dominates: {} makes {share} of the requests", key.escape_debug()));
    }
    warnings
}

fn format_share(part: u64, whole: u64) -> String {
    format!("{:.2} %", part as f64 * 100.0 / whole.max(1) as f64)
}
