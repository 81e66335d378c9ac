//! Tries candidate quotas on the log.

use super::{
    SuggestRequest,
    rates::{GroupRates, MeasuredGroups, WINDOWS},
    requests::for_each_request,
    target::Allowance,
};
use crate::{
    log::RequestLog,
    run::{ReplayError, ReplayProgress},
};
use foldhash::HashSet;
use std::time::Duration;
use tidegate_core::{Percent, Quota};
use tidegate_limiter::{Capacity, Clock, Limiter};

/// A candidate quota and its denials on the log.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// The quota.
    pub quota: Quota,
    /// The window, as an index of [`WINDOWS`].
    pub window: usize,
    /// The number of requests per window.
    pub rate: u64,
    /// The burst.
    pub burst: u64,
    /// Denied requests.
    pub denied: u64,
    /// Denied requests without those of outliers.
    pub typical_denied: u64,
    /// Keys with denied requests, without outliers.
    pub keys: u64,
    /// Outliers with denied requests.
    pub outliers: u64,
    /// The number of key table overflows; those keys shared counters.
    pub overflowed: u64,
}

/// A quota to try: the index of its window, the number of requests per window, and the burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate {
    pub(super) window: usize,
    pub(super) rate: u64,
    pub(super) burst: u64,
}

/// The windows of candidate quotas.
const TRIED_WINDOWS: [usize; 3] = [0, 2, 4];
/// The number of candidates per window in one pass.
const RATE_STEPS: u32 = 8;
/// The minimum memory for the counters of a candidate, enough for about 150,000 keys.
const MIN_TRIAL_MEMORY: u64 = 4 << 20;
/// The memory for the counters of all candidates of a pass.
const TOTAL_MEMORY: u64 = 1 << 30;
/// The memory per key.
const BYTES_PER_KEY: u64 = 28;

/// Returns candidates for each group and window, from the median peak to twice the maximum, without outliers.
pub(super) fn initial_candidates(found: &MeasuredGroups) -> Vec<Vec<Candidate>> {
    let of_group = |group: &GroupRates| {
        let each = TRIED_WINDOWS.iter().flat_map(|window| {
            let peaks = group.typical_peaks(*window);
            rates_between(*window, peaks.p50.max(1), peaks.max.max(1) * 2)
        });
        each.collect()
    };
    found.groups.iter().map(of_group).collect()
}

/// Returns candidates for each group and window, between the largest one outside of the target and the next larger one.
pub(super) fn refined_candidates(tried: &[Vec<Trial>], allowed: &[Allowance]) -> Vec<Vec<Candidate>> {
    let of_group = |(trials, allowed): (&Vec<Trial>, &Allowance)| {
        let each = TRIED_WINDOWS.iter().flat_map(|window| {
            let of_window = || trials.iter().filter(|trial| trial.window == *window);
            let low = of_window().filter(|trial| !allowed.permits(trial)).map(|trial| trial.rate).max();
            let low = low.unwrap_or(0);
            let high = of_window().filter(|trial| trial.rate > low).map(|trial| trial.rate).min();
            high.map(|high| rates_between(*window, low + 1, high)).unwrap_or_default()
        });
        let known: Vec<Candidate> = trials.iter().map(Trial::candidate).collect();
        each.filter(|candidate| !known.contains(candidate)).collect()
    };
    tried.iter().zip(allowed).map(of_group).collect()
}

/// Returns rounded rates from `low` to `high` in a geometric progression.
fn rates_between(window: usize, low: u64, high: u64) -> Vec<Candidate> {
    let factor = (high as f64 / low as f64).powf(1.0 / f64::from(RATE_STEPS - 1));
    let rates =
        (0..RATE_STEPS).map(|step| round_quota(low as f64 * factor.powi(i32::try_from(step).unwrap_or(0))));
    let mut candidates: Vec<Candidate> = rates.map(|rate| Candidate { window, rate, burst: rate }).collect();
    candidates.sort_unstable();
    candidates.dedup();
    candidates
}

/// Adds headroom for traffic that is not in the log.
pub(super) fn with_headroom(needed: &[Trial], headroom: Percent) -> Vec<Vec<Candidate>> {
    let more = |number: u64| round_quota((number as f64 * (1.0 + headroom.as_f64())).ceil());
    let of_group = |needed: &Trial| {
        let Candidate { window, rate, burst } = needed.candidate();
        vec![Candidate { window, rate: more(rate), burst: more(burst) }]
    };
    needed.iter().map(of_group).collect()
}

/// Rounds up to two significant digits.
pub(super) fn round_quota(number: f64) -> u64 {
    let number = number.round().max(1.0) as u64;
    let mut unit = 1;
    while number / unit >= 100 {
        unit *= 10;
    }
    number.div_ceil(unit) * unit
}

