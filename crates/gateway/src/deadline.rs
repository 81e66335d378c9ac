//! Deadlines that cost a store each.
//!
//! Every request moves several deadlines, and hardly any is ever reached. So none of them is a timer: it is a number that
//! its owner writes, and once per [`TICK`] all of them are looked at. A deadline is noticed up to a tick late, never early.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    task::{Context, Waker},
    time::Duration,
};
use tidegate_limiter::Clock;

/// How often deadlines are looked at.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// All deadlines of a worker.
pub(crate) struct Deadlines {
    clock: Clock,
    /// Milliseconds, as of the last look.
    now: Cell<u64>,
    entries: RefCell<Vec<Rc<DeadlineEntry>>>,
}

/// A moment at which a task is woken, unless it is moved before. Gone when it is dropped.
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

    /// A deadline that is never, for now.
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

    /// Milliseconds since some moment, as of the last look.
    pub(crate) fn now(&self) -> u64 {
        self.now.get()
    }

    /// Looks at all deadlines.
    pub(crate) fn wake_expired(&self) {
        let now = clock_millis(&self.clock);
        self.now.set(now);
        for entry in self.entries.borrow().iter().filter(|entry| entry.at.get() <= now) {
            entry.wake();
        }
    }

    /// Wakes everybody who waits for a deadline.
    pub(crate) fn wake_all(&self) {
        self.entries.borrow().iter().for_each(|entry| entry.wake());
    }
}

impl Deadline {
    /// So many milliseconds from now. A tick is added, since the time that is known may be old.
    #[inline]
    pub(crate) fn set(&self, after: u64) {
        self.set_from(self.deadlines.now(), after);
    }

    /// So many milliseconds from a moment that was now.
    #[inline]
    pub(crate) fn set_from(&self, moment: u64, after: u64) {
        self.entry.at.set(moment.saturating_add(after).saturating_add(TICK.as_millis() as u64));
    }

    #[inline]
    pub(crate) fn clear(&self) {
        self.entry.at.set(NEVER);
    }

    #[inline]
    pub(crate) fn is_expired(&self) -> bool {
        self.entry.at.get() <= self.deadlines.now()
    }

    /// Has this task woken.
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
        let place = self.entry.index.get();
        let mut entries = self.deadlines.entries.borrow_mut();
        if place < entries.len() {
            entries.swap_remove(place);
        }
        if let Some(moved) = entries.get(place) {
            moved.index.set(place);
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
        let watch = Deadlines::new(clock);
        let (early, late) = (watch.new_deadline(), watch.new_deadline());
        early.set(100);
        late.set(1_000);

        manual_clock.advance(Duration::from_millis(149));
        watch.wake_expired();
        assert!(!early.is_expired());
        manual_clock.advance(Duration::from_millis(1));
        assert!(!early.is_expired(), "nobody has looked");
        watch.wake_expired();
        assert!(early.is_expired() && !late.is_expired());

        early.set(100);
        assert!(!early.is_expired());
        late.clear();
        manual_clock.advance(Duration::from_secs(3_600));
        watch.wake_expired();
        assert!(early.is_expired() && !late.is_expired());
    }

    #[test]
    fn dropped_deadline_leaves_others_registered() {
        let (clock, manual_clock) = Clock::manual();
        let watch = Deadlines::new(clock);
        let mut deadlines: Vec<_> = (0..5).map(|_| watch.new_deadline()).collect();
        drop(deadlines.remove(0));
        drop(deadlines.remove(2));
        deadlines.iter().for_each(|deadline| deadline.set(10));
        manual_clock.advance(Duration::from_secs(1));
        watch.wake_expired();
        assert_eq!(watch.entries.borrow().len(), 3);
        assert!(deadlines.iter().all(Deadline::is_expired));
        drop(deadlines);
        assert!(watch.entries.borrow().is_empty());
    }
}
