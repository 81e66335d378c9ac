//! One stream's end of a flow: what it may move now, and the timer that wakes it when it may not.

use super::flow::{Ask, Flow, Place, Terms, Turn};
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};
use tidegate_limiter::{
    Alarm, Clock,
    sync::{AtomicU64, Mutex, Ordering, lock},
};

/// A flow that many streams share, and its clock.
#[derive(Debug)]
pub(super) struct Shared {
    flow: Mutex<Flow>,
    clock: Clock,
    /// Counts the changes of terms, so that a stream that holds bytes sees one without taking the lock.
    changes: AtomicU64,
}

impl Shared {
    pub(super) fn new(terms: Terms, clock: Clock) -> Self {
        let flow = Mutex::new(Flow::new(terms, clock.now()));
        Self { flow, clock, changes: AtomicU64::new(0) }
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Goes by other terms from now on; those who wait are to be woken.
    #[must_use]
    pub(super) fn change(&self, terms: Terms) -> Vec<Waker> {
        let now = self.clock.now();
        let mut flow = lock(&self.flow);
        self.changes.fetch_add(1, Ordering::Release);
        flow.change(terms, now)
    }

    pub(super) fn is_idle(&self) -> bool {
        let now = self.clock.now();
        lock(&self.flow).is_idle(now)
    }
}

/// One direction of one stream.
pub(super) struct Tap {
    shared: Arc<Shared>,
    place: Place,
    /// Bytes that move without being counted.
    free: u64,
    /// Bytes that are charged and have not moved.
    credit: u64,
    piece: u64,
    changes: u64,
    /// What the next move will likely be, for nobody knows how much there is to read: as large as the last one, or
    /// larger if that one was cut.
    likely: u64,
    alarm: Alarm,
}

impl Tap {
    pub(super) fn new(shared: Arc<Shared>, free: u64) -> Self {
        let mut flow = lock(&shared.flow);
        let (place, piece) = (flow.join(), flow.terms().piece);
        let changes = shared.changes.load(Ordering::Acquire);
        drop(flow);
        Self { shared, place, free, credit: 0, piece, changes, likely: piece, alarm: Alarm::default() }
    }

    pub(super) fn set_free(&mut self, bytes: u64) {
        self.free = bytes;
    }

    /// How many bytes may move now, at most `want`, which is not zero. What has moved is told with
    /// [`moved`](Self::moved), that nothing has with [`rest`](Self::rest).
    #[inline]
    pub(super) fn poll_allowance(&mut self, want: usize, context: &mut Context<'_>) -> Poll<usize> {
        let want = want as u64;
        if self.free > 0 {
            return Poll::Ready(want.min(self.free) as usize);
        }
        if self.changes != self.shared.changes.load(Ordering::Relaxed) {
            self.heed_change();
        }
        if self.credit < want.min(self.likely) {
            ready!(self.poll_turn(want, context));
        }
        Poll::Ready(want.min(self.credit) as usize)
    }

    /// Ready when an item may pass, of about the size of the one before.
    #[cfg(any(feature = "stream", feature = "http-body"))]
    pub(super) fn poll_item(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let likely = usize::try_from(self.likely).unwrap_or(usize::MAX);
        self.poll_allowance(likely, context).map(|_| ())
    }

    /// Of the bytes that were allowed, so many have moved.
    #[inline]
    pub(super) fn moved(&mut self, bytes: usize, allowed: usize) {
        self.likely = match bytes < allowed {
            true => bytes as u64,
            false => self.likely.max(bytes as u64).saturating_mul(2).min(self.piece),
        };
        self.count(bytes);
    }

    /// An item of so many bytes has passed, allowed or not.
    #[cfg(any(feature = "stream", feature = "http-body"))]
    pub(super) fn item_moved(&mut self, bytes: usize) {
        self.likely = (bytes as u64).clamp(1, self.piece);
        self.count(bytes);
    }

    #[inline]
    fn count(&mut self, bytes: usize) {
        let free = self.free.min(bytes as u64);
        self.free -= free;
        let counted = bytes as u64 - free;
        match self.credit.checked_sub(counted) {
            Some(left) => self.credit = left,
            None => self.charge(counted),
        }
        if self.credit > self.place.hold {
            self.give_back(self.credit - self.place.hold);
        }
    }

    /// There is nothing to move: whatever was charged is for others now.
    pub(super) fn rest(&mut self) {
        if self.credit > 0 {
            self.give_back(self.credit);
        }
    }

    #[inline(never)]
    fn poll_turn(&mut self, want: u64, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let ask = Ask { want, least: self.likely, returned: std::mem::take(&mut self.credit) };
            let now = self.shared.clock.now();
            let (turn, wakes) = lock(&self.shared.flow).ask(&mut self.place, ask, now, context.waker());
            wakes.wake();
            match turn {
                Turn::Go(bytes) => {
                    self.credit = bytes;
                    return Poll::Ready(());
                }
                Turn::Wait(until) => ready!(self.alarm.poll(&self.shared.clock, until, context)),
            }
        }
    }

    #[inline(never)]
    fn charge(&mut self, bytes: u64) {
        let owed = bytes - std::mem::take(&mut self.credit);
        let now = self.shared.clock.now();
        lock(&self.shared.flow).charge(&mut self.place, owed, now);
    }

    #[inline(never)]
    fn give_back(&mut self, bytes: u64) {
        self.credit -= bytes;
        let wakes = lock(&self.shared.flow).give_back(&mut self.place, bytes);
        wakes.wake();
    }

    /// What was taken under the old terms is not worth as much under the new ones.
    #[cold]
    fn heed_change(&mut self) {
        self.rest();
        let flow = lock(&self.shared.flow);
        self.changes = self.shared.changes.load(Ordering::Acquire);
        self.piece = flow.terms().piece;
        self.likely = self.piece;
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.rest();
        let wakes = lock(&self.shared.flow).leave(&mut self.place);
        wakes.wake();
    }
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tap").field("free", &self.free).field("credit", &self.credit).finish_non_exhaustive()
    }
}
