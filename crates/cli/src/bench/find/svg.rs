//! The result of a search as an SVG image: latency and errors by rate.
//!
//! ```text
//!   knee 496/s       ┆                ╱
//!   p99 150ms        ┆┄┄ target ┄┄┄┄┄╱┄
//!   quota 396/s      ┆______________╱ ▉   line: p99; bars: errors
//! ```

use super::{FindOutcome, LoadStep};
use crate::simulate::{
    canvas::{PLOT_LEFT, PLOT_RIGHT, SvgCanvas},
    time::format_rough,
};
use std::fmt::Write as _;

const PLOT_TOP: f64 = 56.0;
const PLOT_BASE: f64 = 236.0;
const HEIGHT: f64 = 270.0;
const BAR_WIDTH: f64 = 8.0;

/// Draws the image.
pub(crate) fn draw(outcome: &FindOutcome) -> String {
    let steps = outcome.steps_by_rate();
    let bound = |step: Option<&&LoadStep>| step.map_or(1.0, |step| step.rate as f64);
    let plot = RatePlot {
        min_rate: bound(steps.first()),
        max_rate: bound(steps.last()),
        // The target is in the middle, and higher latencies are cut.
        max_latency: outcome.target.max_latency.get() as f64 * 2.0,
    };
    let mut canvas = SvgCanvas::new(&format!("Latency of {} by rate", outcome.url), HEIGHT);
    let target = format!("target, {}", format_rough(outcome.target.max_latency));
    canvas.legend(&[("sum", "p99".into()), ("rate", target), ("excess", "errors".into())]);
    canvas.caption(&describe_knee(outcome), 13.0, (120.0, 21.0), &caption_lines(outcome));

    for step in &steps {
        let (x, height) = (plot.x(step), step.errors.min(1.0) * (PLOT_BASE - PLOT_TOP));
        let left = x - BAR_WIDTH / 2.0;
        if height > 0.0 {
            canvas.path("excess", &format!("M{left:.1} {PLOT_BASE}v-{height:.1}h{BAR_WIDTH}v{height:.1}z"));
        }
    }
    canvas.level("rate", f64::midpoint(PLOT_TOP, PLOT_BASE));
    canvas.level("base", PLOT_BASE);
    canvas.path("sum", &plot.latency_path(&steps));
    for step in &steps {
        let class = if step.missed.is_some() { "over" } else { "went" };
        let (x, y) = (plot.x(step), plot.y(step));
        canvas.push(format_args!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>"));
    }
    draw_rates(&mut canvas, &plot, &steps);
    if let Some(knee) = outcome.knee_step() {
        let x = plot.x(knee);
        canvas.path("edge", &format!("M{x:.1} {PLOT_TOP}V{PLOT_BASE}"));
        canvas.label("strong", x - 6.0, PLOT_TOP + 10.0, "end", &format!("{}/s", knee.rate));
    }
    canvas.finish()
}

/// The scales of the plot. The rates have a logarithmic scale.
struct RatePlot {
    min_rate: f64,
    max_rate: f64,
    max_latency: f64,
}

impl RatePlot {
    fn x(&self, step: &LoadStep) -> f64 {
        let range = (self.max_rate / self.min_rate).ln();
        let share = if range > 0.0 { (step.rate as f64 / self.min_rate).ln() / range } else { 0.5 };
        PLOT_LEFT + (PLOT_RIGHT - PLOT_LEFT) * share
    }

    fn y(&self, step: &LoadStep) -> f64 {
        let share = (step.p99.get() as f64 / self.max_latency).min(1.0);
        PLOT_BASE - (PLOT_BASE - PLOT_TOP) * share
    }

    fn latency_path(&self, steps: &[&LoadStep]) -> String {
        let mut path = String::new();
        for (index, step) in steps.iter().enumerate() {
            let command = if index == 0 { 'M' } else { 'L' };
            // Writing to a string does not fail.
            let _ = write!(path, "{command}{:.1} {:.1}", self.x(step), self.y(step));
        }
        path
    }
}

/// The rates below the plot, without those that would overlap.
fn draw_rates(canvas: &mut SvgCanvas, plot: &RatePlot, steps: &[&LoadStep]) {
    let mut end = f64::NEG_INFINITY;
    for step in steps {
        let (x, label) = (plot.x(step), format!("{}/s", step.rate));
        let half = 3.6 * label.chars().count() as f64;
        if x - half > end {
            canvas.label("", x, PLOT_BASE + 20.0, "middle", &label);
            end = x + half + 4.0;
        }
    }
}

fn describe_knee(outcome: &FindOutcome) -> String {
    match outcome.knee {
        Some(knee) if outcome.is_max_rate => format!("knee above {knee}/s"),
        Some(knee) => format!("knee {knee}/s"),
        None => "no knee".to_owned(),
    }
}

fn caption_lines(outcome: &FindOutcome) -> Vec<(&'static str, String)> {
    let latency = outcome.knee_step().map(|step| ("", format!("p99 {}", format_rough(step.p99))));
    let quota = outcome.quota().map(|(rate, burst)| ("strong", format!("quota {rate}/s burst {burst}")));
    latency.into_iter().chain(quota).collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{outcome, step},
        *,
    };

    #[test]
    fn image_shows_knee_errors_and_steps() {
        let image = draw(&outcome());
        assert_eq!(image.matches("<circle").count(), 4, "{image}");
        assert_eq!(image.matches("<circle class=\"over\"").count(), 2, "{image}");
        // The legend, and the step with errors.
        assert_eq!(image.matches("<path class=\"excess\"").count(), 2, "{image}");
        for text in ["knee 200/s", "quota 160/s burst 32", ">p99 40ms<", ">282/s<", ">400/s<"] {
            assert!(image.contains(text), "{text}: {image}");
        }
        assert!(!image.contains("NaN") && !image.contains("inf"), "{image}");
    }

    #[test]
    fn image_of_one_step_is_finite() {
        let single = FindOutcome { steps: vec![step(100, 10, 0.0)], knee: None, ..outcome() };
        assert!(!draw(&single).contains("NaN"));
        assert!(!draw(&FindOutcome { steps: Vec::new(), ..single }).contains("NaN"));
    }
}
