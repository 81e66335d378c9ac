//! A hash table of fixed size whose cells are never freed, only used again once they say nothing.
//!
//! ```text
//!   group  │ owner head body… │ owner head body… │ ×8     128 bytes when the body is empty
//!   owner  the key's fingerprint, 64 bits of a keyed hash; 0 = never used
//!   head   LOCK | GENERATION | 62 bits that tell when the cell is as good as never seen
//! ```
//!
//! A key lives in the first of its groups that had room. A cell whose state equals a new key's is *spent*: the
//! next key that needs room takes it, which loses nothing. So no thread sweeps. Where all cells of a key are in use, the
//! key that has used least gives way, unless [`Overflow`] says otherwise; a key that is limited never does.
//!
//! Keys are not kept, only fingerprints. Two keys share a fingerprint, and then a limit, with a probability of
//! n²/2^65: one in forty million for a million keys, and nobody can aim for it without the seed.

use super::cell::{Cell, CellInit, FastCell, HEAD_WORD, HEADER_WORDS, LOCK_BIT, OWNER_WORD, VALUE_MASK};
use crate::{
    limiter::{FullListener, Overflow, TableSize},
    sync::{AtomicU64, Mutex, MutexGuard, Ordering, SpinBackoff, lock},
};
use std::hint::black_box;
use tidegate_core::{Decision, Micros};

// Under loom a table is as small as can be: every cell multiplies the orders in which threads can meet.
const CELLS_PER_GROUP: usize = if cfg!(loom) { 2 } else { 8 };
/// Cells in half a group: a cache line when bodies are empty.
const CELLS_PER_HALF_GROUP: usize = CELLS_PER_GROUP / 2;
/// Groups that a key may live in.
const MAX_PROBES: u64 = if cfg!(loom) { 2 } else { 8 };
/// Groups in which an unused cell is taken rather than a spent one.
const NEAR_PROBES: u64 = 2;
/// A table this full still finds room for a new key, save for one in millions.
const LOAD_FACTOR: f64 = 0.65;
/// Whoever listens is told of a full table this often.
const FULL_NOTICE_INTERVAL: Micros = Micros::from_secs(60);
/// Keys near that are asked whether they are limited before another finds no room.
const MAX_EVICTION_CANDIDATES: usize = 8;
/// Inserts of different stripes go on side by side.
const STRIPES: usize = if cfg!(loom) { 3 } else { 64 };
/// Cells that keys without room share, in a table of any size.
const MAX_SHARED_CELLS: u64 = if cfg!(loom) { 1 } else { 256 };

#[derive(Debug)]
pub(crate) struct CellTable {
    words: Box<[AtomicU64]>,
    /// Words before the first that starts a line.
    align_offset: usize,
    pub(super) cell_words: usize,
    groups: u64,
    shared_cells: usize,
    /// A bit for each group that some key found full: only past such a group can a key live in a later one.
    crowded: Box<[AtomicU64]>,
    /// Held while a key is inserted, so that one key never gets two cells.
    insert_locks: Box<[Mutex<()>]>,
    used: AtomicU64,
    overflowed: AtomicU64,
    replaced: AtomicU64,
    listener: Option<FullListener>,
    /// When the listener was told last.
    notified_at: AtomicU64,
}

/// Two cache lines, the unit that processors fetch together.
const CACHE_LINE_BYTES: usize = 128;
const WORDS_PER_CACHE_LINE: usize = CACHE_LINE_BYTES / size_of::<u64>();
/// A group of cells without a body: one line.
const WORDS_PER_GROUP: usize = CELLS_PER_GROUP * HEADER_WORDS;

/// What the cells of a table mean at some moment.
pub(crate) trait CellStates {
    /// The head that a new cell starts with. Asked for when no change of quota is under way.
    fn empty_head(&self) -> u64;

    /// Whether a cell with this head says nothing any more.
    fn is_expired(&self, head: u64) -> bool;

