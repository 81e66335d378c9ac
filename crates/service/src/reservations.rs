//! What callers hold until they settle it or it expires: reservations and permits.
//!
//! A caller may crash, so every entry expires. There is no task per entry: every operation closes expired entries, and a
//! timer does so once a second.

use http::{HeaderValue, StatusCode, header};
use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tidegate_core::Micros;
use tidegate_http_server::{ApiError, Caller};
use tidegate_limiter::Clock;
use tokio_rustls::rustls::crypto::ring;

/// Values by an id that cannot be guessed.
pub(crate) struct Reservations<T> {
    clock: Clock,
    capacity: usize,
    kind: EntryKind,
    /// What happens to an expired value.
    expire: fn(T),
    entries: Mutex<Entries<T>>,
}

/// What the entries are, for error messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    /// Charged when it expires.
    Reservation,
    /// Released when it expires.
    Permit,
}

struct Entries<T> {
    /// Each with its owner.
    values: HashMap<Id, (Caller, T)>,
    /// Slots that are not filled yet.
    reserved_slots: usize,
    /// The next to expire comes first.
    expiry: BTreeSet<Id>,
}

/// Space for entries, taken before what they are to hold is.
pub(crate) struct Slots<'a, T> {
    reservations: &'a Reservations<T>,
    count: usize,
}

/// The time at which it expires, and a random number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Id {
    end: Micros,
    secret: u128,
}

/// A new entry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) id: String,
    pub(crate) expires_after: Micros,
}

/// The number of entries of each kind.
pub(crate) const CAPACITY: usize = 100_000;
pub(crate) const DEFAULT_EXPIRY: Duration = Duration::from_secs(60);
pub(crate) const MAX_EXPIRY: Duration = Duration::from_secs(3_600);

impl<T> Reservations<T> {
    pub(crate) fn new(clock: Clock, capacity: usize, kind: EntryKind, expire: fn(T)) -> Self {
        let entries = Entries { values: HashMap::new(), reserved_slots: 0, expiry: BTreeSet::new() };
        Self { clock, capacity, kind, expire, entries: Mutex::new(entries) }
    }

    /// Takes slots; 503 if there are not as many.
    pub(crate) fn slots(&self, count: usize) -> Result<Slots<'_, T>, ApiError> {
        self.close_expired();
        let mut entries = self.lock();
        let used = entries.values.len() + entries.reserved_slots;
        if count > self.capacity.saturating_sub(used) {
            return Err(self.full());
        }
        entries.reserved_slots += count;
        drop(entries);
        Ok(Slots { reservations: self, count })
    }

    pub(crate) fn full(&self) -> ApiError {
        let detail = format!(
            "there is no room beside what is held already, {} at most; settle some, or let them expire sooner",
            self.capacity
        );
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, detail)
            .with(header::RETRY_AFTER, HeaderValue::from_static("1"))
    }

    /// Removes an entry of this caller; 410 if it has expired, 404 if there is none.
    pub(crate) fn take(&self, text: &str, caller: &Caller) -> Result<T, ApiError> {
        self.close_expired();
        let Some(id) = Id::parse(text) else { return Err(self.unknown()) };
        let mut entries = self.lock();
        let may_settle = entries.values.get(&id).is_some_and(|(owner, _)| caller.may_settle(owner));
        let taken = if may_settle { entries.values.remove(&id) } else { None };
        match taken {
            Some((_, value)) => {
                entries.expiry.remove(&id);
                Ok(value)
            }
            None if id.end <= self.clock.now() => Err(self.expired()),
            None => Err(self.unknown()),
        }
    }

    fn expired(&self) -> ApiError {
        let detail = match self.kind {
            EntryKind::Reservation => {
                "this reservation has expired, and was charged; ask for longer with `expires`"
            }
            EntryKind::Permit => "this permit has expired, and was given back; ask for longer with `expires`",
        };
        ApiError::new(StatusCode::GONE, detail)
    }

    fn unknown(&self) -> ApiError {
        let detail = match self.kind {
            EntryKind::Reservation => {
                "there is no such reservation of yours; it was settled already, or never made here"
            }
            EntryKind::Permit => {
                "there is no such permit of yours; it was settled already, or never made here"
            }
        };
        ApiError::new(StatusCode::NOT_FOUND, detail)
    }

    /// Closes what has expired; to be called every second or so.
    pub(crate) fn close_expired(&self) {
        let now = self.clock.now();
        let mut entries = self.lock();
        let mut expired = Vec::new();
        while let Some(id) = entries.expiry.first().copied().filter(|id| id.end <= now) {
            entries.expiry.remove(&id);
            expired.extend(entries.values.remove(&id).map(|(_, value)| value));
        }
        drop(entries);
        expired.into_iter().for_each(self.expire);
    }

    fn lock(&self) -> MutexGuard<'_, Entries<T>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Slots<'_, T> {
    /// Fills a slot. Returns the value if no slot is left, or the machine has no random numbers.
    pub(crate) fn fill(&mut self, value: T, expiry: Duration, owner: &Caller) -> Result<Entry, T> {
        let expires_after = Micros::from(expiry);
        let id = Id::new(self.reservations.clock.now().plus(expires_after)).filter(|_| self.count > 0);
        let Some(id) = id else { return Err(value) };
        let mut entries = self.reservations.lock();
        self.count -= 1;
        entries.reserved_slots = entries.reserved_slots.saturating_sub(1);
        entries.expiry.insert(id);
        entries.values.insert(id, (owner.clone(), value));
        Ok(Entry { id: id.text(), expires_after })
    }
}

