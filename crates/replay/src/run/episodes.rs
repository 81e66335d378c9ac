//! Denial episodes: how long keys stay denied.
//!
//! An episode starts with the first denied request of a key, and ends with the next request of the key that is not denied.
//! An episode without an end lasts until the last denial, and is reported separately.

use foldhash::HashMap;
use tidegate_core::Micros;

/// The maximum number of open episodes.
const MAX_OPEN_EPISODES: usize = 1 << 16;

/// The episodes of one rule.
#[derive(Clone, Debug, Default)]
pub struct Episodes {
    open: HashMap<u64, OpenEpisode>,
    lengths: EpisodeLengths,
    untracked: u64,
}

#[derive(Clone, Copy, Debug)]
struct OpenEpisode {
    first: Micros,
    last: Micros,
}

/// A histogram of episode lengths, with four buckets for each power of two microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpisodeLengths {
    counts: Vec<u64>,
    total: u64,
    longest: Micros,
}

impl Default for EpisodeLengths {
    fn default() -> Self {
        Self { counts: vec![0; 256], total: 0, longest: Micros::ZERO }
    }
}

impl Episodes {
    /// Whether no episode is open, so admitted requests need not be recorded.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// Records a denied request of a key.
    pub fn record_denied(&mut self, key: u64, now: Micros) {
        if self.open.len() >= MAX_OPEN_EPISODES && !self.open.contains_key(&key) {
            self.untracked += 1;
            return;
        }
        self.open.entry(key).or_insert(OpenEpisode { first: now, last: now }).last = now;
    }

    /// Records an admitted request of a key.
    pub fn record_admitted(&mut self, key: u64, now: Micros) {
        if let Some(open) = self.open.remove(&key) {
            self.lengths.add(now.saturating_sub(open.first));
        }
    }

    /// Returns the lengths of ended episodes, the number of open ones, the longest open one, and the number of untracked
    /// denials.
    pub fn summarize(&self) -> (EpisodeLengths, u64, Micros, u64) {
        let longest = self.open.values().map(|open| open.last.saturating_sub(open.first)).max();
        (self.lengths.clone(), self.open.len() as u64, longest.unwrap_or(Micros::ZERO), self.untracked)
    }
}

impl EpisodeLengths {
    fn add(&mut self, length: Micros) {
        self.counts[bucket_index(length.get())] += 1;
        self.total += 1;
        self.longest = self.longest.max(length);
    }

    /// The number of episodes.
    pub fn count(&self) -> u64 {
        self.total
    }

    /// The length of the longest episode.
    pub fn longest(&self) -> Micros {
        self.longest
    }

    /// Returns a percentile of the lengths, with an error of at most a fifth.
    pub fn percentile(&self, percent: u64) -> Micros {
        let wanted = (self.total * percent).div_ceil(100).max(1);
        let mut counted = 0;
        for (place, count) in self.counts.iter().enumerate() {
            counted += count;
            if counted >= wanted {
                return Micros::new(bucket_max(place)).min(self.longest);
            }
        }
        self.longest
    }
}

fn bucket_index(micros: u64) -> usize {
    match micros {
        0..4 => micros as usize,
        micros => {
            let power = 63 - micros.leading_zeros() as usize;
            power * 4 + ((micros >> (power - 2)) & 3) as usize
        }
    }
}

/// The largest value of a bucket.
fn bucket_max(bucket: usize) -> u64 {
    match bucket {
        0..8 => (bucket as u64).min(3),
        bucket => {
            let (power, part) = (bucket / 4, bucket as u64 % 4);
            ((4 + part + 1) << (power - 2)) - 1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn episode_ends_with_next_admitted_request() {
        let at = Micros::from_secs;
        let mut episodes = Episodes::default();
        episodes.record_denied(1, at(10));
        episodes.record_denied(1, at(12));
        episodes.record_denied(2, at(12));
        episodes.record_admitted(1, at(14));
        episodes.record_admitted(3, at(15));
        episodes.record_denied(2, at(20));
        let (lengths, open, longest, missed) = episodes.summarize();
        assert_eq!((lengths.count(), lengths.longest()), (1, at(4)));
        assert_eq!(lengths.percentile(50), at(4));
        assert_eq!((open, longest, missed), (1, at(8), 0));
    }

    #[test]
    fn percentile_error_is_at_most_a_fifth() {
        let mut lengths = EpisodeLengths::default();
        (1..=1_000).for_each(|millis| lengths.add(Micros::new(millis * 1_000)));
        let half = lengths.percentile(50).get();
        assert!((500_000..=600_000).contains(&half), "{half}");
        assert_eq!(lengths.percentile(100), Micros::from_secs(1));
        for micros in [0, 1, 3, 4, 7, 8, 1_000, 123_456_789] {
            assert!(bucket_max(bucket_index(micros)) >= micros, "{micros}");
        }
    }
}