    /// How much is left to the key of a cell that the caller has locked and that stays locked; where the key is limited, the
    /// cell is unlocked.
    fn score(&self, cell: Cell<'_>, head: u64) -> Option<EvictionScore>;

    /// A key gives way to another: what it has taken cannot be given back any more.
    fn on_evict(&self, owner: u64);

    /// Whether less has been used where a head is smaller.
    const IS_RANKED: bool;
}

/// A key that is not limited.
pub(crate) struct EvictionScore {
    /// The part of its quota that is left, of [`FULL_SCORE`].
    pub(crate) remaining: u64,
    /// What its cell is unlocked with.
    pub(crate) head: u64,
}

/// All of a quota.
pub(crate) const FULL_SCORE: u64 = 1 << 20;

impl EvictionScore {
    pub(crate) fn new(decision: &Decision, head: u64) -> Self {
        let left =
            u128::from(decision.remaining()) * u128::from(FULL_SCORE) / u128::from(decision.limit().max(1));
        Self { remaining: u64::try_from(left).unwrap_or(FULL_SCORE), head }
    }
}

/// Where a key is counted.
pub(crate) enum CellLookup<'a> {
    /// In a cell of its own.
    Own(Cell<'a>),
    /// In one that was another key's until now.
    Replaced(Cell<'a>),
    /// No room: in a cell that it would share with other keys. As long as its stripe is held it gets no cell of its
    /// own, which would start without what is charged to the shared one meanwhile. Without a guard the caller
    /// holds the stripe already.
    Full(Cell<'a>, Option<MutexGuard<'a, ()>>),
}

/// Who holds the stripe of a key that may have to be inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StripeLock {
    /// Nobody yet.
    Unlocked,
    /// The caller, see [`CellTable::lock_stripes`].
    Locked,
}

/// The table could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfMemory {
    pub(crate) bytes: u64,
}

