//! The report as text for a terminal.

use super::{
    HumanDuration, ReplayReport, TOP_KEYS, count_denials, describe_episodes, describe_log, format_percent,
    sparkline::{downsample, sparkline},
};
use crate::{
    compare::PolicyDifference,
    run::{PolicyStats, RuleStats},
};
use std::fmt::Write as _;

/// The width of charts in characters.
const SPARKLINE_WIDTH: usize = 60;
/// The number of changed keys that are reported.
const MAX_CHANGES: usize = 15;

/// Returns the report as text.
pub fn to_text(report: &ReplayReport<'_>) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    describe_log(report).iter().for_each(|line| _ = writeln!(text, "{line}"));
    write_table(&mut text, report.policy, &report.result.stats);
    write_timeline(&mut text, &report.result.stats);
    for rule in &report.result.stats.rules {
        write_rule(&mut text, rule);
    }
    if let (Some(name), Some((stats, difference))) = (report.baseline, &report.result.comparison) {
        write_table(&mut text, name, stats);
        write_difference(&mut text, report, name, difference);
    }
    text
}

fn write_table(text: &mut String, name: &str, stats: &PolicyStats) {
    let wide = stats.rules.iter().map(|rule| rule.name.chars().count()).max().unwrap_or(0);
    let wide = wide.max(name.chars().count()).max(12);
    let heads = ["requests", "admitted", "delayed", "denied", "shadow"];
    let _ = write!(text, "\n{name:wide$}");
    heads.iter().for_each(|head| _ = write!(text, " {head:>10}"));
    let mut row = |name: &str, numbers: [u64; 5]| {
        let _ = write!(text, "\n{name:wide$}");
        numbers.iter().for_each(|number| _ = write!(text, " {number:>10}"));
        let _ = write!(text, "  {}", format_percent(numbers[3] + numbers[4], numbers[0]));
    };
    row("all", [stats.requests(), stats.admitted, stats.delayed, stats.denied, stats.shadow]);
    for rule in &stats.rules {
        row(&rule.name, [rule.requests, rule.admitted, rule.delayed, rule.denied, rule.shadow]);
    }
    text.push('\n');
    for rule in stats.rules.iter().filter(|rule| rule.requests == 0) {
        let _ = writeln!(text, "rule `{}` matched no request", rule.name);
    }
}

fn write_timeline(text: &mut String, stats: &PolicyStats) {
    let bins = stats.timeline.bins();
    let each = bins.len().div_ceil(SPARKLINE_WIDTH).max(1) as u64;
    let width = tidegate_core::Micros::new(stats.timeline.width().get() * each);
    let _ = writeln!(text, "\ntimeline in steps of {}", HumanDuration(width));
    let mut row = |name: &str, of: fn(&crate::run::TimelineBin) -> u64| {
        let values = downsample(bins.iter().map(of), SPARKLINE_WIDTH);
        let most = values.iter().copied().max().unwrap_or(0);
        if most > 0 {
            let _ = writeln!(text, "  {name:9} {}  max {most}", sparkline(&values));
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
    let verb = if rule.shadow > 0 { "denied or would have denied" } else { "denied" };
    let _ = writeln!(
        text,
        "\nrule `{}`: {verb} {all} of {} ({})",
        rule.name,
        rule.requests,
        format_percent(all, rule.requests)
    );
    if rule.denied_by_other_rules() > 0 {
        let _ = writeln!(
            text,
            "  {} admitted by this rule were denied by other rules",
            rule.denied_by_other_rules()
        );
    }
    if rule.delayed > 0 {
        let _ = writeln!(text, "  {} delayed, by at most {}", rule.delayed, HumanDuration(rule.longest_wait));
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
    if let Some(episodes) = describe_episodes(rule) {
        let _ = writeln!(text, "  denial episodes: {episodes}");
    }
}

fn write_difference(
    text: &mut String,
    report: &ReplayReport<'_>,
    baseline: &str,
    difference: &PolicyDifference,
) {
    let ReplayReport { policy, .. } = report;
    if difference.is_empty() {
        let _ = writeln!(text, "\n{policy} and {baseline} make the same decision for every request");
        return;
    }
    let _ = writeln!(text, "\n{policy} against {baseline}");
    for (count, what) in [
        (difference.newly_denied, "newly denied"),
        (difference.no_longer_denied, "no longer denied"),
        (difference.denied_by_both, "denied by both"),
        (difference.newly_delayed, "newly delayed"),
        (difference.no_longer_delayed, "no longer delayed"),
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
