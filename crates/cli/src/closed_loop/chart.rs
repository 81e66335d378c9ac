//! A scenario as text: goodput over time for each controller, one below the other, with figures.
//!
//! ```text
//!             ▁▁▁▁▁▁▁▁▁▁▁
//!   load      ███████████▁▁▁▁▁▁▁▁     up to 10 × capacity
//!               ├ change ┤              recovered        settled
//!                                   goodput      latency
//!
//!             ▃▃░░░░░░░░░░░░░░
//!   none      ██▂▁                        5%     0%   22ms   never
//! ```

use super::{
    ControllerResult, ScenarioResult, describe,
    figure::{Figure, RunFigures},
};
use crate::{
    simulate::{
        axis::Axis,
        chart::{self, BAR_HEIGHT, INDENT, axis_rows, merge_cells, place_label},
    },
    terminal::{Paint, Tone},
};
use tidegate_core::Micros;
use tidegate_simulation::{SimulationBin, SimulationResult};

/// With fewer columns for the bars, the figures are printed below them.
const MIN_BAR_COLUMNS: usize = 25;

/// Draws a scenario in at most `width` columns.
pub(crate) fn draw(result: &ScenarioResult, width: usize, paint: Paint) -> String {
    let Some(first) = result.controllers.first() else { return String::new() };
    let figures: Vec<_> =
        Figure::ALL.into_iter().filter(|figure| figure.applies_to(&result.scenario)).collect();
    let longest = result.controllers.iter().map(|part| part.controller.name.len()).max().unwrap_or(0);
    // Reserve the columns of all figures, so that the charts of several scenarios line up.
    let right: usize = Figure::ALL.iter().map(|figure| column_width(*figure)).sum();
    let bar_columns = width.saturating_sub(INDENT.len() + longest + 1 + right);
    let (layout, max_columns) = match bar_columns {
        columns if columns >= MIN_BAR_COLUMNS => (ChartLayout::SideBySide(longest), columns),
        _ => (ChartLayout::Stacked, width.saturating_sub(INDENT.len())),
    };
    let columns = even_columns(first.first_run.bins.len(), max_columns);
    let bin = Micros::new(result.scenario.length.get() / columns.max(1) as u64);
    let chart = ClosedLoopChart { axis: Axis::with_bins(columns, bin), layout, figures, width, paint };

    let mut lines: Vec<_> = describe::wrap(&describe::describe_scenario(&result.scenario), width);
    lines = lines.iter().map(|line| paint.tone(Tone::Strong, line)).collect();
    lines.extend(
        describe::wrap(&describe::describe_clients(&result.scenario), width)
            .iter()
            .map(|line| paint.tone(Tone::Faint, line)),
    );
    lines.extend(chart.legend());
    lines.push(String::new());
    lines.extend(chart.request_rows(result, &first.first_run));
    lines.extend(chart.change_rows(result));
    let best =
        result.controllers.iter().map(|part| part.first_run.goodput_during_change()).fold(0.0, f64::max);
    for part in &result.controllers {
        lines.push(String::new());
        lines.extend(chart.controller_rows(part, best));
    }
    lines.push(String::new());
    lines.extend(axis_rows(&chart.axis, &chart.prefix(""), width, paint));
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// The largest number of columns up to `max` that divides the bins evenly.
pub(super) fn even_columns(bins: usize, max: usize) -> usize {
    (1..=max.min(bins)).rev().find(|columns| bins.is_multiple_of(*columns)).unwrap_or(1)
}

/// Sums the bins of each column.
pub(super) fn sum_columns(
    run: &SimulationResult,
    columns: usize,
    count: fn(&SimulationBin) -> u32,
) -> Vec<u64> {
    let bins = run.bins.chunks((run.bins.len() / columns.max(1)).max(1));
    bins.map(|bins| bins.iter().map(|bin| u64::from(count(bin))).sum()).collect()
}

/// The position of names and figures.
#[derive(Clone, Copy, Debug)]
enum ChartLayout {
    /// Names of this width to the left of the bars, figures to the right.
    SideBySide(usize),
    /// Names above, figures below.
    Stacked,
}

struct ClosedLoopChart {
    axis: Axis,
    layout: ChartLayout,
    figures: Vec<Figure>,
    width: usize,
    paint: Paint,
}

impl ClosedLoopChart {
    fn legend(&self) -> Vec<String> {
        let bin = self.paint.tone(Tone::Faint, format!("a column: {}, full: capacity", self.axis.bin()));
        let good = format!("{} answered in time", self.paint.tone(Tone::Admitted, '█'));
        let bad = format!("{} not answered in time", self.paint.tone(Tone::Faint, '░'));
        match self.layout {
            ChartLayout::SideBySide(_) => vec![[bin, good, bad].join("   ")],
            ChartLayout::Stacked => vec![bin, good, bad],
        }
    }

    fn request_rows(&self, result: &ScenarioResult, run: &SimulationResult) -> Vec<String> {
        let requests = sum_columns(run, self.axis.bins(), |bin| bin.requests);
        let tallest = requests.iter().copied().max().unwrap_or(0) as f64;
        let cell = |column: usize, base: u64| {
            chart::cell(requests[column] as f64 / tallest.max(1.0), 0.0, base, Tone::Normal)
        };
        let demand = result.scenario.demand.max(result.scenario.changed_demand);
        self.rows("load", Tone::Normal, &format!("  up to {demand} × capacity"), cell)
    }

    /// The bracket of the change, and the headings of the figures.
    fn change_rows(&self, result: &ScenarioResult) -> Vec<String> {
        let last = self.axis.bins() - 1;
        let first = self.axis.column(result.scenario.change_start).unwrap_or(last);
        let end = Micros::new(result.scenario.change_end.get().saturating_sub(1));
        let length = self.axis.column(end).unwrap_or(last).saturating_sub(first) + 1;
        let (before, drawn) = place_label(first, length, "the change", self.axis.bins());
        let bracket = format!("{:before$}{drawn}", "");
        match self.layout {
            ChartLayout::SideBySide(_) => {
                let (prefix, bins) = (self.prefix(""), self.axis.bins());
                let gap = bins.saturating_sub(bracket.chars().count());
                vec![
                    format!("{prefix}{bracket}{:gap$}{}", "", self.headings(1)),
                    format!("{prefix}{:bins$}{}", "", self.headings(0)),
                ]
            }
            ChartLayout::Stacked => vec![format!("{}{bracket}", self.prefix(""))],
        }
    }

    /// The headings of every second figure, beginning with this one; they are wider than the columns.
    fn headings(&self, first: usize) -> String {
        let (mut text, mut width) = (String::new(), 0);
        for (index, figure) in self.figures.iter().enumerate() {
            width += column_width(*figure);
            if index % 2 == first {
                text.push_str(&format!("{:>width$}", figure.name()));
                width = 0;
            }
        }
        self.paint.tone(Tone::Faint, text)
    }

    fn controller_rows(&self, controller: &ControllerResult, best: f64) -> Vec<String> {
        let (first_run, bins) = (&controller.first_run, self.axis.bins());
        let good = sum_columns(first_run, bins, |bin| bin.succeeded);
        let requests = sum_columns(first_run, bins, |bin| bin.requests);
        let capacity = first_run.scenario.backend.capacity() * self.axis.bin().get() as f64 / 1e6;
        let cell = |column: usize, base: u64| {
            let share = |count: u64| count as f64 / capacity;
            chart::cell(share(good[column]), share(requests[column]), base, Tone::Admitted)
        };
        let run = RunFigures::from_run(first_run);
        let figures = self.figures.iter().map(|figure| {
            let text = figure.text(&run);
            let (gap, text) = match self.layout {
                ChartLayout::SideBySide(_) => {
                    (column_width(*figure).saturating_sub(text.chars().count()), text)
                }
                ChartLayout::Stacked => (1, format!("{} {text}", figure.name())),
            };
            format!("{:gap$}{}", "", self.paint.tone(figure_tone(*figure, &run, best), text))
        });
        self.rows(controller.controller.name, Tone::Strong, &figures.collect::<String>(), cell)
    }

    /// A name, bars of cells, and the text beside them.
    fn rows(
        &self,
        name: &str,
        tone: Tone,
        suffix: &str,
        cell: impl Fn(usize, u64) -> (Tone, char),
    ) -> Vec<String> {
        let bars = |row: u64| {
            let base = (BAR_HEIGHT - 1 - row) * 8;
            merge_cells(self.paint, (0..self.axis.bins()).map(|column| cell(column, base)))
        };
        let named = self.prefix(name).replacen(name, &self.paint.tone(tone, name), 1);
        let blank = self.prefix("");
        match self.layout {
            ChartLayout::SideBySide(_) => (0..BAR_HEIGHT)
                .map(|row| match row {
                    row if row + 1 == BAR_HEIGHT => format!("{named}{}{suffix}", bars(row)),
                    row => format!("{blank}{}", bars(row)),
                })
                .collect(),
            ChartLayout::Stacked => {
                let beside = match self.paint {
                    Paint::Plain => describe::wrap(suffix.trim(), self.width.saturating_sub(INDENT.len())),
                    // Escape codes have no width, so wrapping would be wrong.
                    Paint::Ansi => vec![suffix.trim().into()],
                };
                let beside = beside.iter().map(|line| format!("{INDENT}{line}"));
                std::iter::once(named)
                    .chain((0..BAR_HEIGHT).map(|row| format!("{blank}{}", bars(row))))
                    .chain(beside)
                    .collect()
            }
        }
    }

    /// The text before the bars.
    fn prefix(&self, name: &str) -> String {
        match self.layout {
            ChartLayout::SideBySide(longest) => format!("{INDENT}{name:longest$} "),
            ChartLayout::Stacked => format!("{INDENT}{name}"),
        }
    }
}

/// The width of a figure's column: its values and a gap.
fn column_width(figure: Figure) -> usize {
    match figure {
        Figure::Goodput | Figure::Latency => 7,
        Figure::Recovered => 6,
        Figure::Settled => 8,
    }
}

/// Bad figures are red.
fn figure_tone(figure: Figure, run: &RunFigures, best: f64) -> Tone {
    let is_bad = match figure {
        Figure::Goodput => run.goodput < 0.5 * best,
        Figure::Recovered => run.recovered < 0.9,
        Figure::Latency => false,
        Figure::Settled => run.settled.is_none(),
    };
    if is_bad { Tone::Problem } else { Tone::Normal }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_divide_bins_evenly() {
        for (max, columns) in [(0, 1), (1, 1), (19, 10), (40, 40), (77, 50), (9_000, 5_000)] {
            assert_eq!(even_columns(5_000, max), columns);
        }
    }
}
