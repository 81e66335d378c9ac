//! How fast keys are: the most requests of each in windows of several lengths.
//!
//! Where there are too many keys, an even part of them is followed, chosen by their hashes, and each of those exactly.

use super::{
    Group, Suggested, Trial, Wish,
    knee::knee,
    walk::{Step, walk},
};
use crate::{
    log::Log,
    run::{Failure, Progress},
};
use foldhash::HashMap;

/// The windows that are looked at, in seconds, with their names.
pub const WINDOWS: [(u64, &str); 5] =
    [(1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3_600, "1 h")];

/// How many keys of a group are followed.
const KEYS: usize = 1 << 14;
/// How many outliers are told.
const OUTLIERS: usize = 5;

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
    /// Keys are followed whose hash is a multiple of this.
    one_in: u64,
}

/// How fast one key is, for each window.
struct Pace {
    key: String,
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
        .map(|group| Rates { group: group.clone(), requests: 0, keys: HashMap::default(), one_in: 1 })
        .collect();
    let groups: Vec<&Group> = groups.iter().collect();
    walk(wish, &groups, log, told, |step| {
        if let Some(rates) = rates.get_mut(step.group) {
            rates.add(&step);
        }
    })?;
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
        let new = || Pace { key: step.key.to_string(), windows: Default::default() };
        let pace = self.keys.entry(step.hash).or_insert_with(new);
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

    /// The most of each key in a window, in rising order.
    fn rising(&self, window: usize) -> Vec<u64> {
        let mut rising: Vec<u64> = self.keys.values().map(|pace| pace.windows[window].most).collect();
        rising.sort_unstable();
        rising
    }

    pub(super) fn peaks(&self, window: usize) -> Peaks {
        Peaks::of(&self.rising(window))
    }

    /// All that is told of the group.
    pub(super) fn suggest(self, trials: Vec<Trial>, chosen: &Trial, most_denied: u64) -> Suggested {
        let window = chosen.window;
        let rising = self.rising(window);
        let knee = knee(&rising);
        let beyond = knee.rate.saturating_mul(2).max(chosen.quota.limit());
        let mut outliers: Vec<(String, u64)> = self
            .keys
            .values()
            .map(|pace| (pace.key.clone(), pace.windows[window].most))
            .filter(|(_, most)| *most > beyond)
            .collect();
        outliers.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        outliers.truncate(OUTLIERS);
        Suggested {
            requests: self.requests,
            keys: self.keys(),
            peaks: (0..WINDOWS.len()).map(|window| self.peaks(window)).collect(),
            knee,
            outliers,
            trials,
            quota: chosen.quota,
            window,
            denied: chosen.denied,
            is_within: chosen.denied <= most_denied,
            group: self.group,
        }
    }
}
