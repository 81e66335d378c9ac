//! One stream's end of a flow: what it may move now, and the timer that wakes it when it may not.

use super::scheduler::{ByteGrant, ByteRequest, FairScheduler, SchedulerSettings, SchedulerStream};
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};
use tidegate_limiter::{
    Clock, Timer,
    sync::{AtomicU64, Mutex, Ordering, lock},
};

/// A flow that many streams share, and its clock.
#[derive(Debug)]
pub(super) struct SharedScheduler {
    scheduler: Mutex<FairScheduler>,
    clock: Clock,
    /// Counts the changes of terms, so that a stream that holds bytes sees one without taking the lock.
    version: AtomicU64,
}

impl SharedScheduler {
    pub(super) fn new(settings: SchedulerSettings, clock: Clock) -> Self {
        let flow = Mutex::new(FairScheduler::new(settings, clock.now()));
        Self { scheduler: flow, clock, version: AtomicU64::new(0) }
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Goes by other terms from now on; those who wait are to be woken.
    #[must_use]
    pub(super) fn reconfigure(&self, settings: SchedulerSettings) -> Vec<Waker> {
        let now = self.clock.now();
        let mut flow = lock(&self.scheduler);
        self.version.fetch_add(1, Ordering::Release);
        flow.reconfigure(settings, now)
    }

    pub(super) fn is_idle(&self) -> bool {
        let now = self.clock.now();
        lock(&self.scheduler).is_idle(now)
    }
}

/// One direction of one stream.
pub(super) struct StreamHandle {
    shared: Arc<SharedScheduler>,
    state: SchedulerStream,
    /// Bytes that move without being counted.
    free_bytes: u64,
    /// Bytes that are charged and have not moved.
    prepaid: u64,
    quantum: u64,
    version: u64,
    /// What the next move will likely be, for nobody knows how much there is to read: as large as the last one, or
    /// larger if that one was cut.
    expected: u64,
    timer: Timer,
}

impl StreamHandle {
    pub(super) fn new(shared: Arc<SharedScheduler>, free_bytes: u64) -> Self {
        let mut flow = lock(&shared.scheduler);
        let (place, piece) = (flow.join(), flow.settings().quantum);
        let changes = shared.version.load(Ordering::Acquire);
        drop(flow);
        Self {
            shared,
            state: place,
            free_bytes,
            prepaid: 0,
            quantum: piece,
            version: changes,
            expected: piece,
            timer: Timer::default(),
        }
    }

    pub(super) fn set_free_bytes(&mut self, bytes: u64) {
        self.free_bytes = bytes;
    }

    /// How many bytes may move now, at most `want`, which is not zero. What has moved is told with
    /// [`moved`](Self::moved), that nothing has with [`rest`](Self::release_unused).
    #[inline]
    pub(super) fn poll_allowance(&mut self, want: usize, context: &mut Context<'_>) -> Poll<usize> {
        let want = want as u64;
        if self.free_bytes > 0 {
            return Poll::Ready(want.min(self.free_bytes) as usize);
        }
        if self.version != self.shared.version.load(Ordering::Relaxed) {
            self.apply_reconfigure();
        }
        if self.prepaid < want.min(self.expected) {
            ready!(self.poll_grant(want, context));
        }
        Poll::Ready(want.min(self.prepaid) as usize)
    }

    /// Ready when an item may pass, of about the size of the one before.
    #[cfg(any(feature = "stream", feature = "http-body"))]
    pub(super) fn poll_item(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let likely = usize::try_from(self.expected).unwrap_or(usize::MAX);
        self.poll_allowance(likely, context).map(|_| ())
    }

    /// Of the bytes that were allowed, so many have moved.
    #[inline]
    pub(super) fn record_moved(&mut self, bytes: usize, allowed: usize) {
        self.expected = match bytes < allowed {
            true => bytes as u64,
            false => self.expected.max(bytes as u64).saturating_mul(2).min(self.quantum),
        };
        self.consume(bytes);
    }

    /// An item of so many bytes has passed, allowed or not.
    #[cfg(any(feature = "stream", feature = "http-body"))]
    pub(super) fn record_item(&mut self, bytes: usize) {
        self.expected = (bytes as u64).clamp(1, self.quantum);
        self.consume(bytes);
    }

    #[inline]
    fn consume(&mut self, bytes: usize) {
        let free = self.free_bytes.min(bytes as u64);
        self.free_bytes -= free;
        let counted = bytes as u64 - free;
        match self.prepaid.checked_sub(counted) {
            Some(left) => self.prepaid = left,
            None => self.charge(counted),
        }
        if self.prepaid > self.state.prepaid_limit {
            self.release(self.prepaid - self.state.prepaid_limit);
        }
    }

    /// There is nothing to move: whatever was charged is for others now.
    pub(super) fn release_unused(&mut self) {
        if self.prepaid > 0 {
            self.release(self.prepaid);
        }
    }

    #[inline(never)]
    fn poll_grant(&mut self, want: u64, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let ask = ByteRequest { want, min: self.expected, refund: std::mem::take(&mut self.prepaid) };
            let now = self.shared.clock.now();
            let (turn, wakes) =
                lock(&self.shared.scheduler).request(&mut self.state, ask, now, context.waker());
            wakes.wake();
            match turn {
                ByteGrant::Granted(bytes) => {
                    self.prepaid = bytes;
                    return Poll::Ready(());
                }
                ByteGrant::WaitUntil(until) => ready!(self.timer.poll(&self.shared.clock, until, context)),
            }
        }
    }

    #[inline(never)]
    fn charge(&mut self, bytes: u64) {
        let owed = bytes - std::mem::take(&mut self.prepaid);
        let now = self.shared.clock.now();
        lock(&self.shared.scheduler).charge(&mut self.state, owed, now);
    }

    #[inline(never)]
    fn release(&mut self, bytes: u64) {
        self.prepaid -= bytes;
        let wakes = lock(&self.shared.scheduler).release(&mut self.state, bytes);
        wakes.wake();
    }

    /// What was taken under the old terms is not worth as much under the new ones.
    #[cold]
    fn apply_reconfigure(&mut self) {
        self.release_unused();
        let flow = lock(&self.shared.scheduler);
        self.version = self.shared.version.load(Ordering::Acquire);
        self.quantum = flow.settings().quantum;
        self.expected = self.quantum;
    }
}

impl Drop for StreamHandle {
    fn drop(&mut self) {
        self.release_unused();
        let wakes = lock(&self.shared.scheduler).leave(&mut self.state);
        wakes.wake();
    }
}

impl fmt::Debug for StreamHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamHandle")
            .field("free", &self.free_bytes)
            .field("credit", &self.prepaid)
            .finish_non_exhaustive()
    }
}
