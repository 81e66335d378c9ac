//! `tidegate simulate --closed-loop`: goodput of an overloaded backend with clients that retry.
//!
//! ```text
//!   scenarios × controllers × seeds ──run──▶ one result per scenario ──▶ chart, table, svg, json
//! ```

pub(crate) mod chart;
pub(crate) mod describe;
pub(crate) mod figure;
pub(crate) mod json;
pub(crate) mod svg;
pub(crate) mod table;

use crate::{error::CliError, progress::ProgressBar};
use figure::RunFigures;
use std::{
    num::NonZero,
    panic,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};
use tidegate_core::SettingError;
use tidegate_simulation::{GuardPreset, Scenario, SimulationResult, guard_presets};

/// The results of one scenario, for each controller.
#[derive(Debug)]
pub(crate) struct ScenarioResult {
    /// The scenario, with its first seed.
    pub(crate) scenario: Scenario,
    /// The results of the controllers.
    pub(crate) controllers: Vec<ControllerResult>,
}

/// The result of one controller in a scenario.
#[derive(Debug)]
pub(crate) struct ControllerResult {
    pub(crate) controller: GuardPreset,
    /// The run with the first seed.
    pub(crate) first_run: SimulationResult,
    /// The figures of each seed.
    pub(crate) figures: Vec<RunFigures>,
}

/// The maximum number of seeds; each repeats all runs.
pub(crate) const MAX_SEEDS: u8 = 99;
/// The maximum number of parallel runs; each keeps its calls in memory.
const MAX_THREADS: usize = 4;

/// Runs every scenario with every controller, with `seeds` seeds starting at that of the scenario.
pub(crate) fn run_scenarios(scenarios: &[Scenario], seeds: u8) -> Result<Vec<ScenarioResult>, CliError> {
    let seeds = usize::from(seeds.max(1));
    let runs_per_scenario = guard_presets().len() * seeds;
    let mut results = run_jobs(scenarios.len() * runs_per_scenario, |job| {
        let (scenario, controller, seed) = (
            &scenarios[job / runs_per_scenario],
            &guard_presets()[job % runs_per_scenario / seeds],
            job % seeds,
        );
        let scenario = Scenario { seed: scenario.seed.wrapping_add(seed as u64), ..scenario.clone() };
        let run_result = scenario.run(controller.build_guard(&scenario)?);
        let figures = RunFigures::from_run(&run_result);
        // Only the first run is drawn; of the others keep the figures.
        Ok((figures, (seed == 0).then_some(run_result)))
    })
    .map_err(|error| CliError::input(error.to_string()))?
    .into_iter();

    let mut controller_result = |preset: &GuardPreset| {
        let (runs, run_results): (Vec<_>, Vec<_>) = results.by_ref().take(seeds).unzip();
        let first_run = run_results.into_iter().flatten().next()?;
        Some(ControllerResult { controller: *preset, first_run, figures: runs })
    };
    let scenario_result = |scenario: &Scenario| ScenarioResult {
        scenario: scenario.clone(),
        controllers: guard_presets().iter().filter_map(&mut controller_result).collect(),
    };
    Ok(scenarios.iter().map(scenario_result).collect())
}

/// The result of a job: its figures, and the run if it is drawn.
type JobResult = (RunFigures, Option<SimulationResult>);

/// Runs all jobs on a few threads. Returns the results in the order of the jobs.
fn run_jobs(
    jobs: usize,
    job: impl Fn(usize) -> Result<JobResult, SettingError> + Sync,
) -> Result<Vec<JobResult>, SettingError> {
    let (next, completed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let bar = Mutex::new(ProgressBar::new());
    let worker = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= jobs {
                return done;
            }
            done.push((index, job(index)));
            let count = completed.fetch_add(1, Ordering::Relaxed) + 1;
            // Skip the update if another thread draws the bar.
            if let Ok(mut bar) = bar.try_lock() {
                bar.show_count(count as u64, jobs as u64);
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS);
    let mut done: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Vec<_>>| {
            thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
        };
        threads.into_iter().flat_map(join).collect()
    });
    bar.into_inner().unwrap_or_else(PoisonError::into_inner).clear();
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}
