//! The tables of `docs/benchmarks.md`, generated from a run.

use crate::{
    BenchResult,
    peers::{CallShape, FLOOR, TIDEGATE, TIDEGATE_CALLED},
    report::{CaseReport, Quartiles, ReportRow},
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

/// The cases with a target. The times are those of the shape whose ratio is published.
fn format_targets(reports: &[CaseReport]) -> BenchResult<String> {
    let mut text = "### Targets\n\n".to_owned();
    text += "| case | what | shape | Tidegate (p25–p75) | governor (p25–p75) | ratio (p25–p75) | value | at most | |\n";
    text += "|---|---|---|---|---|---|---|---|---|\n";
    for report in reports {
        let (Some(most), Some(result)) = (report.at_most, report.target_result()) else { continue };
        let own = report.own_row();
        let shape = own.map_or(CallShape::Inlined, |row| CallShape::from_name(&row.name));
        let time = |row: &ReportRow| {
            let Quartiles { low, median, high } = row.quartiles;
            format!("{median:.1} {} ({low:.1}–{high:.1})", report.unit)
        };
        let ratio = |row: &ReportRow| {
            let Quartiles { low, median, high } = row.ratio;
            format!("{median:.3} ({low:.3}–{high:.3})")
        };
        let cell = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
        let (ours, theirs) = (cell(own.map(time)), cell(report.row(shape.reference()).map(time)));
        let (ratio, value) = (cell(own.map(ratio)), report.value);
        let (name, about) = (&report.name, &report.about);
        writeln!(
            text,
            "| {name} | {about} | {shape} | {ours} | {theirs} | {ratio} | {value:.3} | {most:.2} | {result} |"
        )?;
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
                    write!(text, " | {:.1} {} ({:.2})", row.quartiles.median, report.unit, row.ratio.median)?;
                }
                None => text += " | –",
            }
        }
        text += " |\n";
    }
    text += "\n";
    Ok(text)
}

/// Every case in which a peer needs less than Tidegate in the same shape. The floor is not a peer.
fn format_losses(reports: &[CaseReport]) -> BenchResult<String> {
    let mut text = "### Where a peer needs less\n\n".to_owned();
    let mut found = false;
    for report in reports {
        let better: Vec<String> = report
            .rows
            .iter()
            .filter(|row| ![TIDEGATE, TIDEGATE_CALLED, FLOOR].contains(&row.name.as_str()))
            .filter_map(|row| {
                let ours = report.row(CallShape::from_name(&row.name).tidegate())?.ratio.median;
                let theirs = row.ratio.median;
                (theirs < ours).then(|| format!("{} ({:.2} of ours)", row.name, theirs / ours))
            })
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
    use crate::{
        peers::{REFERENCE, REFERENCE_CALLED},
        report,
    };

    fn report(samples: &[(&str, Vec<f64>)]) -> CaseReport {
        let mut report = CaseReport {
            name: "direct-allow".to_owned(),
            about: "no key".to_owned(),
            table: "No key".to_owned(),
            unit: "ns",
            rows: report::rows(samples),
            value: f64::NAN,
            at_most: Some(1.0),
            notes: Vec::new(),
            disturbance: None,
        };
        report.value = report.own_ratio();
        report
    }

    /// Ratios of 0.8 inlined and 1.25 called, and a peer at 0.9.
    fn samples() -> Vec<(&'static str, Vec<f64>)> {
        vec![
            (TIDEGATE, vec![16.0, 16.0, 16.0]),
            (REFERENCE, vec![20.0, 20.0, 20.0]),
            (TIDEGATE_CALLED, vec![20.0, 25.0, 30.0]),
            (REFERENCE_CALLED, vec![20.0, 20.0, 20.0]),
            ("some peer", vec![18.0, 18.0, 18.0]),
            (FLOOR, vec![1.0, 1.0, 1.0]),
        ]
    }

    #[test]
    fn losses_compare_equal_shapes() {
        // The peer needs less than Tidegate behind a call, but is inlined itself. So is Tidegate, which is not its own peer.
        let text = format_losses(&[report(&samples())]).unwrap();
        assert!(text.ends_with("\n\n* direct-allow: governor, called (0.80 of ours)\n"), "{text}");

        let mut inlined = samples();
        inlined[0].1 = vec![24.0, 24.0, 24.0];
        let text = format_losses(&[report(&inlined[..2])]).unwrap();
        assert!(text.ends_with("\n\n* direct-allow: governor (0.83 of ours)\n"), "{text}");
    }

    #[test]
    fn no_loss_is_reported_without_a_better_peer() {
        let text = format_losses(&[report(&samples()[..2])]).unwrap();
        assert!(text.ends_with("Nowhere in this run.\n"), "{text}");
    }

    #[test]
    fn target_row_shows_the_shape_of_the_value() {
        let text = format_targets(&[report(&samples())]).unwrap();
        let row = "| direct-allow | no key | called | 25.0 ns (22.5–27.5) | 20.0 ns (20.0–20.0) | 1.250 (1.125–1.375) \
                   | 1.250 | 1.00 | above target |\n\n";
        assert!(text.ends_with(row), "{text}");

        let text = format_targets(&[report(&samples()[..2])]).unwrap();
        let row = "| direct-allow | no key | inlined | 16.0 ns (16.0–16.0) | 20.0 ns (20.0–20.0) | 0.800 (0.800–0.800) \
                   | 0.800 | 1.00 | met |\n\n";
        assert!(text.ends_with(row), "{text}");
    }

    #[test]
    fn every_row_of_a_table_has_as_many_cells_as_its_header() {
        let text = format_targets(&[report(&samples())]).unwrap();
        let cells: Vec<usize> =
            text.lines().filter(|line| line.starts_with('|')).map(|line| line.matches('|').count()).collect();
        assert_eq!(cells.len(), 3);
        assert!(cells.iter().all(|count| *count == cells[0]), "{cells:?}");
    }
}
