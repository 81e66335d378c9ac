//! A hash table of fixed size, whose cells are never freed but reused after they expire.
//!
//! ```text
//!   group  │ owner head body… │ owner head body… │ ×8     128 bytes when the body is empty
//!   owner  the fingerprint of the key, 64 bits of a keyed hash; 0 = unused
//!   head   LOCK | GENERATION | 62 bits that determine when the cell expires
//! ```
//!
//! A key lives in the first of its groups that had a free cell. A cell has *expired* when its state equals that of a new
//! key: the next key that needs a cell takes it, which loses nothing. So no sweep is needed. If all cells of a key are in
//! use, it replaces the key with the least usage, depending on [`Overflow`]; a limited key is never replaced.
//!
//! The table stores fingerprints, not keys. Two keys have the same fingerprint, and then share a limit, with a probability
//! of n²/2^65: one in forty million for a million keys. Without the seed an attacker cannot construct such keys.

use super::cell::{Cell, CellInit, FastCell, HEAD_WORD, HEADER_WORDS, LOCK_BIT, OWNER_WORD, VALUE_MASK};
use crate::{
    limiter::{Overflow, TableFullListener, TableSize},
    sync::{AtomicU64, Mutex, MutexGuard, Ordering, SpinBackoff, lock},
};
use std::hint::black_box;
use tidegate_core::{Decision, Micros};

// Under loom a table is as small as possible: every cell multiplies the number of interleavings.
const CELLS_PER_GROUP: usize = if cfg!(loom) { 2 } else { 8 };
/// The number of cells in half a group: a cache line if bodies are empty.
const CELLS_PER_HALF_GROUP: usize = CELLS_PER_GROUP / 2;
/// The number of groups that can hold a key.
const MAX_PROBES: u64 = if cfg!(loom) { 2 } else { 8 };
/// The number of groups in which an unused cell is preferred to an expired one.
const NEAR_PROBES: u64 = 2;
/// Below this load, all but one in millions of new keys find a free cell.
const LOAD_FACTOR: f64 = 0.65;
/// The minimum interval between two notifications of a full table.
const TABLE_FULL_NOTICE_INTERVAL: Micros = Micros::from_secs(60);
/// The maximum number of keys that are scored to replace one.
const MAX_EVICTION_CANDIDATES: usize = 8;
/// Inserts of different stripes run in parallel.
const STRIPES: usize = if cfg!(loom) { 3 } else { 64 };
/// The maximum number of shared cells, for keys without their own cell.
const MAX_SHARED_CELLS: u64 = if cfg!(loom) { 1 } else { 256 };

#[derive(Debug)]
pub(crate) struct CellTable {
    words: Box<[AtomicU64]>,
    /// The number of words before the first cache line.
    align_offset: usize,
    pub(super) cell_words: usize,
    groups: u64,
    shared_cells: usize,
    /// A bit for each group that an insert found full: only then can a key be in a later group.
    full_groups: Box<[AtomicU64]>,
    /// Locked while a key is inserted, so that one key never gets two cells.
    insert_locks: Box<[Mutex<()>]>,
    used: AtomicU64,
    overflowed: AtomicU64,
    replaced: AtomicU64,
    listener: Option<TableFullListener>,
    /// The time of the last notification.
    notified_at: AtomicU64,
}

/// Two cache lines, the unit that processors fetch together.
const CACHE_LINE_BYTES: usize = 128;
const WORDS_PER_CACHE_LINE: usize = CACHE_LINE_BYTES / size_of::<u64>();
/// A group of cells without a body: one line.
const WORDS_PER_GROUP: usize = CELLS_PER_GROUP * HEADER_WORDS;

/// Interprets the cells of a table at a given time.
pub(crate) trait CellStates {
    /// The head of a new cell. Called while no change of quota is in progress.
    fn empty_head(&self) -> u64;

    /// Whether a cell with this head has expired.
    fn is_expired(&self, head: u64) -> bool;

