//! A simulation as an SVG image: one panel per quota, over one time axis.
//!
//! ```text
//!   100/min fixed-window     ┆▒▒▒▒▒▒▒┆┄┄┄ the nominal rate ┄┄┄
//!   200 admitted, 40 denied  ┆▉▉▉ ▉▉▉┆    bars: admitted; pale: offered
//!   worst 1min: 200          ┆▉▉▉ ▉▉▉┆    line: admitted in the last window
//! ```
//!
//! The worst window is shaded. The image has its own background and colors for light and dark themes.

use super::{
    Simulation,
    axis::{Axis, Columns},
    canvas::{PLOT_LEFT, PLOT_RIGHT, SvgCanvas, x_on},
    chart::quota_name,
    run::QuotaRun,
    time::format_rough,
    window,
};
use std::fmt::Write;
use tidegate_core::{AlgorithmKind, Micros};

/// Space above the first panel, for the legend.
const MARGIN_TOP: f64 = 56.0;
/// The distance between panels, and the height of a plot.
const PANEL_PITCH: f64 = 108.0;
const PLOT_HEIGHT: f64 = 90.0;
/// Space below the last panel, for the times.
const MARGIN_BOTTOM: f64 = 26.0;
/// The height of the tallest bar, and of the highest sum: bars stay below the rate line even if it is exceeded twice.
const MAX_BAR_HEIGHT: f64 = 34.0;
const MAX_SUM_HEIGHT: f64 = 72.0;
/// The maximum number of bars, and of steps of the line.
const MAX_BARS: usize = 120;
const MAX_STEPS: usize = 600;

/// Draws the simulation.
pub(crate) fn draw(simulation: &Simulation) -> String {
    let bars = Axis::new(simulation.start, simulation.end, MAX_BARS);
    let offered = bars.offered_columns(&simulation.arrivals);
    let admitted: Vec<_> = simulation.runs.iter().map(|run| bars.admitted_columns(&run.admitted)).collect();
    let tallest = admitted.iter().map(Columns::max).chain(offered.iter().copied()).max().unwrap_or(0);
    let bottom = MARGIN_TOP + PANEL_PITCH * simulation.runs.len() as f64;
    let height = bottom + MARGIN_BOTTOM;

    let canvas = SvgCanvas::new(&simulation.title, height);
    let mut svg = SimulationSvg { canvas, axis: bars, max_cost: tallest.max(1) };
    svg.draw_legend(simulation);
    svg.draw_times(bottom, simulation.window);
    for (index, (run, columns)) in simulation.runs.iter().zip(&admitted).enumerate() {
        let top = MARGIN_TOP + PANEL_PITCH * index as f64;
        // Only sums over the same window length share a scale.
        let same_window = simulation.runs.iter().filter(|other| other.window == run.window);
        let max_sum = same_window.map(|run| run.nominal.max(run.worst.map_or(0, |worst| worst.cost))).max();
        svg.draw_caption(run, top);
        svg.draw_panel(&QuotaPanel {
            run,
            columns,
            offered: &offered,
            base: top + PLOT_HEIGHT,
            max_sum: max_sum.unwrap_or(1).max(1),
        });
    }
    svg.canvas.finish()
}

/// The plot of one quota.
struct QuotaPanel<'a> {
    run: &'a QuotaRun,
    columns: &'a Columns,
    offered: &'a [u64],
    base: f64,
    max_sum: u64,
}

struct SimulationSvg {
    canvas: SvgCanvas,
    axis: Axis,
    max_cost: u64,
}

impl SimulationSvg {
    fn draw_legend(&mut self, simulation: &Simulation) {
        let bin = self.axis.bin();
        let waits = simulation.runs.iter().any(|run| run.delayed.requests > 0);
        let in_flight = simulation.runs.iter().all(|run| run.quota.is_concurrency());
        let sum = if in_flight {
            "in flight".into()
        } else {
            format!("admitted in the last {}", simulation.window)
        };
        let rate = if in_flight { "limit" } else { "its rate" };
        let mut entries = vec![("asked", format!("offered, per {bin}")), ("went", "admitted".into())];
        if waits {
            entries.push(("waited", "after a wait".into()));
        }
        entries.extend([("sum", sum), ("rate", rate.into()), ("excess", "above it".into())]);

        self.canvas.legend(&entries);
    }

    /// Times below the last panel, and grid lines; stronger ones at window boundaries.
    fn draw_times(&mut self, bottom: f64, window: Micros) {
        let base = bottom - PANEL_PITCH + PLOT_HEIGHT;
        self.canvas.draw_times(&self.axis, MARGIN_TOP, base);
        // Draw window boundaries only if there are few.
        let (start, end) = (self.axis.start().get(), self.axis.end().get());
        let first = start / window.get() + 1;
        let edges = (first..first + 12).map(|index| index.saturating_mul(window.get()));
        let edges: Vec<_> = edges.take_while(|edge| *edge < end).collect();
        for edge in edges.iter().filter(|_| edges.len() < 12) {
            let x = x_on(&self.axis, Micros::new(*edge));
            self.canvas.push(format_args!("<path class=\"edge\" d=\"M{x:.1} {MARGIN_TOP}V{base:.1}\"/>"));
        }
        let origin = self.axis.origin();
        if origin != Micros::ZERO {
            self.canvas.label("", 24.0, base + 20.0, "start", &format!("from {origin}"));
        }
    }

