//! The keys of a list: all texts in one allocation, found by a seeded hash.

use std::hash::BuildHasher;

/// A set of texts with a code each. It is built once and at most half full.
#[derive(Debug, Default)]
pub(super) struct KeySet {
    hasher: foldhash::quality::RandomState,
    /// Entry numbers from one, or zero for an empty slot. The length is a power of two.
    slots: Box<[u32]>,
    entries: Box<[KeyEntry]>,
    text: Box<str>,
}

#[derive(Clone, Copy, Debug)]
struct KeyEntry {
    start: usize,
    length: u32,
    code: u8,
}

impl KeySet {
    /// Stores keys without duplicates.
    pub(super) fn new<'a>(keys: impl ExactSizeIterator<Item = (&'a str, u8)>) -> Self {
        if keys.len() == 0 {
            return Self::default();
        }
        let slots = vec![0; (keys.len() * 2).next_power_of_two()];
        let mut it = Self { slots: slots.into(), ..Self::default() };
        let (mut entries, mut text) = (Vec::with_capacity(keys.len()), String::new());
        for (key, code) in keys {
            let length = u32::try_from(key.len()).unwrap_or(u32::MAX);
            entries.push(KeyEntry { start: text.len(), length, code });
            text.push_str(key);
            let number = u32::try_from(entries.len()).unwrap_or(u32::MAX);
            let free = it.probe(key).find(|slot| it.slots.get(*slot) == Some(&0));
            if let Some(slot) = free.and_then(|slot| it.slots.get_mut(slot)) {
                *slot = number;
            }
        }
        (it.entries, it.text) = (entries.into(), text.into());
        it
    }

    /// The code of a key; 0 if it is not in the set.
    pub(super) fn code(&self, key: &str) -> u8 {
        for slot in self.probe(key) {
            let number = self.slots.get(slot).copied().unwrap_or(0) as usize;
            let Some(entry) = number.checked_sub(1).and_then(|number| self.entries.get(number)) else {
                return 0;
            };
            if self.text.get(entry.start..entry.start + entry.length as usize) == Some(key) {
                return entry.code;
            }
        }
        0
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.slots) + size_of_val(&*self.entries) + self.text.len()
    }

    /// The slots to probe for a key, in order.
    fn probe(&self, key: &str) -> impl Iterator<Item = usize> + use<> {
        let (count, hash) = (self.slots.len(), self.hasher.hash_one(key) as usize);
        (0..count).map(move |step| hash.wrapping_add(step) & (count - 1))
    }
}
