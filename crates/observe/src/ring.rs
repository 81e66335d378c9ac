//! The last so many of something.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The last so many, shared by all threads.
pub struct Ring<T> {
    inner: Mutex<Inner<T>>,
}

struct Inner<T> {
    most: usize,
    kept: VecDeque<Arc<T>>,
}

impl<T> Default for Ring<T> {
    fn default() -> Self {
        Self { inner: Mutex::new(Inner { most: 0, kept: VecDeque::new() }) }
    }
}

impl<T> Ring<T> {
    /// Keeps so many from now on.
    pub(crate) fn resize(&self, most: u64) {
        let mut inner = self.lock();
        inner.most = usize::try_from(most).unwrap_or(usize::MAX);
        let excess = inner.kept.len().saturating_sub(inner.most);
        inner.kept.drain(..excess);
        inner.kept.shrink_to_fit();
    }

    pub(crate) fn clear(&self) {
        self.lock().kept.clear();
    }

    /// Keeps one more, and lets go of the oldest where there is no room.
    pub(crate) fn push(&self, one: T) {
        let mut inner = self.lock();
        if inner.most == 0 {
            return;
        }
        // What is let go of is dropped when nobody waits for the lock any more.
        let _oldest = if inner.kept.len() >= inner.most { inner.kept.pop_front() } else { None };
        inner.kept.push_back(Arc::new(one));
        drop(inner);
    }

    /// Those that this is true of, newest first, at most so many.
    pub fn newest(&self, most: usize, is_meant: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let inner = self.lock();
        inner.kept.iter().rev().filter(|one| is_meant(one)).take(most).cloned().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().kept.len()
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_ones_are_kept() {
        let ring = Ring::default();
        ring.push(0);
        assert_eq!(ring.len(), 0, "nobody has asked for any");
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
