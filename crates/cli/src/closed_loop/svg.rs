//! A scenario as an SVG image: one panel per controller, over one time axis.
//!
//! ```text
//!   anchored                ┆┄┄┄┄┄▒▒▒▒▒▒▒▒▒┄┄┄┄┄ capacity
//!   98% of capacity during  ┆▉▉▉▉▉▉▉▉▉▉▉▉▉▉▉▉▉▉  filled: answered in time; pale: requested
//!   105% answered after     ┆▉▉▉▉▉▉▉▉▉▉▉▉▉▉▉▉▉▉  shaded: the change
//! ```

use super::{
    ControllerResult, ScenarioResult,
    chart::{even_columns, sum_columns},
    describe,
    figure::{Figure, RunFigures},
};
use crate::simulate::{
    axis::Axis,
    canvas::{PLOT_LEFT, PLOT_RIGHT, SvgCanvas, x_on},
};
use std::fmt::Write;
use tidegate_core::Micros;

/// Space above the first panel, for the legend.
const MARGIN_TOP: f64 = 64.0;
/// The distance between panels, the height of a plot, and the height of the capacity in it.
const PANEL_PITCH: f64 = 88.0;
const PLOT_HEIGHT: f64 = 70.0;
const CAPACITY_HEIGHT: f64 = 62.0;
/// Space below the last panel, for the times.
const MARGIN_BOTTOM: f64 = 26.0;
/// The maximum number of steps of an area.
const MAX_STEPS: usize = 250;

/// Draws a scenario.
pub(crate) fn draw(result: &ScenarioResult) -> String {
    let bin_count = result.controllers.first().map_or(1, |part| part.first_run.bins.len());
    let steps = even_columns(bin_count, MAX_STEPS);
    let axis = Axis::with_bins(steps, Micros::new(result.scenario.length.get() / steps as u64));
    let bottom = MARGIN_TOP + PANEL_PITCH * (result.controllers.len() + 1) as f64;

    let mut svg = ClosedLoopSvg {
        canvas: SvgCanvas::new(&describe::describe_scenario(&result.scenario), bottom + MARGIN_BOTTOM),
        axis,
        result,
    };
    svg.draw_legend();
    svg.canvas.draw_times(&axis, MARGIN_TOP, bottom - PANEL_PITCH + PLOT_HEIGHT);
    svg.draw_requests();
    let best =
        result.controllers.iter().map(|part| part.first_run.goodput_during_change()).fold(0.0, f64::max);
    for (index, part) in result.controllers.iter().enumerate() {
        svg.draw_controller(part, MARGIN_TOP + PANEL_PITCH * (index + 1) as f64, best);
    }
    svg.canvas.finish()
}

struct ClosedLoopSvg<'a> {
    canvas: SvgCanvas,
    axis: Axis,
    result: &'a ScenarioResult,
}

