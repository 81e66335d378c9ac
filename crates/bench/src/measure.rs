//! Times competitors against each other, interleaved.

use crate::{
    BenchResult,
    keys::{SplitMix64, Workload},
    peers::{Peer, REFERENCE, TIDEGATE},
};
use std::{
    io::{self, Write},
    panic,
    sync::Barrier,
    thread::{self, ScopedJoinHandle},
    time::{Duration, Instant},
};

/// Limiters that are ready, by name.
pub(crate) type Competitors<K> = Vec<(&'static str, Box<dyn Peer<K>>)>;

/// How much a case does.
#[derive(Clone, Copy)]
pub(crate) struct RunSettings {
    /// Threads that ask at the same time.
    pub(crate) threads: usize,
    /// Rounds, unless time runs out; then [`MIN_ROUNDS`] at least.
    pub(crate) rounds: usize,
}

/// What all calls of a case must be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedAnswer {
    Allow,
    Deny,
}

/// Calls that each thread makes to each competitor in each round, timed.
pub(crate) const CALLS_PER_ROUND: usize = 300_000;
/// Calls before them, so that caches are as warm as the case allows.
const WARM_UP_CALLS: usize = 20_000;
/// A case must end within a minute: after this time there are no more rounds than needed.
const TIME_BUDGET: Duration = Duration::from_secs(25);
/// Medians of fewer say nothing.
const MIN_ROUNDS: usize = 9;

/// Nanoseconds per call of each competitor in each round. In each round all of them do the same work, in an order
/// that is drawn anew, so that a slow moment of the machine hits nobody in particular.
pub(crate) fn interleave<K: Sync>(
    competitors: &Competitors<K>,
    work: &Workload<K>,
    effort: RunSettings,
    answer: ExpectedAnswer,
) -> BenchResult<Vec<(&'static str, Vec<f64>)>> {
    let start = now();
    let mut random = SplitMix64::new(1);
    let mut samples: Vec<_> = competitors.iter().map(|(name, _)| (*name, Vec::new())).collect();
    let mut order: Vec<usize> = (0..competitors.len()).collect();
    for round in 0..effort.rounds {
        random.shuffle(&mut order);
        for place in order.clone() {
            let (name, peer) = &competitors[place];
            let pass = run_pass(peer.as_ref(), work, effort.threads, round);
            match check_answers(name, pass.allowed, effort.threads * CALLS_PER_ROUND, answer) {
                Ok(()) => samples[place].1.push(pass.nanos),
                Err(error) if [TIDEGATE, REFERENCE].contains(name) => return Err(error),
                Err(error) => {
                    writeln!(io::stdout(), "  left out: {error}")?;
                    order.retain(|other| *other != place);
                    samples[place].1.clear();
                }
            }
        }
        if round + 1 >= MIN_ROUNDS && start.elapsed() > TIME_BUDGET {
            break;
        }
    }
    samples.retain(|(_, nanos)| !nanos.is_empty());
    Ok(samples)
}

struct PassResult {
    /// Per call, as one thread sees it.
    nanos: f64,
    allowed: u64,
}

fn run_pass<K: Sync>(peer: &dyn Peer<K>, work: &Workload<K>, threads: usize, round: usize) -> PassResult {
    if threads == 1 {
        return time_pass(peer, work, round, || {});
    }
    let barrier = Barrier::new(threads);
    let ask = |thread| time_pass(peer, work, round * threads + thread, || _ = barrier.wait());
    let ask = &ask;
    let passes: Vec<PassResult> = thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || ask(thread))).collect();
        let join = |handle: ScopedJoinHandle<'_, PassResult>| {
            handle.join().unwrap_or_else(|it| panic::resume_unwind(it))
        };
        handles.into_iter().map(join).collect()
    });
    PassResult {
        nanos: passes.iter().map(|pass| pass.nanos).sum::<f64>() / threads as f64,
        allowed: passes.iter().map(|pass| pass.allowed).sum(),
    }
}

fn time_pass<K>(
    peer: &dyn Peer<K>,
    work: &Workload<K>,
    pass_index: usize,
    wait_for_others: impl FnOnce(),
) -> PassResult {
    // Each turn takes up where the last one ended, or starts again somewhere in front of that.
    let from = pass_index * CALLS_PER_ROUND % (work.keys.len() - CALLS_PER_ROUND - WARM_UP_CALLS);
    let (start, end) = (from + WARM_UP_CALLS, from + WARM_UP_CALLS + CALLS_PER_ROUND);
    peer.decide_all(&work.keys[from..start], &work.indexes[from..start]);
    wait_for_others();

    let clock = now();
    let allowed = peer.decide_all(&work.keys[start..end], &work.indexes[start..end]);
    PassResult { nanos: clock.elapsed().as_nanos() as f64 / CALLS_PER_ROUND as f64, allowed }
}

/// A limiter that gives another answer than the case is about does other work than the case is about.
pub(crate) fn check_answers(
    name: &str,
    allowed: u64,
    calls: usize,
    answer: ExpectedAnswer,
) -> BenchResult<()> {
    let expected = match answer {
        ExpectedAnswer::Allow => calls as u64,
        ExpectedAnswer::Deny => 0,
    };
    if allowed == expected {
        return Ok(());
    }
    Err(format!("{name} allowed {allowed} of {calls} calls, where all should {answer:?}").into())
}

#[expect(clippy::disallowed_methods, reason = "a benchmark's own stopwatch")]
fn now() -> Instant {
    Instant::now()
}
