//! One cell of a table: whose it is, a head that tells when it says nothing any more, and a body of state.

use super::table::Table;
use crate::sync::{AtomicU64, Backoff, Ordering, fence};

/// Set in a head while one thread alone may change its cell.
pub(crate) const LOCK: u64 = 1 << 63;
/// Which of two generations of quotas wrote the state.
pub(crate) const GENERATION: u64 = 1 << 62;
/// The rest of a head.
pub(crate) const VALUE: u64 = GENERATION - 1;

/// Words in front of a cell's body.
pub(super) const OWNER: usize = 0;
pub(super) const HEAD: usize = 1;
pub(super) const BODY: usize = 2;

/// One cell, and whose it must be: another key may take it over once it is spent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell<'a> {
    pub(super) table: &'a Table,
    pub(super) first: usize,
    pub(super) owner: u64,
}

/// A cell without a body, by the two words that it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Near<'a> {
    pub(super) holder: &'a AtomicU64,
    pub(super) head: &'a AtomicU64,
    pub(super) owner: u64,
}

impl Near<'_> {
    #[inline(always)]
    pub(crate) fn head(&self) -> &AtomicU64 {
        self.head
    }

    #[inline(always)]
    pub(crate) fn is_ours(&self) -> bool {
        self.holder.load(Ordering::Acquire) == self.owner
    }
}

/// What a new key starts with.
#[derive(Clone, Copy)]
pub(super) enum Start<'a> {
    Fresh(u64),
    Copy(Cell<'a>, u64),
}

impl<'a> Cell<'a> {
    /// Whether the cell still belongs to the key it was found for.
    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        self.holder() == self.owner
    }

    /// The word that is compared and swapped.
    #[inline]
    pub(crate) fn head(&self) -> &'a AtomicU64 {
        self.table.word(self.first + HEAD)
    }

    /// The words of state behind the head.
    #[inline]
    pub(crate) fn body(&self, index: usize) -> &'a AtomicU64 {
        self.table.word(self.first + BODY + index)
    }

    /// All of them.
    pub(crate) fn words(self) -> impl Iterator<Item = &'a AtomicU64> {
        (0..self.table.cell_words - BODY).map(move |index| self.body(index))
    }

    /// Whether keys without room share it.
    pub(crate) fn is_shared(&self) -> bool {
        self.owner == 0
    }

    /// Where it lies in the table: the order in which several cells are locked.
    pub(crate) fn position(&self) -> usize {
        self.first
    }

    /// Locks the cell and returns its head, or `None` if it went to another key.
    pub(crate) fn lock(&self) -> Option<u64> {
        let mut backoff = Backoff::default();
        loop {
            let seen = self.head().load(Ordering::Relaxed);
            if seen & LOCK == 0 && self.try_lock(seen) {
                if self.is_ours() {
                    return Some(seen);
                }
                self.unlock(seen);
                return None;
            }
            backoff.pause();
        }
    }

    pub(super) fn try_lock(&self, seen: u64) -> bool {
        let swap = self.head().compare_exchange(seen, seen | LOCK, Ordering::Acquire, Ordering::Relaxed);
        swap.is_ok()
    }

    /// Unlocks the cell and writes its head.
    pub(crate) fn unlock(&self, head: u64) {
        self.head().store(head & !LOCK, Ordering::Release);
    }

    /// Makes a locked cell the key's own, and unlocks it.
    pub(super) fn take_over(&self, start: Start<'_>) {
        // A reader that saw the old head must not swap it after this: heads only grow, so it cannot.
        let head = match start {
            Start::Fresh(head) => {
                self.words().for_each(|word| word.store(0, Ordering::Relaxed));
                head
            }
            Start::Copy(shared, head) => {
                for (word, from) in self.words().zip(shared.words()) {
                    word.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
                }
                shared.unlock(head);
                head
            }
        };
        // Whoever sees the new head must also see the new owner.
        self.table.word(self.first + OWNER).store(self.owner, Ordering::Relaxed);
        fence(Ordering::Release);
        self.unlock(head);
    }

    #[inline]
    pub(super) fn holder(&self) -> u64 {
        self.table.word(self.first + OWNER).load(Ordering::Acquire)
    }
}