    /// The remaining quota of the key of a cell that the caller has locked; the cell stays locked. If the key is limited, the
    /// cell is unlocked and the result is `None`.
    fn score(&self, cell: Cell<'_>, head: u64) -> Option<EvictionScore>;

    /// Called when a key is replaced: its charges can no longer be refunded.
    fn on_evict(&self, owner: u64);

    /// Whether a smaller head means less usage.
    const IS_RANKED: bool;
}

/// The score of a key that is not limited.
pub(crate) struct EvictionScore {
    /// The remaining part of its quota, relative to [`FULL_SCORE`].
    pub(crate) remaining: u64,
    /// The head to unlock its cell with.
    pub(crate) head: u64,
}

/// The score of an unused quota.
pub(crate) const FULL_SCORE: u64 = 1 << 20;

impl EvictionScore {
    pub(crate) fn new(decision: &Decision, head: u64) -> Self {
        let remaining =
            u128::from(decision.remaining()) * u128::from(FULL_SCORE) / u128::from(decision.limit().max(1));
        Self { remaining: u64::try_from(remaining).unwrap_or(FULL_SCORE), head }
    }
}

/// The cell of a key.
pub(crate) enum CellLookup<'a> {
    /// A cell of its own.
    Own(Cell<'a>),
    /// A cell of its own that belonged to another key until now.
    Replaced(Cell<'a>),
    /// A shared cell, because the table is full. While its stripe is locked the key gets no cell of its own, which would
    /// miss the charges to the shared one. Without a guard the caller has locked the stripe already.
    TableFull(Cell<'a>, Option<MutexGuard<'a, ()>>),
}

/// Whether the caller has locked the stripe of a key that may be inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StripeLock {
    /// Not locked.
    Unlocked,
    /// Locked by the caller, see [`CellTable::lock_stripes`].
    Locked,
}

/// The table could not be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfMemory {
    pub(crate) bytes: u64,
}

impl CellTable {
    /// Allocates a table for `keys` keys, each with `body` words of state.
    pub(crate) fn new(keys: u64, body: usize) -> Result<Self, OutOfMemory> {
        // With an even number of words per cell, a group is a whole number of cache lines.
        let cell_words = (HEADER_WORDS + body).next_multiple_of(2);
        let groups = Self::groups_for(keys);
        let words = (groups as usize)
            .checked_mul(CELLS_PER_GROUP)
            .and_then(|cells| cells.checked_add(Self::shared_for(keys)))
            .and_then(|cells| cells.checked_mul(cell_words))
            .and_then(|words| words.checked_add(WORDS_PER_CACHE_LINE));
        let out_of_memory = OutOfMemory { bytes: Self::bytes_for(keys, body) };
        let words = words.and_then(zeroed_words).ok_or(out_of_memory)?;
        let unaligned = words.as_ptr().addr() % CACHE_LINE_BYTES;
        Ok(Self {
            align_offset: (CACHE_LINE_BYTES - unaligned) % CACHE_LINE_BYTES / size_of::<u64>(),
            words,
            cell_words,
            groups,
            shared_cells: Self::shared_for(keys),
            full_groups: (0..groups.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            insert_locks: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            used: AtomicU64::new(0),
            overflowed: AtomicU64::new(0),
            replaced: AtomicU64::new(0),
            listener: None,
            notified_at: AtomicU64::new(0),
        })
    }

    /// The total size of a table of `keys` keys in bytes.
    pub(crate) fn bytes_for(keys: u64, body: usize) -> u64 {
        let cell = ((HEADER_WORDS + body).next_multiple_of(2) * 8) as u64;
        let groups = Self::groups_for(keys);
        let cells =
            groups.saturating_mul(CELLS_PER_GROUP as u64).saturating_add(Self::shared_for(keys) as u64);
        cells.saturating_mul(cell).saturating_add(groups.div_ceil(64) * 8)
    }

    /// The most keys that fit in `bytes`; at least one.
    pub(crate) fn keys_for(bytes: u64, body: usize) -> u64 {
        let cell = ((HEADER_WORDS + body).next_multiple_of(2) * 8) as u64;
        let cells = bytes.saturating_sub(Self::bytes_for(MAX_SHARED_CELLS, body)) / cell;
        ((cells as f64 * LOAD_FACTOR * 0.999) as u64).max(1)
    }

    fn shared_for(keys: u64) -> usize {
        keys.clamp(1, MAX_SHARED_CELLS) as usize
    }

    fn groups_for(keys: u64) -> u64 {
        let cells = (keys as f64 / LOAD_FACTOR).ceil() as u64;
        cells.div_ceil(CELLS_PER_GROUP as u64).max(1)
    }

    /// The cell of the key with this fingerprint.
    #[inline]
    pub(crate) fn find(&self, owner: u64) -> Option<Cell<'_>> {
        for probe in 0..MAX_PROBES {
            let group = self.group(owner, probe);
            if let Some(cell) = self.cells_of(group, owner).find(Cell::is_owned) {
                return Some(cell);
            }
            if !self.is_group_full(group) {
                return None;
            }
        }
        None
    }