impl<T> Drop for Slots<'_, T> {
    fn drop(&mut self) {
        let mut entries = self.reservations.lock();
        entries.reserved_slots = entries.reserved_slots.saturating_sub(self.count);
    }
}

impl Id {
    /// `None` if the machine has no random numbers.
    fn new(end: Micros) -> Option<Self> {
        let mut secret = [0; 16];
        ring::default_provider().secure_random.fill(&mut secret).ok()?;
        Some(Self { end, secret: u128::from_be_bytes(secret) })
    }

    fn text(self) -> String {
        format!("{:x}-{:032x}", self.end.get(), self.secret)
    }

    fn parse(text: &str) -> Option<Self> {
        let (end, secret) = text.split_once('-')?;
        let id = Self {
            end: Micros::new(u64::from_str_radix(end, 16).ok()?),
            secret: u128::from_str_radix(secret, 16).ok()?,
        };
        // An id has one spelling.
        (id.text() == text).then_some(id)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed step fails the test")]
mod tests {
    use super::*;
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    };

    /// Counts how often it expired.
    type Count = Arc<AtomicU64>;

    #[allow(clippy::needless_pass_by_value, reason = "the signature of `expire`")]
    fn expire(count: Count) {
        count.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn entry_is_settled_once_or_expires() {
        let (clock, hand) = Clock::manual();
        let reservations = Reservations::new(clock, 2, EntryKind::Reservation, expire);
        let (expired, minute) = (Count::default(), Duration::from_secs(60));

        let anonymous = Caller::Anonymous;
        let put = |time| {
            let slots = reservations.slots(1).ok();
            slots.map(|mut slots| slots.fill(expired.clone(), time, &anonymous).unwrap())
        };
        let status = |id: &str| reservations.take(id, &anonymous).map_err(|error| error.status).unwrap_err();

        let first = put(minute).unwrap();
        let second = put(minute * 2).unwrap();
        assert_eq!(first.expires_after, Micros::from_secs(60));
        assert_eq!(put(minute), None, "it is full");

        assert!(reservations.take(&second.id, &anonymous).is_ok());
        assert_eq!(status(&second.id), StatusCode::NOT_FOUND, "it was settled");
        assert_eq!(expired.load(Ordering::Relaxed), 0);

        hand.advance(minute);
        reservations.close_expired();
        assert_eq!(expired.load(Ordering::Relaxed), 1);
        assert_eq!(status(&first.id), StatusCode::GONE);
        assert!(put(minute).is_some(), "a slot is free again");
        let slots = reservations.slots(1).unwrap();
        assert_eq!(put(minute), None, "the last slot is taken");
        drop(slots);
        assert!(put(minute).is_some());
    }

    #[test]
    fn only_owner_settles_entry() {
        let reservations = Reservations::new(Clock::manual().0, 9, EntryKind::Permit, drop);
        let put = |owner: &Caller| {
            let mut slots = reservations.slots(1).unwrap();
            slots.fill(7, Duration::from_secs(60), owner).unwrap().id
        };
        let take = |id: &str, caller: &Caller| reservations.take(id, caller).map_err(|error| error.status);
        let (web, jobs) = (Caller::Program("web".into()), Caller::Program("jobs".into()));
        let id = put(&web);
        for other in [&jobs, &Caller::Operator, &Caller::Anonymous] {
            assert_eq!(take(&id, other), Err(StatusCode::NOT_FOUND), "{other:?}");
        }
        assert_eq!(take(&id, &web), Ok(7));
        // Made before tokens were required.
        assert_eq!(take(&put(&Caller::Anonymous), &web), Ok(7));
    }

    #[test]
    fn id_has_one_spelling() {
        let id = Id { end: Micros::new(0x5f), secret: 7 };
        assert_eq!(Id::parse(&id.text()), Some(id));
        for other in ["", "-", "5f", "5f-7", "5F-00000000000000000000000000000007", "+5f-7", "x-y"] {
            assert_eq!(Id::parse(other), None, "{other}");
        }
    }
}
