//! `tidegate simulate --closed-loop`: its arguments and output.

use crate::{
    closed_loop::{self, MAX_SEEDS, chart, describe, figure::Figure, json, svg, table},
    error::CliError,
    terminal::{self, Paint},
};
use clap::builder::PossibleValuesParser;
use std::{fs, path::Path};
use tidegate_core::Micros;
use tidegate_simulation::Scenario;

/// The scenarios and their seeds.
#[derive(Debug, clap::Args)]
pub(super) struct ClosedLoopArgs {
    /// Simulate overload instead: clients that retry, and a backend that slows down under load, without protection, with a
    /// fixed limit and with each controller [without a scenario: overload, which is all but healthy]
    ///
    /// Every controller is updated after each call here. The libraries of aimd, vegas and gradient2 often aggregate calls in
    /// windows first, and so react later and more smoothly.
    #[arg(
        long,
        value_name = "SCENARIO",
        num_args = 0..=1,
        default_missing_value = OVERLOAD_SCENARIOS,
        value_parser = PossibleValuesParser::new(scenario_names()),
        conflicts_with_all = ["quotas", "load", "rate", "cost", "trace", "window", "wait", "hold"],
    )]
    closed_loop: Option<String>,

    /// Seed the random numbers of --closed-loop [default: 7]
    #[arg(long, value_name = "N", requires = "closed_loop")]
    seed: Option<u64>,

    /// Run with this number of seeds, starting at --seed, and print only a table: the median and the worst of each figure
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

/// The output options of `simulate`.
pub(super) struct OutputOptions<'a> {
    pub(super) width: usize,
    pub(super) svg: Option<&'a Path>,
    pub(super) format: ClosedLoopFormat,
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClosedLoopFormat {
    /// Charts and tables.
    Chart,
    /// JSON, with at most this number of bins.
    Json(usize),
}

/// Selects every scenario with a change.
const OVERLOAD_SCENARIOS: &str = "overload";
/// Selects every scenario.
const ALL_SCENARIOS: &str = "all";
/// The maximum duration in seconds; the calls of a run stay in memory.
const MAX_SECONDS: u64 = 20;

impl ClosedLoopArgs {
    /// The selected scenarios; `None` without `--closed-loop`.
    pub(super) fn scenarios(&self, length: Option<Micros>) -> Result<Option<Vec<Scenario>>, CliError> {
        let Some(selection) = self.closed_loop.as_deref() else { return Ok(None) };
        let seconds = length.map(whole_seconds).transpose()?;
        let scenarios = Scenario::all().into_iter().filter(|scenario| match selection {
            ALL_SCENARIOS => true,
            OVERLOAD_SCENARIOS => scenario.name != Scenario::healthy().name,
            name => scenario.name == name,
        });
        let scenarios = scenarios.map(|scenario| {
            let scenario = Scenario { seed: self.seed.unwrap_or(scenario.seed), ..scenario };
            seconds.map_or(scenario.clone(), |seconds| scenario.with_seconds(seconds))
        });
        Ok(Some(scenarios.collect()))
    }

    /// Runs the scenarios and prints the results.
    pub(super) fn run(&self, scenarios: &[Scenario], options: &OutputOptions<'_>) -> Result<(), CliError> {
        if options.svg.is_some() && scenarios.len() > 1 {
            return Err(CliError::input(
                "an image shows one scenario\nname it, as in `--closed-loop surge-10 --svg picture.svg`",
            ));
        }
        let results = closed_loop::run_scenarios(scenarios, self.seeds)?;
        if let (Some(path), Some(result)) = (options.svg, results.first()) {
            fs::write(path, svg::draw(result)).map_err(|error| CliError::cannot_write(path, &error))?;
        }
        if let ClosedLoopFormat::Json(bins) = options.format {
            return terminal::print(&json::render_json(&results, bins));
        }

        let paint = Paint::for_stdout();
        let mut parts = Vec::new();
        if self.seeds == 1 {
            parts.extend(results.iter().map(|result| chart::draw(result, options.width, paint)));
        }
        if self.seeds > 1 || results.len() > 1 {
            parts.push(table::draw(&results, paint));
        }
        if self.seeds == 1 {
            let figures = Figure::ALL.into_iter();
            let figures: Vec<_> = figures
                .filter(|figure| scenarios.iter().any(|scenario| figure.applies_to(scenario)))
                .collect();
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
    Scenario::all().iter().map(|scenario| scenario.name).chain([OVERLOAD_SCENARIOS, ALL_SCENARIOS]).collect()
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
