//! The scene for programs. All times are whole microseconds, all bins are sums of cost.

use super::{
    Scene,
    axis::Axis,
    run::{Run, Tally},
};
use serde_json::{Value, json};
use tidegate_core::Micros;

/// The scene as one JSON object.
pub(crate) fn write(scene: &Scene, most_bins: usize) -> String {
    let axis = Axis::over(scene.start, scene.end, most_bins);
    let mut offered = Tally::default();
    scene.arrivals.iter().for_each(|arrival| offered.add(arrival.cost));
    let quotas: Vec<_> = scene.runs.iter().map(|run| quota(run, &axis)).collect();
    let scene = json!({
        "load": scene.title,
        "window_us": scene.window.get(),
        "start_us": axis.start().get(),
        "bin_us": axis.bin().get(),
        "offered": tally(offered),
        "offered_bins": axis.offered(&scene.arrivals),
        "quotas": quotas,
    });
    format!("{scene}\n")
}

fn quota(run: &Run, axis: &Axis) -> Value {
    let columns = axis.passed(&run.passages);
    let worst = run.worst.map(
        |worst| json!({ "start_us": worst.start.get(), "length_us": run.window.get(), "cost": worst.cost }),
    );
    json!({
        "quota": run.quota.to_string(),
        "algorithm": run.quota.kind().name(),
        "patience_us": (run.patience != Micros::MAX).then(|| run.patience.get()),
        "allowed": tally(run.allowed),
        "delayed": tally(run.delayed),
        "denied": tally(run.denied),
        "never": tally(run.hopeless),
        "longest_wait_us": run.longest_wait.get(),
        "worst": worst,
        "bound": run.bound,
        "nominal": run.nominal,
        "bound_text": run.quota.bound().to_string(),
        "allowed_bins": columns.at_once,
        "delayed_bins": columns.waited,
    })
}

fn tally(tally: Tally) -> Value {
    json!({ "requests": tally.requests, "cost": tally.cost })
}
