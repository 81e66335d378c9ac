//! A play as text: goodput over time for each of the cast, one below the other, and what it comes to.
//!
//! ```text
//!             ▁▁▁▁▁▁▁▁▁▁▁
//!   asked     ███████████▁▁▁▁▁▁▁▁     up to 10 × capacity
//!               ├ change ┤            during  after   took settled
//!
//!             ▃▃░░░░░░░░░░░░░░
//!   none      ██▂▁                        5%     0%   22ms   never
//! ```

use super::{
    Part, Play,
    figure::{Figure, Run},
    words,
};
use crate::{
    simulate::{
        axis::Axis,
        chart::{self, HEIGHT, INDENT, axis_rows, merge, place},
    },
    terminal::{Paint, Tone},
};
use tidegate_core::Micros;
use tidegate_simulation::{SimulationBin, SimulationResult};

/// Below so many columns for bars, figures go under them.
const FEWEST_COLUMNS: usize = 25;

/// Draws a play in at most `width` columns.
pub(crate) fn draw(play: &Play, width: usize, paint: Paint) -> String {
    let Some(first) = play.parts.first() else { return String::new() };
    let figures: Vec<_> = Figure::ALL.into_iter().filter(|figure| figure.belongs_to(&play.scene)).collect();
    let longest = play.parts.iter().map(|part| part.actor.name.len()).max().unwrap_or(0);
    // A chart is as wide without a figure as with it, so that charts of several scenes line up.
    let right: usize = Figure::ALL.iter().map(|figure| column(*figure)).sum();
    let beside = width.saturating_sub(INDENT.len() + longest + 1 + right);
    let (layout, room) = match beside {
        room if room >= FEWEST_COLUMNS => (Layout::Beside(longest), room),
        _ => (Layout::Below, width.saturating_sub(INDENT.len())),
    };
    let columns = even_columns(first.story.bins.len(), room);
    let bin = Micros::new(play.scene.length.get() / columns.max(1) as u64);
    let chart = Chart { axis: Axis::even(columns, bin), layout, figures, width, paint };

    let mut lines: Vec<_> = words::wrap(&words::title(&play.scene), width);
    lines = lines.iter().map(|line| paint.tone(Tone::Strong, line)).collect();
    lines.extend(
        words::wrap(&words::setting(&play.scene), width).iter().map(|line| paint.tone(Tone::Faint, line)),
    );
    lines.extend(chart.legend());
    lines.push(String::new());
    lines.extend(chart.asked_rows(play, &first.story));
    lines.extend(chart.change_rows(play));
    let best = play.parts.iter().map(|part| part.story.goodput_during_change()).fold(0.0, f64::max);
    for part in &play.parts {
        lines.push(String::new());
        lines.extend(chart.part_rows(part, best));
    }
    lines.push(String::new());
    lines.extend(axis_rows(&chart.axis, &chart.before(""), width, paint));
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// The largest number of columns up to `most` that all hold as many bins.
pub(super) fn even_columns(bins: usize, most: usize) -> usize {
    (1..=most.min(bins)).rev().find(|columns| bins.is_multiple_of(*columns)).unwrap_or(1)
}

/// What each column counts.
pub(super) fn columns(
    story: &SimulationResult,
    columns: usize,
    count: fn(&SimulationBin) -> u32,
) -> Vec<u64> {
    let bins = story.bins.chunks((story.bins.len() / columns.max(1)).max(1));
    bins.map(|bins| bins.iter().map(|bin| u64::from(count(bin))).sum()).collect()
}

/// Where names and figures stand.
#[derive(Clone, Copy, Debug)]
enum Layout {
    /// Names of so many letters to the left of the bars, figures to the right.
    Beside(usize),
    /// Names above, figures under.
    Below,
}

struct Chart {
    axis: Axis,
    layout: Layout,
    figures: Vec<Figure>,
    width: usize,
    paint: Paint,
}

impl Chart {
    fn legend(&self) -> Vec<String> {
        let bin = self.paint.tone(Tone::Faint, format!("a column: {}, full: capacity", self.axis.bin()));
        let good = format!("{} answered in time", self.paint.tone(Tone::Passed, '█'));
        let asked = format!("{} not answered in time", self.paint.tone(Tone::Faint, '░'));
        match self.layout {
            Layout::Beside(_) => vec![[bin, good, asked].join("   ")],
            Layout::Below => vec![bin, good, asked],
        }
    }

    fn asked_rows(&self, play: &Play, story: &SimulationResult) -> Vec<String> {
        let asked = columns(story, self.axis.bins(), |bin| bin.requests);
        let tallest = asked.iter().copied().max().unwrap_or(0) as f64;
        let cell = |column: usize, base: u64| {
            chart::cell(asked[column] as f64 / tallest.max(1.0), 0.0, base, Tone::Normal)
        };
        let demand = play.scene.demand.max(play.scene.changed_demand);
        self.rows("asked", Tone::Normal, &format!("  up to {demand} × capacity"), cell)
    }

    /// When the change is, and what the figures beside the rows are.
    fn change_rows(&self, play: &Play) -> Vec<String> {
        let last = self.axis.bins() - 1;
        let first = self.axis.column(play.scene.change_start).unwrap_or(last);
        let end = Micros::new(play.scene.change_end.get().saturating_sub(1));
        let length = self.axis.column(end).unwrap_or(last).saturating_sub(first) + 1;
        let (before, drawn) = place(first, length, "the change", self.axis.bins());
        let bracket = format!("{:before$}{drawn}", "");
        match self.layout {
            Layout::Beside(_) => {
                let gap = self.axis.bins().saturating_sub(bracket.chars().count());
                let heads =
                    self.figures.iter().map(|figure| format!("{:>1$}", figure.name(), column(*figure)));
                let heads = self.paint.tone(Tone::Faint, heads.collect::<String>());
                vec![format!("{}{bracket}{:gap$}{heads}", self.before(""), "")]
            }
            Layout::Below => vec![format!("{}{bracket}", self.before(""))],
        }
    }

    fn part_rows(&self, part: &Part, best: f64) -> Vec<String> {
        let (story, bins) = (&part.story, self.axis.bins());
        let good = columns(story, bins, |bin| bin.succeeded);
        let asked = columns(story, bins, |bin| bin.requests);
        let capacity = story.scenario.backend.capacity() * self.axis.bin().get() as f64 / 1e6;
        let cell = |column: usize, base: u64| {
            let share = |count: u64| count as f64 / capacity;
            chart::cell(share(good[column]), share(asked[column]), base, Tone::Passed)
        };
        let run = Run::of(story);
        let figures = self.figures.iter().map(|figure| {
            let text = figure.text(&run);
            let (gap, text) = match self.layout {
                Layout::Beside(_) => (column(*figure).saturating_sub(text.chars().count()), text),
                Layout::Below => (1, format!("{} {text}", figure.name())),
            };
            format!("{:gap$}{}", "", self.paint.tone(tone(*figure, &run, best), text))
        });
        self.rows(part.actor.name, Tone::Strong, &figures.collect::<String>(), cell)
    }

    /// A name, bars of cells, and what stands beside them.
    fn rows(
        &self,
        name: &str,
        tone: Tone,
        beside: &str,
        cell: impl Fn(usize, u64) -> (Tone, char),
    ) -> Vec<String> {
        let bars = |row: u64| {
            let base = (HEIGHT - 1 - row) * 8;
            merge(self.paint, (0..self.axis.bins()).map(|column| cell(column, base)))
        };
        let named = self.before(name).replacen(name, &self.paint.tone(tone, name), 1);
        let blank = self.before("");
        match self.layout {
            Layout::Beside(_) => (0..HEIGHT)
                .map(|row| match row {
                    row if row + 1 == HEIGHT => format!("{named}{}{beside}", bars(row)),
                    row => format!("{blank}{}", bars(row)),
                })
                .collect(),
            Layout::Below => {
                let beside = match self.paint {
                    Paint::Plain => words::wrap(beside.trim(), self.width.saturating_sub(INDENT.len())),
                    // Codes have no width.
                    Paint::Ansi => vec![beside.trim().into()],
                };
                let beside = beside.iter().map(|line| format!("{INDENT}{line}"));
                std::iter::once(named)
                    .chain((0..HEIGHT).map(|row| format!("{blank}{}", bars(row))))
                    .chain(beside)
                    .collect()
            }
        }
    }

    /// What stands before the bars.
    fn before(&self, name: &str) -> String {
        match self.layout {
            Layout::Beside(longest) => format!("{INDENT}{name:longest$} "),
            Layout::Below => format!("{INDENT}{name}"),
        }
    }
}

/// The width of a figure's column: its name or a number of six letters, and a gap.
fn column(figure: Figure) -> usize {
    match figure {
        Figure::During | Figure::Took => 7,
        Figure::After => 6,
        Figure::Settled => 8,
    }
}

/// What is far from good is said in red.
fn tone(figure: Figure, run: &Run, best: f64) -> Tone {
    let is_bad = match figure {
        Figure::During => run.goodput < 0.5 * best,
        Figure::After => run.recovered < 0.9,
        Figure::Took => false,
        Figure::Settled => run.settled.is_none(),
    };
    if is_bad { Tone::Alarm } else { Tone::Normal }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_hold_as_many_bins_each() {
        for (most, columns) in [(0, 1), (1, 1), (19, 10), (40, 40), (77, 50), (9_000, 5_000)] {
            assert_eq!(even_columns(5_000, most), columns);
        }
    }
}
