//! What several quotas admit at most, and whether callers were admitted more often than that.

use crate::{CoreModel, strategy::Sample};
use proptest::{prelude::*, test_runner::TestCaseResult};
use tidegate_core::{AlgorithmKind, Decision, Demand, Micros, Quota, Rate};

/// A caller was admitted.
#[derive(Clone, Copy, Debug)]
pub struct AdmittedCall {
    /// When.
    pub at: Micros,
    /// For how much.
    pub cost: u64,
}

/// Checks every stretch of time that starts and ends with an admission; no other can hold more.
///
/// A stretch holds its start and not its end, so the shortest one with both is a microsecond longer than the time
/// between them.
pub fn check_windows(mut admissions: Vec<AdmittedCall>, most: impl Fn(Micros) -> u64) -> TestCaseResult {
    admissions.sort_by_key(|admission| admission.at);
    if admissions.last().is_some_and(|last| last.at == Micros::MAX) {
        return Ok(()); // all who wait for the end of time go then
    }
    for (index, first) in admissions.iter().enumerate() {
        let mut total = 0;
        for last in &admissions[index..] {
            total += last.cost;
            let length = last.at.since(first.at).plus(Micros::new(1));
            let most = most(length);
            prop_assert!(
                total <= most,
                "{} in {} from {}, at most {}: {:?}",
                total,
                length,
                first.at,
                most,
                admissions
            );
        }
    }
    Ok(())
}

/// The largest burst and, on top, the fastest rate, over one microsecond more: waits are whole microseconds under each quota. The
/// counts of windows mean the same under each, so there it is the largest bound.
pub fn largest_bound(samples: &[Sample], length: Micros) -> u64 {
    let instant = Micros::new(1);
    let bounds = |length: Micros| samples.iter().map(move |it| it.quota.bound().max_in_window(length)).max();
    let is_envelope = samples.iter().any(|it| is_level(&it.quota) || is_shaper(&it.quota));
    if !is_envelope {
        return bounds(length).unwrap_or(0);
    }
    let rate = |it: &Sample| {
        let long = Micros::new(it.period.get() * 1_000);
        let growth =
            it.quota.bound().max_in_window(long.plus(instant)) - it.quota.bound().max_in_window(instant);
        let share = u128::from(growth) * u128::from(length.plus(instant).get());
        u64::try_from(share.div_ceil(u128::from(long.get()))).unwrap_or(u64::MAX)
    };
    let rate = samples.iter().map(rate).max();
    bounds(instant).unwrap_or(0).saturating_add(rate.unwrap_or(0))
}

/// The bounds of all that share no state, added up.
pub fn sum_of_group_bounds(samples: &[Sample], length: Micros) -> u64 {
    let mut rest = samples.to_vec();
    let mut sum: u64 = 0;
    while let Some(first) = rest.first().copied() {
        let (shared, others): (Vec<_>, Vec<_>) =
            rest.into_iter().partition(|other| first.quota.shares_state(&other.quota));
        sum = sum.saturating_add(largest_bound(&shared, length));
        rest = others;
    }
    sum
}

/// Whether a quota counts a level.
pub fn is_level(quota: &Quota) -> bool {
    matches!(quota.kind(), AlgorithmKind::TokenBucket(_) | AlgorithmKind::LeakyBucket(_))
}

/// The bounds of all quotas, added up.
pub fn sum_of_bounds(samples: &[Sample], length: Micros) -> u64 {
    let is_first =
        |(index, it): &(usize, &Sample)| samples[..*index].iter().all(|other| other.quota != it.quota);
    let all = samples.iter().enumerate().filter(is_first);
    all.fold(0, |sum, (_, it)| sum.saturating_add(largest_bound(&[*it], length)))
}

/// The longest that a denial may ask to wait for: as long as the slowest of the quotas needs to forget what was admitted. `alone` are
/// keys that count all of it, one for each quota.
pub fn max_retry(samples: &[Sample], alone: &[CoreModel], now: Micros) -> Micros {
    let forgets = alone.iter().map(|key| key.peek(now, Demand::probe(0)).decision.reset_after()).max();
    // An empty key still waits for one token or window, and units of one quota are rounded up to those of another.
    let one = |it: &Sample| {
        let tokens = it.quota.rate().filter(|_| is_level(&it.quota) || is_shaper(&it.quota));
        let cold =
            if let AlgorithmKind::WarmUp(it) = it.quota.kind() { it.cold_factor().ceil() as u64 } else { 1 };
        it.period.get().saturating_mul(2 * cold).div_ceil(tokens.map_or(1, Rate::amount))
    };
    let one = samples.iter().map(one).max().unwrap_or(0).saturating_add(samples.len() as u64);
    forgets.unwrap_or_default().plus(Micros::new(one))
}

/// The most that a level counts: 71 years of drain, at one unit in a microsecond.
const MAX_DEBT: u64 = 1 << 51;

/// Whether a state is so full that a change of quota may have forgiven a part of it: more than the quota that wrote it can count.
pub fn can_be_truncated(writer: &Quota, words: impl IntoIterator<Item = u64>) -> bool {
    is_level(writer) && words.into_iter().any(|word| word >= MAX_DEBT)
}

/// Checks that a change of quota that was taken back at once has restored what a key has: rounded by less than a token, and not in favour
/// of the caller.
pub fn check_restored(sample: &Sample, before: &Decision, after: &Decision) -> TestCaseResult {
    // A share of stored permits is a double, which loses its last digit when it is scaled.
    let digit = if is_shaper(&sample.quota) { 1 + (before.remaining() >> 50) } else { 0 };
    prop_assert!(after.remaining() <= before.remaining() + digit, "{} then {}", before, after);
    prop_assert!(after.remaining() + 1 + digit >= before.remaining(), "{} then {}", before, after);
    let one = sample.period.get().div_ceil(sample.quota.rate().map_or(1, Rate::amount)) + 1;
    prop_assert!(after.wait() >= before.wait(), "{} then {}", before, after);
    prop_assert!(after.wait() <= before.wait().plus(Micros::new(one)), "{} then {}", before, after);
    Ok(())
}

/// Whether a quota is one of Guava's two, whose callers pay for those before them and never for themselves.
pub fn is_shaper(quota: &Quota) -> bool {
    matches!(quota.kind(), AlgorithmKind::Smooth(_) | AlgorithmKind::WarmUp(_))
}
