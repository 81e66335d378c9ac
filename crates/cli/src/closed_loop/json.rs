//! Results as JSON. All times are whole microseconds, bins are counts, shares are from 0 to 1.

use super::{
    ControllerResult, ScenarioResult,
    chart::{even_columns, sum_columns},
    describe,
    figure::{Figure, RunFigures},
};
use serde_json::{Map, Value, json};
use tidegate_core::Micros;

/// Renders the results as one JSON object, with at most `max_bins` bins per run.
pub(crate) fn render_json(results: &[ScenarioResult], max_bins: usize) -> String {
    let scenarios: Vec<_> = results.iter().map(|result| scenario_json(result, max_bins)).collect();
    format!("{}\n", json!({ "scenarios": scenarios }))
}

fn scenario_json(result: &ScenarioResult, max_bins: usize) -> Value {
    let scenario = &result.scenario;
    let bin_count = result.controllers.first().map_or(1, |part| part.first_run.bins.len());
    let bins = even_columns(bin_count, max_bins);
    json!({
        "scenario": scenario.name,
        "description": describe::describe_scenario(scenario),
        "capacity_per_s": json_number(scenario.backend.capacity()),
        "demand": json_number(scenario.demand),
        "changed_demand": json_number(scenario.changed_demand),
        "change_start_us": scenario.change_start.get(),
        "change_end_us": scenario.change_end.get(),
        "length_us": scenario.length.get(),
        "bin_us": scenario.length.get() / bins as u64,
        "controllers": result.controllers.iter().map(|part| controller_json(part, result, bins)).collect::<Vec<_>>(),
    })
}

fn controller_json(controller: &ControllerResult, result: &ScenarioResult, bins: usize) -> Value {
    let run = &controller.first_run;
    let limits = run.bins.chunks((run.bins.len() / bins).max(1));
    let limits = limits.map(|bins| bins.iter().rev().find_map(|bin| bin.limit));
    json!({
        "controller": controller.controller.name,
        "description": controller.controller.description,
        "median": ranked_figures(controller, result, |runs| runs.get(runs.len() / 2)),
        "worst": ranked_figures(controller, result, <[RunFigures]>::last),
        "runs": controller.figures.iter().map(|each| run_json(each, result)).collect::<Vec<_>>(),
        "request_bins": sum_columns(run, bins, |bin| bin.requests),
        "attempt_bins": sum_columns(run, bins, |bin| bin.attempts),
        "rejected_bins": sum_columns(run, bins, |bin| bin.rejected),
        "succeeded_bins": sum_columns(run, bins, |bin| bin.succeeded),
        "failed_bins": sum_columns(run, bins, |bin| bin.failed),
        "limit_bins": limits.collect::<Vec<_>>(),
    })
}

/// Each figure of the run that `pick` selects from the runs, ranked by that figure from best to worst.
fn ranked_figures(
    controller: &ControllerResult,
    result: &ScenarioResult,
    pick: fn(&[RunFigures]) -> Option<&RunFigures>,
) -> Map<String, Value> {
    let value = |figure: Figure| {
        let runs = figure.rank(&controller.figures);
        pick(&runs).map(|run| figure_value(figure, run, result))
    };
    Figure::ALL.into_iter().filter_map(value).collect()
}

fn run_json(run: &RunFigures, result: &ScenarioResult) -> Map<String, Value> {
    let figures = Figure::ALL.into_iter().map(|figure| figure_value(figure, run, result));
    std::iter::once(("seed".to_owned(), json!(run.seed))).chain(figures).collect()
}

fn figure_value(figure: Figure, run: &RunFigures, result: &ScenarioResult) -> (String, Value) {
    let (name, value) = match figure {
        Figure::Goodput => ("goodput", json!(run.goodput)),
        Figure::Recovered => ("recovered", json!(run.recovered)),
        Figure::Latency => ("latency_us", json!(run.latency.map(Micros::get))),
        Figure::Settled => {
            let settled = run.settled.filter(|_| figure.applies_to(&result.scenario));
            ("settled_us", json!(settled.map(Micros::get)))
        }
    };
    (name.to_owned(), value)
}

/// A number, without a fraction if it is whole.
fn json_number(value: f64) -> Value {
    if value.fract() == 0.0 { json!(value as i64) } else { json!(value) }
}
