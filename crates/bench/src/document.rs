//! The tables of `docs/benchmarks.md`, generated from a run.

use crate::{
    BenchResult,
    peers::{FLOOR, REFERENCE, TIDEGATE},
    report::{CaseReport, Quartiles},
};
use std::fmt::Write;
use tidegate_bench::docs_page;

/// The crates whose versions are listed.
const PEERS: [&str; 5] = ["governor", "ratelimit", "leaky-bucket", "pingora-limits", "trypema"];

/// Replaces the tables of a suite by those of this run.
pub(crate) fn write(suite: &str, reports: &[CaseReport]) -> BenchResult<()> {
    docs_page::write(suite, &format_tables(reports)?)
}

fn format_tables(reports: &[CaseReport]) -> BenchResult<String> {
    let mut text = docs_page::describe_run(&PEERS)?;
    text += &format_disturbances(reports);
    if reports.iter().any(|report| report.at_most.is_some()) {
        text += &format_targets(reports)?;
    }
    let mut names: Vec<&str> = Vec::new();
    for report in reports {
        if !names.contains(&report.table.as_str()) {
            names.push(&report.table);
        }
    }
    for name in names {
        let members: Vec<&CaseReport> = reports.iter().filter(|report| report.table == name).collect();
        text += &format_table(name, &members)?;
    }
    text += &format_losses(reports)?;
    Ok(text)
}

/// Lists the cases that other processes disturbed.
fn format_disturbances(reports: &[CaseReport]) -> String {
    let noisy: Vec<&str> = reports
        .iter()
        .filter(|report| report.disturbance.is_some())
        .map(|report| report.name.as_str())
        .collect();
    if noisy.is_empty() {
        return String::new();
    }
    format!("Other processes used the machine during {}.\n\n", noisy.join(", "))
}

/// The cases with a target.
fn format_targets(reports: &[CaseReport]) -> BenchResult<String> {
    let mut text = "### Targets\n\n".to_owned();
    text += "| case | what | Tidegate (p25–p75) | governor (p25–p75) | value | at most | |\n";
    text += "|---|---|---|---|---|---|---|\n";
    for report in reports {
        let (Some(most), Some(result)) = (report.at_most, report.target_result()) else { continue };
        let shown = |name| match report.row(name).map(|row| row.quartiles) {
            Some(Quartiles { low, median, high }) => {
                format!("{median:.1} {} ({low:.1}–{high:.1})", report.unit)
            }
            None => "–".to_owned(),
        };
        let (ours, theirs, value) = (shown(TIDEGATE), shown(REFERENCE), report.value);
        let (name, about) = (&report.name, &report.about);
        writeln!(text, "| {name} | {about} | {ours} | {theirs} | {value:.3} | {most:.2} | {result} |")?;
    }
    text += "\n";
    Ok(text)
}

/// A table with one row per competitor and one column per case.
fn format_table(name: &str, reports: &[&CaseReport]) -> BenchResult<String> {
    let mut text = format!("### {name}\n\n|");
    for report in reports {
        write!(text, " | {}", report.name.trim_start_matches("instructions-"))?;
    }
    text += " |\n|---|";
    text += &"---|".repeat(reports.len());
    text += "\n";
    let mut competitors: Vec<&str> = Vec::new();
    for row in reports.iter().flat_map(|report| &report.rows) {
        if !competitors.contains(&row.name.as_str()) {
            competitors.push(&row.name);
        }
    }
    for competitor in competitors {
        write!(text, "| {competitor}")?;
        for report in reports {
            match report.row(competitor) {
                Some(row) => {
                    write!(text, " | {:.1} {} ({:.2})", row.quartiles.median, report.unit, row.ratio)?;
                }
                None => text += " | –",
            }
        }
        text += " |\n";
    }
    text += "\n";
    Ok(text)
}

/// Every case in which a peer needs less than Tidegate. The floor is not a peer.
fn format_losses(reports: &[CaseReport]) -> BenchResult<String> {
    let mut text = "### Where a peer needs less\n\n".to_owned();
    let mut found = false;
    for report in reports {
        let ours = report.own_ratio();
        let better: Vec<String> = report
            .rows
            .iter()
            .filter(|row| row.ratio < ours && row.name != FLOOR)
            .map(|row| format!("{} ({:.2} of ours)", row.name, row.ratio / ours))
            .collect();
        if !better.is_empty() {
            found = true;
            writeln!(text, "* {}: {}", report.name.trim_start_matches("instructions-"), better.join(", "))?;
        }
    }
    if !found {
        text += "Nowhere in this run.\n";
    }
    Ok(text)
}
