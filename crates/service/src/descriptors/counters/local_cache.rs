//! Caches keys that are over their limit until the window ends, to avoid requests to the store.

use super::DescriptorKey;
use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tidegate_core::Micros;
use tidegate_policy::descriptors::CalendarUnit;

/// A cache of keys that are over their limit, bounded in bytes. It evicts the key whose window ends first.
#[derive(Debug)]
pub(crate) struct LocalCache {
    max_bytes: u64,
    keys: RwLock<CacheEntries>,
    hits: AtomicU64,
    misses: AtomicU64,
    expired: AtomicU64,
    evicted: AtomicU64,
    overwritten: AtomicU64,
}

#[derive(Debug, Default)]
struct CacheEntries {
    entries: HashMap<Arc<str>, CacheEntry>,
    expiry: BTreeSet<(Micros, Arc<str>)>,
    bytes: u64,
}

/// When the entry expires, and the limit that the key exceeds: a larger limit may have capacity.
#[derive(Clone, Copy, Debug)]
struct CacheEntry {
    expires_at: Micros,
    limit: u64,
}

/// The size of an entry in both tables, without the bytes of its key.
const ENTRY_OVERHEAD: u64 = 160;

impl LocalCache {
    pub(crate) fn new(max_bytes: u64) -> Self {
        Self {
            max_bytes,
            keys: RwLock::default(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            overwritten: AtomicU64::new(0),
        }
    }

    /// Returns the end of the window if the key is cached as over this limit.
    pub(crate) fn find(
        &self,
        key: DescriptorKey<'_>,
        unit: CalendarUnit,
        limit: u64,
        now: Micros,
    ) -> Option<Micros> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let over = keys.entries.get(cache_key(key, unit).as_str()).copied();
        drop(keys);
        let found =
            over.filter(|over| over.expires_at > now && limit <= over.limit).map(|over| over.expires_at);
        let count = if found.is_some() { &self.hits } else { &self.misses };
        count.fetch_add(1, Relaxed);
        found
    }

    /// Caches that a key is over this limit.
    pub(crate) fn insert(
        &self,
        key: DescriptorKey<'_>,
        unit: CalendarUnit,
        limit: u64,
        (now, ends): (Micros, Micros),
    ) {
        let name: Arc<str> = cache_key(key, unit).into();
        let size = ENTRY_OVERHEAD.saturating_add(name.len() as u64);
        if size > self.max_bytes {
            return;
        }
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        if keys.remove(&name) {
            self.overwritten.fetch_add(1, Relaxed);
        }
        while let Some((end, first)) = keys.expiry.first().cloned() {
            let count = match (end <= now, keys.bytes.saturating_add(size) > self.max_bytes) {
                (true, _) => &self.expired,
                (false, true) => &self.evicted,
                (false, false) => break,
            };
            keys.remove(&first);
            count.fetch_add(1, Relaxed);
        }
        keys.bytes += size;
        keys.expiry.insert((ends, name.clone()));
        keys.entries.insert(name, CacheEntry { expires_at: ends, limit });
    }

    /// Removes a key.
    pub(crate) fn remove(&self, key: DescriptorKey<'_>, unit: CalendarUnit) {
        self.keys.write().unwrap_or_else(PoisonError::into_inner).remove(&cache_key(key, unit));
    }

    /// The statistics, under the names of envoyproxy/ratelimit.
    pub(crate) fn stats(&self) -> [(&'static str, u64); 7] {
        let (hits, misses) = (self.hits.load(Relaxed), self.misses.load(Relaxed));
        let entries = self.keys.read().unwrap_or_else(PoisonError::into_inner).entries.len() as u64;
        [
            ("entryCount", entries),
            ("evacuateCount", self.evicted.load(Relaxed)),
            ("expiredCount", self.expired.load(Relaxed)),
            ("hitCount", hits),
            ("lookupCount", hits + misses),
            ("missCount", misses),
            ("overwriteCount", self.overwritten.load(Relaxed)),
        ]
    }
}

impl CacheEntries {
    /// Removes an entry; returns whether it existed.
    fn remove(&mut self, name: &str) -> bool {
        let Some((name, over)) = self.entries.remove_entry(name) else { return false };
        self.bytes = self.bytes.saturating_sub(ENTRY_OVERHEAD.saturating_add(name.len() as u64));
        self.expiry.remove(&(over.expires_at, name));
        true
    }
}

fn cache_key(key: DescriptorKey<'_>, unit: CalendarUnit) -> String {
    format!("{}/{key}", unit.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_policy::descriptors::DescriptorEntry;

    #[test]
    fn key_is_cached_until_its_window_ends() {
        let entries = |value: &str| vec![DescriptorEntry { key: "user".to_owned(), value: value.to_owned() }];
        let (alice, bob, carol) = (entries("alice"), entries("bob"), entries("carol"));
        let key = |entries| DescriptorKey { domain: "shop", entries };
        let at = Micros::from_secs;
        let (minute, second) = (CalendarUnit::Minute, CalendarUnit::Second);
        // Capacity for two keys.
        let over = LocalCache::new(2 * (ENTRY_OVERHEAD + 40));

        over.insert(key(&alice), minute, 5, (at(1), at(60)));
        assert_eq!(over.find(key(&alice), minute, 5, at(59)), Some(at(60)));
        assert_eq!(over.find(key(&alice), minute, 4, at(59)), Some(at(60)));
        for (entries, unit, limit, now) in
            [(&alice, minute, 6, 59), (&alice, second, 5, 59), (&bob, minute, 5, 59), (&alice, minute, 5, 60)]
        {
            assert_eq!(over.find(key(entries), unit, limit, at(now)), None);
        }

        over.insert(key(&bob), minute, 5, (at(2), at(50)));
        over.insert(key(&bob), minute, 5, (at(2), at(55)));
        over.insert(key(&carol), minute, 5, (at(3), at(70)));
        assert_eq!(over.find(key(&bob), minute, 5, at(3)), None, "the first key to expire is evicted");
        over.insert(key(&bob), minute, 5, (at(65), at(120)));
        over.remove(key(&carol), minute);
        assert_eq!(over.find(key(&carol), minute, 5, at(66)), None);
        let expected = [
            ("entryCount", 1),
            ("evacuateCount", 1),
            ("expiredCount", 1),
            ("hitCount", 2),
            ("lookupCount", 8),
            ("missCount", 6),
            ("overwriteCount", 1),
        ];
        assert_eq!(over.stats(), expected);
    }
}
