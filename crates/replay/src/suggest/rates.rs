//! How fast keys are: the most requests of each in windows of several lengths.
//!
//! Where there are too many keys, an even part of them is followed, chosen by their hashes, and each of those exactly.

use super::{
    Group, Suggested, Trial, Wish,
    knee::knee,
    outliers,
    walk::{Step, walk},
};
use crate::{
    log::Log,
    run::{Failure, Progress},
};
use foldhash::{HashMap, HashSet};

/// The windows that are looked at, in seconds, with their names.
pub const WINDOWS: [(u64, &str); 5] =
    [(1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3_600, "1 h")];

/// How many keys of a group are followed.
const KEYS: usize = 1 << 14;
/// How many outliers are reported.
const OUTLIERS: usize = 5;
/// The windows in which outliers are looked for: a minute and an hour.
const OUTLIER_WINDOWS: [usize; 2] = [2, 4];
/// A key with more than this part of all requests, in percent, dominates its group.
const DOMINANT: u64 = 25;

/// The most requests of keys in one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// Half of all keys do no more.
    pub half: u64,
    /// Nine of ten.
    pub nine_of_ten: u64,
    /// Ninety-nine of a hundred.
    pub ninety_nine: u64,
    /// None does more.
    pub most: u64,
}

impl Peaks {
    fn of(rising: &[u64]) -> Self {
        let at = |percent: usize| {
            rising.get((rising.len() * percent).div_ceil(100).max(1) - 1).copied().unwrap_or(0)
        };
        Self { half: at(50), nine_of_ten: at(90), ninety_nine: at(99), most: at(100) }
    }
}

/// What was measured.
pub(super) struct Measured {
    pub(super) groups: Vec<Rates>,
}

/// How fast the keys of a group are.
pub(super) struct Rates {
    pub(super) group: Group,
    pub(super) requests: u64,
    keys: HashMap<u64, Pace>,
    outliers: HashSet<u64>,
    /// Keys are followed whose hash is a multiple of this.
    pub(super) one_in: u64,
}

/// How fast one key is, for each window.
struct Pace {
    key: String,
    requests: u64,
    windows: [Window; WINDOWS.len()],
}

#[derive(Clone, Copy, Default)]
struct Window {
    at: u64,
    count: u64,
    most: u64,
}

/// Goes through the log once.
pub(super) fn measure(
    wish: &Wish,
    groups: &[Group],
    log: Log,
    told: &mut dyn FnMut(Progress),
) -> Result<Measured, Failure> {
    let mut rates: Vec<Rates> = groups
        .iter()
        .map(|group| Rates {
            group: group.clone(),
            requests: 0,
            keys: HashMap::default(),
            outliers: HashSet::default(),
            one_in: 1,
        })
        .collect();
    let groups: Vec<&Group> = groups.iter().collect();
    walk(wish, &groups, log, told, |step| {
        if let Some(rates) = rates.get_mut(step.group) {
            rates.add(&step);
        }
    })?;
    rates.iter_mut().for_each(Rates::find_outliers);
    Ok(Measured { groups: rates })
}

impl Rates {
    /// How many keys there were, as far as they were followed.
    pub(super) fn keys(&self) -> u64 {
        self.keys.len() as u64 * self.one_in
    }

    fn add(&mut self, step: &Step<'_>) {
        self.requests += 1;
        if !step.hash.is_multiple_of(self.one_in) {
            return;
        }
        if self.keys.len() >= KEYS && !self.keys.contains_key(&step.hash) {
            self.one_in *= 2;
            let one_in = self.one_in;
            self.keys.retain(|hash, _| hash.is_multiple_of(one_in));
            if !step.hash.is_multiple_of(one_in) {
                return;
            }
        }
        let new = || Pace { key: step.key.to_string(), requests: 0, windows: Default::default() };
        let pace = self.keys.entry(step.hash).or_insert_with(new);
        pace.requests += 1;
        let second = step.now.get() / 1_000_000;
        for (window, (seconds, _)) in pace.windows.iter_mut().zip(WINDOWS) {
            let at = second / seconds;
            if window.at != at {
                (window.at, window.count) = (at, 0);
            }
            window.count += 1;
            window.most = window.most.max(window.count);
        }
    }

    /// Marks the keys that do far more than all others in any of the windows.
    fn find_outliers(&mut self) {
        let bounds = OUTLIER_WINDOWS.map(|window| (window, outliers::bound(&self.rising(window, |_| true))));
        let is_beyond =
            |pace: &Pace| bounds.iter().any(|(window, bound)| pace.windows[*window].most > *bound);
        let beyond = self.keys.iter().filter(|(_, pace)| is_beyond(pace));
        self.outliers = beyond.map(|(hash, _)| *hash).collect();
    }

    pub(super) fn is_outlier(&self, hash: u64) -> bool {
        self.outliers.contains(&hash)
    }

    /// How many keys are no outliers.
    pub(super) fn usual_keys(&self) -> u64 {
        self.keys().saturating_sub(self.outliers.len() as u64 * self.one_in)
    }

    /// How many requests are not those of outliers.
    pub(super) fn usual_requests(&self) -> u64 {
        let of_outliers =
            self.outliers.iter().filter_map(|hash| self.keys.get(hash)).map(|pace| pace.requests);
        self.requests.saturating_sub(of_outliers.sum())
    }

    /// The most of each key in a window, in rising order, for the keys that are wanted.
    fn rising(&self, window: usize, is_wanted: impl Fn(u64) -> bool) -> Vec<u64> {
        let wanted = self.keys.iter().filter(|(hash, _)| is_wanted(**hash));
        let mut rising: Vec<u64> = wanted.map(|(_, pace)| pace.windows[window].most).collect();
        rising.sort_unstable();
        rising
    }

    /// What the keys do that are no outliers.
    pub(super) fn usual_peaks(&self, window: usize) -> Peaks {
        Peaks::of(&self.rising(window, |hash| !self.is_outlier(hash)))
    }

    /// All that is told of the group. `needed` is the least that stays within the target, `chosen` has headroom.
    pub(super) fn suggest(
        self,
        trials: Vec<Trial>,
        needed: &Trial,
        chosen: &Trial,
        is_within: bool,
    ) -> Suggested {
        let window = chosen.window;
        let all = |_: u64| true;
        let mut outliers: Vec<(String, u64)> = self
            .outliers
            .iter()
            .filter_map(|hash| self.keys.get(hash))
            .map(|pace| (pace.key.clone(), pace.windows[window].most))
            .collect();
        outliers.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        let outlier_count = outliers.len() as u64 * self.one_in;
        outliers.truncate(OUTLIERS);
        let loudest = self.keys.values().max_by(|a, b| a.requests.cmp(&b.requests).then(b.key.cmp(&a.key)));
        let dominant = loudest.filter(|pace| pace.requests * 100 > self.requests * DOMINANT);
        Suggested {
            requests: self.requests,
            keys: self.keys(),
            peaks: (0..WINDOWS.len()).map(|window| Peaks::of(&self.rising(window, all))).collect(),
            knee: knee(&self.rising(window, all)),
            outliers,
            outlier_count,
            dominant: dominant.map(|pace| (pace.key.clone(), pace.requests)),
            trials,
            needed: needed.quota,
            quota: chosen.quota,
            window,
            denied: chosen.denied,
            is_within,
            group: self.group,
        }
    }
}
