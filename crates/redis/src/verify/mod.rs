//! Verifies a server: random traces of every algorithm, decided by the Lua scripts and by the in-memory algorithms.
//!
//! Both use the same time, so any difference is a bug in a script, in the server or in the connection.

mod compare;
mod compared_key;
mod rng;

use crate::store::RedisStore;
use compared_key::ComparedKey;
use rng::Rng;
use std::{error, fmt, ops::ControlFlow};
use tidegate_core::{Micros, Quota};
use tidegate_limiter::StoreError;

/// The options of [`verify()`].
#[derive(Clone, Copy, Debug)]
pub struct VerifyOptions {
    /// The number of steps over all algorithms.
    pub steps: u64,
    /// The seed of the traces; the same seed generates the same traces.
    pub seed: u64,
}

/// The result of a verification without a difference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// The number of steps.
    pub steps: u64,
    /// The number of compared decisions.
    pub decisions: u64,
    /// The number of decisions without receipts, which use the fast path.
    pub checks: u64,
    /// The number of denied decisions.
    pub denied: u64,
    /// The number of decisions granted after a delay.
    pub delayed: u64,
    /// The number of refunds.
    pub refunds: u64,
    /// The number of key resets.
    pub resets: u64,
    /// The number of times that the quotas of a key were replaced.
    pub quota_changes: u64,
    /// The number of switches between limits that count the same key.
    pub limit_switches: u64,
    /// The number of permit renewals.
    pub renewals: u64,
    /// The number of generated quotas.
    pub quotas: u64,
}

/// Why a verification ended early.
#[derive(Debug)]
#[non_exhaustive]
pub enum VerifyError {
    /// The server and the in-memory algorithm returned different results.
    Difference(Box<VerifyDifference>),
    /// The server returned an error or did not reply.
    Store(StoreError),
    /// The caller stopped it after this number of steps.
    Stopped(u64),
}

/// Two different results of the same step.
#[derive(Debug)]
pub struct VerifyDifference {
    /// The quotas of the key.
    pub quotas: Vec<Quota>,
    /// The last steps; the final one differs.
    pub history: Vec<String>,
    /// The result of the in-memory algorithm.
    pub memory: String,
    /// The result of the server.
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

/// The number of keys compared at the same time.
const PARALLEL_KEYS: usize = 64;
/// The longest pause between two steps, so that a trace stays within the range of `Micros`.
const MAX_PAUSE: Micros = Micros::from_secs(400 * 86_400);
/// The number of steps of one key; the next key has other quotas.
const STEPS_PER_KEY: u64 = 48;

/// Runs random traces against the server and in memory, compares the results, and deletes its keys afterwards.
///
/// `progress` receives the number of completed steps and returns whether to continue.
///
/// # Errors
///
/// Returns the first difference, an error of the store, or [`VerifyError::Stopped`] if `progress` breaks.
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
        let mut compared_keys: Vec<_> =
            (0..PARALLEL_KEYS).map(|index| ComparedKey::new(&mut rng, round, index)).collect();
        done.quotas += compared_keys.iter().map(|key| key.limit.quotas().len() as u64).sum::<u64>();
        let ended = run_round(store, &mut compared_keys, &mut rng, &mut done, &mut progress).await;
        let keys: Vec<_> = compared_keys.iter().map(ComparedKey::key_ref).collect();
        let tags = compared_keys.iter().flat_map(|key| key.tags.iter().map(|tag| (key.limit.name(), *tag)));
        if let Err(error) = store.remove(&keys, tags).await {
            break Err(VerifyError::Store(error));
        }
        if let Err(error) = ended {
            break Err(error);
        }
    };
    outcome.map(|()| done)
}

/// Runs one trace per key, all at the same times.
async fn run_round(
    store: &RedisStore,
    compared_keys: &mut [ComparedKey],
    rng: &mut Rng,
    done: &mut VerifyReport,
    progress: &mut impl FnMut(u64) -> ControlFlow<()>,
) -> Result<(), VerifyError> {
    let mut now = Micros::new(1_700_000_000_000_000 + rng.next_below(1_000_000_000));
    for _ in 0..STEPS_PER_KEY {
        let pause = compared_keys[rng.next_below(PARALLEL_KEYS as u64) as usize].pick_pause(rng, now);
        now = now.saturating_add(pause.min(MAX_PAUSE));
        // A batch uses the fast path only if all its requests qualify.
        let fast_path = rng.one_in(3);
        let mut indexes = Vec::new();
        for (index, _) in compared_keys.iter().enumerate().filter(|(_, key)| !fast_path || key.is_fast_path())
        {
            // On the fast path some keys repeat consecutively, and some again later.
            let repeats = if fast_path && rng.one_in(3) { 1 + rng.next_below(4) as usize } else { 1 };
            indexes.extend(std::iter::repeat_n(index, repeats));
            if fast_path && index > 0 && rng.one_in(8) {
                indexes.extend(indexes.get(indexes.len() / 2).copied());
            }
        }
        let ops: Vec<_> =
            indexes.iter().map(|index| compared_keys[*index].pick_op(rng, fast_path, done)).collect();
        let requests: Vec<_> =
            indexes.iter().zip(&ops).map(|(index, op)| compared_keys[*index].request_for(op)).collect();
        let replies = store.execute_at(&requests, now).await;
        for ((index, op), reply) in indexes.into_iter().zip(ops).zip(replies) {
            let reply = reply.map_err(VerifyError::Store)?;
            compared_keys[index].compare(now, &op, reply, done).map_err(VerifyError::Difference)?;
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
