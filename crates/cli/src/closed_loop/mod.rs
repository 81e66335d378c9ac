//! `tidegate simulate --closed-loop`: what becomes of goodput when clients retry and the backend is overloaded.
//!
//! ```text
//!   scenes × cast × seeds ──play──▶ one play per scene ──▶ chart, table, svg, json
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

/// One scene, with everyone of the cast in turn.
#[derive(Debug)]
pub(crate) struct ScenarioResult {
    /// The scene, with its first seed.
    pub(crate) scenario: Scenario,
    /// What each made of it.
    pub(crate) controllers: Vec<ControllerResult>,
}

/// What one of the cast made of a scene.
#[derive(Debug)]
pub(crate) struct ControllerResult {
    /// Who.
    pub(crate) controller: GuardPreset,
    /// What happened, with the first seed.
    pub(crate) first_run: SimulationResult,
    /// What it comes to, for each seed.
    pub(crate) figures: Vec<RunFigures>,
}

/// Most seeds of a run: each of them plays everything again.
pub(crate) const MAX_SEEDS: u8 = 99;
/// Most stories that are played at the same time: each keeps its calls in memory.
const MAX_THREADS: usize = 4;

/// Plays every scene with everyone, with so many seeds from the scene's own on.
pub(crate) fn run_scenarios(scenarios: &[Scenario], seeds: u8) -> Result<Vec<ScenarioResult>, CliError> {
    let seeds = usize::from(seeds.max(1));
    let runs_per_scenario = guard_presets().len() * seeds;
    let mut results = run_jobs(scenarios.len() * runs_per_scenario, |job| {
        let (scene, controller, seed) = (
            &scenarios[job / runs_per_scenario],
            &guard_presets()[job % runs_per_scenario / seeds],
            job % seeds,
        );
        let scene = Scenario { seed: scene.seed.wrapping_add(seed as u64), ..scene.clone() };
        let run_result = scene.run(controller.build_guard(&scene)?);
        let figures = RunFigures::from_run(&run_result);
        // Of all seeds but the first the figures are enough.
        Ok((figures, (seed == 0).then_some(run_result)))
    })
    .map_err(|error| CliError::input(error.to_string()))?
    .into_iter();

    let mut controller_result = |actor: &GuardPreset| {
        let (runs, run_results): (Vec<_>, Vec<_>) = results.by_ref().take(seeds).unzip();
        let first_run = run_results.into_iter().flatten().next()?;
        Some(ControllerResult { controller: *actor, first_run, figures: runs })
    };
    let scenario_result = |scene: &Scenario| ScenarioResult {
        scenario: scene.clone(),
        controllers: guard_presets().iter().filter_map(&mut controller_result).collect(),
    };
    Ok(scenarios.iter().map(scenario_result).collect())
}

/// What a job gives: its figures, and the story if somebody wants to see it.
type JobResult = (RunFigures, Option<SimulationResult>);

/// Does all jobs on a few threads; what comes of them is in the order of the jobs, whoever was faster.
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
            let ended = completed.fetch_add(1, Ordering::Relaxed) + 1;
            // Somebody else draws it at the moment.
            if let Ok(mut bar) = bar.try_lock() {
                bar.show_count(ended as u64, jobs as u64);
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