    /// The quota and its numbers, to the left of its plot.
    fn draw_caption(&mut self, run: &QuotaRun, top: f64) {
        let name = quota_name(run);
        // A monospaced character is about 0.6 times as wide as high.
        let size = ((PLOT_LEFT - 48.0) / 0.61 / name.chars().count() as f64).clamp(7.0, 13.0);
        let lines = if run.delayed.requests > 0 { 4.0 } else { 3.0 };
        let y = top + PLOT_HEIGHT / 2.0 - 10.5 * lines + 13.5;
        let admitted_count = run.allowed.plus(run.delayed).requests;
        let mut lines = vec![("", format!("{admitted_count} admitted, {} denied", run.denied.requests))];
        if run.delayed.requests > 0 {
            lines.push((
                "",
                format!("{} waited, up to {}", run.delayed.requests, format_rough(run.longest_wait)),
            ));
        }
        let y = self.canvas.caption(&name, size, (y, 21.0), &lines) + 21.0;
        let class = if run.exceeds_nominal() { "over" } else { "strong" };
        let worst = format_short(run.worst.map_or(0, |worst| worst.cost));
        let label = match run.quota.kind() {
            AlgorithmKind::Concurrency(_) => "most in flight".into(),
            _ => format!("worst {}", run.window),
        };
        let bound =
            run.bound.map_or("without a bound".into(), |bound| format!("of at most {}", format_short(bound)));
        self.canvas.push(format_args!(
            "<text x=\"24\" y=\"{y:.1}\"><tspan class=\"{class}\">{label}: {worst}</tspan> \
             <tspan>{bound}</tspan></text>"
        ));
    }

    fn draw_panel(&mut self, panel: &QuotaPanel<'_>) {
        let QuotaPanel { run, columns, offered, base, .. } = *panel;
        // The worst window, behind everything.
        if let Some(worst) = run.worst {
            let class = if run.exceeds_nominal() { "worst bad" } else { "worst" };
            self.canvas.shade(
                class,
                (x_on(&self.axis, worst.start), x_on(&self.axis, worst.start.saturating_add(run.window))),
                base,
                PLOT_HEIGHT,
            );
        }

        // Bars: offered, then admitted in front of it, and delayed on top.
        let nothing = vec![0; offered.len()];
        let totals: Vec<_> = (0..offered.len()).map(|column| columns.total(column)).collect();
        for (class, from, to) in [
            ("asked", &nothing, offered),
            ("went", &nothing, columns.allowed.as_slice()),
            ("waited", &columns.allowed, totals.as_slice()),
        ] {
            let path = self.bars_path(from, to, base);
            self.canvas.path(class, &path);
        }

        self.draw_sums(panel);
    }

    /// The cost admitted in the last window, against the nominal rate.
    fn draw_sums(&mut self, panel: &QuotaPanel<'_>) {
        let QuotaPanel { run, base, max_sum, .. } = *panel;
        let steps = Axis::new(self.axis.start(), self.axis.end(), MAX_STEPS);
        let sums = window::trailing_sums(&run.admitted, run.window, &steps);
        let y = |sum: u64| base - MAX_SUM_HEIGHT * sum as f64 / max_sum as f64;
        let limit = y(run.nominal);
        let (mut line, mut excess) = (format!("M{PLOT_LEFT} {base:.1}"), format!("M{PLOT_LEFT} {limit:.1}"));
        let mut last = 0;
        for (index, &sum) in sums.iter().enumerate() {
            if sum == last {
                continue;
            }
            let x = x_on(&self.axis, steps.edge(index));
            let _ = write!(line, "H{x:.1}V{:.1}", y(sum));
            let _ = write!(excess, "H{x:.1}V{:.1}", y(sum.max(run.nominal)));
            last = sum;
        }
        let _ = write!(line, "H{PLOT_RIGHT}");
        let _ = write!(excess, "H{PLOT_RIGHT}V{limit:.1}z");
        self.canvas.path("excess", &excess);
        self.canvas.level("rate", limit);
        self.canvas.level("base", base);
        self.canvas.path("sum", &line);
        if let Some(worst) = run.worst {
            let x = x_on(&self.axis, worst.start.saturating_add(run.window)) - 6.0;
            let class = if run.exceeds_nominal() { "over" } else { "strong" };
            self.canvas.label(class, x, y(worst.cost) - 6.0, "end", &format_short(worst.cost));
        }
        self.canvas.label("", PLOT_RIGHT + 6.0, limit + 4.0, "start", &format_short(run.nominal));
    }

    /// One bar per non-empty column, from one height to another.
    fn bars_path(&self, from: &[u64], to: &[u64], base: f64) -> String {
        let y = |cost: u64| base - MAX_BAR_HEIGHT * cost as f64 / self.max_cost as f64;
        let mut path = String::new();
        for (column, (&from, &to)) in from.iter().zip(to).enumerate().filter(|(_, (from, to))| to > from) {
            let (x, end) =
                (x_on(&self.axis, self.axis.edge(column)), x_on(&self.axis, self.axis.edge(column + 1)));
            let gap = ((end - x) * 0.1).min(1.0);
            let _ = write!(path, "M{:.1} {:.1}V{:.1}H{:.1}V{:.1}z", x + gap, y(from), y(to), end, y(from));
        }
        path
    }
}

/// A short number that fits beside a plot.
fn format_short(number: u64) -> String {
    let (value, prefix) = match number as f64 {
        n if n >= 1e12 => return format!("{n:.1e}"),
        n if n >= 1e9 => (n / 1e9, 'G'),
        n if n >= 1e6 => (n / 1e6, 'M'),
        n if n >= 1e5 => (n / 1e3, 'k'),
        _ => return number.to_string(),
    };
    let places = if value < 99.95 { 1 } else { 0 };
    format!("{value:.places$}{prefix}")
}
