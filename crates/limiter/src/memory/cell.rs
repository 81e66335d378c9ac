//! One cell of a table: the owner, a head that determines its expiry, and a body of state.

use super::table::CellTable;
use crate::sync::{AtomicU64, Ordering, SpinBackoff, fence};

/// Set in a head while one thread has exclusive access to its cell.
pub(crate) const LOCK_BIT: u64 = 1 << 63;
/// The generation of quotas that wrote the state, modulo two.
pub(crate) const GENERATION_BIT: u64 = 1 << 62;
/// The remaining bits of a head.
pub(crate) const VALUE_MASK: u64 = GENERATION_BIT - 1;

/// The number of words before the body of a cell.
pub(super) const OWNER_WORD: usize = 0;
pub(super) const HEAD_WORD: usize = 1;
pub(super) const HEADER_WORDS: usize = 2;

/// One cell and its expected owner: another key can take an expired cell over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell<'a> {
    pub(super) table: &'a CellTable,
    pub(super) offset: usize,
    pub(super) owner: u64,
}

/// A cell without a body, by references to its two words.
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

/// The initial state of a new key.
#[derive(Clone, Copy)]
pub(super) enum CellInit<'a> {
    Fresh(u64),
    Copy(Cell<'a>, u64),
}

impl<'a> Cell<'a> {
    /// Whether the cell still belongs to the key for which it was found.
    #[inline]
    pub(crate) fn is_owned(&self) -> bool {
        self.current_owner() == self.owner
    }

    /// The head, which is compared and swapped.
    #[inline]
    pub(crate) fn head(&self) -> &'a AtomicU64 {
        self.table.word(self.offset + HEAD_WORD)
    }

    /// A word of state behind the head.
    #[inline]
    pub(crate) fn body(&self, index: usize) -> &'a AtomicU64 {
        self.table.word(self.offset + HEADER_WORDS + index)
    }

    /// All words of state.
    pub(crate) fn words(self) -> impl Iterator<Item = &'a AtomicU64> {
        (0..self.table.cell_words - HEADER_WORDS).map(move |index| self.body(index))
    }

    /// Whether it is a cell that keys without their own cell share.
    pub(crate) fn is_shared(&self) -> bool {
        self.owner == 0
    }

    /// The position in the table, which defines the order of locking.
    pub(crate) fn position(&self) -> usize {
        self.offset
    }

    /// Locks the cell and returns its head, or `None` if it was reassigned to another key.
    pub(crate) fn lock(&self) -> Option<u64> {
        let mut backoff = SpinBackoff::default();
        loop {
            let current = self.head().load(Ordering::Relaxed);
            if current & LOCK_BIT == 0 && self.try_lock(current) {
                if self.is_owned() {
                    return Some(current);
                }
                self.unlock(current);
                return None;
            }
            backoff.pause();
        }
    }

    pub(super) fn try_lock(&self, current: u64) -> bool {
        let swap =
            self.head().compare_exchange(current, current | LOCK_BIT, Ordering::Acquire, Ordering::Relaxed);
        swap.is_ok()
    }

    /// Unlocks the cell and writes its head.
    pub(crate) fn unlock(&self, head: u64) {
        self.head().store(head & !LOCK_BIT, Ordering::Release);
    }

    /// Assigns a locked cell to the key, and unlocks it.
    pub(super) fn initialize(&self, start: CellInit<'_>) {
        // A thread that read the old head cannot swap it after this, because heads only grow.
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
        // The new owner must be visible to every thread that sees the new head.
        self.table.word(self.offset + OWNER_WORD).store(self.owner, Ordering::Relaxed);
        fence(Ordering::Release);
        self.unlock(head);
    }

    #[inline]
    pub(super) fn current_owner(&self) -> u64 {
        self.table.word(self.offset + OWNER_WORD).load(Ordering::Acquire)
    }
}
