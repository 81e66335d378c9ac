//! The twin check: random traces of every algorithm, decided by the server and by this process side by side.
//!
//! Both are told the same time, so any difference is a mistake: in a twin, in the server, or in what lies between.

mod compare;
mod dice;
mod pair;

use crate::store::RedisStore;
use dice::Dice;
use pair::Pair;
use std::{error, fmt, ops::ControlFlow};
use tidegate_core::{Micros, Quota};
use tidegate_limiter::StoreError;

/// How much to compare.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Steps over all algorithms.
    pub steps: u64,
    /// The same seed tells the same traces.
    pub seed: u64,
}

/// What was compared, without a difference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compared {
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
    pub changes: u64,
    /// Turns of quotas that count the same key side by side.
    pub turns: u64,
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
    Differs(Box<Difference>),
    /// The server did not answer.
    Store(StoreError),
    /// It was stopped after so many steps.
    Stopped(u64),
}

/// Two answers to one question.
#[derive(Debug)]
pub struct Difference {
    /// The quotas that applied.
    pub quotas: Vec<Quota>,
    /// The last steps, the one that differs last.
    pub story: Vec<String>,
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
            Self::Differs(difference) => {
                let Difference { quotas, story, memory, redis } = &**difference;
                writeln!(f, "memory and Redis differ under {}", show(quotas))?;
                story.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
                write!(f, "  memory: {memory}\n  redis:  {redis}")
            }
        }
    }
}

impl error::Error for VerifyError {}

/// Keys that are compared at a time.
const SIDE_BY_SIDE: usize = 64;
/// Time has an end; no story gets there.
const LONGEST_PAUSE: Micros = Micros::from_secs(400 * 86_400);
/// Steps of one key before it starts over with other quotas.
const STORY: u64 = 48;

/// Runs random traces against the server and against this process, and removes its keys afterwards. `progress` gets how many
/// steps are done, and says whether to go on.
pub async fn verify(
    store: &RedisStore,
    plan: Plan,
    mut progress: impl FnMut(u64) -> ControlFlow<()>,
) -> Result<Compared, VerifyError> {
    let mut dice = Dice(plan.seed.wrapping_mul(2).wrapping_add(1));
    let mut done = Compared::default();
    let mut round = 0;
    let outcome = loop {
        if done.steps >= plan.steps {
            break Ok(());
        }
        round += 1;
        let mut pairs: Vec<_> = (0..SIDE_BY_SIDE).map(|index| Pair::new(&mut dice, round, index)).collect();
        done.quotas += pairs.iter().map(|pair| pair.limit.quotas().len() as u64).sum::<u64>();
        let ended = tell(store, &mut pairs, &mut dice, &mut done, &mut progress).await;
        let places: Vec<_> = pairs.iter().map(Pair::place).collect();
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
async fn tell(
    store: &RedisStore,
    pairs: &mut [Pair],
    dice: &mut Dice,
    done: &mut Compared,
    progress: &mut impl FnMut(u64) -> ControlFlow<()>,
) -> Result<(), VerifyError> {
    let mut now = Micros::new(1_700_000_000_000_000 + dice.below(1_000_000_000));
    for _ in 0..STORY {
        let pause = pairs[dice.below(SIDE_BY_SIDE as u64) as usize].pause(dice, now);
        now = now.plus(pause.min(LONGEST_PAUSE));
        // Plain questions about one quota go a shorter way, if there are no others among them.
        let plainly = dice.one_in(3);
        let mut asked = Vec::new();
        for (index, _) in pairs.iter().enumerate().filter(|(_, pair)| !plainly || pair.is_plain()) {
            // There some keys are asked several times in a row, and some again later.
            let often = if plainly && dice.one_in(3) { 1 + dice.below(4) as usize } else { 1 };
            asked.extend(std::iter::repeat_n(index, often));
            if plainly && index > 0 && dice.one_in(8) {
                asked.extend(asked.get(asked.len() / 2).copied());
            }
        }
        let deeds: Vec<_> = asked.iter().map(|index| pairs[*index].choose(dice, plainly, done)).collect();
        let requests: Vec<_> =
            asked.iter().zip(&deeds).map(|(index, deed)| pairs[*index].request(deed)).collect();
        let replies = store.perform_at(&requests, now).await;
        for ((index, deed), reply) in asked.into_iter().zip(deeds).zip(replies) {
            let reply = reply.map_err(VerifyError::Store)?;
            pairs[index].compare(now, &deed, reply, done).map_err(VerifyError::Differs)?;
            done.steps += 1;
        }
        if progress(done.steps).is_break() {
            return Err(VerifyError::Stopped(done.steps));
        }
    }
    Ok(())
}

fn show(quotas: &[Quota]) -> String {
    let quotas: Vec<_> = quotas.iter().map(|quota| format!("`{quota}`")).collect();
    quotas.join(" and ")
}
