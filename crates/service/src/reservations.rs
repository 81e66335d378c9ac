//! Reservations and permits that clients hold until they settle them or they expire.
//!
//! A client may crash, so every entry expires. There is no task per entry: every operation closes expired entries, and so
//! does a timer once per second.

use http::{HeaderValue, StatusCode, header};
use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tidegate_core::Micros;
use tidegate_http_server::{ApiCaller, ApiError};
use tidegate_limiter::Clock;
use tokio_rustls::rustls::crypto::ring;

/// Values by an unguessable id.
pub(crate) struct Reservations<T> {
    clock: Clock,
    capacity: usize,
    kind: ReservationKind,
    /// What happens to an expired value.
    expire: fn(T),
    entries: Mutex<ReservationTable<T>>,
}

/// The kind of entries, for error messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReservationKind {
    /// Charged when it expires.
    Reservation,
    /// Released when it expires.
    Permit,
}

struct ReservationTable<T> {
    /// Values with their owners.
    values: HashMap<ReservationId, (ApiCaller, T)>,
    /// Slots that are not filled yet.
    pending_slots: usize,
    /// Ordered by expiry.
    expiry: BTreeSet<ReservationId>,
}

/// Slots for entries, reserved before the tokens are charged.
pub(crate) struct ReservationSlots<'a, T> {
    reservations: &'a Reservations<T>,
    count: usize,
}

/// The time at which it expires, and a random number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct ReservationId {
    expires_at: Micros,
    secret: u128,
}

/// A new entry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NewReservation {
    pub(crate) id: String,
    pub(crate) expires_after: Micros,
}

/// The number of entries of each kind.
pub(crate) const CAPACITY: usize = 100_000;
pub(crate) const DEFAULT_EXPIRY: Duration = Duration::from_secs(60);
pub(crate) const MAX_EXPIRY: Duration = Duration::from_secs(3_600);

impl<T> Reservations<T> {
    pub(crate) fn new(clock: Clock, capacity: usize, kind: ReservationKind, expire: fn(T)) -> Self {
        let entries = ReservationTable { values: HashMap::new(), pending_slots: 0, expiry: BTreeSet::new() };
        Self { clock, capacity, kind, expire, entries: Mutex::new(entries) }
    }

    /// Reserves slots; 503 if fewer are free.
    pub(crate) fn reserve_slots(&self, count: usize) -> Result<ReservationSlots<'_, T>, ApiError> {
        self.close_expired();
        let mut entries = self.lock();
        let used = entries.values.len() + entries.pending_slots;
        if count > self.capacity.saturating_sub(used) {
            return Err(self.capacity_error());
        }
        entries.pending_slots += count;
        drop(entries);
        Ok(ReservationSlots { reservations: self, count })
    }

    pub(crate) fn capacity_error(&self) -> ApiError {
        let detail = format!(
            "reservation capacity reached: {}; settle some, or use a shorter `expires`",
            self.capacity
        );
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, detail)
            .with_header(header::RETRY_AFTER, HeaderValue::from_static("1"))
    }

    /// Removes an entry of this caller; 410 if it has expired, 404 if it does not exist.
    pub(crate) fn take(&self, text: &str, caller: &ApiCaller) -> Result<T, ApiError> {
        self.close_expired();
        let Some(id) = ReservationId::parse(text) else { return Err(self.unknown_error()) };
        let mut entries = self.lock();
        let may_settle = entries.values.get(&id).is_some_and(|(owner, _)| caller.can_settle(owner));
        let removed = if may_settle { entries.values.remove(&id) } else { None };
        match removed {
            Some((_, value)) => {
                entries.expiry.remove(&id);
                Ok(value)
            }
            None if id.expires_at <= self.clock.now() => Err(self.expired_error()),
            None => Err(self.unknown_error()),
        }
    }

    fn expired_error(&self) -> ApiError {
        let detail = match self.kind {
            ReservationKind::Reservation => {
                "this reservation has expired and stays charged; use a longer `expires`"
            }
            ReservationKind::Permit => "this permit has expired and was released; use a longer `expires`",
        };
        ApiError::new(StatusCode::GONE, detail)
    }

    fn unknown_error(&self) -> ApiError {
        let detail = match self.kind {
            ReservationKind::Reservation => {
                "unknown reservation; it is already settled, or was not created here"
            }
            ReservationKind::Permit => "unknown permit; it is already settled, or was not created here",
        };
        ApiError::new(StatusCode::NOT_FOUND, detail)
    }

    /// Closes expired entries. Call it about once per second.
    pub(crate) fn close_expired(&self) {
        let now = self.clock.now();
        let mut entries = self.lock();
        let mut expired = Vec::new();
        while let Some(id) = entries.expiry.first().copied().filter(|id| id.expires_at <= now) {
            entries.expiry.remove(&id);
            expired.extend(entries.values.remove(&id).map(|(_, value)| value));
        }
        drop(entries);
        expired.into_iter().for_each(self.expire);
    }

    fn lock(&self) -> MutexGuard<'_, ReservationTable<T>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> ReservationSlots<'_, T> {
    /// Fills a slot. Returns the value if no slot remains, or if the system random number generator fails.
    pub(crate) fn fill(
        &mut self,
        value: T,
        expiry: Duration,
        owner: &ApiCaller,
    ) -> Result<NewReservation, T> {
        let expires_after = Micros::from(expiry);
        let id = ReservationId::new(self.reservations.clock.now().saturating_add(expires_after))
            .filter(|_| self.count > 0);
        let Some(id) = id else { return Err(value) };
        let mut entries = self.reservations.lock();
        self.count -= 1;
        entries.pending_slots = entries.pending_slots.saturating_sub(1);
        entries.expiry.insert(id);
        entries.values.insert(id, (owner.clone(), value));
        Ok(NewReservation { id: id.to_text(), expires_after })
    }
}

