//! Which keys were seen most, in a fixed amount of memory.
//!
//! The space-saving sketch (Metwally, Agrawal, El Abbadi): a newcomer takes the place, and the count, of the key that was
//! seen least. A count is never too low, and too high by no more than its error.

/// Which keys were seen most.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sketch {
    seen: Vec<SeenKey>,
    /// All that was counted.
    total: u64,
}

/// A key that was seen often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenKey {
    hash: u64,
    /// What operators are shown of it.
    pub(crate) name: String,
    /// At most so often.
    pub(crate) count: u64,
    /// By how much that may be too high.
    pub(crate) error: u64,
}

/// Keys that are known at a time.
pub(crate) const PLACES: usize = 128;

impl Sketch {
    /// A key was seen, so often.
    pub(crate) fn note(&mut self, hash: u64, weight: u64, name: impl FnOnce() -> String) {
        self.total += weight;
        if let Some(known) = self.seen.iter_mut().find(|known| known.hash == hash) {
            known.count += weight;
            return;
        }
        if self.seen.len() < PLACES {
            self.seen.push(SeenKey { hash, name: name(), count: weight, error: 0 });
            return;
        }
        if let Some(least) = self.seen.iter_mut().min_by_key(|known| known.count) {
            *least = SeenKey { hash, name: name(), count: least.count + weight, error: least.count };
        }
    }

    /// Adds what another one has seen. A key that one of them does not know may have been seen there as often as the one that
    /// it knows least of.
    pub(crate) fn absorb(&mut self, other: &Self) {
        let (here, there) = (self.floor(), other.floor());
        let mut sum = Vec::with_capacity(self.seen.len() + other.seen.len());
        for known in &self.seen {
            let same = other.seen.iter().find(|same| same.hash == known.hash);
            let (count, error) = same.map_or((there, there), |same| (same.count, same.error));
            sum.push(SeenKey { count: known.count + count, error: known.error + error, ..known.clone() });
        }
        for known in &other.seen {
            if !self.seen.iter().any(|same| same.hash == known.hash) {
                sum.push(SeenKey { count: known.count + here, error: known.error + here, ..known.clone() });
            }
        }
        sum.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.name.cmp(&b.name)));
        sum.truncate(PLACES);
        (self.seen, self.total) = (sum, self.total + other.total);
    }

    /// The keys that were seen most, most first.
    pub(crate) fn top(&self) -> Vec<SeenKey> {
        let mut top = self.seen.clone();
        top.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.name.cmp(&b.name)));
        top
    }

    /// All that was counted.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// How often a key may have been seen that is not known.
    fn floor(&self) -> u64 {
        match self.seen.len() < PLACES {
            true => 0,
            false => self.seen.iter().map(|known| known.count).min().unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn seen(keys: &[u64]) -> Sketch {
        let mut sketch = Sketch::default();
        keys.iter().for_each(|key| sketch.note(*key, 1, || key.to_string()));
        sketch
    }

    proptest! {
        #[test]
        fn counts_are_within_their_error_however_many_keys_there_are(
            here in proptest::collection::vec(0_u64..400, 0..2_000),
            there in proptest::collection::vec(0_u64..400, 0..2_000),
        ) {
            let mut sketch = seen(&here);
            sketch.absorb(&seen(&there));
            let mut truth: BTreeMap<u64, u64> = BTreeMap::new();
            here.iter().chain(&there).for_each(|key| *truth.entry(*key).or_default() += 1);
            prop_assert_eq!(sketch.total(), (here.len() + there.len()) as u64);
            let top = sketch.top();
            prop_assert!(top.len() <= PLACES);
            for known in &top {
                let often = truth.get(&known.hash).copied().unwrap_or(0);
                prop_assert!(often <= known.count && known.count - known.error <= often, "{known:?} {often}");
            }
        }
    }

    #[test]
    fn who_comes_most_is_found_in_a_crowd() {
        let mut keys: Vec<u64> = (1_000..11_000).collect();
        (0..keys.len()).step_by(20).for_each(|place| keys.insert(place, 7));
        assert_eq!(seen(&keys).top()[0].name, "7");
    }
}