/// Reads the log once, and checks each request against all candidates of its group.
pub(super) fn run(
    request: &SuggestRequest,
    found: &MeasuredGroups,
    candidates: Vec<Vec<Candidate>>,
    log: RequestLog,
    on_progress: &mut dyn FnMut(ReplayProgress),
) -> Result<Vec<Vec<Trial>>, ReplayError> {
    let (clock, manual_clock) = Clock::manual();
    manual_clock.set(log.start_time()?);
    let mut running = Vec::new();
    let count: usize = candidates.iter().map(Vec::len).sum();
    let most = (TOTAL_MEMORY / count.max(1) as u64).max(MIN_TRIAL_MEMORY);
    for (candidates, group) in candidates.into_iter().zip(&found.groups) {
        let memory = group.keys().saturating_mul(BYTES_PER_KEY).clamp(MIN_TRIAL_MEMORY, most);
        running.push(
            candidates
                .into_iter()
                .map(|candidate| RunningTrial::start(candidate, memory, &clock))
                .collect::<Result<Vec<_>, _>>()?,
        );
    }
    let groups: Vec<_> = found.groups.iter().map(|rates| &rates.group).collect();
    for_each_request(request, &groups, log, on_progress, |step| {
        manual_clock.set(step.now);
        for running in running.get_mut(step.group).into_iter().flatten() {
            if !running.limiter.check(&step.key).is_granted() {
                let group = &found.groups[step.group];
                let is_outlier = group.is_outlier(step.hash);
                running.trial.denied += 1;
                running.trial.typical_denied += u64::from(!is_outlier);
                if step.hash.is_multiple_of(group.sample_divisor) {
                    let keys = if is_outlier { &mut running.outliers } else { &mut running.keys };
                    keys.insert(step.hash);
                }
            }
        }
    })?;
    let finish = |(group, running): (Vec<RunningTrial>, &GroupRates)| {
        let keys = |followed: &HashSet<u64>| followed.len() as u64 * running.sample_divisor;
        let finish_one = |running: RunningTrial| Trial {
            keys: keys(&running.keys),
            outliers: keys(&running.outliers),
            overflowed: running.limiter.size().map_or(0, |size| size.overflowed),
            ..running.trial
        };
        group.into_iter().map(finish_one).collect()
    };
    Ok(running.into_iter().zip(&found.groups).map(finish).collect())
}

struct RunningTrial {
    trial: Trial,
    limiter: Limiter,
    keys: HashSet<u64>,
    outliers: HashSet<u64>,
}

impl RunningTrial {
    fn start(candidate: Candidate, memory: u64, clock: &Clock) -> Result<Self, ReplayError> {
        let failed = |error: &dyn std::fmt::Display| ReplayError::Suggestion(error.to_string());
        let Candidate { window, rate, burst } = candidate;
        let quota =
            Quota::amount_per_period(rate, Duration::from_secs(WINDOWS[window].0)).token_bucket(burst);
        let quota = quota.map_err(|error| failed(&error))?;
        let limiter = Limiter::builder().clock(clock.clone()).capacity(Capacity::Bytes(memory)).build(quota);
        let limiter = limiter.map_err(|error| failed(&error))?;
        Ok(Self {
            trial: Trial {
                quota,
                window,
                rate,
                burst,
                denied: 0,
                typical_denied: 0,
                keys: 0,
                outliers: 0,
                overflowed: 0,
            },
            limiter,
            keys: HashSet::default(),
            outliers: HashSet::default(),
        })
    }
}

impl Trial {
    pub(super) fn candidate(&self) -> Candidate {
        Candidate { window: self.window, rate: self.rate, burst: self.burst }
    }
}

/// Chooses among the smallest candidates within the target, one per window, the one that denies the most outliers. If none
/// is within the target, chooses the one that denies the fewest keys.
pub(super) fn choose(trials: &[Trial], allowed: Allowance) -> Option<Trial> {
    let of_window = |window: &usize| {
        let ours = || trials.iter().filter(|trial| trial.window == *window);
        let low = ours().filter(|trial| !allowed.permits(trial)).map(|trial| trial.rate).max().unwrap_or(0);
        ours().filter(|trial| trial.rate > low).min_by_key(|trial| trial.rate)
    };
    let within = TRIED_WINDOWS.iter().filter_map(of_window);
    // Prefer more denied outliers. Among equals, prefer a minute, which users expect and which fits bursts better than a
    // second.
    let rank = |trial: &&Trial| {
        (std::cmp::Reverse(trial.outliers), trial.window.abs_diff(2), trial.keys, trial.window)
    };
    within
        .min_by_key(rank)
        .or_else(|| trials.iter().min_by_key(|trial| (trial.keys, trial.typical_denied, trial.rate)))
        .cloned()
}

/// Sorts trials by window and quota, and removes duplicates.
pub(super) fn sort_and_dedup(trials: &mut Vec<Trial>) {
    trials.sort_by_key(Trial::candidate);
    trials.dedup_by_key(|trial| trial.candidate());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_rounded_and_ascending() {
        assert_eq!([1.0, 9.4, 42.0, 123.0, 9_876.0].map(round_quota), [1, 9, 42, 130, 9_900]);
        let rates: Vec<u64> = rates_between(0, 3, 400).iter().map(|candidate| candidate.rate).collect();
        assert_eq!((rates.first(), rates.last()), (Some(&3), Some(&400)));
        assert!(rates.is_sorted() && rates.len() == 8);
        assert_eq!(rates_between(0, 5, 5).len(), 1);
    }
}
