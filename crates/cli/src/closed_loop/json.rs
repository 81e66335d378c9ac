//! Plays for programs. All times are whole microseconds, bins are counts, shares are of 1.

use super::{
    Part, Play,
    chart::{columns, even_columns},
    figure::{Figure, Run},
    words,
};
use crate::simulate::json::{field, list, string};
use tidegate_core::Micros;

/// The plays as one JSON object, with at most `most_bins` bins for each story.
pub(crate) fn write(plays: &[Play], most_bins: usize) -> String {
    let scenes: Vec<_> = plays.iter().map(|play| scene(play, most_bins)).collect();
    format!("{{\n  {}\n}}\n", field("scenes", format!("[\n{}\n  ]", scenes.join(",\n"))))
}

fn scene(play: &Play, most_bins: usize) -> String {
    let scene = &play.scene;
    let whole = play.parts.first().map_or(1, |part| part.story.bins.len());
    let bins = even_columns(whole, most_bins);
    let guards: Vec<_> = play.parts.iter().map(|part| format!("      {}", guard(part, play, bins))).collect();
    let fields = [
        field("scene", string(scene.name)),
        field("about", string(&words::title(scene))),
        field("capacity_per_s", scene.backend.capacity()),
        field("demand", scene.demand),
        field("changed_demand", scene.changed_demand),
        field("begins_us", scene.begins.get()),
        field("ends_us", scene.ends.get()),
        field("length_us", scene.length.get()),
        field("bin_us", scene.length.get() / bins as u64),
        field("guards", format!("[\n{}\n    ]", guards.join(",\n"))),
    ];
    format!("    {{{}}}", fields.join(", "))
}

fn guard(part: &Part, play: &Play, bins: usize) -> String {
    let story = &part.story;
    let counts = |name: &str, count| field(name, list(&columns(story, bins, count)));
    let runs: Vec<_> = part.runs.iter().map(|each| run(each, play)).collect();
    let limits = story.bins.chunks((story.bins.len() / bins).max(1));
    let limits = limits.map(|bins| optional(bins.iter().rev().find_map(|bin| bin.limit)));
    let fields = [
        field("guard", string(part.actor.name)),
        field("about", string(part.actor.about)),
        field("median", ranked(part, play, |runs| runs.get(runs.len() / 2))),
        field("worst", ranked(part, play, <[Run]>::last)),
        field("runs", format!("[{}]", runs.join(", "))),
        counts("request_bins", |bin| bin.requests),
        counts("attempt_bins", |bin| bin.attempts),
        counts("refused_bins", |bin| bin.refused),
        counts("good_bins", |bin| bin.good),
        counts("bad_bins", |bin| bin.bad),
        field("limit_bins", format!("[{}]", limits.collect::<Vec<_>>().join(","))),
    ];
    format!("{{{}}}", fields.join(", "))
}

/// Each figure of the run that `pick` takes from the best to the worst of that figure.
fn ranked(part: &Part, play: &Play, pick: fn(&[Run]) -> Option<&Run>) -> String {
    let value = |figure: Figure| {
        let runs = figure.ranked(&part.runs);
        pick(&runs).map(|run| value(figure, run, play))
    };
    let fields: Vec<_> = Figure::ALL.into_iter().filter_map(value).collect();
    format!("{{{}}}", fields.join(", "))
}

fn run(run: &Run, play: &Play) -> String {
    let figures = Figure::ALL.into_iter().map(|figure| value(figure, run, play));
    let fields: Vec<_> = std::iter::once(field("seed", run.seed)).chain(figures).collect();
    format!("{{{}}}", fields.join(", "))
}

fn value(figure: Figure, run: &Run, play: &Play) -> String {
    match figure {
        Figure::During => field("goodput", run.goodput),
        Figure::After => field("recovered", run.recovered),
        Figure::Took => field("latency_us", optional(run.latency.map(Micros::get))),
        Figure::Settled => {
            let settled = run.settled.filter(|_| figure.belongs_to(&play.scene));
            field("settled_us", optional(settled.map(Micros::get)))
        }
    }
}

fn optional(value: Option<impl ToString>) -> String {
    value.map_or("null".into(), |value| value.to_string())
}
