//! The connection of one stream to its scheduler: its unused bytes, and the timer for its waits.

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

/// A scheduler that streams share, and its clock.
#[derive(Debug)]
pub(super) struct SharedScheduler {
    scheduler: Mutex<FairScheduler>,
    clock: Clock,
    /// Counts the changes of settings, so that a stream with prepaid bytes notices one without the lock.
    version: AtomicU64,
}

impl SharedScheduler {
    pub(super) fn new(settings: SchedulerSettings, clock: Clock) -> Self {
        let scheduler = Mutex::new(FairScheduler::new(settings, clock.now()));
        Self { scheduler, clock, version: AtomicU64::new(0) }
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Applies new settings and returns the wakers of the waiting streams.
    #[must_use]
    pub(super) fn reconfigure(&self, settings: SchedulerSettings) -> Vec<Waker> {
        let now = self.clock.now();
        let mut scheduler = lock(&self.scheduler);
        self.version.fetch_add(1, Ordering::Release);
        scheduler.reconfigure(settings, now)
    }

    /// The debt without streams; see [`FairScheduler::unused_level`].
    pub(super) fn unused_level(&self) -> Option<u64> {
        let now = self.clock.now();
        lock(&self.scheduler).unused_level(now)
    }
}

/// One direction of one stream.
pub(super) struct StreamHandle {
    shared: Arc<SharedScheduler>,
    state: SchedulerStream,
    /// Bytes that are still exempt from the limit.
    free_bytes: u64,
    /// Bytes that are charged and not moved yet.
    prepaid: u64,
    quantum: u64,
    version: u64,
    /// The expected size of the next move, because the available bytes are unknown: that of the last move, or more
    /// if that one was cut.
    expected: u64,
    timer: Timer,
}

impl StreamHandle {
    pub(super) fn new(shared: Arc<SharedScheduler>, free_bytes: u64) -> Self {
        let mut scheduler = lock(&shared.scheduler);
        let (state, quantum) = (scheduler.join(), scheduler.settings().quantum);
        let version = shared.version.load(Ordering::Acquire);
        drop(scheduler);
        Self {
            shared,
            state,
            free_bytes,
            prepaid: 0,
            quantum,
            version,
            expected: quantum,
            timer: Timer::default(),
        }
    }

    pub(super) fn set_free_bytes(&mut self, bytes: u64) {
        self.free_bytes = bytes;
    }

    /// The number of bytes that may be moved now, at most `want`, which must not be zero. Call
    /// [`record_moved`](Self::record_moved) after a move, and [`release_unused`](Self::release_unused) if nothing
    /// was moved.
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

    /// Ready when an item of about the size of the last one may be passed.
    #[cfg(feature = "stream")]
    pub(super) fn poll_item(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let expected = usize::try_from(self.expected).unwrap_or(usize::MAX);
        self.poll_allowance(expected, context).map(|_| ())
    }

    /// Records a move of `bytes` of the `allowed` ones.
    #[inline]
    pub(super) fn record_moved(&mut self, bytes: usize, allowed: usize) {
        self.expected = match bytes < allowed {
            true => bytes as u64,
            false => self.expected.max(bytes as u64).saturating_mul(2).min(self.quantum),
        };
        self.consume(bytes);
    }

    /// Records a piece of a body, and keeps nothing for the next one: its consumer may stop to poll.
    #[cfg(feature = "http-body")]
    pub(super) fn record_piece(&mut self, bytes: usize) {
        self.consume(bytes);
        self.release_unused();
    }

    /// Records an item of `bytes`, allowed or not.
    #[cfg(feature = "stream")]
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

    /// Releases all charged bytes, because there is nothing to move.
    pub(super) fn release_unused(&mut self) {
        if self.prepaid > 0 {
            self.release(self.prepaid);
        }
    }

    #[inline(never)]
    fn poll_grant(&mut self, want: u64, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let request = ByteRequest { want, min: self.expected, refund: std::mem::take(&mut self.prepaid) };
            let now = self.shared.clock.now();
            let (grant, wakers) =
                lock(&self.shared.scheduler).request(&mut self.state, request, now, context.waker());
            wakers.wake();
            match grant {
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
        let debt = bytes - std::mem::take(&mut self.prepaid);
        let now = self.shared.clock.now();
        lock(&self.shared.scheduler).charge(&mut self.state, debt, now);
    }

    #[inline(never)]
    fn release(&mut self, bytes: u64) {
        self.prepaid -= bytes;
        let wakers = lock(&self.shared.scheduler).release(&mut self.state, bytes);
        wakers.wake();
    }

    /// Releases the bytes that were charged under the old settings, and reads the new ones.
    #[cold]
    fn apply_reconfigure(&mut self) {
        self.release_unused();
        let scheduler = lock(&self.shared.scheduler);
        self.version = self.shared.version.load(Ordering::Acquire);
        self.quantum = scheduler.settings().quantum;
        self.expected = self.quantum;
    }
}

impl Drop for StreamHandle {
    fn drop(&mut self) {
        self.release_unused();
        let wakers = lock(&self.shared.scheduler).leave(&mut self.state);
        wakers.wake();
    }
}

impl fmt::Debug for StreamHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamHandle")
            .field("free", &self.free_bytes)
            .field("prepaid", &self.prepaid)
            .finish_non_exhaustive()
    }
}
