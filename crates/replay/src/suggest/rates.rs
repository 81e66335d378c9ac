//! How fast keys are: the most requests of each in windows of several lengths.
//!
//! Where there are too many keys, an even part of them is followed, chosen by their hashes, and each of those exactly.

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

/// The windows that are looked at, in seconds, with their names.
pub const WINDOWS: [(u64, &str); 5] =
    [(1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3_600, "1 h")];

/// How many keys of a group are followed.
const MAX_KEYS: usize = 1 << 14;
/// How many outliers are reported.
const REPORTED_OUTLIERS: usize = 5;
/// The windows in which outliers are looked for: a minute and an hour.
const OUTLIER_WINDOWS: [usize; 2] = [2, 4];
/// A key with more than this part of all requests, in percent, dominates its group.
const DOMINANT_PERCENT: u64 = 25;

/// The most requests of keys in one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// Half of all keys do no more.
    pub p50: u64,
    /// Nine of ten.
    pub p90: u64,
    /// Ninety-nine of a hundred.
    pub p99: u64,
    /// None does more.
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

/// What was measured.
pub(super) struct MeasuredGroups {
    pub(super) groups: Vec<GroupRates>,
}

/// How fast the keys of a group are.
pub(super) struct GroupRates {
    pub(super) group: PathGroup,
    pub(super) requests: u64,
    keys: HashMap<u64, KeyRate>,
    outliers: HashSet<u64>,
    /// Keys are followed whose hash is a multiple of this.
    pub(super) sample_divisor: u64,
}

/// How fast one key is, for each window.
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

/// Goes through the log once.
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
    /// How many keys there were, as far as they were followed.
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
        let pace = self.keys.entry(step.hash).or_insert_with(new);
        pace.requests += 1;
        let second = step.now.get() / 1_000_000;
        for (window, (seconds, _)) in pace.windows.iter_mut().zip(WINDOWS) {
            let at = second / seconds;
            if window.index != at {
                (window.index, window.count) = (at, 0);
            }
            window.count += 1;
            window.max = window.max.max(window.count);
        }
    }

    /// Marks the keys that do far more than all others in any of the windows.
    fn find_outliers(&mut self) {
        let bounds = OUTLIER_WINDOWS
            .map(|window| (window, outliers::outlier_threshold(&self.sorted_peaks(window, |_| true))));
        let is_beyond =
            |pace: &KeyRate| bounds.iter().any(|(window, bound)| pace.windows[*window].max > *bound);
        let beyond = self.keys.iter().filter(|(_, pace)| is_beyond(pace));
        self.outliers = beyond.map(|(hash, _)| *hash).collect();
    }

    pub(super) fn is_outlier(&self, hash: u64) -> bool {
        self.outliers.contains(&hash)
    }

    /// How many keys are no outliers.
    pub(super) fn typical_keys(&self) -> u64 {
        self.keys().saturating_sub(self.outliers.len() as u64 * self.sample_divisor)
    }

    /// How many requests are not those of outliers.
    pub(super) fn typical_requests(&self) -> u64 {
        let of_outliers =
            self.outliers.iter().filter_map(|hash| self.keys.get(hash)).map(|pace| pace.requests);
        self.requests.saturating_sub(of_outliers.sum())
    }

    /// The most of each key in a window, in rising order, for the keys that are wanted.
    fn sorted_peaks(&self, window: usize, is_wanted: impl Fn(u64) -> bool) -> Vec<u64> {
        let wanted = self.keys.iter().filter(|(hash, _)| is_wanted(**hash));
        let mut rising: Vec<u64> = wanted.map(|(_, pace)| pace.windows[window].max).collect();
        rising.sort_unstable();
        rising
    }

    /// What the keys do that are no outliers.
    pub(super) fn typical_peaks(&self, window: usize) -> Peaks {
        Peaks::from_sorted(&self.sorted_peaks(window, |hash| !self.is_outlier(hash)))
    }

    /// All that is told of the group. `needed` is the least that stays within the target, `chosen` has headroom.
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
            .map(|pace| (pace.key.clone(), pace.windows[window].max))
            .collect();
        outliers.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        let outlier_count = outliers.len() as u64 * self.sample_divisor;
        outliers.truncate(REPORTED_OUTLIERS);
        let loudest = self.keys.values().max_by(|a, b| a.requests.cmp(&b.requests).then(b.key.cmp(&a.key)));
        let dominant = loudest.filter(|pace| pace.requests * 100 > self.requests * DOMINANT_PERCENT);
        GroupSuggestion {
            requests: self.requests,
            keys: self.keys(),
            peaks: (0..WINDOWS.len())
                .map(|window| Peaks::from_sorted(&self.sorted_peaks(window, all)))
                .collect(),
            knee: find_knee(&self.sorted_peaks(window, all)),
            outliers,
            outlier_count,
            dominant: dominant.map(|pace| (pace.key.clone(), pace.requests)),
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
