//! Deadlines that cost one store to set.
//!
//! Every request sets several deadlines, and few ever expire. So a deadline is not a timer but a number; a scan per [`TICK`]
//! finds the expired ones. A deadline expires up to two ticks late, never early.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    task::{Context, Waker},
    time::Duration,
};
use tidegate_limiter::Clock;

/// How often deadlines are scanned.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// All deadlines of a worker.
pub(crate) struct Deadlines {
    clock: Clock,
    /// The time of the last scan, in milliseconds.
    now: Cell<u64>,
    entries: RefCell<Vec<Rc<DeadlineEntry>>>,
}

/// A deadline that wakes a task. It is removed on drop.
pub(crate) struct Deadline {
    entry: Rc<DeadlineEntry>,
    deadlines: Rc<Deadlines>,
}

struct DeadlineEntry {
    at: Cell<u64>,
    index: Cell<usize>,
    waker: RefCell<Option<Waker>>,
}

const NEVER: u64 = u64::MAX;

impl Deadlines {
    pub(crate) fn new(clock: Clock) -> Rc<Self> {
        let now = Cell::new(clock_millis(&clock));
        Rc::new(Self { clock, now, entries: RefCell::default() })
    }

    /// Creates a deadline that is not set.
    pub(crate) fn new_deadline(self: &Rc<Self>) -> Deadline {
        let mut entries = self.entries.borrow_mut();
        let entry = Rc::new(DeadlineEntry {
            at: Cell::new(NEVER),
            index: Cell::new(entries.len()),
            waker: RefCell::default(),
        });
        entries.push(entry.clone());
        Deadline { entry, deadlines: self.clone() }
    }

    /// The time of the last scan, in milliseconds since an arbitrary epoch.
    pub(crate) fn now(&self) -> u64 {
        self.now.get()
    }

    /// Wakes the tasks of all expired deadlines.
    pub(crate) fn wake_expired(&self) {
        let now = clock_millis(&self.clock);
        self.now.set(now);
        for entry in self.entries.borrow().iter().filter(|entry| entry.at.get() <= now) {
            entry.wake();
        }
    }

    /// Wakes the tasks of all deadlines.
    pub(crate) fn wake_all(&self) {
        self.entries.borrow().iter().for_each(|entry| entry.wake());
    }
}

impl Deadline {
    /// Sets the deadline to `after` milliseconds from now. A tick is added, because the known time may be one tick old.
    #[inline]
    pub(crate) fn set(&self, after: u64) {
        self.set_from(self.deadlines.now(), after);
    }

    /// Sets the deadline to `after` milliseconds from `start`.
    #[inline]
    pub(crate) fn set_from(&self, start: u64, after: u64) {
        self.entry.at.set(start.saturating_add(after).saturating_add(TICK.as_millis() as u64));
    }

    #[inline]
    pub(crate) fn clear(&self) {
        self.entry.at.set(NEVER);
    }

    /// The time of the last scan, in milliseconds.
    pub(crate) fn now(&self) -> u64 {
        self.deadlines.now()
    }

    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.entry.at.get() != NEVER
    }

    #[inline]
    pub(crate) fn is_expired(&self) -> bool {
        self.entry.at.get() <= self.deadlines.now()
    }

    /// Wakes the registered task.
    pub(crate) fn wake(&self) {
        self.entry.wake();
    }

    /// The waker of the registered task, which other threads may use.
    pub(crate) fn waker(&self) -> Option<Waker> {
        self.entry.waker.borrow().clone()
    }

    /// Whether the task is the registered one.
    pub(crate) fn is_registered(&self, context: &Context<'_>) -> bool {
        self.entry.waker.borrow().as_ref().is_some_and(|known| known.will_wake(context.waker()))
    }

    /// Registers the task to wake.
    #[inline]
    pub(crate) fn register(&self, context: &Context<'_>) {
        let mut waker = self.entry.waker.borrow_mut();
        match waker.as_ref() {
            Some(known) if known.will_wake(context.waker()) => {}
            _ => *waker = Some(context.waker().clone()),
        }
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        let index = self.entry.index.get();
        let mut entries = self.deadlines.entries.borrow_mut();
        if index < entries.len() {
            entries.swap_remove(index);
        }
        if let Some(moved) = entries.get(index) {
            moved.index.set(index);
        }
    }
}

impl DeadlineEntry {
    fn wake(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }
}

fn clock_millis(clock: &Clock) -> u64 {
    clock.now().get() / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadline_expires_after_its_time() {
        let (clock, manual_clock) = Clock::manual();
        let deadlines = Deadlines::new(clock);
        let (early, late) = (deadlines.new_deadline(), deadlines.new_deadline());
        early.set(100);
        late.set(1_000);

        manual_clock.advance(Duration::from_millis(149));
        deadlines.wake_expired();
        assert!(!early.is_expired());
        manual_clock.advance(Duration::from_millis(1));
        assert!(!early.is_expired(), "no scan has run");
        deadlines.wake_expired();
        assert!(early.is_expired() && !late.is_expired());

        early.set(100);
        assert!(!early.is_expired());
        late.clear();
        manual_clock.advance(Duration::from_secs(3_600));
        deadlines.wake_expired();
        assert!(early.is_expired() && !late.is_expired());
    }

    #[test]
    fn dropped_deadline_leaves_others_registered() {
        let (clock, manual_clock) = Clock::manual();
        let deadlines = Deadlines::new(clock);
        let mut registered: Vec<_> = (0..5).map(|_| deadlines.new_deadline()).collect();
        drop(registered.remove(0));
        drop(registered.remove(2));
        registered.iter().for_each(|deadline| deadline.set(10));
        manual_clock.advance(Duration::from_secs(1));
        deadlines.wake_expired();
        assert_eq!(deadlines.entries.borrow().len(), 3);
        assert!(registered.iter().all(Deadline::is_expired));
        drop(registered);
        assert!(deadlines.entries.borrow().is_empty());
    }
}
