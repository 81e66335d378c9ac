//! The twin check: random traces of every algorithm, decided by the server and by this process side by side.
//!
//! Both are told the same time, so any difference is a mistake: in a twin, in the server, or in what lies between.

mod compare;
mod compared_key;
mod rng;

use crate::store::RedisStore;
use compared_key::ComparedKey;
use rng::Rng;
use std::{error, fmt, ops::ControlFlow};
use tidegate_core::{Micros, Quota};
use tidegate_limiter::StoreError;

/// How much to compare.
#[derive(Clone, Copy, Debug)]
pub struct VerifyOptions {
    /// Steps over all algorithms.
    pub steps: u64,
    /// The same seed tells the same traces.
    pub seed: u64,
}

/// What was compared, without a difference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// All steps.
    pub steps: u64,
    /// Questions that were answered.
    pub decisions: u64,
    /// Of these, how many went the short way, without receipts.
    pub checks: u64,
    /// Of these, how many were denied.
    pub denied: u64,
    /// Of these, how many were granted after a delay.
    pub delayed: u64,
    /// Charges that were given back.
    pub refunds: u64,
    /// Keys that were forgotten.
    pub resets: u64,
    /// Quotas that were replaced by others.
    pub quota_changes: u64,
    /// Turns of quotas that count the same key side by side.
    pub limit_switches: u64,
    /// Permits that were renewed.
    pub renewals: u64,
    /// Quotas that were tried.
    pub quotas: u64,
}

/// Why a check ended early.
#[derive(Debug)]
#[non_exhaustive]
pub enum VerifyError {
    /// The server decided otherwise.
    Difference(Box<VerifyDifference>),
    /// The server did not answer.
    Store(StoreError),
    /// It was stopped after so many steps.
    Stopped(u64),
}

/// Two answers to one question.
#[derive(Debug)]
pub struct VerifyDifference {
    /// The quotas that applied.
    pub quotas: Vec<Quota>,
    /// The last steps, the one that differs last.
    pub history: Vec<String>,
    /// What this process says.
    pub memory: String,
    /// What the server says.
    pub redis: String,
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => write!(f, "{error}"),
            Self::Stopped(steps) => write!(f, "stopped after {steps} steps without a difference"),
            Self::Difference(difference) => {
                let VerifyDifference { quotas, history, memory, redis } = &**difference;
                writeln!(f, "memory and Redis differ under {}", format_quotas(quotas))?;
                history.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
                write!(f, "  memory: {memory}\n  redis:  {redis}")
            }
        }
    }
}

impl error::Error for VerifyError {}

/// Keys that are compared at a time.
const PARALLEL_KEYS: usize = 64;
/// Time has an end; no story gets there.
const MAX_PAUSE: Micros = Micros::from_secs(400 * 86_400);
/// Steps of one key before it starts over with other quotas.
const STEPS_PER_KEY: u64 = 48;

/// Runs random traces against the server and against this process, and removes its keys afterwards. `progress` gets how many
/// steps are done, and says whether to go on.
pub async fn verify(
    store: &RedisStore,
    options: VerifyOptions,
    mut progress: impl FnMut(u64) -> ControlFlow<()>,
) -> Result<VerifyReport, VerifyError> {
    let mut rng = Rng(options.seed.wrapping_mul(2).wrapping_add(1));
    let mut done = VerifyReport::default();
    let mut round = 0;
    let outcome = loop {
        if done.steps >= options.steps {
            break Ok(());
        }
        round += 1;
        let mut pairs: Vec<_> =
            (0..PARALLEL_KEYS).map(|index| ComparedKey::new(&mut rng, round, index)).collect();
        done.quotas += pairs.iter().map(|pair| pair.limit.quotas().len() as u64).sum::<u64>();
        let ended = run_round(store, &mut pairs, &mut rng, &mut done, &mut progress).await;
        let places: Vec<_> = pairs.iter().map(ComparedKey::key_ref).collect();
        let tags = pairs.iter().flat_map(|pair| pair.tags.iter().map(|tag| (pair.limit.name(), *tag)));
        if let Err(error) = store.remove(&places, tags).await {
            break Err(VerifyError::Store(error));
        }
        if let Err(error) = ended {
            break Err(error);
        }
    };
    outcome.map(|()| done)
}

/// One story for each pair, all at the same times.
async fn run_round(
    store: &RedisStore,
    pairs: &mut [ComparedKey],
    rng: &mut Rng,
    done: &mut VerifyReport,
    progress: &mut impl FnMut(u64) -> ControlFlow<()>,
) -> Result<(), VerifyError> {
    let mut now = Micros::new(1_700_000_000_000_000 + rng.next_below(1_000_000_000));
    for _ in 0..STEPS_PER_KEY {
        let pause = pairs[rng.next_below(PARALLEL_KEYS as u64) as usize].pick_pause(rng, now);
        now = now.plus(pause.min(MAX_PAUSE));
        // Plain questions about one quota go a shorter way, if there are no others among them.
        let fast_path = rng.one_in(3);
        let mut indexes = Vec::new();
        for (index, _) in pairs.iter().enumerate().filter(|(_, pair)| !fast_path || pair.is_fast_path()) {
            // There some keys are asked several times in a row, and some again later.
            let repeats = if fast_path && rng.one_in(3) { 1 + rng.next_below(4) as usize } else { 1 };
            indexes.extend(std::iter::repeat_n(index, repeats));
            if fast_path && index > 0 && rng.one_in(8) {
                indexes.extend(indexes.get(indexes.len() / 2).copied());
            }
        }
        let ops: Vec<_> = indexes.iter().map(|index| pairs[*index].pick_op(rng, fast_path, done)).collect();
        let requests: Vec<_> =
            indexes.iter().zip(&ops).map(|(index, op)| pairs[*index].request_for(op)).collect();
        let replies = store.execute_at(&requests, now).await;
        for ((index, op), reply) in indexes.into_iter().zip(ops).zip(replies) {
            let reply = reply.map_err(VerifyError::Store)?;
            pairs[index].compare(now, &op, reply, done).map_err(VerifyError::Difference)?;
            done.steps += 1;
        }
        if progress(done.steps).is_break() {
            return Err(VerifyError::Stopped(done.steps));
        }
    }
    Ok(())
}

fn format_quotas(quotas: &[Quota]) -> String {
    let quotas: Vec<_> = quotas.iter().map(|quota| format!("`{quota}`")).collect();
    quotas.join(" and ")
}
