//! What came of a log, for people, for programs, and for whoever gets a file by mail.

mod html;
mod json;
mod sparkline;
mod text;
mod timestamp;

pub use html::to_html;
pub use json::to_json;
pub use text::to_text;
pub use timestamp::{HumanDuration, format_timestamp};

use crate::run::{ReplayResult, RuleStats};

/// A play, and what its policies are called.
#[derive(Clone, Copy, Debug)]
pub struct ReplayReport<'a> {
    /// What came of the log.
    pub result: &'a ReplayResult,
    /// What the policy is called.
    pub policy: &'a str,
    /// What the policy is called that it is compared with.
    pub baseline: Option<&'a str>,
}

/// How many keys of a rule are told.
const TOP_KEYS: usize = 10;

/// A part of a whole, in hundredths.
fn share(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => part as f64 * 100.0 / whole as f64,
    }
}

/// A share for people: small ones are not rounded to nothing.
fn format_percent(part: u64, whole: u64) -> String {
    match share(part, whole) {
        0.0 => "0 %".to_owned(),
        share if share < 0.1 => format!("{share:.3} %"),
        share if share < 10.0 => format!("{share:.2} %"),
        share => format!("{share:.1} %"),
    }
}

/// So many of them.
pub(crate) fn pluralize(count: u64, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}

/// Those that a rule denies, or would deny were it enforced.
fn count_denials(rule: &RuleStats) -> u64 {
    rule.denied + rule.shadow
}

/// How long episodes were, in a sentence. `None` if there were none.
fn describe_episodes(rule: &RuleStats) -> Option<String> {
    let (lengths, open, longest, missed) = rule.episodes.summarize();
    let mut sentences = Vec::new();
    if lengths.count() > 0 {
        sentences.push(format!(
            "{} times until the next request that passed: half within {}, 9 of 10 within {}, at most {}",
            lengths.count(),
            HumanDuration(lengths.percentile(50)),
            HumanDuration(lengths.percentile(90)),
            HumanDuration(lengths.longest())
        ));
    }
    if open > 0 {
        sentences.push(format!("{open} never passed again, the longest for {}", HumanDuration(longest)));
    }
    if missed > 0 {
        sentences.push(format!("{missed} more denials were of keys that there was no room to follow"));
    }
    (!sentences.is_empty()).then(|| sentences.join("; "))
}

/// What is told of the log itself: one sentence each.
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
        let first =
            log.samples.first().map(|(name, line, text)| format!("; the first is {name}:{line}: {text}"));
        sentences.push(format!(
            "{} could not be read{}",
            pluralize(log.broken, "line"),
            first.unwrap_or_default()
        ));
    }
    if log.reordered > 0 {
        let lines = pluralize(log.reordered, "line");
        sentences.push(format!("{lines} stood behind later ones, and were put in the order of time"));
    }
    if log.late > 0 {
        let (late, latest) = (pluralize(log.late, "line"), HumanDuration(log.max_lateness));
        sentences.push(format!(
            "{late} stood too far behind later ones, by up to {latest}: these count as of then"
        ));
    }
    sentences.extend(report.result.notes.iter().cloned());
    sentences
}
