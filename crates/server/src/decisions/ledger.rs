//! What programs hold, until they settle it or it expires.
//!
//! Who holds something may crash, so everything in here has an end. There is no task for each entry: whoever comes by
//! closes what has ended, and so does the gateway, once a second.

use crate::authorization::Caller;
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
    /// Each with who made it.
    held: HashMap<Id, (Caller, T)>,
    /// Places that are kept free.
    kept: usize,
    /// The first to end comes first.
    ends: BTreeSet<Id>,
}

/// Places that are kept free for what is being taken.
pub(crate) struct Room<'a, T> {
    ledger: &'a Ledger<T>,
    places: usize,
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
        let entries = Mutex::new(Entries { held: HashMap::new(), kept: 0, ends: BTreeSet::new() });
        Self { clock, most, close, entries }
    }

    /// Places for so many, before anything is taken that could not be held; `None` if there are not as many.
    pub(crate) fn room(&self, places: usize) -> Option<Room<'_, T>> {
        self.close_ended();
        let mut entries = self.lock();
        let used = entries.held.len() + entries.kept;
        if places > self.most.saturating_sub(used) {
            return None;
        }
        entries.kept += places;
        drop(entries);
        Some(Room { ledger: self, places })
    }

    /// As many as can be held.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Takes it out, for somebody who may settle it.
    pub(crate) fn take(&self, text: &str, caller: &Caller) -> Result<T, Absent> {
        self.close_ended();
        let id = Id::read(text).ok_or(Absent::Unknown)?;
        let mut entries = self.lock();
        let is_theirs = entries.held.get(&id).is_some_and(|(maker, _)| caller.may_settle(maker));
        let taken = if is_theirs { entries.held.remove(&id) } else { None };
        match taken {
            Some((_, value)) => {
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
            ended.extend(entries.held.remove(&id).map(|(_, value)| value));
        }
        drop(entries);
        ended.into_iter().for_each(self.close);
    }

    fn lock(&self) -> MutexGuard<'_, Entries<T>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Room<'_, T> {
    /// Holds this for so long. It is given back where there is no place left, or no name for it.
    pub(crate) fn put(&mut self, value: T, time: Duration, maker: &Caller) -> Result<Entry, T> {
        let expires = Micros::from(time);
        let id = Id::new(self.ledger.clock.now().plus(expires)).filter(|_| self.places > 0);
        let Some(id) = id else { return Err(value) };
        let mut entries = self.ledger.lock();
        self.places -= 1;
        entries.kept = entries.kept.saturating_sub(1);
        entries.ends.insert(id);
        entries.held.insert(id, (maker.clone(), value));
        Ok(Entry { id: id.text(), expires })
    }
}

impl<T> Drop for Room<'_, T> {
    fn drop(&mut self) {
        let mut entries = self.ledger.lock();
        entries.kept = entries.kept.saturating_sub(self.places);
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

        let anybody = Caller::Anonymous;
        let put = |time| ledger.room(1).map(|mut room| room.put(closed.clone(), time, &anybody).unwrap());

        let first = put(minute).unwrap();
        let second = put(minute * 2).unwrap();
        assert_eq!(first.expires, Micros::from_secs(60));
        assert_eq!(put(minute), None, "it is full");

        assert!(ledger.take(&second.id, &anybody).is_ok());
        assert_eq!(ledger.take(&second.id, &anybody).unwrap_err(), Absent::Unknown, "it was settled");
        assert_eq!(closed.load(Ordering::Relaxed), 0);

        hand.advance(minute);
        ledger.close_ended();
        assert_eq!(closed.load(Ordering::Relaxed), 1);
        assert_eq!(ledger.take(&first.id, &anybody).unwrap_err(), Absent::Expired);
        assert!(put(minute).is_some(), "there is room again");
        let kept = ledger.room(1).unwrap();
        assert_eq!(put(minute), None, "the last place is kept for somebody");
        drop(kept);
        assert!(put(minute).is_some());
    }

    #[test]
    fn only_who_made_it_settles_it() {
        let ledger = Ledger::new(Clock::manual().0, 9, drop);
        let put = |maker: &Caller| ledger.room(1).unwrap().put(7, Duration::from_secs(60), maker).unwrap().id;
        let (web, jobs) = (Caller::Program("web".into()), Caller::Program("jobs".into()));
        let held = put(&web);
        for other in [&jobs, &Caller::Operator, &Caller::Anonymous] {
            assert_eq!(ledger.take(&held, other), Err(Absent::Unknown), "{other:?}");
        }
        assert_eq!(ledger.take(&held, &web), Ok(7));
        // Made before tokens were needed.
        assert_eq!(ledger.take(&put(&Caller::Anonymous), &web), Ok(7));
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
