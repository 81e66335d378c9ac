//! `tidegate simulate --closed-loop`: what becomes of goodput when clients retry and the backend is overloaded.
//!
//! ```text
//!   scenes × cast × seeds ──play──▶ one play per scene ──▶ chart, table, svg, json
//! ```

pub(crate) mod chart;
pub(crate) mod figure;
pub(crate) mod json;
pub(crate) mod svg;
pub(crate) mod table;
pub(crate) mod words;

use crate::{failure::Failure, progress::Bar};
use figure::Run;
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
pub(crate) struct Play {
    /// The scene, with its first seed.
    pub(crate) scene: Scenario,
    /// What each made of it.
    pub(crate) parts: Vec<Part>,
}

/// What one of the cast made of a scene.
#[derive(Debug)]
pub(crate) struct Part {
    /// Who.
    pub(crate) actor: GuardPreset,
    /// What happened, with the first seed.
    pub(crate) story: SimulationResult,
    /// What it comes to, for each seed.
    pub(crate) runs: Vec<Run>,
}

/// Most seeds of a run: each of them plays everything again.
pub(crate) const MOST_SEEDS: u8 = 99;
/// Most stories that are played at the same time: each keeps its calls in memory.
const MOST_THREADS: usize = 4;

/// Plays every scene with everyone, with so many seeds from the scene's own on.
pub(crate) fn play(scenes: &[Scenario], seeds: u8) -> Result<Vec<Play>, Failure> {
    let seeds = usize::from(seeds.max(1));
    let each = guard_presets().len() * seeds;
    let mut told = tell(scenes.len() * each, |job| {
        let (scene, actor, seed) = (&scenes[job / each], &guard_presets()[job % each / seeds], job % seeds);
        let scene = Scenario { seed: scene.seed.wrapping_add(seed as u64), ..scene.clone() };
        let story = scene.run(actor.build_guard(&scene)?);
        let run = Run::of(&story);
        // Of all seeds but the first the figures are enough.
        Ok((run, (seed == 0).then_some(story)))
    })
    .map_err(|error| Failure::input(error.to_string()))?
    .into_iter();

    let mut part = |actor: &GuardPreset| {
        let (runs, stories): (Vec<_>, Vec<_>) = told.by_ref().take(seeds).unzip();
        let story = stories.into_iter().flatten().next()?;
        Some(Part { actor: *actor, story, runs })
    };
    let play = |scene: &Scenario| Play {
        scene: scene.clone(),
        parts: guard_presets().iter().filter_map(&mut part).collect(),
    };
    Ok(scenes.iter().map(play).collect())
}

/// What a job gives: its figures, and the story if somebody wants to see it.
type Told = (Run, Option<SimulationResult>);

/// Does all jobs on a few threads; what comes of them is in the order of the jobs, whoever was faster.
fn tell(
    jobs: usize,
    job: impl Fn(usize) -> Result<Told, SettingError> + Sync,
) -> Result<Vec<Told>, SettingError> {
    let (next, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let bar = Mutex::new(Bar::new());
    let work = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= jobs {
                return done;
            }
            done.push((index, job(index)));
            let ended = ended.fetch_add(1, Ordering::Relaxed) + 1;
            // Somebody else draws it at the moment.
            if let Ok(mut bar) = bar.try_lock() {
                bar.show_part(ended as u64, jobs as u64);
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS);
    let mut done: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Vec<_>>| {
            thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
        };
        threads.into_iter().flat_map(join).collect()
    });
    bar.into_inner().unwrap_or_else(PoisonError::into_inner).clear();
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, told)| told).collect()
}
