//! `tidegate simulate --closed-loop`: the arguments of its own and what to do with them.

use crate::{
    closed_loop::{self, MOST_SEEDS, chart, figure::Figure, json, svg, table, words},
    failure::Failure,
    terminal::{self, Paint},
};
use clap::builder::PossibleValuesParser;
use std::{fs, path::Path};
use tidegate_core::Micros;
use tidegate_simulation::Scenario;

/// Which scenes, and with which random numbers.
#[derive(Debug, clap::Args)]
pub(super) struct ClosedLoop {
    /// Play overload instead: clients that retry, and a backend that slows down under load, with nothing, a fixed
    /// limit and each controller between them [without a scene: overload, which is all but healthy]
    ///
    /// Every controller hears of each call here. The libraries that aimd, vegas and gradient2 come from often gather
    /// calls into windows first, and so react later and more calmly.
    #[arg(
        long,
        value_name = "SCENE",
        num_args = 0..=1,
        default_missing_value = OVERLOAD,
        value_parser = PossibleValuesParser::new(names()),
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
        value_parser = clap::value_parser!(u8).range(1..=i64::from(MOST_SEEDS))
    )]
    seeds: u8,
}

/// What `simulate` knows of how to show things.
pub(super) struct Show<'a> {
    pub(super) width: usize,
    pub(super) svg: Option<&'a Path>,
    pub(super) format: Format,
}

/// For whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// A person.
    Chart,
    /// A program, in so many bins at most.
    Json(usize),
}

/// Every scene where something happens.
const OVERLOAD: &str = "overload";
/// Every scene.
const ALL: &str = "all";
/// The longest that scenes may be made, in seconds: their calls are kept in memory.
const LONGEST: u64 = 20;

impl ClosedLoop {
    /// The scenes that are asked for; `None` if it is about quotas.
    pub(super) fn scenes(&self, length: Option<Micros>) -> Result<Option<Vec<Scenario>>, Failure> {
        let Some(asked) = self.closed_loop.as_deref() else { return Ok(None) };
        let seconds = length.map(whole_seconds).transpose()?;
        let scenes = Scenario::all().into_iter().filter(|scene| match asked {
            ALL => true,
            OVERLOAD => scene.name != Scenario::healthy().name,
            name => scene.name == name,
        });
        let scenes = scenes.map(|scene| {
            let scene = Scenario { seed: self.seed.unwrap_or(scene.seed), ..scene };
            seconds.map_or(scene.clone(), |seconds| scene.with_seconds(seconds))
        });
        Ok(Some(scenes.collect()))
    }

    /// Plays the scenes and shows what came of them.
    pub(super) fn run(&self, scenes: &[Scenario], show: &Show<'_>) -> Result<(), Failure> {
        if show.svg.is_some() && scenes.len() > 1 {
            return Err(Failure::input(
                "a picture shows one scene\nname it, as in `--closed-loop surge-10 --svg picture.svg`",
            ));
        }
        let plays = closed_loop::play(scenes, self.seeds)?;
        if let (Some(path), Some(play)) = (show.svg, plays.first()) {
            fs::write(path, svg::draw(play)).map_err(|error| Failure::write(path, &error))?;
        }
        if let Format::Json(bins) = show.format {
            return terminal::print(&json::write(&plays, bins));
        }

        let paint = Paint::of_stdout();
        let mut parts = Vec::new();
        if self.seeds == 1 {
            parts.extend(plays.iter().map(|play| chart::draw(play, show.width, paint)));
        }
        if self.seeds > 1 || plays.len() > 1 {
            parts.push(table::draw(&plays, paint));
        }
        if self.seeds == 1 {
            let figures = Figure::ALL.into_iter();
            let figures: Vec<_> =
                figures.filter(|figure| scenes.iter().any(|scene| figure.belongs_to(scene))).collect();
            parts.push(words::notes(&figures, show.width).iter().map(|line| format!("{line}\n")).collect());
        }
        terminal::print(&parts.join("\n"))
    }
}

fn names() -> Vec<&'static str> {
    Scenario::all().iter().map(|scene| scene.name).chain([OVERLOAD, ALL]).collect()
}

fn whole_seconds(length: Micros) -> Result<u64, Failure> {
    let seconds = length.get() / 1_000_000;
    if length != Micros::from_secs(seconds) || !(1..=LONGEST).contains(&seconds) {
        return Err(Failure::input(format!(
            "--for: a closed loop cannot last {length}\ngive whole seconds from 1 to {LONGEST}, as in `--for 10s`"
        )));
    }
    Ok(seconds)
}
