//! A report for the terminal.

use super::{
    Report, Span, TOP, about_log, denials,
    figure::{sparkline, squeezed},
    percent, stayed_denied,
};
use crate::{
    compare::Difference,
    run::{RuleTally, Tally},
};
use std::fmt::Write as _;

/// How wide figures are.
const WIDTH: usize = 60;
/// How many keys are told whose treatment differs.
const CHANGES: usize = 15;

/// The report as text.
pub fn text(report: &Report<'_>) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    about_log(report).iter().for_each(|line| _ = writeln!(text, "{line}"));
    table(&mut text, report.policy, &report.play.tally);
    when(&mut text, &report.play.tally);
    for rule in &report.play.tally.rules {
        about_rule(&mut text, rule);
    }
    if let (Some(name), Some((tally, difference))) = (report.against, &report.play.against) {
        table(&mut text, name, tally);
        compared(&mut text, report, name, difference);
    }
    text
}

fn table(text: &mut String, name: &str, tally: &Tally) {
    let wide = tally.rules.iter().map(|rule| rule.name.chars().count()).max().unwrap_or(0);
    let wide = wide.max(name.chars().count()).max(12);
    let heads = ["requests", "admitted", "delayed", "denied", "shadow"];
    let _ = write!(text, "\n{name:wide$}");
    heads.iter().for_each(|head| _ = write!(text, " {head:>10}"));
    let mut row = |name: &str, numbers: [u64; 5]| {
        let _ = write!(text, "\n{name:wide$}");
        numbers.iter().for_each(|number| _ = write!(text, " {number:>10}"));
        let _ = write!(text, "  {}", percent(numbers[3] + numbers[4], numbers[0]));
    };
    row("all", [tally.requests(), tally.admitted, tally.delayed, tally.denied, tally.shadow]);
    for rule in &tally.rules {
        row(&rule.name, [rule.asked, rule.admitted, rule.delayed, rule.denied, rule.shadow]);
    }
    text.push('\n');
    for rule in tally.rules.iter().filter(|rule| rule.asked == 0) {
        let _ = writeln!(text, "rule `{}` was about no request of the log", rule.name);
    }
}

fn when(text: &mut String, tally: &Tally) {
    let bins = tally.all.bins();
    let each = bins.len().div_ceil(WIDTH).max(1) as u64;
    let width = tidegate_core::Micros::new(tally.all.width().get() * each);
    let _ = writeln!(text, "\nwhen, in steps of {}", Span(width));
    let mut row = |name: &str, of: fn(&crate::run::Bin) -> u64| {
        let values = squeezed(bins.iter().map(of), WIDTH);
        let most = values.iter().copied().max().unwrap_or(0);
        if most > 0 {
            let _ = writeln!(text, "  {name:9} {}  most {most}", sparkline(&values));
        }
    };
    row("requests", crate::run::Bin::requests);
    row("delayed", |bin| bin.delayed);
    row("denied", |bin| bin.denied);
}

fn about_rule(text: &mut String, rule: &RuleTally) {
    let all = denials(rule);
    if all + rule.delayed == 0 {
        return;
    }
    let verb = if rule.shadow > 0 { "denied or would have" } else { "denied" };
    let _ = writeln!(
        text,
        "\nrule `{}`: {verb} {all} of {} ({})",
        rule.name,
        rule.asked,
        percent(all, rule.asked)
    );
    if rule.stopped_elsewhere() > 0 {
        let _ = writeln!(text, "  {} that it let through were denied by others", rule.stopped_elsewhere());
    }
    if rule.delayed > 0 {
        let _ = writeln!(text, "  {} waited, at most {}", rule.delayed, Span(rule.longest_wait));
    }
    let mut top = rule.keys.top();
    top.truncate(TOP);
    let wide = top.iter().map(|key| key.name.chars().count()).max().unwrap_or(0).max(12);
    for key in &top {
        let doubt = if key.error > 0 { format!(" (or up to {} more)", key.error) } else { String::new() };
        let (count, share) = (key.min_count(), percent(key.min_count(), all));
        let _ = writeln!(text, "  {:wide$} {count:>8}  {share:>7}{doubt}", key.name);
    }
    if rule.keys.len() > top.len() {
        let _ = writeln!(text, "  and {} other keys", rule.keys.len() - top.len());
    }
    if let Some(stayed) = stayed_denied(rule) {
        let _ = writeln!(text, "  stayed denied {stayed}");
    }
}

fn compared(text: &mut String, report: &Report<'_>, against: &str, difference: &Difference) {
    let Report { policy, .. } = report;
    if difference.is_none() {
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
    let wide = difference.keys.iter().take(CHANGES).map(|key| key.key.chars().count()).max().unwrap_or(0);
    for key in difference.keys.iter().take(CHANGES) {
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
