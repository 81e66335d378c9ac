//! Measures the time per call of competitors in interleaved rounds.

use crate::{
    BenchResult,
    keys::{SplitMix64, Workload},
    peers::{Peer, REQUIRED},
};
use std::{
    io::{self, Write},
    panic,
    sync::Barrier,
    thread::{self, ScopedJoinHandle},
    time::{Duration, Instant},
};

/// Prepared limiters with their names.
pub(crate) type Competitors<K> = Vec<(&'static str, Box<dyn Peer<K>>)>;

/// The size of a case.
#[derive(Clone, Copy)]
pub(crate) struct RunSettings {
    /// The number of concurrent threads.
    pub(crate) threads: usize,
    /// The number of rounds; after [`TIME_BUDGET`] only [`MIN_ROUNDS`].
    pub(crate) rounds: usize,
}

/// The result that all calls of a case must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BenchDecision {
    Allow,
    Deny,
}

/// Timed calls per thread, competitor and round.
pub(crate) const CALLS_PER_ROUND: usize = 300_000;
/// Untimed calls before them, which warm the caches.
const WARM_UP_CALLS: usize = 20_000;
/// After this time no further rounds start beyond the minimum, so that a case ends within a minute.
const TIME_BUDGET: Duration = Duration::from_secs(25);
/// The least number of rounds for a meaningful median.
const MIN_ROUNDS: usize = 9;

/// Returns the nanoseconds per call of each competitor in each round. In each round all competitors do the same work in a
/// random order, so that a slow phase of the machine does not favour one of them.
pub(crate) fn interleave<K: Sync>(
    competitors: &Competitors<K>,
    work: &Workload<K>,
    settings: RunSettings,
    answer: BenchDecision,
) -> BenchResult<Vec<(&'static str, Vec<f64>)>> {
    let start = now();
    let mut random = SplitMix64::new(1);
    let mut samples: Vec<_> = competitors.iter().map(|(name, _)| (*name, Vec::new())).collect();
    let mut order: Vec<usize> = (0..competitors.len()).collect();
    for round in 0..settings.rounds {
        random.shuffle(&mut order);
        for index in order.clone() {
            let (name, peer) = &competitors[index];
            let pass = run_pass(peer.as_ref(), work, settings.threads, round);
            match check_answers(name, pass.allowed, settings.threads * CALLS_PER_ROUND, answer) {
                Ok(()) => samples[index].1.push(pass.nanos),
                Err(error) if REQUIRED.contains(name) => return Err(error),
                Err(error) => {
                    writeln!(io::stdout(), "  left out: {error}")?;
                    order.retain(|other| *other != index);
                    samples[index].1.clear();
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
    /// Per call of one thread.
    nanos: f64,
    allowed: u64,
}

fn run_pass<K: Sync>(peer: &dyn Peer<K>, work: &Workload<K>, threads: usize, round: usize) -> PassResult {
    if threads == 1 {
        return time_pass(peer, work, round, || {});
    }
    let barrier = Barrier::new(threads);
    let run = |thread| time_pass(peer, work, round * threads + thread, || _ = barrier.wait());
    let run = &run;
    let passes: Vec<PassResult> = thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
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
    // Each pass continues after the previous one and wraps around.
    let from = pass_index * CALLS_PER_ROUND % (work.keys.len() - CALLS_PER_ROUND - WARM_UP_CALLS);
    let (start, end) = (from + WARM_UP_CALLS, from + WARM_UP_CALLS + CALLS_PER_ROUND);
    peer.decide_all(&work.keys[from..start], &work.indexes[from..start]);
    wait_for_others();

    let clock = now();
    let allowed = peer.decide_all(&work.keys[start..end], &work.indexes[start..end]);
    PassResult { nanos: clock.elapsed().as_nanos() as f64 / CALLS_PER_ROUND as f64, allowed }
}

/// Fails if a call had another result than the case expects, because then the limiter did other work.
pub(crate) fn check_answers(
    name: &str,
    allowed: u64,
    calls: usize,
    answer: BenchDecision,
) -> BenchResult<()> {
    let expected = match answer {
        BenchDecision::Allow => calls as u64,
        BenchDecision::Deny => 0,
    };
    if allowed == expected {
        return Ok(());
    }
    Err(format!("{name} allowed {allowed} of {calls} calls; expected {answer:?} for all").into())
}

#[expect(clippy::disallowed_methods, reason = "benchmarks read the clock")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        keys::KeyDistribution,
        peers::{REFERENCE, REFERENCE_CALLED, TIDEGATE, TIDEGATE_CALLED},
    };

    /// Allows all calls, or all but one.
    struct FixedPeer {
        allows_all: bool,
    }

    impl Peer<()> for FixedPeer {
        fn decide_all(&self, keys: &[()], _indexes: &[u32]) -> u64 {
            keys.len() as u64 - u64::from(!self.allows_all)
        }

        fn overflowed(&self) -> u64 {
            0
        }
    }

    /// Interleaves a correct competitor with one that denies a call; returns the names of the remaining ones.
    fn interleave_with_wrong(wrong: &'static str) -> BenchResult<Vec<&'static str>> {
        let competitors: Competitors<()> = vec![
            ("other", Box::new(FixedPeer { allows_all: true })),
            (wrong, Box::new(FixedPeer { allows_all: false })),
        ];
        let work = Workload::new(&[()], KeyDistribution::Uniform);
        let samples =
            interleave(&competitors, &work, RunSettings { threads: 1, rounds: 1 }, BenchDecision::Allow)?;
        Ok(samples.into_iter().map(|(name, _)| name).collect())
    }

    #[test]
    fn wrong_result_of_a_required_competitor_ends_the_run() {
        for name in [TIDEGATE, REFERENCE, TIDEGATE_CALLED, REFERENCE_CALLED] {
            assert!(interleave_with_wrong(name).is_err(), "{name}");
        }
    }

    #[test]
    fn competitor_with_a_wrong_result_is_left_out() {
        assert_eq!(interleave_with_wrong("some peer").unwrap(), ["other"]);
    }
}
