//! The result of a case, and its output on the terminal.

use crate::peers::{CallShape, TIDEGATE, TIDEGATE_CALLED};
use std::fmt;
use tidegate_bench::interleaved::quartiles;

/// The result of a case.
pub(crate) struct CaseReport {
    pub(crate) name: String,
    pub(crate) about: String,
    /// The table of the document that contains it.
    pub(crate) table: String,
    pub(crate) unit: &'static str,
    pub(crate) rows: Vec<ReportRow>,
    /// The value in the last line.
    pub(crate) value: f64,
    pub(crate) at_most: Option<f64>,
    /// How it was measured.
    pub(crate) notes: Vec<String>,
    /// A warning about other load on the machine.
    pub(crate) disturbance: Option<String>,
}

/// One competitor in one case.
pub(crate) struct ReportRow {
    pub(crate) name: String,
    pub(crate) quartiles: Quartiles,
    /// The ratios to the reference within the same rounds.
    pub(crate) ratio: Quartiles,
}

/// The quartiles of several measurements.
#[derive(Clone, Copy)]
pub(crate) struct Quartiles {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

impl Quartiles {
    /// Computes the quartiles, with linear interpolation.
    pub(crate) fn from_samples(samples: &[f64]) -> Self {
        let [low, median, high] = quartiles(samples);
        Self { low, median, high }
    }
}

/// Builds the rows from the samples of each competitor per round; the reference must be among them. A competitor behind a call
/// is compared with the reference behind a call.
pub(crate) fn rows(samples: &[(&str, Vec<f64>)]) -> Vec<ReportRow> {
    samples
        .iter()
        .map(|(name, mine)| {
            let reference = CallShape::from_name(name).reference();
            let theirs = samples.iter().find(|(name, _)| *name == reference).map(|(_, samples)| samples);
            let ratios: Vec<f64> =
                mine.iter().zip(theirs.into_iter().flatten()).map(|(mine, theirs)| mine / theirs).collect();
            ReportRow {
                name: (*name).to_owned(),
                quartiles: Quartiles::from_samples(mine),
                ratio: Quartiles::from_samples(&ratios),
            }
        })
        .collect()
}

impl CaseReport {
    /// The row of one competitor.
    pub(crate) fn row(&self, name: &str) -> Option<&ReportRow> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// Tidegate's row; the one with the worse ratio to the reference, if both were also measured behind a call.
    pub(crate) fn own_row(&self) -> Option<&ReportRow> {
        let rows = [TIDEGATE, TIDEGATE_CALLED].into_iter().filter_map(|name| self.row(name));
        rows.max_by(|one, other| one.ratio.median.total_cmp(&other.ratio.median))
    }

    /// The ratio of [`own_row`](Self::own_row).
    pub(crate) fn own_ratio(&self) -> f64 {
        self.own_row().map_or(f64::NAN, |row| row.ratio.median)
    }

    /// Whether the target was met, as text, if there is one.
    pub(crate) fn target_result(&self) -> Option<&'static str> {
        self.at_most.map(|most| if self.value <= most { "met" } else { "above target" })
    }
}

impl fmt::Display for CaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.name, self.about)?;
        for note in self.notes.iter().chain(&self.disturbance) {
            writeln!(f, "  {note}")?;
        }
        writeln!(f, "  {:<22} {:>10} {:>19} {:>9} {:>15}", "", self.unit, "p25–p75", "ratio", "p25–p75")?;
        for ReportRow { name, quartiles: Quartiles { low, median, high }, ratio } in &self.rows {
            let spread = format!("{low:.2}–{high:.2}");
            let ratios = format!("{:.3}–{:.3}", ratio.low, ratio.high);
            writeln!(f, "  {name:<22} {median:>10.2} {spread:>19} {:>9.3} {ratios:>15}", ratio.median)?;
        }
        if let (Some(most), Some(result)) = (self.at_most, self.target_result()) {
            writeln!(f, "  at most {most:.2}: {result}")?;
        }
        write!(f, "ratio {} {:.3}", self.name, self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::{REFERENCE, REFERENCE_CALLED};

    #[test]
    fn ratios_are_taken_round_by_round() {
        // The machine is slower by half in the second round, for both.
        let rows = rows(&[(TIDEGATE, vec![10.0, 15.0, 10.0]), (REFERENCE, vec![20.0, 30.0, 20.0])]);
        assert_eq!(rows[0].ratio.median, 0.5);
        assert_eq!(rows[0].quartiles.median, 10.0);
        assert_eq!(rows[0].quartiles.high, 12.5);
    }

    fn report(rows: Vec<ReportRow>) -> CaseReport {
        CaseReport {
            name: "flood".to_owned(),
            about: "memory".to_owned(),
            table: "Memory".to_owned(),
            unit: "times",
            rows,
            value: f64::INFINITY,
            at_most: Some(1.05),
            notes: Vec::new(),
            disturbance: None,
        }
    }

    #[test]
    fn value_is_the_worse_of_both_shapes() {
        let samples = [
            (TIDEGATE, vec![10.0]),
            (REFERENCE, vec![20.0]),
            (TIDEGATE_CALLED, vec![30.0]),
            (REFERENCE_CALLED, vec![40.0]),
        ];
        let both = report(rows(&samples));
        assert_eq!(both.own_ratio(), 0.75);
        assert_eq!(both.own_row().unwrap().name, TIDEGATE_CALLED);
        assert_eq!(report(rows(&samples[..2])).own_ratio(), 0.5);
        assert!(report(Vec::new()).own_ratio().is_nan());
    }

    #[test]
    fn last_line_shows_value() {
        let report = report(Vec::new());
        assert!(report.to_string().ends_with("at most 1.05: above target\nratio flood inf"));
    }
}
