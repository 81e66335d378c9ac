//! Which servers are not to be called, and until when.

use std::{
    collections::{HashMap, hash_map::RandomState},
    hash::BuildHasher,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tidegate_core::Micros;

/// Servers by their fingerprints, so that no name takes more room than another.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    until: Mutex<HashMap<u64, Micros>>,
    hasher: RandomState,
}

impl Hosts {
    /// When this server may be called again, if that is not now.
    pub(super) fn until(&self, server: &str, now: Micros) -> Option<Micros> {
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

    /// A server is not to be called until then. What it said before holds as well. Where there is no room, whoever can
    /// be called again first is forgotten.
    pub(super) fn note(&self, server: &str, until: Micros, now: Micros, places: usize) {
        let fingerprint = self.hasher.hash_one(server);
        let mut hosts = self.lock();
        if let Some(known) = hosts.get_mut(&fingerprint) {
            *known = until.max(*known);
            return;
        }
        if hosts.len() >= places {
            hosts.retain(|_, until| *until > now);
        }
        if hosts.len() >= places {
            let first = hosts.iter().min_by_key(|(_, until)| **until).map(|(host, until)| (*host, *until));
            match first {
                Some((first, earlier)) if earlier < until => hosts.remove(&first),
                _ => return,
            };
        }
        hosts.insert(fingerprint, until);
    }

    /// How many are remembered.
    pub(super) fn kept(&self) -> usize {
        self.lock().len()
    }

    pub(super) fn forget(&self, server: &str) {
        let fingerprint = self.hasher.hash_one(server);
        self.lock().remove(&fingerprint);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Micros>> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Micros = Micros::ZERO;

    #[test]
    fn the_first_to_be_free_is_forgotten_first() {
        let hosts = Hosts::default();
        for (host, until) in [("a", 5), ("b", 3), ("c", 9)] {
            hosts.note(host, Micros::from_secs(until), NOW, 2);
        }
        assert_eq!(hosts.kept(), 2);
        assert_eq!(hosts.until("b", NOW), None);
        hosts.note("d", Micros::from_secs(1), NOW, 2);
        assert_eq!(hosts.until("d", NOW), None, "it would be the first to be forgotten");
        assert_eq!(hosts.until("a", NOW), Some(Micros::from_secs(5)));
    }

    #[test]
    fn what_is_over_makes_room() {
        let hosts = Hosts::default();
        hosts.note("a", Micros::from_secs(5), NOW, 1);
        hosts.note("b", Micros::from_secs(6), Micros::from_secs(5), 1);
        assert_eq!(hosts.until("b", Micros::from_secs(5)), Some(Micros::from_secs(6)));
        assert_eq!(hosts.until("b", Micros::from_secs(6)), None);
        assert_eq!(hosts.kept(), 0);
    }

    #[test]
    fn a_shorter_word_does_not_take_back_a_longer_one() {
        let hosts = Hosts::default();
        hosts.note("a", Micros::from_secs(5), NOW, 1);
        hosts.note("a", Micros::from_secs(2), NOW, 1);
        assert_eq!(hosts.until("a", NOW), Some(Micros::from_secs(5)));
    }
}
