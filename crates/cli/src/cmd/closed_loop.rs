//! `tidegate simulate --closed-loop`: the arguments of its own and what to do with them.

use crate::{
    closed_loop::{self, MAX_SEEDS, chart, describe, figure::Figure, json, svg, table},
    error::CliError,
    terminal::{self, Paint},
};
use clap::builder::PossibleValuesParser;
use std::{fs, path::Path};
use tidegate_core::Micros;
use tidegate_simulation::Scenario;

/// Which scenes, and with which random numbers.
#[derive(Debug, clap::Args)]
pub(super) struct ClosedLoopArgs {
    /// Play overload instead: clients that retry, and a backend that slows down under load, with nothing, a fixed
    /// limit and each controller between them [without a scene: overload, which is all but healthy]
    ///
    /// Every controller hears of each call here. The libraries that aimd, vegas and gradient2 come from often gather
    /// calls into windows first, and so react later and more calmly.
    #[arg(
        long,
        value_name = "SCENE",
        num_args = 0..=1,
        default_missing_value = OVERLOAD_SCENARIOS,
        value_parser = PossibleValuesParser::new(scenario_names()),
        conflicts_with_all = ["quotas", "load", "rate", "cost", "trace", "window", "wait", "hold"],
    )]
    closed_loop: Option<String>,

    /// Where the random numbers of --closed-loop start [default: 7]
    #[arg(long, value_name = "N", requires = "closed_loop")]
    seed: Option<u64>,

    /// Play with so many seeds from --seed on, and print only a table: the median and the worst of each figure
    #[arg(
        long,
        value_name = "N",
        requires = "closed_loop",
        conflicts_with = "svg",
        default_value = "1",
        hide_default_value = true,
        value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_SEEDS))
    )]
    seeds: u8,
}

/// What `simulate` knows of how to show things.
pub(super) struct OutputOptions<'a> {
    pub(super) width: usize,
    pub(super) svg: Option<&'a Path>,
    pub(super) format: ClosedLoopFormat,
}

/// For whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClosedLoopFormat {
    /// A person.
    Chart,
    /// A program, in so many bins at most.
    Json(usize),
}

/// Every scene where something happens.
const OVERLOAD_SCENARIOS: &str = "overload";
/// Every scene.
const ALL_SCENARIOS: &str = "all";
/// The longest that scenes may be made, in seconds: their calls are kept in memory.
const MAX_SECONDS: u64 = 20;

impl ClosedLoopArgs {
    /// The scenes that are asked for; `None` if it is about quotas.
    pub(super) fn scenarios(&self, length: Option<Micros>) -> Result<Option<Vec<Scenario>>, CliError> {
        let Some(selection) = self.closed_loop.as_deref() else { return Ok(None) };
        let seconds = length.map(whole_seconds).transpose()?;
        let scenes = Scenario::all().into_iter().filter(|scene| match selection {
            ALL_SCENARIOS => true,
            OVERLOAD_SCENARIOS => scene.name != Scenario::healthy().name,
            name => scene.name == name,
        });
        let scenes = scenes.map(|scene| {
            let scene = Scenario { seed: self.seed.unwrap_or(scene.seed), ..scene };
            seconds.map_or(scene.clone(), |seconds| scene.with_seconds(seconds))
        });
        Ok(Some(scenes.collect()))
    }

    /// Plays the scenes and shows what came of them.
    pub(super) fn run(&self, scenes: &[Scenario], options: &OutputOptions<'_>) -> Result<(), CliError> {
        if options.svg.is_some() && scenes.len() > 1 {
            return Err(CliError::input(
                "a picture shows one scene\nname it, as in `--closed-loop surge-10 --svg picture.svg`",
            ));
        }
        let results = closed_loop::run_scenarios(scenes, self.seeds)?;
        if let (Some(path), Some(play)) = (options.svg, results.first()) {
            fs::write(path, svg::draw(play)).map_err(|error| CliError::cannot_write(path, &error))?;
        }
        if let ClosedLoopFormat::Json(bins) = options.format {
            return terminal::print(&json::render_json(&results, bins));
        }

        let paint = Paint::for_stdout();
        let mut parts = Vec::new();
        if self.seeds == 1 {
            parts.extend(results.iter().map(|play| chart::draw(play, options.width, paint)));
        }
        if self.seeds > 1 || results.len() > 1 {
            parts.push(table::draw(&results, paint));
        }
        if self.seeds == 1 {
            let figures = Figure::ALL.into_iter();
            let figures: Vec<_> =
                figures.filter(|figure| scenes.iter().any(|scene| figure.applies_to(scene))).collect();
            parts.push(
                describe::figure_notes(&figures, options.width)
                    .iter()
                    .map(|line| format!("{line}\n"))
                    .collect(),
            );
        }
        terminal::print(&parts.join("\n"))
    }
}

fn scenario_names() -> Vec<&'static str> {
    Scenario::all().iter().map(|scene| scene.name).chain([OVERLOAD_SCENARIOS, ALL_SCENARIOS]).collect()
}

fn whole_seconds(length: Micros) -> Result<u64, CliError> {
    let seconds = length.get() / 1_000_000;
    if length != Micros::from_secs(seconds) || !(1..=MAX_SECONDS).contains(&seconds) {
        return Err(CliError::input(format!(
            "--for: a closed loop cannot last {length}\ngive whole seconds from 1 to {MAX_SECONDS}, as in `--for 10s`"
        )));
    }
    Ok(seconds)
}
