//! Atomics and locks, or loom's versions when loom explores the thread interleavings.

#[cfg(not(loom))]
pub use std::{
    hint::spin_loop,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering, fence},
    },
    thread::yield_now,
};

#[cfg(loom)]
pub use loom::{
    hint::spin_loop,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering, fence},
    },
    thread::yield_now,
};

/// Locks the mutex and ignores poisoning: no critical section leaves its data inconsistent on a panic.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// Waits for another thread that is about to finish: spins first, then yields the processor.
#[derive(Default)]
pub struct SpinBackoff {
    rounds: u32,
}

impl SpinBackoff {
    pub fn pause(&mut self) {
        self.rounds += 1;
        if self.rounds < 64 && cfg!(not(loom)) {
            spin_loop();
        } else {
            yield_now();
        }
    }
}
