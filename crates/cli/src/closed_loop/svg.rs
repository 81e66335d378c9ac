//! A play as a picture: one panel for each of the cast, over one time axis.
//!
//! ```text
//!   anchored                ┆┄┄┄┄┄▒▒▒▒▒▒▒▒▒┄┄┄┄┄ capacity
//!   98% of capacity during  ┆▉▉▉▉▉▉▉▉▉▉▉▉▉▉▉▉▉▉  filled: answered in time; pale: asked for
//!   105% answered after     ┆▉▉▉▉▉▉▉▉▉▉▉▉▉▉▉▉▉▉  shaded: the change
//! ```

use super::{
    Part, Play,
    chart::{columns, even_columns},
    figure::{Figure, Run},
    words,
};
use crate::simulate::{
    axis::Axis,
    canvas::{Canvas, LEFT, RIGHT},
};
use std::fmt::Write;
use tidegate_core::Micros;

/// Space above the first panel, for the legend.
const TOP: f64 = 64.0;
/// From one panel to the next, how much of that is plot, and how much of the plot is capacity.
const PITCH: f64 = 88.0;
const PLOT: f64 = 70.0;
const FULL: f64 = 62.0;
/// Space below the last panel, for the times.
const BOTTOM: f64 = 26.0;
/// Steps of an area, at most.
const STEPS: usize = 250;

/// Draws a play.
pub(crate) fn draw(play: &Play) -> String {
    let whole = play.parts.first().map_or(1, |part| part.story.bins.len());
    let steps = even_columns(whole, STEPS);
    let axis = Axis::even(steps, Micros::new(play.scene.length.get() / steps as u64));
    let bottom = TOP + PITCH * (play.parts.len() + 1) as f64;

    let mut picture =
        Picture { canvas: Canvas::new(&words::title(&play.scene), bottom + BOTTOM, axis), axis, play };
    picture.legend();
    picture.canvas.times(TOP, bottom - PITCH + PLOT);
    picture.asked();
    let best = play.parts.iter().map(|part| part.story.goodput_during_change()).fold(0.0, f64::max);
    for (index, part) in play.parts.iter().enumerate() {
        picture.part(part, TOP + PITCH * (index + 1) as f64, best);
    }
    picture.canvas.finish()
}

struct Picture<'a> {
    canvas: Canvas,
    axis: Axis,
    play: &'a Play,
}

impl Picture<'_> {
    fn legend(&mut self) {
        self.canvas.label("quota", 24.0, 30.0, "start", self.play.scene.name);
        let change = words::title(&self.play.scene);
        let change = change.split_once(": ").map_or(change.as_str(), |(_, change)| change);
        self.canvas.label("", 24.0, 48.0, "start", change);
        self.canvas.legend(&[
            ("asked", "asked for".into()),
            ("went", "answered in time".into()),
            ("rate", "capacity".into()),
            ("worst", "the change".into()),
        ]);
    }

    /// What was asked for, against its own height: it may be many times what there is.
    fn asked(&mut self) {
        let Some(part) = self.play.parts.first() else { return };
        let base = TOP + PLOT;
        let scene = &self.play.scene;
        let asked = self.shares(part, |bin| bin.requests);
        let tallest = asked.iter().copied().fold(1.0, f64::max);
        self.caption(TOP, "asked for", &[("", demand(scene.demand, scene.changed_demand))]);
        self.shade(base);
        let heights: Vec<_> = asked.iter().map(|share| share / tallest).collect();
        self.area("asked", &heights, base);
        self.capacity(base, FULL / tallest);
    }

    fn part(&mut self, part: &Part, top: f64, best: f64) {
        let base = top + PLOT;
        let run = Run::of(&part.story);
        let strong = |is_bad: bool| if is_bad { "over" } else { "strong" };
        let mut lines = vec![
            (
                strong(run.goodput < 0.5 * best),
                format!("{} of capacity during it", Figure::During.text(&run)),
            ),
            (
                if run.recovered < 0.9 { "over" } else { "" },
                format!("{} answered after it", Figure::After.text(&run)),
            ),
        ];
        if Figure::Settled.belongs_to(&self.play.scene) {
            lines.push(match run.settled {
                Some(Micros::ZERO) => ("", "settled at once".into()),
                Some(_) => ("", format!("settled after {}", Figure::Settled.text(&run))),
                None => ("over", "never settled".into()),
            });
        }
        self.caption(top, part.actor.name, &lines);
        self.shade(base);
        let asked = self.shares(part, |bin| bin.requests);
        let good = self.shares(part, |bin| bin.succeeded);
        self.area("asked", &asked.iter().map(|share| share.min(1.0)).collect::<Vec<_>>(), base);
        self.area("went", &good, base);
        self.capacity(base, FULL);
    }

    /// A name and its figures, to the left of the plot.
    fn caption(&mut self, top: f64, name: &str, lines: &[(&str, String)]) {
        let y = top + PLOT / 2.0 - 9.0 * (lines.len() + 1) as f64 + 13.0;
        self.canvas.caption(name, 13.0, (y, 18.0), lines);
    }

    /// The change, behind everything.
    fn shade(&mut self, base: f64) {
        self.canvas.shade("worst", (self.play.scene.change_start, self.play.scene.change_end), base, PLOT);
    }

    /// What each step counts, as a share of capacity.
    fn shares(&self, part: &Part, count: fn(&tidegate_simulation::SimulationBin) -> u32) -> Vec<f64> {
        let capacity = self.play.scene.backend.capacity() * self.axis.bin().get() as f64 / 1e6;
        columns(&part.story, self.axis.bins(), count).iter().map(|count| *count as f64 / capacity).collect()
    }

    fn area(&mut self, class: &str, shares: &[f64], base: f64) {
        let mut path = format!("M{LEFT} {base:.1}");
        let mut last = base;
        for (index, share) in shares.iter().enumerate() {
            let y = base - (FULL * share).min(PLOT);
            if (y - last).abs() >= 0.05 {
                let _ = write!(path, "H{:.1}V{y:.1}", self.canvas.x(self.axis.edge(index)));
                last = y;
            }
        }
        let _ = write!(path, "H{RIGHT}V{base:.1}z");
        self.canvas.path(class, &path);
    }

    fn capacity(&mut self, base: f64, height: f64) {
        let y = base - height;
        self.canvas.level("base", base);
        self.canvas.level("rate", y);
        self.canvas.label("", RIGHT + 6.0, y + 4.0, "start", "100%");
    }
}

fn demand(demand: f64, changed: f64) -> String {
    if demand == changed {
        format!("{demand} × capacity")
    } else {
        format!("{demand}, then {changed} × capacity")
    }
}