impl<T> Drop for ReservationSlots<'_, T> {
    fn drop(&mut self) {
        let mut entries = self.reservations.lock();
        entries.pending_slots = entries.pending_slots.saturating_sub(self.count);
    }
}

impl ReservationId {
    /// `None` if the system random number generator fails.
    fn new(end: Micros) -> Option<Self> {
        let mut secret = [0; 16];
        ring::default_provider().secure_random.fill(&mut secret).ok()?;
        Some(Self { expires_at: end, secret: u128::from_be_bytes(secret) })
    }

    fn to_text(self) -> String {
        format!("{:x}-{:032x}", self.expires_at.get(), self.secret)
    }

    fn parse(text: &str) -> Option<Self> {
        let (end, secret) = text.split_once('-')?;
        let id = Self {
            expires_at: Micros::new(u64::from_str_radix(end, 16).ok()?),
            secret: u128::from_str_radix(secret, 16).ok()?,
        };
        // Only the canonical form is valid.
        (id.to_text() == text).then_some(id)
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
    type ExpiryCount = Arc<AtomicU64>;

    #[allow(clippy::needless_pass_by_value, reason = "the signature of `expire`")]
    fn count_expiry(count: ExpiryCount) {
        count.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn entry_is_settled_once_or_expires() {
        let (clock, manual_clock) = Clock::manual();
        let reservations = Reservations::new(clock, 2, ReservationKind::Reservation, count_expiry);
        let (expired, minute) = (ExpiryCount::default(), Duration::from_secs(60));

        let anonymous = ApiCaller::Anonymous;
        let put = |time| {
            let slots = reservations.reserve_slots(1).ok();
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

        manual_clock.advance(minute);
        reservations.close_expired();
        assert_eq!(expired.load(Ordering::Relaxed), 1);
        assert_eq!(status(&first.id), StatusCode::GONE);
        assert!(put(minute).is_some(), "a slot is free again");
        let slots = reservations.reserve_slots(1).unwrap();
        assert_eq!(put(minute), None, "the last slot is taken");
        drop(slots);
        assert!(put(minute).is_some());
    }

    #[test]
    fn only_owner_settles_entry() {
        let reservations = Reservations::new(Clock::manual().0, 9, ReservationKind::Permit, drop);
        let put = |owner: &ApiCaller| {
            let mut slots = reservations.reserve_slots(1).unwrap();
            slots.fill(7, Duration::from_secs(60), owner).unwrap().id
        };
        let take = |id: &str, caller: &ApiCaller| reservations.take(id, caller).map_err(|error| error.status);
        let (web, jobs) = (ApiCaller::Program("web".into()), ApiCaller::Program("jobs".into()));
        let id = put(&web);
        for other in [&jobs, &ApiCaller::Operator, &ApiCaller::Anonymous] {
            assert_eq!(take(&id, other), Err(StatusCode::NOT_FOUND), "{other:?}");
        }
        assert_eq!(take(&id, &web), Ok(7));
        // Created before tokens were required.
        assert_eq!(take(&put(&ApiCaller::Anonymous), &web), Ok(7));
    }

    #[test]
    fn id_parses_only_its_canonical_form() {
        let id = ReservationId { expires_at: Micros::new(0x5f), secret: 7 };
        assert_eq!(ReservationId::parse(&id.to_text()), Some(id));
        for other in ["", "-", "5f", "5f-7", "5F-00000000000000000000000000000007", "+5f-7", "x-y"] {
            assert_eq!(ReservationId::parse(other), None, "{other}");
        }
    }
}
