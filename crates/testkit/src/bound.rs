//! The maximum that several quotas admit, and checks of admissions against it.

use crate::{CoreModel, strategy::Sample};
use proptest::{prelude::*, test_runner::TestCaseResult};
use tidegate_core::{AlgorithmKind, Decision, Demand, Micros, Quota, Rate};

/// An admitted call.
#[derive(Clone, Copy, Debug)]
pub struct AdmittedCall {
    /// The time of the admission.
    pub at: Micros,
    /// The cost.
    pub cost: u64,
}

/// Checks every window that starts and ends with an admission; no other window can contain more.
///
/// A window includes its start and excludes its end, so the shortest window with both admissions is one microsecond
/// longer than the time between them.
pub fn check_windows(mut admissions: Vec<AdmittedCall>, most: impl Fn(Micros) -> u64) -> TestCaseResult {
    admissions.sort_by_key(|admission| admission.at);
    if admissions.last().is_some_and(|last| last.at == Micros::MAX) {
        return Ok(()); // calls that wait until the largest time are all admitted at that instant
    }
    for (index, first) in admissions.iter().enumerate() {
        let mut total = 0;
        for last in &admissions[index..] {
            total += last.cost;
            let length = last.at.saturating_sub(first.at).saturating_add(Micros::new(1));
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

/// The bound of quotas that share a state.
///
/// For buckets and shapers it is the largest burst plus the fastest rate, over one microsecond more, because each quota
/// rounds waits to whole microseconds. For windows, whose counts mean the same under each quota, it is the largest bound.
pub fn largest_bound(samples: &[Sample], length: Micros) -> u64 {
    let instant = Micros::new(1);
    let bounds = |length: Micros| samples.iter().map(move |it| it.quota.bound().max_in_window(length)).max();
    let is_envelope = samples.iter().any(|it| is_level(&it.quota) || is_smooth_rate(&it.quota));
    if !is_envelope {
        return bounds(length).unwrap_or(0);
    }
    let rate = |it: &Sample| {
        let long = Micros::new(it.period.get() * 1_000);
        let growth = it.quota.bound().max_in_window(long.saturating_add(instant))
            - it.quota.bound().max_in_window(instant);
        let share = u128::from(growth) * u128::from(length.saturating_add(instant).get());
        u64::try_from(share.div_ceil(u128::from(long.get()))).unwrap_or(u64::MAX)
    };
    let rate = samples.iter().map(rate).max();
    bounds(instant).unwrap_or(0).saturating_add(rate.unwrap_or(0))
}

/// The sum of the bounds of the groups that share a state.
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

/// Whether a quota is a token bucket or a leaky bucket.
pub fn is_level(quota: &Quota) -> bool {
    matches!(quota.kind(), AlgorithmKind::TokenBucket(_) | AlgorithmKind::LeakyBucket(_))
}

/// The sum of the bounds of all distinct quotas.
pub fn sum_of_bounds(samples: &[Sample], length: Micros) -> u64 {
    let is_first =
        |(index, it): &(usize, &Sample)| samples[..*index].iter().all(|other| other.quota != it.quota);
    let all = samples.iter().enumerate().filter(is_first);
    all.fold(0, |sum, (_, it)| sum.saturating_add(largest_bound(&[*it], length)))
}

/// The longest retry time of a denial: the longest reset time of the quotas. `alone` has one key per quota, each charged
/// with all admissions.
pub fn max_retry(samples: &[Sample], alone: &[CoreModel], now: Micros) -> Micros {
    let reset = alone.iter().map(|key| key.peek(now, Demand::peek(0)).decision.reset_after()).max();
    // An empty key still waits for one token or window, and conversions between quotas round up.
    let one = |it: &Sample| {
        let tokens = it.quota.rate().filter(|_| is_level(&it.quota) || is_smooth_rate(&it.quota));
        let cold =
            if let AlgorithmKind::WarmUp(it) = it.quota.kind() { it.cold_factor().ceil() as u64 } else { 1 };
        it.period.get().saturating_mul(2 * cold).div_ceil(tokens.map_or(1, Rate::amount))
    };
    let one = samples.iter().map(one).max().unwrap_or(0).saturating_add(samples.len() as u64);
    reset.unwrap_or_default().saturating_add(Micros::new(one))
}

/// The largest level: 71 years of drain at one unit per microsecond.
const MAX_DEBT: u64 = 1 << 51;

/// Whether a state is so full that a change of quota may have truncated it.
pub fn can_be_truncated(writer: &Quota, words: impl IntoIterator<Item = u64>) -> bool {
    is_level(writer) && words.into_iter().any(|word| word >= MAX_DEBT)
}

/// Checks that a change of quota and its immediate reversal restore a key, up to less than a token and never in favour of
/// the caller.
pub fn check_restored(sample: &Sample, before: &Decision, after: &Decision) -> TestCaseResult {
    // Stored permits are a double, which loses its last digit when it is scaled.
    let digit = if is_smooth_rate(&sample.quota) { 1 + (before.remaining() >> 50) } else { 0 };
    prop_assert!(after.remaining() <= before.remaining() + digit, "{} then {}", before, after);
    prop_assert!(after.remaining() + 1 + digit >= before.remaining(), "{} then {}", before, after);
    let one = sample.period.get().div_ceil(sample.quota.rate().map_or(1, Rate::amount)) + 1;
    prop_assert!(after.wait() >= before.wait(), "{} then {}", before, after);
    prop_assert!(after.wait() <= before.wait().saturating_add(Micros::new(one)), "{} then {}", before, after);
    Ok(())
}

/// Whether a quota is one of Guava's two algorithms, in which a call waits for the cost of the previous one, not for its
/// own.
pub fn is_smooth_rate(quota: &Quota) -> bool {
    matches!(quota.kind(), AlgorithmKind::Smooth(_) | AlgorithmKind::WarmUp(_))
}
