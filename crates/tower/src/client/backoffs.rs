//! Servers that must not be called yet, with the end of their backoff.

use std::{
    collections::{HashMap, hash_map::RandomState},
    hash::BuildHasher,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tidegate_core::Micros;

/// Backoffs by the hash of the server name, so that each entry has the same size.
#[derive(Debug, Default)]
pub(super) struct ServerBackoffs {
    blocked_until: Mutex<HashMap<u64, Micros>>,
    hasher: RandomState,
}

impl ServerBackoffs {
    /// Returns the end of the backoff of a server, if it is in the future.
    pub(super) fn blocked_until(&self, server: &str, now: Micros) -> Option<Micros> {
        let mut hosts = self.lock();
        if hosts.is_empty() {
            return None;
        }
        let fingerprint = self.hasher.hash_one(server);
        let until = *hosts.get(&fingerprint)?;
        if until <= now {
            hosts.remove(&fingerprint);
            return None;
        }
        Some(until)
    }

    /// Blocks a server until a time; a longer backoff stays. If the table is full, the entry that expires first is evicted.
    pub(super) fn block(&self, server: &str, until: Micros, now: Micros, capacity: usize) {
        let fingerprint = self.hasher.hash_one(server);
        let mut hosts = self.lock();
        if let Some(known) = hosts.get_mut(&fingerprint) {
            *known = until.max(*known);
            return;
        }
        if hosts.len() >= capacity {
            hosts.retain(|_, until| *until > now);
        }
        if hosts.len() >= capacity {
            let first = hosts.iter().min_by_key(|(_, until)| **until).map(|(host, until)| (*host, *until));
            match first {
                Some((first, earlier)) if earlier < until => hosts.remove(&first),
                _ => return,
            };
        }
        hosts.insert(fingerprint, until);
    }

    /// The number of entries.
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(super) fn remove(&self, server: &str) {
        let fingerprint = self.hasher.hash_one(server);
        self.lock().remove(&fingerprint);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Micros>> {
        self.blocked_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Micros = Micros::ZERO;

    #[test]
    fn earliest_expiry_is_evicted_first() {
        let hosts = ServerBackoffs::default();
        for (host, until) in [("a", 5), ("b", 3), ("c", 9)] {
            hosts.block(host, Micros::from_secs(until), NOW, 2);
        }
        assert_eq!(hosts.len(), 2);
        assert_eq!(hosts.blocked_until("b", NOW), None);
        hosts.block("d", Micros::from_secs(1), NOW, 2);
        assert_eq!(hosts.blocked_until("d", NOW), None, "it would be evicted first");
        assert_eq!(hosts.blocked_until("a", NOW), Some(Micros::from_secs(5)));
    }

    #[test]
    fn expired_entries_are_evicted() {
        let hosts = ServerBackoffs::default();
        hosts.block("a", Micros::from_secs(5), NOW, 1);
        hosts.block("b", Micros::from_secs(6), Micros::from_secs(5), 1);
        assert_eq!(hosts.blocked_until("b", Micros::from_secs(5)), Some(Micros::from_secs(6)));
        assert_eq!(hosts.blocked_until("b", Micros::from_secs(6)), None);
        assert_eq!(hosts.len(), 0);
    }

    #[test]
    fn shorter_backoff_does_not_replace_longer() {
        let hosts = ServerBackoffs::default();
        hosts.block("a", Micros::from_secs(5), NOW, 1);
        hosts.block("a", Micros::from_secs(2), NOW, 1);
        assert_eq!(hosts.blocked_until("a", NOW), Some(Micros::from_secs(5)));
    }
}
