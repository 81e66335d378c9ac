//! One cell of a table: whose it is, a head that tells when it says nothing any more, and a body of state.

use super::table::CellTable;
use crate::sync::{AtomicU64, Ordering, SpinBackoff, fence};

/// Set in a head while one thread alone may change its cell.
pub(crate) const LOCK_BIT: u64 = 1 << 63;
/// Which of two generations of quotas wrote the state.
pub(crate) const GENERATION_BIT: u64 = 1 << 62;
/// The rest of a head.
pub(crate) const VALUE_MASK: u64 = GENERATION_BIT - 1;

/// Words in front of a cell's body.
pub(super) const OWNER_WORD: usize = 0;
pub(super) const HEAD_WORD: usize = 1;
pub(super) const HEADER_WORDS: usize = 2;

/// One cell, and whose it must be: another key may take it over once it is spent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell<'a> {
    pub(super) table: &'a CellTable,
    pub(super) offset: usize,
    pub(super) owner: u64,
}

/// A cell without a body, by the two words that it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FastCell<'a> {
    pub(super) owner_word: &'a AtomicU64,
    pub(super) head: &'a AtomicU64,
    pub(super) owner: u64,
}

impl FastCell<'_> {
    #[inline(always)]
    pub(crate) fn head(&self) -> &AtomicU64 {
        self.head
    }

    #[inline(always)]
    pub(crate) fn is_owned(&self) -> bool {
        self.owner_word.load(Ordering::Acquire) == self.owner
    }
}

/// What a new key starts with.
#[derive(Clone, Copy)]
pub(super) enum CellInit<'a> {
    Fresh(u64),
    Copy(Cell<'a>, u64),
}

impl<'a> Cell<'a> {
    /// Whether the cell still belongs to the key it was found for.
    #[inline]
    pub(crate) fn is_owned(&self) -> bool {
        self.current_owner() == self.owner
    }

    /// The word that is compared and swapped.
    #[inline]
    pub(crate) fn head(&self) -> &'a AtomicU64 {
        self.table.word(self.offset + HEAD_WORD)
    }

    /// The words of state behind the head.
    #[inline]
    pub(crate) fn body(&self, index: usize) -> &'a AtomicU64 {
        self.table.word(self.offset + HEADER_WORDS + index)
    }

    /// All of them.
    pub(crate) fn words(self) -> impl Iterator<Item = &'a AtomicU64> {
        (0..self.table.cell_words - HEADER_WORDS).map(move |index| self.body(index))
    }

    /// Whether keys without room share it.
    pub(crate) fn is_shared(&self) -> bool {
        self.owner == 0
    }

    /// Where it lies in the table: the order in which several cells are locked.
    pub(crate) fn position(&self) -> usize {
        self.offset
    }

    /// Locks the cell and returns its head, or `None` if it went to another key.
    pub(crate) fn lock(&self) -> Option<u64> {
        let mut backoff = SpinBackoff::default();
        loop {
            let seen = self.head().load(Ordering::Relaxed);
            if seen & LOCK_BIT == 0 && self.try_lock(seen) {
                if self.is_owned() {
                    return Some(seen);
                }
                self.unlock(seen);
                return None;
            }
            backoff.pause();
        }
    }

    pub(super) fn try_lock(&self, seen: u64) -> bool {
        let swap = self.head().compare_exchange(seen, seen | LOCK_BIT, Ordering::Acquire, Ordering::Relaxed);
        swap.is_ok()
    }

    /// Unlocks the cell and writes its head.
    pub(crate) fn unlock(&self, head: u64) {
        self.head().store(head & !LOCK_BIT, Ordering::Release);
    }

    /// Makes a locked cell the key's own, and unlocks it.
    pub(super) fn initialize(&self, start: CellInit<'_>) {
        // A reader that saw the old head must not swap it after this: heads only grow, so it cannot.
        let head = match start {
            CellInit::Fresh(head) => {
                self.words().for_each(|word| word.store(0, Ordering::Relaxed));
                head
            }
            CellInit::Copy(shared, head) => {
                for (word, from) in self.words().zip(shared.words()) {
                    word.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
                }
                shared.unlock(head);
                head
            }
        };
        // Whoever sees the new head must also see the new owner.
        self.table.word(self.offset + OWNER_WORD).store(self.owner, Ordering::Relaxed);
        fence(Ordering::Release);
        self.unlock(head);
    }

    #[inline]
    pub(super) fn current_owner(&self) -> u64 {
        self.table.word(self.offset + OWNER_WORD).load(Ordering::Acquire)
    }
}
