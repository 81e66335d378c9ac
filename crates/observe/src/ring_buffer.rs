//! A ring buffer of the newest items.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The newest items up to a capacity, shared by all threads.
pub struct RingBuffer<T> {
    inner: Mutex<RingState<T>>,
}

struct RingState<T> {
    capacity: usize,
    items: VecDeque<Arc<T>>,
}

impl<T> Default for RingBuffer<T> {
    fn default() -> Self {
        Self { inner: Mutex::new(RingState { capacity: 0, items: VecDeque::new() }) }
    }
}

impl<T> RingBuffer<T> {
    /// Sets the capacity.
    pub(crate) fn resize(&self, capacity: u64) {
        let mut inner = self.lock();
        inner.capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
        let excess = inner.items.len().saturating_sub(inner.capacity);
        inner.items.drain(..excess);
        inner.items.shrink_to_fit();
    }

    pub(crate) fn clear(&self) {
        self.lock().items.clear();
    }

    /// Adds an item, and removes the oldest one if the buffer is full.
    pub(crate) fn push(&self, item: T) {
        let mut inner = self.lock();
        if inner.capacity == 0 {
            return;
        }
        // The removed item is dropped after the lock is released.
        let _oldest = if inner.items.len() >= inner.capacity { inner.items.pop_front() } else { None };
        inner.items.push_back(Arc::new(item));
        drop(inner);
    }

    /// Up to `limit` items that match, newest first.
    pub fn newest(&self, limit: usize, matches: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let inner = self.lock();
        inner.items.iter().rev().filter(|one| matches(one)).take(limit).cloned().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().items.len()
    }

    fn lock(&self) -> MutexGuard<'_, RingState<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_buffer_keeps_newest_items() {
        let ring = RingBuffer::default();
        ring.push(0);
        assert_eq!(ring.len(), 0, "the initial capacity is zero");
        ring.resize(3);
        (1..=5).for_each(|number| ring.push(number));
        let newest = |most| ring.newest(most, |_| true).iter().map(|one| **one).collect::<Vec<i32>>();
        assert_eq!((newest(9), newest(2)), (vec![5, 4, 3], vec![5, 4]));
        assert_eq!(ring.newest(9, |one| one % 2 == 0).len(), 1);
        ring.resize(1);
        assert_eq!(newest(9), [5]);
        ring.clear();
        assert_eq!(ring.len(), 0);
    }
}
