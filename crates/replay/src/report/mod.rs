//! The report of a replay as text, JSON and HTML.

mod html;
mod json;
mod sparkline;
mod text;
mod timestamp;

pub use html::to_html;
pub use json::to_json;
pub use text::to_text;
pub use timestamp::{HumanDuration, format_timestamp};

use crate::{
    log::Displacement,
    run::{ReplayResult, RuleStats},
};

/// The result of a replay, and the names of its policies.
#[derive(Clone, Copy, Debug)]
pub struct ReplayReport<'a> {
    /// The result.
    pub result: &'a ReplayResult,
    /// The name of the policy.
    pub policy: &'a str,
    /// The name of the policy that it is compared with.
    pub baseline: Option<&'a str>,
}

/// The number of keys of a rule that are reported.
const TOP_KEYS: usize = 10;

/// Returns a share in percent.
fn share(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => part as f64 * 100.0 / whole as f64,
    }
}

/// Formats a share. Small shares are not rounded to zero.
fn format_percent(part: u64, whole: u64) -> String {
    match share(part, whole) {
        0.0 => "0 %".to_owned(),
        share if share < 0.1 => format!("{share:.3} %"),
        share if share < 10.0 => format!("{share:.2} %"),
        share => format!("{share:.1} %"),
    }
}

/// Formats a count with its noun.
pub(crate) fn pluralize(count: u64, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}

/// The number of requests that a rule denies, or would deny if it were enforced.
fn count_denials(rule: &RuleStats) -> u64 {
    rule.denied + rule.shadow
}

/// Describes the lengths of denial episodes. `None` if there are none.
fn describe_episodes(rule: &RuleStats) -> Option<String> {
    let (lengths, open, longest, missed) = rule.episodes.summarize();
    let mut sentences = Vec::new();
    if lengths.count() > 0 {
        sentences.push(format!(
            "{} ended, p50 {}, p90 {}, max {}",
            lengths.count(),
            HumanDuration(lengths.percentile(50)),
            HumanDuration(lengths.percentile(90)),
            HumanDuration(lengths.longest())
        ));
    }
    if open > 0 {
        sentences.push(format!("{open} did not end, the longest lasted {}", HumanDuration(longest)));
    }
    if missed > 0 {
        sentences.push(format!("{missed} denials of untracked keys"));
    }
    (!sentences.is_empty()).then(|| sentences.join("; "))
}

/// Describes the log, one sentence each.
fn describe_log(report: &ReplayReport<'_>) -> Vec<String> {
    let log = &report.result.log;
    let mut sentences = Vec::new();
    let formats: Vec<String> = match &log.formats[..] {
        [(only, _)] => vec![only.clone()],
        several => several.iter().map(|(name, lines)| format!("{lines} {name}")).collect(),
    };
    let span = match (log.start, log.end) {
        (Some(start), Some(end)) => format!(", {} to {} UTC", format_timestamp(start), format_timestamp(end)),
        _ => String::new(),
    };
    sentences.push(format!(
        "{}: {} requests in {} lines{span} ({})",
        log.names.join(", "),
        log.requests,
        log.lines,
        formats.join(", ")
    ));
    if log.broken > 0 {
        let first = log.samples.first().map(|(name, line, text)| format!("; first: {name}:{line}: {text}"));
        sentences.push(format!(
            "{} could not be read{}",
            pluralize(log.broken, "line"),
            first.unwrap_or_default()
        ));
    }
    if log.reordered > 0 {
        let lines = pluralize(log.reordered, "line");
        sentences.push(format!("{lines} out of order, sorted by time"));
    }
    if log.late > 0 {
        let (late, latest) = (pluralize(log.late, "line"), HumanDuration(log.max_lateness));
        sentences.push(format!(
            "{late} out of order by up to {latest}, too late to sort; replayed at the time of the line before"
        ));
    }
    if log.outliers > 0 {
        let lines = pluralize(log.outliers, "outlier line");
        let most = log
            .most_displaced
            .iter()
            .filter(|most| most.direction == Displacement::Ahead)
            .map(|most| format!(" ({}:{} by {})", most.file, most.line, HumanDuration(most.distance)));
        sentences.push(format!(
            "{lines} with a time after that of the lines around{}; replayed at the time of those",
            most.collect::<String>()
        ));
    }
    sentences.extend(report.result.notes.iter().cloned());
    sentences
}
