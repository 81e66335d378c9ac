//! Explores the thread interleavings on the state of a semaphore.

use super::state::{self, HasWaiters, QueuePosition};
use crate::sync::{AtomicU64, Ordering};
use loom::{sync::Arc, thread};

/// A semaphore state, its limit, and a flag that is set to notify a waiter.
#[derive(Default)]
struct ModelSemaphore {
    state: AtomicU64,
    limit: AtomicU64,
    notified: AtomicU64,
}

impl ModelSemaphore {
    fn with_limit(limit: u64) -> Arc<Self> {
        let semaphore = Self::default();
        semaphore.limit.store(limit, Ordering::Relaxed);
        Arc::new(semaphore)
    }

    fn try_acquire(&self, position: QueuePosition) -> bool {
        state::try_acquire(&self.state, 1, self.limit.load(Ordering::Relaxed), position, 0).is_ok()
    }

    fn release(&self) {
        if state::release(&self.state, 1) == HasWaiters::Yes {
            self.notified.store(1, Ordering::Relaxed);
        }
    }

    fn resize(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
        if state::waiters(self.state.fetch_add(0, Ordering::AcqRel)) > 0 {
            self.notified.store(1, Ordering::Relaxed);
        }
    }

    /// Enqueues and tries once; on failure the flag must be set later.
    fn wait(&self) -> bool {
        state::add_waiter(&self.state);
        self.try_acquire(QueuePosition::Front)
    }
}

#[test]
fn loom_permits_stay_within_limit_and_return() {
    loom::model(|| {
        let semaphore = ModelSemaphore::with_limit(1);
        let in_flight = Arc::new(AtomicU64::new(0));
        let acquire_and_release = |semaphore: &ModelSemaphore, in_flight: &AtomicU64| {
            if semaphore.try_acquire(QueuePosition::Unqueued) {
                assert_eq!(in_flight.fetch_add(1, Ordering::Relaxed), 0, "two at once");
                in_flight.fetch_sub(1, Ordering::Relaxed);
                semaphore.release();
            }
        };
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (semaphore, in_flight) = (semaphore.clone(), in_flight.clone());
                thread::spawn(move || acquire_and_release(&semaphore, &in_flight))
            })
            .collect();
        acquire_and_release(&semaphore, &in_flight);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(semaphore.state.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn loom_waiter_is_notified_of_release() {
    loom::model(|| {
        let semaphore = ModelSemaphore::with_limit(1);
        assert!(semaphore.try_acquire(QueuePosition::Unqueued));
        let other = semaphore.clone();
        let holder = thread::spawn(move || other.release());
        let taken = semaphore.wait();
        holder.join().unwrap();
        assert!(taken || semaphore.notified.load(Ordering::Relaxed) == 1, "the waiter is never notified");
        assert!(taken || semaphore.try_acquire(QueuePosition::Front));
        assert_eq!(
            (
                state::in_flight(semaphore.state.load(Ordering::Relaxed)),
                semaphore.try_acquire(QueuePosition::Unqueued)
            ),
            (1, false)
        );
    });
}

#[test]
fn loom_waiter_is_notified_of_larger_limit() {
    loom::model(|| {
        let semaphore = ModelSemaphore::with_limit(1);
        assert!(semaphore.try_acquire(QueuePosition::Unqueued));
        let other = semaphore.clone();
        let operator = thread::spawn(move || other.resize(2));
        let taken = semaphore.wait();
        operator.join().unwrap();
        assert!(taken || semaphore.notified.load(Ordering::Relaxed) == 1, "the waiter is never notified");
        assert!(taken || semaphore.try_acquire(QueuePosition::Front));
    });
}

/// A slot released while a caller waits goes to that caller.
#[test]
fn loom_unqueued_caller_does_not_overtake_waiter() {
    loom::model(|| {
        let semaphore = ModelSemaphore::with_limit(1);
        assert!(semaphore.try_acquire(QueuePosition::Unqueued));
        state::add_waiter(&semaphore.state);
        let other = semaphore.clone();
        let unqueued = thread::spawn(move || other.try_acquire(QueuePosition::Unqueued));
        semaphore.release();
        assert!(!unqueued.join().unwrap());
        assert!(semaphore.try_acquire(QueuePosition::Front));
    });
}
