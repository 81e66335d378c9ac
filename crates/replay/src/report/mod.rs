//! What came of a log, for people, for programs, and for whoever gets a file by mail.

mod figure;
mod html;
mod json;
mod moment;
mod text;

pub use html::html;
pub use json::json;
pub use moment::{Span, stamp};
pub use text::text;

use crate::run::{Play, RuleTally};

/// A play, and what its policies are called.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// What came of the log.
    pub play: &'a Play,
    /// What the policy is called.
    pub policy: &'a str,
    /// What the policy is called that it is compared with.
    pub against: Option<&'a str>,
}

/// How many keys of a rule are told.
const TOP: usize = 10;

/// A part of a whole, in hundredths.
fn share(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => part as f64 * 100.0 / whole as f64,
    }
}

/// A share for people: small ones are not rounded to nothing.
fn percent(part: u64, whole: u64) -> String {
    match share(part, whole) {
        0.0 => "0 %".to_owned(),
        share if share < 0.1 => format!("{share:.3} %"),
        share if share < 10.0 => format!("{share:.2} %"),
        share => format!("{share:.1} %"),
    }
}

/// So many of them.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}

/// Those that a rule denies, or would deny were it enforced.
fn denials(rule: &RuleTally) -> u64 {
    rule.denied + rule.shadow
}

/// How long episodes were, in a sentence. `None` if there were none.
fn stayed_denied(rule: &RuleTally) -> Option<String> {
    let (lengths, open, longest, missed) = rule.episodes.finish();
    let mut said = Vec::new();
    if lengths.count() > 0 {
        said.push(format!(
            "{} times until the next request that passed: half within {}, 9 of 10 within {}, at most {}",
            lengths.count(),
            Span(lengths.percentile(50)),
            Span(lengths.percentile(90)),
            Span(lengths.longest())
        ));
    }
    if open > 0 {
        said.push(format!("{open} never passed again, the longest for {}", Span(longest)));
    }
    if missed > 0 {
        said.push(format!("{missed} more denials were of keys that there was no room to follow"));
    }
    (!said.is_empty()).then(|| said.join("; "))
}

/// What is told of the log itself: one sentence each.
fn about_log(report: &Report<'_>) -> Vec<String> {
    let log = &report.play.log;
    let mut said = Vec::new();
    let formats: Vec<String> = match &log.formats[..] {
        [(only, _)] => vec![only.clone()],
        several => several.iter().map(|(name, lines)| format!("{lines} {name}")).collect(),
    };
    let span = match (log.start, log.end) {
        (Some(start), Some(end)) => format!(", {} to {} UTC", stamp(start), stamp(end)),
        _ => String::new(),
    };
    said.push(format!(
        "{}: {} requests in {} lines{span} ({})",
        log.names.join(", "),
        log.requests,
        log.lines,
        formats.join(", ")
    ));
    if log.broken > 0 {
        let first =
            log.samples.first().map(|(name, line, text)| format!("; the first is {name}:{line}: {text}"));
        said.push(format!("{} could not be read{}", counted(log.broken, "line"), first.unwrap_or_default()));
    }
    if log.reordered > 0 {
        let lines = counted(log.reordered, "line");
        said.push(format!("{lines} stood behind later ones, and were put in the order of time"));
    }
    if log.late > 0 {
        let (late, latest) = (counted(log.late, "line"), Span(log.latest));
        said.push(format!(
            "{late} stood too far behind later ones, by up to {latest}: these count as of then"
        ));
    }
    said.extend(report.play.notes.iter().cloned());
    said
}
