//! A number of slots for work in flight, that can change while they are in use.
//!
//! ```text
//!   limit ┤‾‾‾‾‾‾‾‾‾‾‾|____________   resized: what is held stays held
//!         │ ▉▉▉▉▉▉▉▉
//!       0 ┼──────────────────────▶ held
//! ```
//!
//! Taking a slot and giving it back is one atomic step each. Those who wait stand in a bounded line, by priority and
//! then in the order in which they came, and nobody slips past them.

pub(crate) mod word;

#[cfg(all(test, loom))]
mod loom;

#[cfg(feature = "tokio")]
use crate::wait::Pause;
use crate::{
    clock::Clock,
    sync::{AtomicU64, Ordering},
    wait::{Lines, Manner, Refused, Ticket, Waiter, block_until},
};
use std::{borrow::Borrow, fmt, sync::Arc, time::Duration};
use tidegate_core::{Micros, SettingError};
pub use word::Awaited;
use word::Turn;

/// Slots for work in flight, without keys. For many keys use a [`crate::Limiter`] with a quota such as `3 at once`.
///
/// Clones share the slots.
///
/// ```
/// use tidegate_limiter::Slots;
///
/// let slots = Slots::new(1)?;
/// let slot = slots.try_take().expect("there is one");
/// assert!(slots.try_take().is_none());
/// drop(slot); // also by a panic, or with the future that holds it
/// assert!(slots.try_take().is_some());
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone)]
pub struct Slots {
    shared: Arc<Shared>,
}

struct Shared {
    word: AtomicU64,
    limit: AtomicU64,
    clock: Clock,
    lines: Lines,
}

/// Settings of [`Slots`].
#[derive(Clone, Debug)]
pub struct SlotsBuilder {
    clock: Option<Clock>,
    places: usize,
    place_ttl: Micros,
}

/// All wait in one line.
const LINE: u64 = 0;
/// Places in the line: unless told otherwise, and at most.
const DEFAULT_PLACES: usize = 1_024;
const MOST_PLACES: usize = 1 << 16;

impl Slots {
    /// So many slots.
    pub fn new(limit: u32) -> Result<Self, SettingError> {
        Self::builder().build(limit)
    }

    /// Slots with settings of their own.
    pub fn builder() -> SlotsBuilder {
        SlotsBuilder { clock: None, places: DEFAULT_PLACES, place_ttl: Micros::MAX }
    }

    /// Takes a slot, if one is free and nobody waits for it.
    #[inline]
    pub fn try_take(&self) -> Option<Slot<&Self>> {
        self.shared.try_take(1).map(|in_flight| Slot { slots: self, taken: 1, in_flight })
    }

    /// Takes `count` slots at once or none: for work that weighs more.
    pub fn try_take_many(&self, count: u32) -> Option<Slot<&Self>> {
        self.shared.try_take(count).map(|in_flight| Slot { slots: self, taken: count, in_flight })
    }

    /// The same as [`try_take`](Self::try_take), for work that outlives the borrow.
    pub fn try_take_owned(&self) -> Option<Slot<Self>> {
        let in_flight = self.shared.try_take(1)?;
        Some(Slot { slots: self.clone(), taken: 1, in_flight })
    }

    /// Waits in line for as many slots as the waiter costs. Dropping the future leaves the line.
    #[cfg(feature = "tokio")]
    pub async fn take(&self, waiter: Waiter) -> Result<Slot<&Self>, Refused> {
        let (taken, in_flight) = self.shared.take(waiter).await?;
        Ok(Slot { slots: self, taken, in_flight })
    }

    /// The same as [`take`](Self::take), for work that outlives the borrow.
    #[cfg(feature = "tokio")]
    pub async fn take_owned(&self, waiter: Waiter) -> Result<Slot<Self>, Refused> {
        let (taken, in_flight) = self.shared.take(waiter).await?;
        Ok(Slot { slots: self.clone(), taken, in_flight })
    }

