//! A simulation as JSON. All times are whole microseconds, all bins are sums of cost.

use super::{
    Simulation,
    axis::Axis,
    run::{QuotaRun, RequestCount},
};
use serde_json::{Value, json};
use tidegate_core::Micros;

/// Renders the simulation as one JSON object.
pub(crate) fn render_json(simulation: &Simulation, max_bins: usize) -> String {
    let axis = Axis::new(simulation.start, simulation.end, max_bins);
    let mut offered = RequestCount::default();
    simulation.arrivals.iter().for_each(|arrival| offered.add(arrival.cost));
    let quotas: Vec<_> = simulation.runs.iter().map(|run| quota_json(run, &axis)).collect();
    let report = json!({
        "load": simulation.title,
        "window_us": simulation.window.get(),
        "start_us": axis.start().get(),
        "bin_us": axis.bin().get(),
        "offered": count_json(offered),
        "offered_bins": axis.offered_columns(&simulation.arrivals),
        "quotas": quotas,
    });
    format!("{report}\n")
}

fn quota_json(run: &QuotaRun, axis: &Axis) -> Value {
    let columns = axis.admitted_columns(&run.admitted);
    let worst = run.worst.map(
        |worst| json!({ "start_us": worst.start.get(), "length_us": run.window.get(), "cost": worst.cost }),
    );
    json!({
        "quota": run.quota.to_string(),
        "algorithm": run.quota.kind().name(),
        "max_wait_us": (run.max_wait != Micros::MAX).then(|| run.max_wait.get()),
        "allowed": count_json(run.allowed),
        "delayed": count_json(run.delayed),
        "denied": count_json(run.denied),
        "impossible": count_json(run.impossible),
        "longest_wait_us": run.longest_wait.get(),
        "worst": worst,
        "bound": run.bound,
        "nominal": run.nominal,
        "bound_text": run.quota.bound().to_string(),
        "allowed_bins": columns.allowed,
        "delayed_bins": columns.delayed,
    })
}

fn count_json(count: RequestCount) -> Value {
    json!({ "requests": count.requests, "cost": count.cost })
}
