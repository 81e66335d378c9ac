//! Atomics and locks, or loom's versions of them when loom explores every order in which threads can meet.

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

/// Locks, and goes on with what is there if a holder panicked: nothing here is left half-done by a panic.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// Waits for another thread that is about to finish: politely at first, then by giving up the processor.
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