    /// The same as [`take`](Self::take) for threads: blocks.
    pub fn take_blocking(&self, waiter: Waiter) -> Result<Slot<&Self>, Refused> {
        let (taken, in_flight) = self.shared.take_blocking(waiter)?;
        Ok(Slot { slots: self, taken, in_flight })
    }

    /// Changes the number of slots. What is held stays held: after a cut nothing is granted until enough has been
    /// given back.
    pub fn resize(&self, limit: u32) -> Result<(), SettingError> {
        SettingError::require_nonzero("a number of slots", limit.into())?;
        self.wake(self.set_limit(limit));
        Ok(())
    }

    /// Changes the number of slots, which is not zero. Whoever calls this wakes those who wait, at a moment that suits.
    #[doc(hidden)]
    pub fn set_limit(&self, limit: u32) -> Awaited {
        self.shared.set_limit(limit.into())
    }

    /// Wakes the first in line, if anybody waits. Not under a lock: a waker may run whatever it likes.
    #[doc(hidden)]
    pub fn wake(&self, awaited: Awaited) {
        if awaited == Awaited::Yes {
            self.shared.lines.wake_first(LINE);
        }
    }

    /// How many slots there are.
    pub fn limit(&self) -> u32 {
        narrow(self.shared.limit.load(Ordering::Relaxed))
    }

    /// How many are held.
    pub fn in_flight(&self) -> u32 {
        narrow(word::held(self.shared.word.load(Ordering::Relaxed)))
    }

    /// How many callers stand in line.
    pub fn waiting(&self) -> u32 {
        narrow(word::waiting(self.shared.word.load(Ordering::Relaxed)))
    }

    /// The clock by which those in line wait.
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }
}

impl SlotsBuilder {
    /// The clock by which those in line wait; the machine's unless told otherwise.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// How many callers may wait in line, 1024 unless told otherwise and 65,536 at most.
    #[must_use]
    pub fn waiting_places(self, places: usize) -> Self {
        Self { places: places.min(MOST_PLACES), ..self }
    }

    /// How long a caller may stand in line at the longest, whatever deadline it came with.
    #[must_use]
    pub fn waiting_ttl(self, ttl: Duration) -> Self {
        Self { place_ttl: ttl.into(), ..self }
    }

    /// So many slots.
    pub fn build(self, limit: u32) -> Result<Slots, SettingError> {
        SettingError::require_nonzero("a number of slots", limit.into())?;
        let shared = Shared {
            word: AtomicU64::new(0),
            limit: AtomicU64::new(limit.into()),
            clock: self.clock.unwrap_or_default(),
            lines: Lines::new(Manner::Line, self.places, self.place_ttl),
        };
        Ok(Slots { shared: Arc::new(shared) })
    }
}

impl Shared {
    #[inline]
    fn try_take(&self, count: u32) -> Option<u32> {
        self.take_as(count.into(), Turn::Newcomer).ok()
    }

    #[inline]
    fn take_as(&self, count: u64, turn: Turn) -> Result<u32, u64> {
        word::take(&self.word, count, self.limit.load(Ordering::Relaxed), turn, 0).map(narrow)
    }

    #[inline]
    fn give_back(&self, count: u32) {
        if word::give_back(&self.word, count.into()) == Awaited::Yes {
            self.lines.wake_first(LINE);
        }
    }

    /// Who enters the line after this sees the new limit; who entered before it must be woken.
    fn set_limit(&self, limit: u64) -> Awaited {
        self.limit.store(limit, Ordering::Relaxed);
        match word::waiting(self.word.fetch_add(0, Ordering::AcqRel)) {
            0 => Awaited::No,
            _ => Awaited::Yes,
        }
    }

