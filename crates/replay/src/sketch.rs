//! The keys that were counted most, in bounded memory.
//!
//! Twice as many keys are kept as will be shown. When there is no more room, the lesser half goes, and what the largest of
//! them had is the most that a key may have been counted less: a key that comes later starts with that as its doubt. So no
//! key that has more than its part of all counts is ever missing, and every count is told with its doubt.

use foldhash::{HashMap, HashMapExt as _};

/// Keys, each with a count; the rare ones are forgotten.
#[derive(Clone, Debug)]
pub struct TopKeys {
    most: usize,
    keys: HashMap<u64, Counted>,
    /// The most that a key may have been counted that is not here.
    forgotten: u64,
}

/// One key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The key, as it is shown.
    pub key: String,
    /// How often it was counted for certain.
    pub count: u64,
    /// How often it may have been counted before that.
    pub doubt: u64,
    /// What else was summed up with it.
    pub more: u64,
}

/// The most letters that are kept of a key.
const LONGEST: usize = 120;

impl TopKeys {
    /// Keeps so many at least.
    pub fn new(most: usize) -> Self {
        Self { most: most.max(1), keys: HashMap::new(), forgotten: 0 }
    }

    /// Counts a key, which is only written out when it is new.
    pub fn add(&mut self, hash: u64, key: impl FnOnce() -> String, count: u64, more: u64) {
        if let Some(counted) = self.keys.get_mut(&hash) {
            counted.count += count;
            counted.more += more;
            return;
        }
        if self.keys.len() >= self.most * 2 {
            self.prune();
        }
        let mut key = key();
        if let Some((end, _)) = key.char_indices().nth(LONGEST) {
            key.truncate(end);
            key.push('…');
        }
        self.keys.insert(hash, Counted { key, count, doubt: self.forgotten, more });
    }

    /// How many keys are known, and how often one that is not may have been counted.
    pub fn known(&self) -> (usize, u64) {
        (self.keys.len(), self.forgotten)
    }

    /// The keys that were counted most, the first of them first.
    pub fn top(&self, count: usize) -> Vec<Counted> {
        let mut all: Vec<&Counted> = self.keys.values().collect();
        all.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.key.cmp(&b.key)));
        all.into_iter().take(count).cloned().collect()
    }

    fn prune(&mut self) {
        let mut counts: Vec<u64> = self.keys.values().map(|key| key.count + key.doubt).collect();
        let (_, least, _) =
            counts.select_nth_unstable_by(self.most.min(self.keys.len()) - 1, |a, b| b.cmp(a));
        let least = *least;
        let mut dropped = 0;
        let mut room = self.most;
        // Those with exactly as much as the last one that stays go as far as there is room.
        self.keys.retain(|_, key| {
            let has = key.count + key.doubt;
            let stays = has > least || (has == least && room > 0);
            match stays {
                true => room = room.saturating_sub(1),
                false => dropped = dropped.max(has),
            }
            stays
        });
        // Where nearly all are alike, half of them may have stayed too many.
        if self.keys.len() >= self.most * 2 {
            dropped = dropped.max(least);
            self.keys.retain(|_, key| key.count + key.doubt > least);
        }
        self.forgotten = self.forgotten.max(dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some keys come often, and a flood of others comes once each.
    #[test]
    fn the_frequent_are_never_lost_in_a_flood() {
        let mut top = TopKeys::new(50);
        for turn in 0..20_000_u64 {
            top.add(turn % 10, || format!("often {}", turn % 10), 1, 0);
            top.add(1_000 + turn, || format!("once {turn}"), 1, 0);
        }
        assert!(top.known().0 <= 100);
        let found = top.top(10);
        for (place, key) in found.iter().enumerate() {
            assert!(key.key.starts_with("often"), "{place}: {key:?}");
            assert!(key.count + key.doubt >= 2_000 && key.count <= 2_000, "{key:?}");
        }
    }

    #[test]
    fn without_a_flood_every_count_is_exact() {
        let mut top = TopKeys::new(50);
        for turn in 0..1_000_u64 {
            top.add(turn % 40, || (turn % 40).to_string(), 1, turn);
        }
        assert!(top.top(100).iter().all(|key| key.count == 25 && key.doubt == 0));
        assert_eq!(top.top(100).len(), 40);
    }
}
