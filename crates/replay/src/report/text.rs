//! A report for the terminal.

use super::{
    HumanDuration, ReplayReport, TOP_KEYS, count_denials, describe_episodes, describe_log, format_percent,
    sparkline::{downsample, sparkline},
};
use crate::{
    compare::PolicyDifference,
    run::{PolicyStats, RuleStats},
};
use std::fmt::Write as _;

/// How wide figures are.
const SPARKLINE_WIDTH: usize = 60;
/// How many keys are told whose treatment differs.
const MAX_CHANGES: usize = 15;

/// The report as text.
pub fn to_text(report: &ReplayReport<'_>) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    describe_log(report).iter().for_each(|line| _ = writeln!(text, "{line}"));
    write_table(&mut text, report.policy, &report.result.stats);
    write_timeline(&mut text, &report.result.stats);
    for rule in &report.result.stats.rules {
        write_rule(&mut text, rule);
    }
    if let (Some(name), Some((tally, difference))) = (report.baseline, &report.result.comparison) {
        write_table(&mut text, name, tally);
        write_difference(&mut text, report, name, difference);
    }
    text
}

fn write_table(text: &mut String, name: &str, tally: &PolicyStats) {
    let wide = tally.rules.iter().map(|rule| rule.name.chars().count()).max().unwrap_or(0);
    let wide = wide.max(name.chars().count()).max(12);
    let heads = ["requests", "admitted", "delayed", "denied", "shadow"];
    let _ = write!(text, "\n{name:wide$}");
    heads.iter().for_each(|head| _ = write!(text, " {head:>10}"));
    let mut row = |name: &str, numbers: [u64; 5]| {
        let _ = write!(text, "\n{name:wide$}");
        numbers.iter().for_each(|number| _ = write!(text, " {number:>10}"));
        let _ = write!(text, "  {}", format_percent(numbers[3] + numbers[4], numbers[0]));
    };
    row("all", [tally.requests(), tally.admitted, tally.delayed, tally.denied, tally.shadow]);
    for rule in &tally.rules {
        row(&rule.name, [rule.requests, rule.admitted, rule.delayed, rule.denied, rule.shadow]);
    }
    text.push('\n');
    for rule in tally.rules.iter().filter(|rule| rule.requests == 0) {
        let _ = writeln!(text, "rule `{}` was about no request of the log", rule.name);
    }
}

fn write_timeline(text: &mut String, tally: &PolicyStats) {
    let bins = tally.timeline.bins();
    let each = bins.len().div_ceil(SPARKLINE_WIDTH).max(1) as u64;
    let width = tidegate_core::Micros::new(tally.timeline.width().get() * each);
    let _ = writeln!(text, "\nwhen, in steps of {}", HumanDuration(width));
    let mut row = |name: &str, of: fn(&crate::run::TimelineBin) -> u64| {
        let values = downsample(bins.iter().map(of), SPARKLINE_WIDTH);
        let most = values.iter().copied().max().unwrap_or(0);
        if most > 0 {
            let _ = writeln!(text, "  {name:9} {}  most {most}", sparkline(&values));
        }
    };
    row("requests", crate::run::TimelineBin::requests);
    row("delayed", |bin| bin.delayed);
    row("denied", |bin| bin.denied);
}

fn write_rule(text: &mut String, rule: &RuleStats) {
    let all = count_denials(rule);
    if all + rule.delayed == 0 {
        return;
    }
    let verb = if rule.shadow > 0 { "denied or would have" } else { "denied" };
    let _ = writeln!(
        text,
        "\nrule `{}`: {verb} {all} of {} ({})",
        rule.name,
        rule.requests,
        format_percent(all, rule.requests)
    );
    if rule.denied_by_other_rules() > 0 {
        let _ =
            writeln!(text, "  {} that it let through were denied by others", rule.denied_by_other_rules());
    }
    if rule.delayed > 0 {
        let _ = writeln!(text, "  {} waited, at most {}", rule.delayed, HumanDuration(rule.longest_wait));
    }
    let mut top = rule.keys.top();
    top.truncate(TOP_KEYS);
    let wide = top.iter().map(|key| key.name.chars().count()).max().unwrap_or(0).max(12);
    for key in &top {
        let doubt = if key.error > 0 { format!(" (or up to {} more)", key.error) } else { String::new() };
        let (count, share) = (key.min_count(), format_percent(key.min_count(), all));
        let _ = writeln!(text, "  {:wide$} {count:>8}  {share:>7}{doubt}", key.name);
    }
    if rule.keys.len() > top.len() {
        let _ = writeln!(text, "  and {} other keys", rule.keys.len() - top.len());
    }
    if let Some(stayed) = describe_episodes(rule) {
        let _ = writeln!(text, "  stayed denied {stayed}");
    }
}

fn write_difference(
    text: &mut String,
    report: &ReplayReport<'_>,
    against: &str,
    difference: &PolicyDifference,
) {
    let ReplayReport { policy, .. } = report;
    if difference.is_empty() {
        let _ = writeln!(text, "\n{policy} and {against} do the same to every request");
        return;
    }
    let _ = writeln!(text, "\n{policy} against {against}");
    for (count, what) in [
        (difference.newly_denied, "are denied now"),
        (difference.no_longer_denied, "are no longer denied"),
        (difference.denied_by_both, "are denied by both"),
        (difference.newly_delayed, "wait now"),
        (difference.no_longer_delayed, "no longer wait"),
    ] {
        if count > 0 {
            let _ = writeln!(text, "  {count:>8} {what}");
        }
    }
    let wide = difference.keys.iter().take(MAX_CHANGES).map(|key| key.key.chars().count()).max().unwrap_or(0);
    for key in difference.keys.iter().take(MAX_CHANGES) {
        let _ = write!(text, "  {:wide$} ", key.key);
        if key.newly_denied > 0 {
            let _ = write!(text, " +{}", key.newly_denied);
        }
        if key.no_longer_denied > 0 {
            let _ = write!(text, " -{}", key.no_longer_denied);
        }
        text.push('\n');
    }
}
