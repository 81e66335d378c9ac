//! The most frequent keys, in a fixed amount of memory.

use foldhash::{HashMap, HashMapExt as _};

/// The space-saving sketch (Metwally, Agrawal, El Abbadi): a new key replaces the key with the lowest count and inherits
/// that count as its possible error. No count is too low, and none is too high by more than its error.
#[derive(Clone, Debug)]
pub struct TopKeys {
    capacity: usize,
    keys: Vec<TopKey>,
    /// The index in `keys`, by hash.
    indexes: HashMap<u64, usize>,
    /// The lowest count when `keys` was last searched for it, and the indexes of the keys that had it. Counts only grow, so
    /// that a key that still has it is still the lowest; a stream of new keys needs one search for many of them.
    lowest: (u64, Vec<usize>),
    total: u64,
}

/// A frequent key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopKey {
    /// The hash that identifies it.
    pub hash: u64,
    /// The key as it is displayed.
    pub name: String,
    /// The highest number of times that it may have been counted.
    pub count: u64,
    /// How much of the count may belong to other keys.
    pub error: u64,
}

impl TopKey {
    /// The lowest number of times that it was counted.
    pub fn min_count(&self) -> u64 {
        self.count - self.error
    }
}

impl TopKeys {
    /// Tracks at most `capacity` keys, and at least one.
    pub fn new(capacity: usize) -> Self {
        let (keys, lowest) = (Vec::new(), (0, Vec::new()));
        Self { capacity: capacity.max(1), keys, indexes: HashMap::new(), lowest, total: 0 }
    }

    /// Adds `weight` to the count of a key. `name` is called only if the key is new.
    pub fn add(&mut self, hash: u64, weight: u64, name: impl FnOnce() -> String) {
        self.total += weight;
        if let Some(index) = self.indexes.get(&hash) {
            self.keys[*index].count += weight;
            return;
        }
        if self.keys.len() < self.capacity {
            self.indexes.insert(hash, self.keys.len());
            self.keys.push(TopKey { hash, name: name(), count: weight, error: 0 });
            return;
        }
        let index = self.take_lowest();
        let replaced = &mut self.keys[index];
        self.indexes.remove(&replaced.hash);
        self.indexes.insert(hash, index);
        *replaced = TopKey { hash, name: name(), count: replaced.count + weight, error: replaced.count };
    }

    /// Adds the counts of another sketch. A key that only one of them tracks may have been counted in the other as often as
    /// its lowest one.
    pub fn merge(&mut self, other: &Self) {
        let (here, there) = (self.highest_untracked(), other.highest_untracked());
        for key in &mut self.keys {
            let same = other.indexes.get(&key.hash).map(|index| &other.keys[*index]);
            let (count, error) = same.map_or((there, there), |same| (same.count, same.error));
            (key.count, key.error) = (key.count + count, key.error + error);
        }
        let missing = other.keys.iter().filter(|key| !self.indexes.contains_key(&key.hash));
        let missing =
            missing.map(|key| TopKey { count: key.count + here, error: key.error + here, ..key.clone() });
        self.keys.extend(missing);
        self.keys.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.name.cmp(&b.name)));
        self.keys.truncate(self.capacity);
        self.indexes = self.keys.iter().enumerate().map(|(index, key)| (key.hash, index)).collect();
        self.lowest = (0, Vec::new());
        self.total += other.total;
    }

    /// The keys by their certain counts, highest first.
    pub fn top(&self) -> Vec<TopKey> {
        let mut top = self.keys.clone();
        top.sort_by(|a, b| b.min_count().cmp(&a.min_count()).then_with(|| a.name.cmp(&b.name)));
        top
    }

    /// The number of keys that are tracked.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The sum of all weights.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The highest count of a key that is not tracked.
    fn highest_untracked(&self) -> u64 {
        let lowest = if self.keys.len() < self.capacity { None } else { self.lowest_count() };
        lowest.unwrap_or(0)
    }

    fn lowest_count(&self) -> Option<u64> {
        self.keys.iter().map(|key| key.count).min()
    }

    /// The index of a key with the lowest count.
    fn take_lowest(&mut self) -> usize {
        loop {
            while let Some(index) = self.lowest.1.pop() {
                if self.keys[index].count == self.lowest.0 {
                    return index;
                }
            }
            let count = self.lowest_count().unwrap_or(0);
            let indexes = self.keys.iter().enumerate().rev().filter(|(_, key)| key.count == count);
            self.lowest = (count, indexes.map(|(index, _)| index).collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const CAPACITY: usize = 128;

    fn count_keys(keys: &[u64]) -> TopKeys {
        let mut top = TopKeys::new(CAPACITY);
        keys.iter().for_each(|key| top.add(*key, 1, || key.to_string()));
        top
    }

    proptest! {
        #[test]
        fn counts_stay_within_error(
            here in proptest::collection::vec(0_u64..400, 0..2_000),
            there in proptest::collection::vec(0_u64..400, 0..2_000),
        ) {
            let mut sketch = count_keys(&here);
            sketch.merge(&count_keys(&there));
            here.iter().for_each(|key| sketch.add(*key, 1, || key.to_string()));
            let mut expected: BTreeMap<u64, u64> = BTreeMap::new();
            here.iter().chain(&there).chain(&here).for_each(|key| *expected.entry(*key).or_default() += 1);
            prop_assert_eq!(sketch.total(), (here.len() * 2 + there.len()) as u64);
            let top = sketch.top();
            prop_assert!(top.len() <= CAPACITY);
            for key in &top {
                let exact = expected.get(&key.hash).copied().unwrap_or(0);
                prop_assert!(exact <= key.count && key.min_count() <= exact, "{key:?} {exact}");
            }
        }
    }

    #[test]
    fn most_frequent_key_is_found_among_many() {
        let mut keys: Vec<u64> = (1_000..11_000).collect();
        (0..keys.len()).step_by(20).for_each(|index| keys.insert(index, 7));
        assert_eq!(count_keys(&keys).top()[0].name, "7");
    }

    /// Ten keys are frequent, and every other key occurs once.
    #[test]
    fn flood_keeps_frequent_keys() {
        let mut top = TopKeys::new(100);
        for number in 0..20_000_u64 {
            top.add(number % 10, 1, || format!("often {}", number % 10));
            top.add(1_000 + number, 1, || format!("once {number}"));
        }
        assert!(top.len() <= 100);
        for (rank, key) in top.top().iter().take(10).enumerate() {
            assert!(key.name.starts_with("often"), "{rank}: {key:?}");
            assert!(key.count >= 2_000 && key.min_count() <= 2_000, "{key:?}");
        }
    }

    #[test]
    fn counts_are_exact_below_capacity() {
        let mut top = TopKeys::new(50);
        for number in 0..1_000_u64 {
            top.add(number % 40, 1, || (number % 40).to_string());
        }
        assert!(top.top().iter().all(|key| key.count == 25 && key.error == 0));
        assert_eq!(top.len(), 40);
    }
}
