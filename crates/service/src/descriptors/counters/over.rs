//! Keys that are over their limit until a window ends, so that the store need not be asked about them again.

use super::CountedKey;
use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tidegate_core::Micros;
use tidegate_policy::descriptors::CalendarUnit;

/// Keys that are over their limit, in so many bytes; where there is no room, the one whose window ends first goes.
#[derive(Debug)]
pub(crate) struct OverKeys {
    most: u64,
    keys: RwLock<Keys>,
    hits: AtomicU64,
    misses: AtomicU64,
    expired: AtomicU64,
    evacuated: AtomicU64,
    overwritten: AtomicU64,
}

#[derive(Debug, Default)]
struct Keys {
    over: HashMap<Arc<str>, Over>,
    ends: BTreeSet<(Micros, Arc<str>)>,
    bytes: u64,
}

/// Until when, and over which limit: a larger one may have room.
#[derive(Clone, Copy, Debug)]
struct Over {
    ends: Micros,
    limit: u64,
}

/// What a key takes besides its letters, in both of the tables.
const OVERHEAD: u64 = 160;

impl OverKeys {
    pub(crate) fn new(most: u64) -> Self {
        Self {
            most,
            keys: RwLock::default(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            evacuated: AtomicU64::new(0),
            overwritten: AtomicU64::new(0),
        }
    }

    /// When the window ends of a key that is known to be over this limit.
    pub(crate) fn find(
        &self,
        key: CountedKey<'_>,
        unit: CalendarUnit,
        limit: u64,
        now: Micros,
    ) -> Option<Micros> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let over = keys.over.get(name(key, unit).as_str()).copied();
        drop(keys);
        let found = over.filter(|over| over.ends > now && limit <= over.limit).map(|over| over.ends);
        let count = if found.is_some() { &self.hits } else { &self.misses };
        count.fetch_add(1, Relaxed);
        found
    }

    /// Remembers that a key is over this limit.
    pub(crate) fn put(
        &self,
        key: CountedKey<'_>,
        unit: CalendarUnit,
        limit: u64,
        (now, ends): (Micros, Micros),
    ) {
        let name: Arc<str> = name(key, unit).into();
        let size = OVERHEAD.saturating_add(name.len() as u64);
        if size > self.most {
            return;
        }
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        if keys.remove(&name) {
            self.overwritten.fetch_add(1, Relaxed);
        }
        while let Some((end, first)) = keys.ends.first().cloned() {
            let count = match (end <= now, keys.bytes.saturating_add(size) > self.most) {
                (true, _) => &self.expired,
                (false, true) => &self.evacuated,
                (false, false) => break,
            };
            keys.remove(&first);
            count.fetch_add(1, Relaxed);
        }
        keys.bytes += size;
        keys.ends.insert((ends, name.clone()));
        keys.over.insert(name, Over { ends, limit });
    }

    /// Forgets a key.
    pub(crate) fn forget(&self, key: CountedKey<'_>, unit: CalendarUnit) {
        self.keys.write().unwrap_or_else(PoisonError::into_inner).remove(&name(key, unit));
    }

    /// What operators are told, by the names that they know.
    pub(crate) fn gauges(&self) -> [(&'static str, u64); 7] {
        let (hits, misses) = (self.hits.load(Relaxed), self.misses.load(Relaxed));
        let entries = self.keys.read().unwrap_or_else(PoisonError::into_inner).over.len() as u64;
        [
            ("entryCount", entries),
            ("evacuateCount", self.evacuated.load(Relaxed)),
            ("expiredCount", self.expired.load(Relaxed)),
            ("hitCount", hits),
            ("lookupCount", hits + misses),
            ("missCount", misses),
            ("overwriteCount", self.overwritten.load(Relaxed)),
        ]
    }
}

impl Keys {
    /// Whether there was one.
    fn remove(&mut self, name: &str) -> bool {
        let Some((name, over)) = self.over.remove_entry(name) else { return false };
        self.bytes = self.bytes.saturating_sub(OVERHEAD.saturating_add(name.len() as u64));
        self.ends.remove(&(over.ends, name));
        true
    }
}

fn name(key: CountedKey<'_>, unit: CalendarUnit) -> String {
    format!("{}/{key}", unit.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_policy::descriptors::DescriptorEntry;

    #[test]
    fn a_key_is_over_until_its_window_ends_and_only_for_limits_that_are_not_larger() {
        let entries = |value: &str| vec![DescriptorEntry { key: "user".to_owned(), value: value.to_owned() }];
        let (alice, bob, carol) = (entries("alice"), entries("bob"), entries("carol"));
        let key = |entries| CountedKey { domain: "shop", entries };
        let at = Micros::from_secs;
        let (minute, second) = (CalendarUnit::Minute, CalendarUnit::Second);
        // Room for two.
        let over = OverKeys::new(2 * (OVERHEAD + 40));

        over.put(key(&alice), minute, 5, (at(1), at(60)));
        assert_eq!(over.find(key(&alice), minute, 5, at(59)), Some(at(60)));
        assert_eq!(over.find(key(&alice), minute, 4, at(59)), Some(at(60)));
        for (entries, unit, limit, now) in
            [(&alice, minute, 6, 59), (&alice, second, 5, 59), (&bob, minute, 5, 59), (&alice, minute, 5, 60)]
        {
            assert_eq!(over.find(key(entries), unit, limit, at(now)), None);
        }

        over.put(key(&bob), minute, 5, (at(2), at(50)));
        over.put(key(&bob), minute, 5, (at(2), at(55)));
        over.put(key(&carol), minute, 5, (at(3), at(70)));
        assert_eq!(over.find(key(&bob), minute, 5, at(3)), None, "the first to end had to go");
        over.put(key(&bob), minute, 5, (at(65), at(120)));
        over.forget(key(&carol), minute);
        assert_eq!(over.find(key(&carol), minute, 5, at(66)), None);
        let told = [
            ("entryCount", 1),
            ("evacuateCount", 1),
            ("expiredCount", 1),
            ("hitCount", 2),
            ("lookupCount", 8),
            ("missCount", 6),
            ("overwriteCount", 1),
        ];
        assert_eq!(over.gauges(), told);
    }
}
