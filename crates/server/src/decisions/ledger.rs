//! What programs hold, until they settle it or it expires.
//!
//! Who holds something may crash, so everything in here has an end. There is no task for each entry: whoever comes by
//! closes what has ended, and so does the gateway, once a second.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tidegate_core::Micros;
use tidegate_engine::Clock;
use tokio_rustls::rustls::crypto::ring;

/// What programs hold, by a name that cannot be guessed.
pub(crate) struct Ledger<T> {
    clock: Clock,
    most: usize,
    /// What becomes of what nobody has settled.
    close: fn(T),
    entries: Mutex<Entries<T>>,
}

struct Entries<T> {
    held: HashMap<Id, T>,
    /// The first to end comes first.
    ends: BTreeSet<Id>,
}

/// When it ends, and a number that cannot be guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Id {
    end: Micros,
    secret: u128,
}

/// What was put into a ledger.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) id: String,
    /// How long it is held.
    pub(crate) expires: Micros,
}

/// Why there is nothing under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// It would have ended by now, if it was ever there.
    Expired,
    /// It was settled already, or never there.
    Unknown,
}

impl<T> Ledger<T> {
    pub(crate) fn new(clock: Clock, most: usize, close: fn(T)) -> Self {
        let entries = Mutex::new(Entries { held: HashMap::new(), ends: BTreeSet::new() });
        Self { clock, most, close, entries }
    }

    /// Holds this for so long; gives it back if there is no room.
    pub(crate) fn put(&self, value: T, time: Duration) -> Result<Entry, T> {
        self.close_ended();
        let expires = Micros::from(time);
        let Some(id) = Id::new(self.clock.now().plus(expires)) else { return Err(value) };
        let mut entries = self.lock();
        if entries.held.len() >= self.most {
            return Err(value);
        }
        entries.ends.insert(id);
        entries.held.insert(id, value);
        Ok(Entry { id: id.text(), expires })
    }

    /// Takes it out.
    pub(crate) fn take(&self, text: &str) -> Result<T, Absent> {
        self.close_ended();
        let id = Id::read(text).ok_or(Absent::Unknown)?;
        let mut entries = self.lock();
        match entries.held.remove(&id) {
            Some(value) => {
                entries.ends.remove(&id);
                Ok(value)
            }
            None if id.end <= self.clock.now() => Err(Absent::Expired),
            None => Err(Absent::Unknown),
        }
    }

    /// Closes what has ended.
    pub(crate) fn close_ended(&self) {
        let now = self.clock.now();
        let mut entries = self.lock();
        let mut ended = Vec::new();
        while let Some(id) = entries.ends.first().copied().filter(|id| id.end <= now) {
            entries.ends.remove(&id);
            ended.extend(entries.held.remove(&id));
        }
        drop(entries);
        ended.into_iter().for_each(self.close);
    }

    fn lock(&self) -> MutexGuard<'_, Entries<T>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Id {
    /// `None` where the machine has no numbers that cannot be guessed.
    fn new(end: Micros) -> Option<Self> {
        let mut secret = [0; 16];
        ring::default_provider().secure_random.fill(&mut secret).ok()?;
        Some(Self { end, secret: u128::from_be_bytes(secret) })
    }

    fn text(self) -> String {
        format!("{:x}-{:032x}", self.end.get(), self.secret)
    }

    fn read(text: &str) -> Option<Self> {
        let (end, secret) = text.split_once('-')?;
        let id = Self {
            end: Micros::new(u64::from_str_radix(end, 16).ok()?),
            secret: u128::from_str_radix(secret, 16).ok()?,
        };
        // There is one way to write it.
        (id.text() == text).then_some(id)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a story ends where it goes wrong")]
mod tests {
    use super::*;
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    };

    /// Counts how often it was closed.
    type Count = Arc<AtomicU64>;

    #[allow(clippy::needless_pass_by_value, reason = "this is how a ledger closes")]
    fn close(count: Count) {
        count.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn what_is_held_is_settled_once_or_ends() {
        let (clock, hand) = Clock::manual();
        let (ledger, closed) = (Ledger::new(clock, 2, close), Count::default());
        let minute = Duration::from_secs(60);

        let first = ledger.put(closed.clone(), minute).unwrap();
        let second = ledger.put(closed.clone(), minute * 2).unwrap();
        assert_eq!(first.expires, Micros::from_secs(60));
        assert!(ledger.put(closed.clone(), minute).is_err(), "it is full");

        assert!(ledger.take(&second.id).is_ok());
        assert_eq!(ledger.take(&second.id).unwrap_err(), Absent::Unknown, "it was settled");
        assert_eq!(closed.load(Ordering::Relaxed), 0);

        hand.advance(minute);
        ledger.close_ended();
        assert_eq!(closed.load(Ordering::Relaxed), 1);
        assert_eq!(ledger.take(&first.id).unwrap_err(), Absent::Expired);
        assert!(ledger.put(closed.clone(), minute).is_ok(), "there is room again");
        assert!(ledger.put(closed, minute).is_ok());
    }

    #[test]
    fn a_name_is_written_in_one_way() {
        let id = Id { end: Micros::new(0x5f), secret: 7 };
        assert_eq!(Id::read(&id.text()), Some(id));
        for other in ["", "-", "5f", "5f-7", "5F-00000000000000000000000000000007", "+5f-7", "x-y"] {
            assert_eq!(Id::read(other), None, "{other}");
        }
    }
}
