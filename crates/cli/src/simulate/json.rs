//! The scene for programs. All times are whole microseconds, all bins are sums of cost.

use super::{
    Scene,
    axis::Axis,
    run::{Run, Tally},
};
use tidegate_core::Micros;

/// The scene as one JSON object.
pub(crate) fn write(scene: &Scene, most_bins: usize) -> String {
    let axis = Axis::over(scene.start, scene.end, most_bins);
    let mut offered = Tally::default();
    scene.arrivals.iter().for_each(|arrival| offered.add(arrival.cost));
    let quotas: Vec<_> = scene.runs.iter().map(|run| format!("    {}", quota(run, &axis))).collect();
    let fields = [
        field("load", string(&scene.title)),
        field("window_us", scene.window.get()),
        field("start_us", axis.start().get()),
        field("bin_us", axis.bin().get()),
        field("offered", tally(offered)),
        field("offered_bins", list(&axis.offered(&scene.arrivals))),
        field("quotas", format!("[\n{}\n  ]", quotas.join(",\n"))),
    ];
    format!("{{\n  {}\n}}\n", fields.join(",\n  "))
}

fn quota(run: &Run, axis: &Axis) -> String {
    let columns = axis.passed(&run.passages);
    let patience = if run.patience == Micros::MAX { "null".into() } else { run.patience.get().to_string() };
    let worst = run.worst.map_or("null".into(), |worst| {
        let (start, length) = (field("start_us", worst.start.get()), field("length_us", run.window.get()));
        format!("{{{start}, {length}, {}}}", field("cost", worst.cost))
    });
    let fields = [
        field("quota", string(&run.quota.to_string())),
        field("algorithm", string(run.quota.kind().name())),
        field("patience_us", patience),
        field("allowed", tally(run.allowed)),
        field("delayed", tally(run.delayed)),
        field("denied", tally(run.denied)),
        field("never", tally(run.hopeless)),
        field("longest_wait_us", run.longest_wait.get()),
        field("worst", worst),
        field("bound", run.bound.map_or("null".into(), |bound| bound.to_string())),
        field("nominal", run.nominal),
        field("bound_text", string(&run.quota.bound().to_string())),
        field("allowed_bins", list(&columns.at_once)),
        field("delayed_bins", list(&columns.waited)),
    ];
    format!("{{{}}}", fields.join(", "))
}

pub(crate) fn field(name: &str, value: impl std::fmt::Display) -> String {
    format!("\"{name}\": {value}")
}

fn tally(tally: Tally) -> String {
    format!("{{{}, {}}}", field("requests", tally.requests), field("cost", tally.cost))
}

pub(crate) fn list(values: &[u64]) -> String {
    let values: Vec<_> = values.iter().map(ToString::to_string).collect();
    format!("[{}]", values.join(","))
}

pub(crate) fn string(text: &str) -> String {
    let escaped = text.chars().map(|c| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04x}", c as u32),
        c => c.to_string(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}
