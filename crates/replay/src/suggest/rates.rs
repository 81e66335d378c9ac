//! Measures the peak number of requests of each key in windows of several lengths.
//!
//! If there are too many keys, a sample of them, selected by hash, is measured exactly.

use super::{
    GroupSuggestion, PathGroup, SuggestRequest, Trial,
    knee::find_knee,
    outliers,
    requests::{GroupedRequest, for_each_request},
};
use crate::{
    log::RequestLog,
    run::{ReplayError, ReplayProgress},
};
use foldhash::{HashMap, HashSet};

/// The windows, in seconds, with their names.
pub const WINDOWS: [(u64, &str); 5] =
    [(1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3_600, "1 h")];

/// The maximum number of keys of a group that are tracked.
const MAX_KEYS: usize = 1 << 14;
/// The number of outliers that are reported.
const REPORTED_OUTLIERS: usize = 5;
/// The windows in which outliers are detected: a minute and an hour.
const OUTLIER_WINDOWS: [usize; 2] = [2, 4];
/// A key with more than this percentage of all requests dominates its group.
const DOMINANT_PERCENT: u64 = 25;

/// Percentiles of the peak numbers of requests of keys in one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// The median.
    pub p50: u64,
    /// The 90th percentile.
    pub p90: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The maximum.
    pub max: u64,
}

impl Peaks {
    fn from_sorted(rising: &[u64]) -> Self {
        let at = |percent: usize| {
            rising.get((rising.len() * percent).div_ceil(100).max(1) - 1).copied().unwrap_or(0)
        };
        Self { p50: at(50), p90: at(90), p99: at(99), max: at(100) }
    }
}

/// The measured groups.
pub(super) struct MeasuredGroups {
    pub(super) groups: Vec<GroupRates>,
}

/// The rates of the keys of a group.
pub(super) struct GroupRates {
    pub(super) group: PathGroup,
    pub(super) requests: u64,
    keys: HashMap<u64, KeyRate>,
    outliers: HashSet<u64>,
    /// Only keys whose hash is a multiple of this are tracked.
    pub(super) sample_divisor: u64,
}

/// The rates of one key, for each window.
struct KeyRate {
    key: String,
    requests: u64,
    windows: [WindowCount; WINDOWS.len()],
}

#[derive(Clone, Copy, Default)]
struct WindowCount {
    index: u64,
    count: u64,
    max: u64,
}

/// Reads the log once and measures all groups.
pub(super) fn measure(
    request: &SuggestRequest,
    groups: &[PathGroup],
    log: RequestLog,
    on_progress: &mut dyn FnMut(ReplayProgress),
) -> Result<MeasuredGroups, ReplayError> {
    let mut rates: Vec<GroupRates> = groups
        .iter()
        .map(|group| GroupRates {
            group: group.clone(),
            requests: 0,
            keys: HashMap::default(),
            outliers: HashSet::default(),
            sample_divisor: 1,
        })
        .collect();
    let groups: Vec<&PathGroup> = groups.iter().collect();
    for_each_request(request, &groups, log, on_progress, |step| {
        if let Some(rates) = rates.get_mut(step.group) {
            rates.add(&step);
        }
    })?;
    rates.iter_mut().for_each(GroupRates::find_outliers);
    Ok(MeasuredGroups { groups: rates })
}

impl GroupRates {
    /// The estimated number of keys.
    pub(super) fn keys(&self) -> u64 {
        self.keys.len() as u64 * self.sample_divisor
    }