impl CellTable {
    /// A table with room for `keys` keys, each with `body` words of state.
    pub(crate) fn new(keys: u64, body: usize) -> Result<Self, OutOfMemory> {
        // An even number of words per cell makes a group a whole number of lines.
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
            crowded: (0..groups.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            insert_locks: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            used: AtomicU64::new(0),
            overflowed: AtomicU64::new(0),
            replaced: AtomicU64::new(0),
            listener: None,
            notified_at: AtomicU64::new(0),
        })
    }

    /// The bytes that a table of `keys` keys takes, all told.
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
            if !self.is_crowded(group) {
                return None;
            }
        }
        None
    }

    /// Reads where a key is if it is anywhere, and does not wait for it: who asks of it soon finds it near.
    #[inline]
    pub(crate) fn prefetch(&self, owner: u64) {
        let first = self.cells_of(self.group(owner, 0), owner).next();
        black_box(first.map(|cell| cell.current_owner()));
    }

    /// The cell of a key in the first of its groups, where almost all keys are, in a table whose cells have no body:
    /// the short way to a decision.
    #[inline(always)]
    pub(crate) fn find_fast(&self, owner: u64) -> Option<FastCell<'_>> {
        debug_assert_eq!(self.cell_words, HEADER_WORDS, "a group is a line only while bodies are empty");
        let start = self.align_offset + self.group(owner, 0) * WORDS_PER_GROUP;
        let words: &[AtomicU64; WORDS_PER_GROUP] = self.words.get(start..)?.first_chunk()?;
        let favourite = owner as usize & CELLS_PER_HALF_GROUP;
        [favourite, favourite ^ CELLS_PER_HALF_GROUP].into_iter().find_map(|half| {
            // All cells of a half at once: a branch for each would be guessed wrong too often.
            let place = |cell: usize| (half + cell) * HEADER_WORDS % WORDS_PER_GROUP;
            let holds = |cell| u32::from(words[place(cell)].load(Ordering::Acquire) == owner);
            let holders = (0..CELLS_PER_HALF_GROUP).fold(0, |holders, cell| holders | holds(cell) << cell);
            let first = place(holders.trailing_zeros() as usize % CELLS_PER_HALF_GROUP);
            (holders != 0).then(|| FastCell {
                owner_word: &words[(first + OWNER_WORD) % WORDS_PER_GROUP],
                head: &words[(first + HEAD_WORD) % WORDS_PER_GROUP],
                owner,
            })
        })
    }

    /// The cell of the key, made from an unused or spent one if it has none yet.
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
                CellSearch::Full => {
                    if overflow == Overflow::Replace
                        && let Some(cell) = self.replace(owner, states)
                    {
                        return CellLookup::Replaced(cell);
                    }
                    // Whoever holds the stripe already looks for the second time.
                    self.overflowed.fetch_add(u64::from(guard.is_some()), Ordering::Relaxed);
                    return CellLookup::Full(self.shared_cell(owner), guard);
                }
            };
            let FreeCell { cell, current_owner: holder, head: seen, probe } = free;
            // From now on the key is to be looked for past the groups before.
            (0..probe).for_each(|probe| self.set_crowded(self.group(owner, probe)));
            // Another key may want the same cell: whoever locks it first has it.
            if seen & LOCK_BIT != 0 || !cell.try_lock(seen) {
                backoff.pause();
                continue;
            }
            if cell.current_owner() != holder {
                cell.unlock(seen);
                continue;
            }
            cell.initialize(self.initial_state(owner, states));
            if holder == 0 {
                self.used.fetch_add(1, Ordering::Relaxed);
            }
            return CellLookup::Own(cell);
        }
    }

    /// Takes the cell of the key that has used least, of those near and not limited.
    ///
    /// Here a head becomes smaller. Whoever has read one, and swaps it after another key has the cell and exactly that head again,
    /// charges the other key: the replaced one has been given more by being replaced.
    fn replace<S: CellStates>(&self, owner: u64, states: &S) -> Option<Cell<'_>> {
        let unused = states.empty_head() & VALUE_MASK;
        let mut near = Vec::with_capacity(MAX_PROBES as usize * CELLS_PER_GROUP);
        for probe in 0..MAX_PROBES {
            for cell in self.cells_of(self.group(owner, probe), owner) {
                let seen = cell.head().load(Ordering::Acquire);
                // Somebody has just got a cell that has counted nothing, and is about to use it.
                if seen & LOCK_BIT == 0 && seen & VALUE_MASK > unused {
                    near.push((seen & VALUE_MASK, probe, cell, cell.current_owner(), seen));
                }
            }
        }
        near.sort_unstable_by_key(|(value, probe, ..)| (*value, *probe));
        // Of several that are locked for a look, only the best so far stays locked, and none is waited for.
        let mut best: Option<(EvictionScore, u64, Cell<'_>, u64)> = None;
        for (_, probe, cell, holder, seen) in near.into_iter().take(MAX_EVICTION_CANDIDATES) {
            if holder == 0 || !cell.try_lock(seen) {
                continue;
            }
            if cell.current_owner() != holder {
                cell.unlock(seen);
                continue;
            }
            let Some(found) = states.score(Cell { owner: holder, ..cell }, seen) else { continue };
            match &best {
                Some((least_used, ..)) if least_used.remaining >= found.remaining => cell.unlock(found.head),
                _ => {
                    if let Some((other, _, cell, _)) = best.replace((found, probe, cell, holder)) {
                        cell.unlock(other.head);
                    }
                }
            }
            if S::IS_RANKED {
                break;
            }
        }
        let (_, probe, cell, holder) = best?;
        states.on_evict(holder);
        (0..probe).for_each(|probe| self.set_crowded(self.group(owner, probe)));
        cell.initialize(self.initial_state(owner, states));
        self.replaced.fetch_add(1, Ordering::Relaxed);
        Some(cell)
    }

    /// Looks through all groups that may hold the key, and for the best free cell on the way.
    fn search(&self, owner: u64, is_spent: impl Fn(u64) -> bool) -> CellSearch<'_> {
        let mut best: Option<FreeCell<'_>> = None;
        let mut may_come = true;
        for probe in 0..MAX_PROBES {
            let group = self.group(owner, probe);
            for cell in self.cells_of(group, owner) {
                let (holder, seen) = (cell.current_owner(), cell.head().load(Ordering::Acquire));
                if holder == owner {
                    return CellSearch::Found(cell);
                }
                // The key of a spent cell may well come back: an unused one nearby is better.
                let is_better = match &best {
                    None => holder == 0 || (seen & LOCK_BIT == 0 && is_spent(seen)),
                    Some(best) => holder == 0 && best.current_owner != 0 && probe < NEAR_PROBES,
                };
                if is_better {
                    best = Some(FreeCell { cell, current_owner: holder, head: seen, probe });
                }
            }
            may_come &= self.is_crowded(group);
            let is_settled =
                best.as_ref().is_some_and(|best| best.current_owner == 0 || probe + 1 >= NEAR_PROBES);
            if is_settled && !may_come {
                break;
            }
        }
        best.map_or(CellSearch::Full, CellSearch::Free)
    }

    /// The cell whose state a new key starts with: that of the keys without room, if this one was among them.
    fn initial_state(&self, owner: u64, states: &impl CellStates) -> CellInit<'_> {
        let head = states.empty_head();
        if self.overflowed.load(Ordering::Relaxed) == 0 {
            return CellInit::Fresh(head);
        }
        let shared = self.shared_cell(owner);
        match shared.lock() {
            Some(seen) if states.is_expired(seen) => {
                shared.unlock(seen);
                CellInit::Fresh(head)
            }
            Some(seen) => CellInit::Copy(shared, seen),
            None => CellInit::Fresh(head),
        }
    }

    /// All cells that are or were in use, those that are shared included.
    pub(crate) fn cells(&self) -> impl Iterator<Item = Cell<'_>> {
        let own = self.groups as usize * CELLS_PER_GROUP;
        (0..own + self.shared_cells).filter_map(move |index| {
            let cell = Cell { table: self, offset: index * self.cell_words, owner: 0 };
            let owner = cell.current_owner();
            (owner != 0 || index >= own).then_some(Cell { owner, ..cell })
        })
    }

    /// Keeps every cell with its key until it is dropped.
    pub(crate) fn lock_all(&self) -> Vec<MutexGuard<'_, ()>> {
        self.insert_locks.iter().map(lock).collect()
    }

    /// Keeps these keys from getting another cell until it is dropped. Stripes are locked in their order, so that
    /// two who lock several never wait for each other in a circle; of several tables, lock one after the other in
    /// an order that is the same everywhere.
    pub(crate) fn lock_stripes(&self, owners: impl Iterator<Item = u64>) -> Vec<MutexGuard<'_, ()>> {
        let mut stripes: Vec<_> = owners.map(stripe_of).collect();
        stripes.sort_unstable();
        stripes.dedup();
        stripes.into_iter().map(|stripe| lock(&self.insert_locks[stripe])).collect()
    }

    /// Cells that were ever used.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Keys that have a cell of their own at most.
    pub(crate) fn capacity(&self) -> u64 {
        self.groups * CELLS_PER_GROUP as u64
    }

    /// How often a key found no room.
    pub(crate) fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// How large it is.
    pub(crate) fn size(&self) -> TableSize {
        TableSize {
            capacity: self.capacity(),
            used: self.used(),
            overflowed: self.overflowed(),
            replaced: self.replaced.load(Ordering::Relaxed),
            bytes: self.bytes(),
        }
    }

    /// Who is told when a key finds no room.
    pub(crate) fn set_listener(&mut self, listener: FullListener) {
        self.listener = Some(listener);
    }

    /// Tells that a key found no room; once a minute.
    #[cold]
    pub(crate) fn notify_full(&self, now: Micros) {
        let Some(listener) = &self.listener else { return };
        let (now, notified_at) = (now.get().max(1), self.notified_at.load(Ordering::Relaxed));
        let is_due = notified_at == 0 || now >= notified_at.saturating_add(FULL_NOTICE_INTERVAL.get());
        if is_due
            && self
                .notified_at
                .compare_exchange(notified_at, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            listener.notify(self.size());
        }
    }

    /// Bytes that the table may take.
    pub(crate) fn bytes(&self) -> u64 {
        ((self.words.len() + self.crowded.len()) * size_of::<u64>()) as u64
    }

    /// The cell that a key shares when it has no room of its own.
    pub(crate) fn shared_cell(&self, owner: u64) -> Cell<'_> {
        let index = self.groups as usize * CELLS_PER_GROUP + (owner as usize) % self.shared_cells;
        Cell { table: self, offset: index * self.cell_words, owner: 0 }
    }

    /// The cells of a group, starting with the one that the key would like best. All cells of that one's half, a
    /// cache line when bodies are empty, come before those of the other.
    #[inline]
    fn cells_of(&self, group: usize, owner: u64) -> impl Iterator<Item = Cell<'_>> {
        let favourite = owner as usize;
        (0..CELLS_PER_GROUP).map(move |offset| {
            let place =
                ((favourite + offset) % CELLS_PER_HALF_GROUP) + ((favourite ^ offset) & CELLS_PER_HALF_GROUP);
            let index = group * CELLS_PER_GROUP + place;
            Cell { table: self, offset: index * self.cell_words, owner }
        })
    }

    /// The group that a key looks in at its `probe`-th try.
    #[inline]
    fn group(&self, owner: u64, probe: u64) -> usize {
        let mixed = match probe {
            0 => owner,
            _ => (owner ^ probe).wrapping_mul(0x9E37_79B9_7F4A_7C15),
        };
        ((u128::from(mixed) * u128::from(self.groups)) >> 64) as usize
    }

    #[inline]
    fn is_crowded(&self, group: usize) -> bool {
        self.crowded[group / 64].load(Ordering::Acquire) & (1 << (group % 64)) != 0
    }

    fn set_crowded(&self, group: usize) {
        self.crowded[group / 64].fetch_or(1 << (group % 64), Ordering::AcqRel);
    }

    #[inline]
    pub(super) fn word(&self, index: usize) -> &AtomicU64 {
        &self.words[self.align_offset + index]
    }
}

fn stripe_of(owner: u64) -> usize {
    owner as usize % STRIPES
}

/// What a search for a key that needs a cell came to.
enum CellSearch<'a> {
    Found(Cell<'a>),
    Free(FreeCell<'a>),
    Full,
}

/// A cell that may be taken, as it was seen.
struct FreeCell<'a> {
    cell: Cell<'a>,
    current_owner: u64,
    head: u64,
    probe: u64,
}

#[cfg(not(loom))]
fn zeroed_words(count: usize) -> Option<Box<[AtomicU64]>> {
    // Straight from the allocator's zeroed pages, which it only has for types that need no alignment of their own:
    // memory that no key has touched costs nothing.
    bytemuck::allocation::try_zeroed_slice_box(count).ok()
}

#[cfg(loom)]
fn zeroed_words(count: usize) -> Option<Box<[AtomicU64]>> {
    Some((0..count).map(|_| AtomicU64::new(0)).collect())
}
