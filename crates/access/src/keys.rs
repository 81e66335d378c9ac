//! Keys of a list, kept exactly: all texts in one piece of memory, found by a seeded hash.

use std::hash::BuildHasher;

/// A set of texts, each with an answer. Built once, and half empty at most.
#[derive(Debug, Default)]
pub(super) struct KeySet {
    hasher: foldhash::quality::RandomState,
    /// Numbers of entries from one, zero where there is none. A power of two long.
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
    /// Keeps keys of which none comes twice.
    pub(super) fn new<'a>(keys: impl ExactSizeIterator<Item = (&'a str, u8)>) -> Self {
        if keys.len() == 0 {
            return Self::default();
        }
        let slots = vec![0; (keys.len() * 2).next_power_of_two()];
        let mut it = Self { slots: slots.into(), ..Self::default() };
        let (mut entries, mut text) = (Vec::with_capacity(keys.len()), String::new());
        for (key, answer) in keys {
            let length = u32::try_from(key.len()).unwrap_or(u32::MAX);
            entries.push(KeyEntry { start: text.len(), length, code: answer });
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

    /// The answer for a key; 0 if it is not here.
    pub(super) fn code(&self, key: &str) -> u8 {
        for slot in self.probe(key) {
            let number = self.slots.get(slot).copied().unwrap_or(0) as usize;
            let Some(place) = number.checked_sub(1).and_then(|number| self.entries.get(number)) else {
                return 0;
            };
            if self.text.get(place.start..place.start + place.length as usize) == Some(key) {
                return place.code;
            }
        }
        0
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.slots) + size_of_val(&*self.entries) + self.text.len()
    }

    /// The slots in which a key may be, likeliest first.
    fn probe(&self, key: &str) -> impl Iterator<Item = usize> + use<> {
        let (count, hash) = (self.slots.len(), self.hasher.hash_one(key) as usize);
        (0..count).map(move |step| hash.wrapping_add(step) & (count - 1))
    }
}