    fn add(&mut self, step: &GroupedRequest<'_>) {
        self.requests += 1;
        if !step.hash.is_multiple_of(self.sample_divisor) {
            return;
        }
        if self.keys.len() >= MAX_KEYS && !self.keys.contains_key(&step.hash) {
            self.sample_divisor *= 2;
            let one_in = self.sample_divisor;
            self.keys.retain(|hash, _| hash.is_multiple_of(one_in));
            if !step.hash.is_multiple_of(one_in) {
                return;
            }
        }
        let new = || KeyRate { key: step.key.to_string(), requests: 0, windows: Default::default() };
        let rate = self.keys.entry(step.hash).or_insert_with(new);
        rate.requests += 1;
        let second = step.now.get() / 1_000_000;
        for (window, (seconds, _)) in rate.windows.iter_mut().zip(WINDOWS) {
            let at = second / seconds;
            if window.index != at {
                (window.index, window.count) = (at, 0);
            }
            window.count += 1;
            window.max = window.max.max(window.count);
        }
    }

    /// Marks the outliers of any window.
    fn find_outliers(&mut self) {
        let bounds = OUTLIER_WINDOWS
            .map(|window| (window, outliers::outlier_threshold(&self.sorted_peaks(window, |_| true))));
        let is_beyond =
            |rate: &KeyRate| bounds.iter().any(|(window, bound)| rate.windows[*window].max > *bound);
        let beyond = self.keys.iter().filter(|(_, rate)| is_beyond(rate));
        self.outliers = beyond.map(|(hash, _)| *hash).collect();
    }

    pub(super) fn is_outlier(&self, hash: u64) -> bool {
        self.outliers.contains(&hash)
    }

    /// The number of keys without outliers.
    pub(super) fn typical_keys(&self) -> u64 {
        self.keys().saturating_sub(self.outliers.len() as u64 * self.sample_divisor)
    }

    /// The number of requests without those of outliers.
    pub(super) fn typical_requests(&self) -> u64 {
        let of_outliers =
            self.outliers.iter().filter_map(|hash| self.keys.get(hash)).map(|rate| rate.requests);
        self.requests.saturating_sub(of_outliers.sum())
    }

    /// Returns the peaks of the selected keys in a window, in ascending order.
    fn sorted_peaks(&self, window: usize, is_selected: impl Fn(u64) -> bool) -> Vec<u64> {
        let selected = self.keys.iter().filter(|(hash, _)| is_selected(**hash));
        let mut rising: Vec<u64> = selected.map(|(_, rate)| rate.windows[window].max).collect();
        rising.sort_unstable();
        rising
    }

    /// Returns the peaks of the keys without outliers.
    pub(super) fn typical_peaks(&self, window: usize) -> Peaks {
        Peaks::from_sorted(&self.sorted_peaks(window, |hash| !self.is_outlier(hash)))
    }

    /// Builds the suggestion. `needed` is the smallest quota within the target, `chosen` has headroom.
    pub(super) fn suggest(
        self,
        trials: Vec<Trial>,
        needed: &Trial,
        chosen: &Trial,
        is_within: bool,
    ) -> GroupSuggestion {
        let window = chosen.window;
        let all = |_: u64| true;
        let mut outliers: Vec<(String, u64)> = self
            .outliers
            .iter()
            .filter_map(|hash| self.keys.get(hash))
            .map(|rate| (rate.key.clone(), rate.windows[window].max))
            .collect();
        outliers.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        let outlier_count = outliers.len() as u64 * self.sample_divisor;
        outliers.truncate(REPORTED_OUTLIERS);
        let busiest = self.keys.values().max_by(|a, b| a.requests.cmp(&b.requests).then(b.key.cmp(&a.key)));
        let dominant = busiest.filter(|rate| rate.requests * 100 > self.requests * DOMINANT_PERCENT);
        GroupSuggestion {
            requests: self.requests,
            keys: self.keys(),
            peaks: (0..WINDOWS.len())
                .map(|window| Peaks::from_sorted(&self.sorted_peaks(window, all)))
                .collect(),
            knee: find_knee(&self.sorted_peaks(window, all)),
            outliers,
            outlier_count,
            dominant: dominant.map(|rate| (rate.key.clone(), rate.requests)),
            trials,
            min_quota: needed.quota,
            quota: chosen.quota,
            window,
            denied: chosen.denied,
            is_within_target: is_within,
            group: self.group,
        }
    }
}
