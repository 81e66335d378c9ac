//! Plays for programs. All times are whole microseconds, bins are counts, shares are of 1.

use super::{
    Part, Play,
    chart::{columns, even_columns},
    figure::{Figure, Run},
    words,
};
use serde_json::{Map, Value, json};
use tidegate_core::Micros;

/// The plays as one JSON object, with at most `most_bins` bins for each story.
pub(crate) fn write(plays: &[Play], most_bins: usize) -> String {
    let scenes: Vec<_> = plays.iter().map(|play| scene(play, most_bins)).collect();
    format!("{}\n", json!({ "scenes": scenes }))
}

fn scene(play: &Play, most_bins: usize) -> Value {
    let scene = &play.scene;
    let whole = play.parts.first().map_or(1, |part| part.story.bins.len());
    let bins = even_columns(whole, most_bins);
    json!({
        "scene": scene.name,
        "about": words::title(scene),
        "capacity_per_s": number(scene.backend.capacity()),
        "demand": number(scene.demand),
        "changed_demand": number(scene.changed_demand),
        "begins_us": scene.change_start.get(),
        "ends_us": scene.change_end.get(),
        "length_us": scene.length.get(),
        "bin_us": scene.length.get() / bins as u64,
        "guards": play.parts.iter().map(|part| guard(part, play, bins)).collect::<Vec<_>>(),
    })
}

fn guard(part: &Part, play: &Play, bins: usize) -> Value {
    let story = &part.story;
    let limits = story.bins.chunks((story.bins.len() / bins).max(1));
    let limits = limits.map(|bins| bins.iter().rev().find_map(|bin| bin.limit));
    json!({
        "guard": part.actor.name,
        "about": part.actor.description,
        "median": ranked(part, play, |runs| runs.get(runs.len() / 2)),
        "worst": ranked(part, play, <[Run]>::last),
        "runs": part.runs.iter().map(|each| run(each, play)).collect::<Vec<_>>(),
        "request_bins": columns(story, bins, |bin| bin.requests),
        "attempt_bins": columns(story, bins, |bin| bin.attempts),
        "refused_bins": columns(story, bins, |bin| bin.rejected),
        "good_bins": columns(story, bins, |bin| bin.succeeded),
        "bad_bins": columns(story, bins, |bin| bin.failed),
        "limit_bins": limits.collect::<Vec<_>>(),
    })
}

/// Each figure of the run that `pick` takes from the best to the worst of that figure.
fn ranked(part: &Part, play: &Play, pick: fn(&[Run]) -> Option<&Run>) -> Map<String, Value> {
    let value = |figure: Figure| {
        let runs = figure.ranked(&part.runs);
        pick(&runs).map(|run| value(figure, run, play))
    };
    Figure::ALL.into_iter().filter_map(value).collect()
}

fn run(run: &Run, play: &Play) -> Map<String, Value> {
    let figures = Figure::ALL.into_iter().map(|figure| value(figure, run, play));
    std::iter::once(("seed".to_owned(), json!(run.seed))).chain(figures).collect()
}

fn value(figure: Figure, run: &Run, play: &Play) -> (String, Value) {
    let (name, value) = match figure {
        Figure::During => ("goodput", json!(run.goodput)),
        Figure::After => ("recovered", json!(run.recovered)),
        Figure::Took => ("latency_us", json!(run.latency.map(Micros::get))),
        Figure::Settled => {
            let settled = run.settled.filter(|_| figure.belongs_to(&play.scene));
            ("settled_us", json!(settled.map(Micros::get)))
        }
    };
    (name.to_owned(), value)
}

/// A number, without a fraction where it has none.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 { json!(value as i64) } else { json!(value) }
}