    #[cfg(feature = "tokio")]
    async fn take(&self, waiter: Waiter) -> Result<(u32, u32), Refused> {
        let mut wait = match self.enter(waiter) {
            Entered::Taken(in_flight) => return Ok((narrow(waiter.cost), in_flight)),
            Entered::Line(wait) => wait?,
        };
        loop {
            match wait.step() {
                Step::Done(end) => return end.map(|in_flight| (narrow(waiter.cost), in_flight)),
                Step::Pause(until) => Pause::until(&self.clock, until, Some(wait.ticket.bell())).await,
            }
        }
    }

    fn take_blocking(&self, waiter: Waiter) -> Result<(u32, u32), Refused> {
        let mut wait = match self.enter(waiter) {
            Entered::Taken(in_flight) => return Ok((narrow(waiter.cost), in_flight)),
            Entered::Line(wait) => wait?,
        };
        loop {
            match wait.step() {
                Step::Done(end) => return end.map(|in_flight| (narrow(waiter.cost), in_flight)),
                Step::Pause(until) => block_until(&self.clock, until, Some(wait.ticket.bell())),
            }
        }
    }

    /// Takes at once, or a place in line.
    fn enter(&self, waiter: Waiter) -> Entered<'_> {
        match self.take_as(waiter.cost, Turn::Newcomer) {
            Ok(in_flight) => Entered::Taken(in_flight),
            Err(_) if waiter.cost > self.limit.load(Ordering::Relaxed) => Entered::Line(Err(Refused::Never)),
            Err(_) => Entered::Line(self.lines.enter(LINE, waiter, self.clock.now()).map(|ticket| {
                word::enter_line(&self.word);
                Wait { shared: self, ticket, is_counted: true }
            })),
        }
    }
}

enum Entered<'a> {
    Taken(u32),
    Line(Result<Wait<'a>, Refused>),
}

/// One caller in line.
struct Wait<'a> {
    shared: &'a Shared,
    ticket: Ticket<'a>,
    /// Whether the word still counts it among those who wait.
    is_counted: bool,
}

enum Step {
    Done(Result<u32, Refused>),
    /// Look again at this moment, or when the bell rings.
    Pause(Option<Micros>),
}

impl Wait<'_> {
    fn step(&mut self) -> Step {
        if self.ticket.is_first()
            && let Ok(in_flight) = self.shared.take_as(self.ticket.cost(), Turn::FirstInLine)
        {
            self.is_counted = false;
            return Step::Done(Ok(in_flight));
        }
        // After a cut it may want more than there is; those behind must not wait for it.
        if self.ticket.cost() > self.shared.limit.load(Ordering::Relaxed) {
            return Step::Done(Err(Refused::Never));
        }
        let now = self.shared.clock.now();
        match self.ticket.latest() {
            Some(latest) if now >= latest => Step::Done(Err(self.ticket.too_late())),
            latest => Step::Pause(latest),
        }
    }
}

/// Leaves the count before the line: who is woken by the ticket must find its place at the head.
impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.is_counted {
            word::leave_line(&self.shared.word);
        }
    }
}

/// A slot, or several, that give themselves back when they are dropped: by a panic or a cancelled future too.
///
/// It borrows its [`Slots`], or owns a handle to them.
#[must_use = "dropping a slot gives it back"]
pub struct Slot<S: Borrow<Slots> = Slots> {
    slots: S,
    taken: u32,
    in_flight: u32,
}

impl<S: Borrow<Slots>> Slot<S> {
    /// How many were in flight when it was taken, itself included.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }
}

impl<S: Borrow<Slots>> Drop for Slot<S> {
    #[inline]
    fn drop(&mut self) {
        self.slots.borrow().shared.give_back(self.taken);
    }
}

impl<S: Borrow<Slots>> fmt::Debug for Slot<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({} of {:?})", self.taken, self.slots.borrow())
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slots({} of {}, {} waiting)", self.in_flight(), self.limit(), self.waiting())
    }
}

/// Counts of slots fit in 32 bits, see [`word::MOST_SLOTS`].
fn narrow(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
