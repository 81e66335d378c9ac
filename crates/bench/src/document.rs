//! The tables of `docs/benchmarks.md`, written from a run: no figure there is typed by hand.

use crate::{
    Result, machine,
    peers::{FLOOR, REFERENCE, TIDEGATE},
    report::{Figures, Report},
};
use std::{env, fmt::Write, fs, path::Path};

/// Replaces a suite's tables by those of this run.
pub(crate) fn write(suite: &str, reports: &[Report]) -> Result<()> {
    let path = Path::new(machine::ROOT).join("docs/benchmarks.md");
    let at_path = |error| format!("{}: {error}", path.display());
    let old = fs::read_to_string(&path).map_err(at_path)?;
    let new = replace(&old, suite, &tables(reports)?)?;
    Ok(fs::write(&path, new).map_err(at_path)?)
}

/// Puts `text` between the two markers of a suite.
fn replace(document: &str, suite: &str, text: &str) -> Result<String> {
    let (begin, end) = (format!("<!-- {suite}: begin -->"), format!("<!-- {suite}: end -->"));
    let missing = || format!("docs/benchmarks.md has no `{begin}` … `{end}`");
    let (front, rest) = document.split_once(&begin).ok_or_else(missing)?;
    let (_, back) = rest.split_once(&end).ok_or_else(missing)?;
    Ok(format!("{front}{begin}\n\n{}\n\n{end}{back}", text.trim()))
}

fn tables(reports: &[Report]) -> Result<String> {
    let mut text = circumstances()?;
    text += &disturbances(reports);
    if reports.iter().any(|report| report.at_most.is_some()) {
        text += &targets(reports)?;
    }
    let mut names: Vec<&str> = Vec::new();
    for report in reports {
        if !names.contains(&report.table.as_str()) {
            names.push(&report.table);
        }
    }
    for name in names {
        let members: Vec<&Report> = reports.iter().filter(|report| report.table == name).collect();
        text += &table(name, &members)?;
    }
    text += &losses(reports)?;
    Ok(text)
}

/// When, where and what.
fn circumstances() -> Result<String> {
    let said = |name| env::var(name).unwrap_or_else(|_| "unknown".to_owned());
    let mut versions = Vec::new();
    for name in ["governor", "ratelimit", "leaky-bucket", "pingora-limits", "trypema"] {
        versions.push(format!("{name} {}", machine::locked_version(name)?));
    }
    Ok(format!(
        "Run on {} at `{}`: {}; {}; {}.\n\n",
        said("BENCH_DATE"),
        said("BENCH_COMMIT"),
        machine::describe(),
        said("BENCH_RUSTC"),
        versions.join(", ")
    ))
}

/// The cases that were not alone on the machine.
fn disturbances(reports: &[Report]) -> String {
    let noisy: Vec<&str> = reports
        .iter()
        .filter(|report| report.disturbance.is_some())
        .map(|report| report.name.as_str())
        .collect();
    if noisy.is_empty() {
        return String::new();
    }
    format!("Something else took more than a little of the machine during {}.\n\n", noisy.join(", "))
}

/// The cases that something was promised for.
fn targets(reports: &[Report]) -> Result<String> {
    let mut text = "### What was to be shown\n\n".to_owned();
    text += "| case | what | Tidegate (p25–p75) | governor (p25–p75) | value | at most | |\n";
    text += "|---|---|---|---|---|---|---|\n";
    for report in reports {
        let (Some(most), Some(judgement)) = (report.at_most, report.judgement()) else { continue };
        let shown = |name| match report.row(name).map(|row| row.figures) {
            Some(Figures { low, median, high }) => {
                format!("{median:.1} {} ({low:.1}–{high:.1})", report.unit)
            }
            None => "–".to_owned(),
        };
        let (ours, theirs, value) = (shown(TIDEGATE), shown(REFERENCE), report.value);
        let (name, about) = (&report.name, &report.about);
        writeln!(text, "| {name} | {about} | {ours} | {theirs} | {value:.3} | {most:.2} | {judgement} |")?;
    }
    text += "\n";
    Ok(text)
}

/// Competitors down, cases across.
fn table(name: &str, reports: &[&Report]) -> Result<String> {
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
                Some(row) => write!(text, " | {:.1} {} ({:.2})", row.figures.median, report.unit, row.ratio)?,
                None => text += " | –",
            }
        }
        text += " |\n";
    }
    text += "\n";
    Ok(text)
}

/// Every case in which someone else needs less than Tidegate; the floor is meant to.
fn losses(reports: &[Report]) -> Result<String> {
    let mut text = "### Where someone else needs less\n\n".to_owned();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_markers_is_replaced() {
        let old = "front\n<!-- a: begin -->\nold\n<!-- a: end -->\nback\n";
        let new = replace(old, "a", "new\n").unwrap();
        assert_eq!(new, "front\n<!-- a: begin -->\n\nnew\n\n<!-- a: end -->\nback\n");
        assert_eq!(replace(&new, "a", "new").unwrap(), new);
        assert!(replace(old, "b", "new").is_err());
    }
}