impl ClosedLoopSvg<'_> {
    fn draw_legend(&mut self) {
        self.canvas.label("quota", 24.0, 30.0, "start", self.result.scenario.name);
        let change = describe::describe_scenario(&self.result.scenario);
        let change = change.split_once(": ").map_or(change.as_str(), |(_, change)| change);
        self.canvas.label("", 24.0, 48.0, "start", change);
        self.canvas.legend(&[
            ("asked", "requested".into()),
            ("went", "answered in time".into()),
            ("rate", "capacity".into()),
            ("worst", "the change".into()),
        ]);
    }

    /// The load, scaled to its own maximum, which may be a multiple of the capacity.
    fn draw_requests(&mut self) {
        let Some(part) = self.result.controllers.first() else { return };
        let base = MARGIN_TOP + PLOT_HEIGHT;
        let scenario = &self.result.scenario;
        let requests = self.shares(part, |bin| bin.requests);
        let tallest = requests.iter().copied().fold(1.0, f64::max);
        self.draw_caption(
            MARGIN_TOP,
            "requested",
            &[("", describe_demand(scenario.demand, scenario.changed_demand))],
        );
        self.draw_change(base);
        let heights: Vec<_> = requests.iter().map(|share| share / tallest).collect();
        self.draw_area("asked", &heights, base);
        self.draw_capacity(base, CAPACITY_HEIGHT / tallest);
    }

    fn draw_controller(&mut self, part: &ControllerResult, top: f64, best: f64) {
        let base = top + PLOT_HEIGHT;
        let run = RunFigures::from_run(&part.first_run);
        let strong = |is_bad: bool| if is_bad { "over" } else { "strong" };
        let mut lines = vec![
            (
                strong(run.goodput < 0.5 * best),
                format!("{} of capacity during it", Figure::Goodput.text(&run)),
            ),
            (
                if run.recovered < 0.9 { "over" } else { "" },
                format!("{} answered after it", Figure::Recovered.text(&run)),
            ),
        ];
        if Figure::Settled.applies_to(&self.result.scenario) {
            lines.push(match run.settled {
                Some(Micros::ZERO) => ("", "settled at once".into()),
                Some(_) => ("", format!("settled after {}", Figure::Settled.text(&run))),
                None => ("over", "never settled".into()),
            });
        }
        self.draw_caption(top, part.controller.name, &lines);
        self.draw_change(base);
        let requests = self.shares(part, |bin| bin.requests);
        let good = self.shares(part, |bin| bin.succeeded);
        self.draw_area("asked", &requests.iter().map(|share| share.min(1.0)).collect::<Vec<_>>(), base);
        self.draw_area("went", &good, base);
        self.draw_capacity(base, CAPACITY_HEIGHT);
    }

    /// A name and its figures, to the left of the plot.
    fn draw_caption(&mut self, top: f64, name: &str, lines: &[(&str, String)]) {
        let y = top + PLOT_HEIGHT / 2.0 - 9.0 * (lines.len() + 1) as f64 + 13.0;
        self.canvas.caption(name, 13.0, (y, 18.0), lines);
    }

    /// The change, behind everything.
    fn draw_change(&mut self, base: f64) {
        self.canvas.shade(
            "worst",
            (
                x_on(&self.axis, self.result.scenario.change_start),
                x_on(&self.axis, self.result.scenario.change_end),
            ),
            base,
            PLOT_HEIGHT,
        );
    }

    /// The count of each step, as a share of the capacity.
    fn shares(
        &self,
        controller: &ControllerResult,
        count: fn(&tidegate_simulation::SimulationBin) -> u32,
    ) -> Vec<f64> {
        let capacity = self.result.scenario.backend.capacity() * self.axis.bin().get() as f64 / 1e6;
        sum_columns(&controller.first_run, self.axis.bins(), count)
            .iter()
            .map(|count| *count as f64 / capacity)
            .collect()
    }

    fn draw_area(&mut self, class: &str, shares: &[f64], base: f64) {
        let mut path = format!("M{PLOT_LEFT} {base:.1}");
        let mut last = base;
        for (index, share) in shares.iter().enumerate() {
            let y = base - (CAPACITY_HEIGHT * share).min(PLOT_HEIGHT);
            if (y - last).abs() >= 0.05 {
                let _ = write!(path, "H{:.1}V{y:.1}", x_on(&self.axis, self.axis.edge(index)));
                last = y;
            }
        }
        let _ = write!(path, "H{PLOT_RIGHT}V{base:.1}z");
        self.canvas.path(class, &path);
    }

    fn draw_capacity(&mut self, base: f64, height: f64) {
        let y = base - height;
        self.canvas.level("base", base);
        self.canvas.level("rate", y);
        self.canvas.label("", PLOT_RIGHT + 6.0, y + 4.0, "start", "100%");
    }
}

fn describe_demand(demand: f64, changed: f64) -> String {
    if demand == changed {
        format!("{demand} × capacity")
    } else {
        format!("{demand}, then {changed} × capacity")
    }
}