    /// Loads the first cell of a key into the processor cache, without waiting for it.
    #[inline]
    pub(crate) fn prefetch(&self, owner: u64) {
        let first = self.cells_of(self.group(owner, 0), owner).next();
        black_box(first.map(|cell| cell.current_owner()));
    }

    /// The cell of a key in the first of its groups, where almost all keys are, in a table whose cells have no body: the fast
    /// path to a decision.
    #[inline(always)]
    pub(crate) fn find_fast(&self, owner: u64) -> Option<FastCell<'_>> {
        debug_assert_eq!(self.cell_words, HEADER_WORDS, "a group is a cache line only if bodies are empty");
        let start = self.align_offset + self.group(owner, 0) * WORDS_PER_GROUP;
        let words: &[AtomicU64; WORDS_PER_GROUP] = self.words.get(start..)?.first_chunk()?;
        let preferred = owner as usize & CELLS_PER_HALF_GROUP;
        [preferred, preferred ^ CELLS_PER_HALF_GROUP].into_iter().find_map(|half| {
            // Compares all cells of a half at once: a branch per cell would be mispredicted too often.
            let word = |cell: usize| (half + cell) * HEADER_WORDS % WORDS_PER_GROUP;
            let matches = |cell| u32::from(words[word(cell)].load(Ordering::Acquire) == owner);
            let matching =
                (0..CELLS_PER_HALF_GROUP).fold(0, |matching, cell| matching | matches(cell) << cell);
            let first = word(matching.trailing_zeros() as usize % CELLS_PER_HALF_GROUP);
            (matching != 0).then(|| FastCell {
                owner_word: &words[(first + OWNER_WORD) % WORDS_PER_GROUP],
                head: &words[(first + HEAD_WORD) % WORDS_PER_GROUP],
                owner,
            })
        })
    }

    /// The cell of the key; assigns an unused or expired one if it has none yet.
    pub(crate) fn find_or_insert(
        &self,
        owner: u64,
        stripe: StripeLock,
        overflow: Overflow,
        states: &impl CellStates,
    ) -> CellLookup<'_> {
        if let Some(cell) = self.find(owner) {
            return CellLookup::Own(cell);
        }
        let guard = (stripe == StripeLock::Unlocked).then(|| lock(&self.insert_locks[stripe_of(owner)]));
        self.insert(owner, guard, overflow, states)
    }

    #[cold]
    fn insert<'a>(
        &'a self,
        owner: u64,
        guard: Option<MutexGuard<'a, ()>>,
        overflow: Overflow,
        states: &impl CellStates,
    ) -> CellLookup<'a> {
        let mut backoff = SpinBackoff::default();
        loop {
            let free = match self.search(owner, |head| states.is_expired(head)) {
                CellSearch::Found(cell) => return CellLookup::Own(cell),
                CellSearch::Free(free) => free,
                CellSearch::TableFull => {
                    if overflow == Overflow::Replace
                        && let Some(cell) = self.replace(owner, states)
                    {
                        return CellLookup::Replaced(cell);
                    }
                    // A caller that has locked the stripe searches for the second time: count only once.
                    self.overflowed.fetch_add(u64::from(guard.is_some()), Ordering::Relaxed);
                    return CellLookup::TableFull(self.shared_cell(owner), guard);
                }
            };
            let FreeCell { cell, current_owner, head, probe } = free;
            // From now on, lookups of the key must continue past the earlier groups.
            (0..probe).for_each(|probe| self.mark_group_full(self.group(owner, probe)));
            // Another insert may have chosen the same cell: the first to lock it gets it.
            if head & LOCK_BIT != 0 || !cell.try_lock(head) {
                backoff.pause();
                continue;
            }
            if cell.current_owner() != current_owner {
                cell.unlock(head);
                continue;
            }
            cell.initialize(self.initial_state(owner, states));
            if current_owner == 0 {
                self.used.fetch_add(1, Ordering::Relaxed);
            }
            return CellLookup::Own(cell);
        }
    }

    /// Takes the cell of the neighbouring key that has used least and is not limited.
    ///
    /// This makes a head smaller. A thread that read a head before, and swaps it after another key has the cell with exactly
    /// that head again, charges the other key: harmless, because the replaced key starts afresh.
    fn replace<S: CellStates>(&self, owner: u64, states: &S) -> Option<Cell<'_>> {
        let unused_value = states.empty_head() & VALUE_MASK;
        let mut candidates = Vec::with_capacity(MAX_PROBES as usize * CELLS_PER_GROUP);
        for probe in 0..MAX_PROBES {
            for cell in self.cells_of(self.group(owner, probe), owner) {
                let head = cell.head().load(Ordering::Acquire);
                // A cell without usage was just assigned to a key that is about to use it: do not take it.
                if head & LOCK_BIT == 0 && head & VALUE_MASK > unused_value {
                    candidates.push((head & VALUE_MASK, probe, cell, cell.current_owner(), head));
                }
            }
        }
        candidates.sort_unstable_by_key(|(value, probe, ..)| (*value, *probe));
        // Of the cells locked for scoring only the best so far stays locked, and no lock is waited for.
        let mut best: Option<(EvictionScore, u64, Cell<'_>, u64)> = None;
        for (_, probe, cell, current_owner, head) in candidates.into_iter().take(MAX_EVICTION_CANDIDATES) {
            if current_owner == 0 || !cell.try_lock(head) {
                continue;
            }
            if cell.current_owner() != current_owner {
                cell.unlock(head);
                continue;
            }
            let Some(score) = states.score(Cell { owner: current_owner, ..cell }, head) else { continue };
            match &best {
                Some((least_used, ..)) if least_used.remaining >= score.remaining => cell.unlock(score.head),
                _ => {
                    if let Some((other, _, cell, _)) = best.replace((score, probe, cell, current_owner)) {
                        cell.unlock(other.head);
                    }
                }
            }
            if S::IS_RANKED {
                break;
            }
        }
        let (_, probe, cell, current_owner) = best?;
        states.on_evict(current_owner);
        (0..probe).for_each(|probe| self.mark_group_full(self.group(owner, probe)));
        cell.initialize(self.initial_state(owner, states));
        self.replaced.fetch_add(1, Ordering::Relaxed);
        Some(cell)
    }

    /// Searches all groups that can hold the key, and selects the best free cell on the way.
    fn search(&self, owner: u64, is_expired: impl Fn(u64) -> bool) -> CellSearch<'_> {
        let mut best: Option<FreeCell<'_>> = None;
        let mut may_follow = true;
        for probe in 0..MAX_PROBES {
            let group = self.group(owner, probe);
            for cell in self.cells_of(group, owner) {
                let (current_owner, head) = (cell.current_owner(), cell.head().load(Ordering::Acquire));
                if current_owner == owner {
                    return CellSearch::Found(cell);
                }
                // The key of an expired cell may return: prefer an unused cell nearby.
                let is_better = match &best {
                    None => current_owner == 0 || (head & LOCK_BIT == 0 && is_expired(head)),
                    Some(best) => current_owner == 0 && best.current_owner != 0 && probe < NEAR_PROBES,
                };
                if is_better {
                    best = Some(FreeCell { cell, current_owner, head, probe });
                }
            }
            may_follow &= self.is_group_full(group);
            let is_final =
                best.as_ref().is_some_and(|best| best.current_owner == 0 || probe + 1 >= NEAR_PROBES);
            if is_final && !may_follow {
                break;
            }
        }
        best.map_or(CellSearch::TableFull, CellSearch::Free)
    }

    /// The initial state of a new key: that of its shared cell, if it may have used that before.
    fn initial_state(&self, owner: u64, states: &impl CellStates) -> CellInit<'_> {
        let head = states.empty_head();
        if self.overflowed.load(Ordering::Relaxed) == 0 {
            return CellInit::Fresh(head);
        }
        let shared = self.shared_cell(owner);
        match shared.lock() {
            Some(shared_head) if states.is_expired(shared_head) => {
                shared.unlock(shared_head);
                CellInit::Fresh(head)
            }
            Some(shared_head) => CellInit::Copy(shared, shared_head),
            None => CellInit::Fresh(head),
        }
    }

    /// All cells that are or were in use, including the shared ones.
    pub(crate) fn cells(&self) -> impl Iterator<Item = Cell<'_>> {
        let own = self.groups as usize * CELLS_PER_GROUP;
        (0..own + self.shared_cells).filter_map(move |index| {
            let cell = Cell { table: self, offset: index * self.cell_words, owner: 0 };
            let owner = cell.current_owner();
            (owner != 0 || index >= own).then_some(Cell { owner, ..cell })
        })
    }

    /// Locks all stripes, so that no cell is reassigned until the guards are dropped.
    pub(crate) fn lock_all(&self) -> Vec<MutexGuard<'_, ()>> {
        self.insert_locks.iter().map(lock).collect()
    }

    /// Locks the stripes of these keys, so that they get no other cell until the guards are dropped. Stripes are locked in
    /// ascending order, so that two callers cannot deadlock; callers must lock several tables in a global order.
    pub(crate) fn lock_stripes(&self, owners: impl Iterator<Item = u64>) -> Vec<MutexGuard<'_, ()>> {
        let mut stripes: Vec<_> = owners.map(stripe_of).collect();
        stripes.sort_unstable();
        stripes.dedup();
        stripes.into_iter().map(|stripe| lock(&self.insert_locks[stripe])).collect()
    }

    /// The number of cells that were ever used.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The maximum number of keys with a cell of their own.
    pub(crate) fn capacity(&self) -> u64 {
        self.groups * CELLS_PER_GROUP as u64
    }

    /// The number of inserts that found the table full.
    pub(crate) fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// The size and the counters of the table.
    pub(crate) fn size(&self) -> TableSize {
        TableSize {
            capacity: self.capacity(),
            used: self.used(),
            overflowed: self.overflowed(),
            replaced: self.replaced.load(Ordering::Relaxed),
            bytes: self.bytes(),
        }
    }

    /// Sets the callback of a full table.
    pub(crate) fn set_listener(&mut self, listener: TableFullListener) {
        self.listener = Some(listener);
    }

    /// Reports that the table is full, at most once a minute.
    #[cold]
    pub(crate) fn notify_table_full(&self, now: Micros) {
        let Some(listener) = &self.listener else { return };
        let (now, notified_at) = (now.get().max(1), self.notified_at.load(Ordering::Relaxed));
        let is_due = notified_at == 0 || now >= notified_at.saturating_add(TABLE_FULL_NOTICE_INTERVAL.get());
        if is_due
            && self
                .notified_at
                .compare_exchange(notified_at, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            listener.notify(self.size());
        }
    }

    /// The size of the table in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        ((self.words.len() + self.full_groups.len()) * size_of::<u64>()) as u64
    }

    /// The cell that a key shares if it has no cell of its own.
    pub(crate) fn shared_cell(&self, owner: u64) -> Cell<'_> {
        let index = self.groups as usize * CELLS_PER_GROUP + (owner as usize) % self.shared_cells;
        Cell { table: self, offset: index * self.cell_words, owner: 0 }
    }

    /// The cells of a group, starting with the preferred one of the key. The cells of its half, a cache line if bodies are
    /// empty, precede those of the other half.
    #[inline]
    fn cells_of(&self, group: usize, owner: u64) -> impl Iterator<Item = Cell<'_>> {
        let preferred = owner as usize;
        (0..CELLS_PER_GROUP).map(move |offset| {
            let position =
                ((preferred + offset) % CELLS_PER_HALF_GROUP) + ((preferred ^ offset) & CELLS_PER_HALF_GROUP);
            let index = group * CELLS_PER_GROUP + position;
            Cell { table: self, offset: index * self.cell_words, owner }
        })
    }

    /// The group of a key at its `probe`-th probe.
    #[inline]
    fn group(&self, owner: u64, probe: u64) -> usize {
        let mixed = match probe {
            0 => owner,
            _ => (owner ^ probe).wrapping_mul(0x9E37_79B9_7F4A_7C15),
        };
        ((u128::from(mixed) * u128::from(self.groups)) >> 64) as usize
    }

    #[inline]
    fn is_group_full(&self, group: usize) -> bool {
        self.full_groups[group / 64].load(Ordering::Acquire) & (1 << (group % 64)) != 0
    }

    fn mark_group_full(&self, group: usize) {
        self.full_groups[group / 64].fetch_or(1 << (group % 64), Ordering::AcqRel);
    }

    #[inline]
    pub(super) fn word(&self, index: usize) -> &AtomicU64 {
        &self.words[self.align_offset + index]
    }
}

fn stripe_of(owner: u64) -> usize {
    owner as usize % STRIPES
}

/// The result of a search for a key that needs a cell.
enum CellSearch<'a> {
    Found(Cell<'a>),
    Free(FreeCell<'a>),
    TableFull,
}

/// A cell that can be taken, with the owner and the head that were read.
struct FreeCell<'a> {
    cell: Cell<'a>,
    current_owner: u64,
    head: u64,
    probe: u64,
}

#[cfg(not(loom))]
fn zeroed_words(count: usize) -> Option<Box<[AtomicU64]>> {
    // The allocator returns zeroed pages without touching them only for types without extra alignment: untouched memory is
    // not resident.
    bytemuck::allocation::try_zeroed_slice_box(count).ok()
}

#[cfg(loom)]
fn zeroed_words(count: usize) -> Option<Box<[AtomicU64]>> {
    Some((0..count).map(|_| AtomicU64::new(0)).collect())
}
