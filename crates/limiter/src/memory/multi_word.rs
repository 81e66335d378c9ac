//! State in several words: any algorithm, and several quotas of one key, under the lock of the cell.
//!
//! ```text
//!   head   LOCK | GENERATION | the time at which the cell expires
//!   body   the latest time observed, state of the first quota, of the second, …    if all quotas apply
//!   body   the latest time observed, the tier that wrote it, state of that tier, …    if the call selects one
//! ```
//!
//! Tiers that share a state share its words. Behind them are the states of earlier quotas that share no state with the
//! current ones: such a quota finds its state again if it returns.
//!
//! The lock is a bit of the cell itself, set for one decision; different keys never wait for each other. A caller that
//! read the clock earlier than another, but got the lock later, decides at the time of the other.

use super::{
    cell::{Cell, GENERATION_BIT, VALUE_MASK},
    charge::CellCharge,
    plan::epoch,
    resets::ResetCounters,
    snapshot::StateSnapshot,
    table::{CellStates, CellTable, EvictionScore, OutOfMemory},
};
use crate::{
    most_restrictive::MostRestrictive,
    sync::{Mutex, Ordering, lock},
};
use arc_swap::{ArcSwap, Guard};
use std::sync::Arc;
use tidegate_core::{
    AlgorithmState, CarryOver, Decision, Demand, Effect, Micros, Quota, Receipt, StateEntries, StateEntry,
};

/// The words of a body: the latest time observed, then states. Under [`StateLayout::Tiers`] the word before a state is
/// the tier that wrote it plus one, or zero.
const LATEST_TIME_WORD: usize = 0;
const FIRST_STATE_WORD: usize = 1;

/// A table of cells with their quotas.
#[derive(Debug)]
pub(crate) struct MultiWord {
    pub(crate) table: CellTable,
    plan: ArcSwap<QuotaPlan>,
    change_lock: Mutex<()>,
    resets: ResetCounters,
}

#[derive(Debug)]
struct QuotaPlan {
    quotas: Box<[Quota]>,
    /// The number of quotas without those of [`MultiWord::add_tiers`].
    declared: usize,
    /// The words of the state of each quota.
    ranges: Box<[StateRange]>,
    /// Earlier quotas that share no state with the current ones.
    retained: Box<[(Quota, StateRange)]>,
    layout: StateLayout,
    /// The number of changes of the quotas.
    changes: u64,
    /// The quotas that wrote the cells of the other generation, and how to convert them.
    previous: Option<(Box<[Quota]>, CarryOver)>,
}

/// The words of a body that hold one state.
#[derive(Clone, Copy, Debug)]
struct StateRange {
    start: usize,
    len: usize,
}

/// An earlier quota, and the number of words of its state.
pub(crate) type PreviousState = (Quota, usize);

/// The words of each quota's state, those of earlier quotas, and the total number of words.
fn state_ranges(
    quotas: &[Quota],
    layout: StateLayout,
    previous: &[PreviousState],
) -> (Vec<StateRange>, Vec<(Quota, StateRange)>, usize) {
    let writers: Vec<_> = previous.iter().map(|(quota, _)| *quota).collect();
    let found = StateEntries::match_writers(quotas, &writers, CarryOver::Keep);
    let (mut ranges, mut end) = (Vec::<StateRange>::with_capacity(quotas.len()), FIRST_STATE_WORD);
    for (index, quota) in quotas.iter().enumerate() {
        let shared = quotas[..index].iter().position(|other| quota.shares_state(other));
        if let (StateLayout::Tiers, Some(shared)) = (layout, shared) {
            ranges.push(ranges[shared]);
            continue;
        }
        let sharing = quotas.iter().zip(&found).filter(|(other, _)| match layout {
            StateLayout::All => std::ptr::eq(*other, quota),
            StateLayout::Tiers => quota.shares_state(other),
        });
        let lens = sharing.map(|(other, found)| {
            other.state_len().max(found.map_or(0, |previous_index| previous[previous_index].1))
        });
        let len = lens.max().unwrap_or(0);
        let start = if layout == StateLayout::Tiers { end + 1 } else { end };
        ranges.push(StateRange { start, len });
        end = start + len;
    }
    let mut retained = Vec::new();
    for (index, (quota, len)) in previous.iter().enumerate() {
        let is_shared = layout == StateLayout::Tiers && quotas.iter().any(|other| other.shares_state(quota));
        if !found.contains(&Some(index)) && !is_shared && retained.len() < MAX_RETAINED_QUOTAS {
            retained.push((*quota, StateRange { start: end, len: *len }));
            end += len;
        }
    }
    (ranges, retained, end)
}

/// The maximum number of earlier quotas whose states are retained.
const MAX_RETAINED_QUOTAS: usize = 8;

/// How several quotas share a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateLayout {
    /// Side by side: all quotas apply to every call.
    All,
    /// One state behind a word that names the tier: each call selects one.
    Tiers,
}

/// A request to a cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellRequest {
    pub(crate) demand: Demand,
    pub(crate) hold: PermitHold,
    pub(crate) tier: usize,
}

impl CellRequest {
    /// A demand of the first tier that acquires no slot.
    pub(crate) fn new(demand: Demand) -> Self {
        Self { demand, hold: PermitHold::Nothing, tier: 0 }
    }
}

/// Whether a slot of a concurrency quota is acquired, or only checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PermitHold {
    Permit,
    Nothing,
}

/// The unit of a quota: tokens, which return with time, or permits, which their holders release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuotaUnit {
    Tokens,
    Permits,
}

impl QuotaUnit {
    pub(crate) fn from_quota(quota: &Quota) -> Self {
        if quota.is_concurrency() { Self::Permits } else { Self::Tokens }
    }
}

impl PermitHold {
    /// The demand on this quota: a slot that could not be released later is only checked.
    pub(super) fn apply_to(self, quota: &Quota, demand: Demand) -> Demand {
        match self {
            Self::Nothing if quota.is_concurrency() => Demand { effect: Effect::Peek, ..demand },
            _ => demand,
        }
    }
}

/// A cell to which this thread has exclusive access until drop.
pub(crate) struct LockedWords<'a> {
    cell: Cell<'a>,
    head: u64,
    plan: Guard<Arc<QuotaPlan>>,
    resets: &'a ResetCounters,
    /// The time of the decision: that of the caller, or a later one that the cell has observed.
    pub(crate) now: Micros,
    /// Whether drop unlocks the cell.
    unlock_on_drop: bool,
}

impl MultiWord {
    pub(crate) fn new(
        quotas: &[Quota],
        layout: StateLayout,
        keys: u64,
        previous: &[PreviousState],
    ) -> Result<Self, OutOfMemory> {
        let (ranges, retained, state_len) = state_ranges(quotas, layout, previous);
        let table = CellTable::new(keys, state_len)?;
        let plan = QuotaPlan {
            quotas: quotas.into(),
            declared: quotas.len(),
            ranges: ranges.into(),
            retained: retained.into(),
            layout,
            changes: 0,
            previous: None,
        };
        Ok(Self {
            table,
            plan: ArcSwap::from_pointee(plan),
            change_lock: Mutex::new(()),
            resets: ResetCounters::striped(),
        })
    }

    /// The number of words of the body of a cell.
    pub(crate) fn state_len(quotas: &[Quota], layout: StateLayout, previous: &[PreviousState]) -> usize {
        state_ranges(quotas, layout, previous).2
    }

    /// The quotas with a state in this table, and the number of words of each.
    pub(crate) fn previous_states(&self) -> Vec<PreviousState> {
        let plan = self.plan.load();
        let own = plan.quotas.iter().zip(&plan.ranges).take(plan.declared);
        let own = own.map(|(quota, range)| (*quota, range.len));
        own.chain(plan.retained.iter().map(|(quota, range)| (*quota, range.len))).collect()
    }

    /// The states of cells at `now`.
    pub(crate) fn states_at(&self, now: Micros) -> MultiWordAt<'_> {
        MultiWordAt { multi_word: self, now }
    }

    /// The head of an empty cell at `now`.
    pub(crate) fn empty_head(&self, now: Micros) -> u64 {
        self.plan.load().generation() | now.get()
    }

    /// Whether a cell has expired.
    pub(crate) fn is_expired(head: u64, now: Micros) -> bool {
        head & VALUE_MASK < now.get()
    }

    /// Locks a cell at `now`; `None` if it was reassigned to another key.
    pub(crate) fn lock_cell<'a>(&'a self, cell: Cell<'a>, now: Micros) -> Option<LockedWords<'a>> {
        let head = cell.lock()?;
        Some(self.wrap_locked(cell, head, now))
    }

    /// Wraps a cell that the caller has locked.
    fn wrap_locked<'a>(&'a self, cell: Cell<'a>, head: u64, now: Micros) -> LockedWords<'a> {
        // Read under the lock: a cell can then be older than the plan, but never newer.
        let mut locked = LockedWords {
            cell,
            head,
            plan: self.plan.load(),
            resets: &self.resets,
            now,
            unlock_on_drop: true,
        };
        locked.advance_time(now);
        locked.apply_change();
        locked
    }

    pub(crate) fn quotas(&self) -> Vec<Quota> {
        self.plan.load().quotas.to_vec()
    }

    pub(crate) fn tiers(&self) -> usize {
        let plan = self.plan.load();
        if plan.layout == StateLayout::Tiers { plan.quotas.len() } else { 1 }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.plan.load().quotas.iter().map(Quota::limit).min().unwrap_or(0)
    }

    /// Whether each of these quotas shares the state of the quota at its index, and fits in its words.
    pub(crate) fn has_room_for(&self, quotas: &[Quota]) -> bool {
        let old = self.plan.load();
        let pairs = quotas.iter().zip(&*old.quotas).zip(&old.ranges);
        let fits =
            pairs.clone().all(|((new, old), range)| new.shares_state(old) && new.state_len() <= range.len);
        // Tiers that shared a state must still share it, and others must not.
        let (old_ranges, ..) = state_ranges(&old.quotas, old.layout, &[]);
        let (new_ranges, ..) = state_ranges(quotas, old.layout, &[]);
        let shares_equally = old_ranges.iter().zip(&new_ranges).enumerate().all(|(index, _)| {
            let group =
                |ranges: &[StateRange]| ranges.iter().position(|range| range.start == ranges[index].start);
            group(&old_ranges) == group(&new_ranges)
        });
        quotas.len() == old.quotas.len() && fits && shares_equally
    }

    /// Adds tiers whose states share the words of others. No cell changes.
    pub(crate) fn add_tiers(&self, quotas: &[Quota]) -> Result<(), ()> {
        if quotas.is_empty() {
            return Ok(());
        }
        let _guard = lock(&self.change_lock);
        let old = self.plan.load_full();
        if old.layout != StateLayout::Tiers {
            return Err(());
        }
        let range_of = |quota: &Quota| {
            let shared = old.quotas.iter().zip(&old.ranges).find(|(other, _)| quota.shares_state(other));
            shared.map(|(_, range)| *range).filter(|range| quota.state_len() <= range.len).ok_or(())
        };
        let ranges = quotas.iter().map(range_of).collect::<Result<Vec<_>, ()>>()?;
        self.plan.store(Arc::new(QuotaPlan {
            quotas: old.quotas.iter().chain(quotas).copied().collect(),
            declared: old.declared,
            ranges: old.ranges.iter().copied().chain(ranges).collect(),
            retained: old.retained.clone(),
            layout: old.layout,
            changes: old.changes,
            previous: old.previous.clone(),
        }));
        Ok(())
    }

    /// Replaces the quotas and converts every cell. Fails if a new quota does not fit in the words of the old one.
    pub(crate) fn change(&self, quotas: &[Quota], how: CarryOver, now: Micros) -> Result<(), ()> {
        let _guard = lock(&self.change_lock);
        if !self.has_room_for(quotas) {
            return Err(());
        }
        let old = self.plan.load_full();
        let _stripes = self.table.lock_all();
        self.plan.store(Arc::new(QuotaPlan {
            quotas: quotas.into(),
            declared: old.declared,
            ranges: old.ranges.clone(),
            retained: old.retained.clone(),
            layout: old.layout,
            changes: old.changes + 1,
            previous: Some((old.quotas.clone(), how)),
        }));
        for cell in self.table.cells() {
            drop(self.lock_cell(cell, now));
        }
        Ok(())
    }
}

/// The states of cells at a given time.
pub(crate) struct MultiWordAt<'a> {
    multi_word: &'a MultiWord,
    now: Micros,
}

impl CellStates for MultiWordAt<'_> {
    fn empty_head(&self) -> u64 {
        self.multi_word.empty_head(self.now)
    }

    fn is_expired(&self, head: u64) -> bool {
        MultiWord::is_expired(head, self.now)
    }

    fn score(&self, cell: Cell<'_>, head: u64) -> Option<EvictionScore> {
        let mut locked = self.multi_word.wrap_locked(cell, head, self.now);
        let tiers = if locked.plan.layout == StateLayout::Tiers { locked.plan.quotas.len() } else { 1 };
        let mut least: Option<EvictionScore> = None;
        // A key that is limited under an added tier was charged under it last.
        let is_in_use = |tier: &usize| {
            let writer = locked.plan.writer(cell, *tier).map(|(writer, _)| writer);
            *tier < locked.plan.declared || writer == Some(*tier)
        };
        for tier in (0..tiers).filter(is_in_use).collect::<Vec<_>>() {
            let request = CellRequest { tier, ..CellRequest::new(Demand::peek(1)) };
            let decision = locked.decide(request, &mut Vec::new());
            if !decision.is_allowed() {
                return None;
            }
            let score = EvictionScore::new(&decision, locked.head);
            least = Some(least.filter(|least| least.remaining <= score.remaining).unwrap_or(score));
        }
        locked.unlock_on_drop = least.is_none();
        least
    }

    fn on_evict(&self, owner: u64) {
        self.multi_word.resets.increment(owner);
    }

    /// A window ends at the same time for all keys, whatever their usage.
    const IS_RANKED: bool = false;
}

impl LockedWords<'_> {
    /// The epoch in which receipts of now are valid.
    pub(crate) fn epoch(&self) -> u64 {
        epoch(self.plan.changes, self.resets.get(self.cell.owner))
    }

    /// Advances the time of the cell; it never goes back.
    pub(crate) fn advance_time(&mut self, now: Micros) {
        let latest = self.cell.body(LATEST_TIME_WORD);
        self.now = now.max(Micros::new(latest.load(Ordering::Relaxed)));
        latest.store(self.now.get(), Ordering::Relaxed);
    }

    /// Decides a request. Adds one receipt per decided quota to `receipts`.
    pub(crate) fn decide(&mut self, request: CellRequest, receipts: &mut Vec<Receipt>) -> Decision {
        let CellRequest { demand, hold, tier } = request;
        if demand.effect == Effect::Charge && demand.cost > 0 {
            self.begin(tier);
        }
        if self.plan.layout == StateLayout::Tiers {
            let Some(quota) = self.plan.quotas.get(tier) else { return Decision::unlimited() };
            let demand = hold.apply_to(quota, demand);
            return self.decide_tier(demand, tier, receipts);
        }
        // A single quota does not change its state on a denial; several must all be probed before any is charged.
        if self.plan.quotas.len() > 1 {
            let peeked = self.decide_all(Demand { effect: Effect::Peek, ..demand }, hold, receipts);
            if !peeked.is_granted() {
                return peeked;
            }
            receipts.clear();
        }
        self.decide_all(demand, hold, receipts)
    }

    /// Starts the states that change with time from the first check on; see [`Quota::begin`].
    pub(crate) fn begin(&mut self, tier: usize) {
        let indices = match self.plan.layout {
            StateLayout::All => 0..self.plan.quotas.len(),
            StateLayout::Tiers => tier..tier + 1,
        };
        for index in indices {
            let Some(quota) = self.plan.quotas.get(index) else { return };
            if quota.retention() == Micros::ZERO {
                continue;
            }
            let mut words = self.plan.words(self.cell, index);
            let writer = self.plan.writer(self.cell, index).map_or(quota, |(_, writer)| writer);
            if quota.begin(writer, &mut words, self.now) {
                let expires_at = self.now.saturating_add(quota.forgotten_after(&mut words, self.now)).get();
                self.plan.set_writer(self.cell, index, Some(index));
                self.extend_expiry(expires_at);
            }
        }
    }

    /// Decides all quotas.
    fn decide_all(&mut self, demand: Demand, hold: PermitHold, receipts: &mut Vec<Receipt>) -> Decision {
        let (mut combined, now) = (MostRestrictive::default(), self.now);
        let mut expires_at = 0;
        for (quota, mut words) in self.plan.states(self.cell) {
            let result = quota.decide(&mut words, now, hold.apply_to(quota, demand));
            let forgotten_after = result.decision.reset_after().saturating_add(quota.retention());
            expires_at = expires_at.max(now.saturating_add(forgotten_after).get());
            receipts.push(result.receipt);
            combined.add(result.decision);
        }
        let decision = combined.finish();
        if decision.is_granted() && demand.effect == Effect::Charge {
            self.extend_expiry(expires_at);
        }
        decision
    }

    /// Decides one tier, with the usage that another tier may have written.
    fn decide_tier(&mut self, demand: Demand, tier: usize, receipts: &mut Vec<Receipt>) -> Decision {
        let Some(quota) = self.plan.quotas.get(tier) else { return Decision::unlimited() };
        let now = self.now;
        let mut words = self.plan.words(self.cell, tier);
        let result = match self.plan.writer(self.cell, tier) {
            Some((writer_index, writer)) if writer_index != tier => {
                quota.decide_converted(writer, &mut words, now, demand)
            }
            _ => quota.decide(&mut words, now, demand),
        };
        if result.decision.is_granted() && demand.effect == Effect::Charge && demand.cost > 0 {
            self.plan.set_writer(self.cell, tier, Some(tier));
            let forgotten_after = result.decision.reset_after().saturating_add(quota.retention());
            self.extend_expiry(now.saturating_add(forgotten_after).get());
        }
        receipts.push(result.receipt);
        result.decision.with_quota(tier)
    }

    /// The state of `tier`, converted to its quota.
    fn converted_state(&self, tier: usize) -> Vec<u64> {
        let (quota, range) = (&self.plan.quotas[tier], self.plan.ranges[tier]);
        let words = self.plan.words(self.cell, tier);
        let mut state: Vec<u64> = (0..range.len).map(|index| words.get(index)).collect();
        if let Some((_, writer)) =
            self.plan.writer(self.cell, tier).filter(|(writer_index, _)| *writer_index != tier)
        {
            quota.convert_state(writer, state.as_mut_slice(), self.now);
        }
        state
    }

    /// A copy of the state, as a request for `tier` would read it.
    pub(crate) fn snapshot(&self, tier: usize) -> StateSnapshot {
        let copy = |(quota, words): (&Quota, StateWords<'_>)| {
            (*quota, (0..words.len).map(|index| words.get(index)).collect())
        };
        let states = match self.plan.layout {
            StateLayout::All => self.plan.states(self.cell).map(copy).collect(),
            StateLayout::Tiers => {
                let quota = self.plan.quotas.get(tier);
                quota.map(|quota| (*quota, self.converted_state(tier))).into_iter().collect()
            }
        };
        StateSnapshot { time: self.now, states }
    }

    /// Extends the expiry of the cell after a charge; never shortens it.
    fn extend_expiry(&mut self, expires_at: u64) {
        self.head = self.plan.generation() | expires_at.max(self.head & VALUE_MASK);
    }

    /// Refunds up to `cost` of each receipt. Receipts from before a change of quota or tier are ignored. A permit releases
    /// only its slot if there are slots; slots are always released, because only their holder can.
    pub(crate) fn refund(&mut self, charge: &CellCharge, cost: u64) {
        let is_settled = charge.epoch != self.epoch()
            || (charge.hold == PermitHold::Permit && self.plan.quotas.iter().any(Quota::is_concurrency));
        let indices = match self.plan.layout {
            StateLayout::All => 0..self.plan.quotas.len(),
            StateLayout::Tiers => charge.tier..charge.tier + 1,
        };
        for (index, receipt) in indices.zip(&charge.receipts) {
            let Some((writer_index, writer)) = self.plan.writer(self.cell, index) else { continue };
            if (writer_index == index && !is_settled) || writer.is_concurrency() {
                writer.refund(&mut self.plan.words(self.cell, index), self.now, *receipt, cost);
            }
        }
        self.head = self.plan.head(self.cell, self.now);
    }

    /// Resets the key, except for permits in flight: their holders release them.
    pub(crate) fn reset(&mut self) {
        self.resets.increment(self.cell.owner);
        let is_resettable = |(quota, _): &(&Quota, StateWords<'_>)| !quota.is_concurrency();
        for (_, mut words) in
            self.plan.states(self.cell).chain(self.plan.retained(self.cell)).filter(is_resettable)
        {
            (0..words.len).for_each(|index| words.set(index, 0));
        }
        for (index, quota) in self.plan.quotas.iter().enumerate() {
            if !quota.is_concurrency() {
                self.plan.set_writer(self.cell, index, None);
            }
        }
        self.head = self.plan.head(self.cell, self.now);
    }

    /// Writes the initial states of a new limiter.
    pub(crate) fn create(&mut self) {
        for (quota, mut words) in self.plan.states(self.cell) {
            quota.create(&mut words, self.now);
        }
        self.head = self.plan.head(self.cell, self.now);
    }

    /// Converts a cell of the previous generation to the current quotas.
    fn apply_change(&mut self) {
        if self.head & GENERATION_BIT == self.plan.generation() {
            return;
        }
        if matches!(self.plan.previous, Some((_, CarryOver::Reset))) {
            self.reset();
        }
        let Some((old, _)) = &self.plan.previous else { return };
        for index in 0..self.plan.quotas.len() {
            // A state is converted at the index of the tier that wrote it.
            if let Some((writer_index, quota)) =
                self.plan.writer(self.cell, index).filter(|(writer_index, _)| *writer_index == index)
            {
                quota.convert_state(&old[writer_index], &mut self.plan.words(self.cell, index), self.now);
            }
        }
        self.head = self.plan.head(self.cell, self.now);
    }

    /// The states with the quotas that wrote them.
    pub(crate) fn entries(&self) -> Vec<StateEntry> {
        let entry = |(writer, words): (&Quota, StateWords<'_>)| StateEntry {
            writer: *writer,
            state: (0..words.len).map(|index| words.get(index)).collect(),
        };
        self.plan.states(self.cell).chain(self.plan.retained(self.cell)).map(entry).collect()
    }

    /// Imports the state of the key from another limiter.
    pub(crate) fn take_over(&mut self, entries: &[StateEntry]) {
        let retained: Vec<_> = self.plan.retained.iter().map(|(quota, _)| *quota).collect();
        let own = self.plan.quotas.len();
        let wanted: Vec<Quota> = self.plan.quotas.iter().copied().chain(retained).collect();
        let writers: Vec<_> = entries.iter().map(|entry| entry.writer).collect();
        for (index, found) in
            StateEntries::match_writers(&wanted, &writers, CarryOver::Keep).into_iter().enumerate()
        {
            let Some(StateEntry { writer, state: words }) = found.map(|found| &entries[found]) else {
                continue;
            };
            let (range, quota) = match index.checked_sub(own) {
                None => (self.plan.ranges[index], &wanted[index]),
                Some(other) => (self.plan.retained[other].1, &wanted[index]),
            };
            let mut words = words.clone();
            words.resize(range.len.max(words.len()), 0);
            // A retained state is copied unchanged.
            if index < own || quota != writer {
                quota.convert_state(writer, words.as_mut_slice(), self.now);
            }
            let mut body = StateWords { cell: self.cell, start: range.start, len: range.len };
            words.iter().take(range.len).enumerate().for_each(|(at, word)| body.set(at, *word));
            if index < own {
                self.plan.set_writer(self.cell, index, Some(index));
            }
        }
        self.head = self.plan.head(self.cell, self.now);
    }
}

impl QuotaPlan {
    /// Each quota with a state in the locked `cell`, with that state.
    fn states<'a>(&'a self, cell: Cell<'a>) -> impl Iterator<Item = (&'a Quota, StateWords<'a>)> {
        let present = (0..self.quotas.len()).filter(move |index| match self.layout {
            StateLayout::All => true,
            StateLayout::Tiers => {
                self.writer(cell, *index).is_some_and(|(writer_index, _)| writer_index == *index)
            }
        });
        present.map(move |index| (&self.quotas[index], self.words(cell, index)))
    }

    /// Each earlier quota, with its state.
    fn retained<'a>(&'a self, cell: Cell<'a>) -> impl Iterator<Item = (&'a Quota, StateWords<'a>)> {
        let body = move |range: StateRange| StateWords { cell, start: range.start, len: range.len };
        self.retained.iter().map(move |(quota, range)| (quota, body(*range)))
    }

    /// The words of the state of a quota.
    fn words<'a>(&self, cell: Cell<'a>, index: usize) -> StateWords<'a> {
        let StateRange { start, len } = self.ranges[index];
        StateWords { cell, start, len }
    }

    /// The index and the quota that wrote the state: the quota itself, or the tier that wrote it last.
    fn writer(&self, cell: Cell<'_>, index: usize) -> Option<(usize, &Quota)> {
        let writer_index = match self.layout {
            StateLayout::All => index,
            StateLayout::Tiers => {
                let tier =
                    cell.body(self.ranges.get(index)?.start - 1).load(Ordering::Relaxed).checked_sub(1)?;
                usize::try_from(tier).ok()?
            }
        };
        self.quotas.get(writer_index).map(|quota| (writer_index, quota))
    }

    /// Records which tier wrote the state of a quota, if there are tiers.
    fn set_writer(&self, cell: Cell<'_>, index: usize, tier: Option<usize>) {
        if self.layout == StateLayout::Tiers {
            let word = cell.body(self.ranges[index].start - 1);
            word.store(tier.map_or(0, |tier| tier as u64 + 1), Ordering::Relaxed);
        }
    }

    /// The head with the expiry of the states in `cell`.
    fn head(&self, cell: Cell<'_>, now: Micros) -> u64 {
        let own = self.states(cell).map(|(quota, mut words)| quota.forgotten_after(&mut words, now));
        let retained =
            self.retained(cell).map(|(quota, mut words)| quota.stored_after_replacement(&mut words, now));
        let stored_for = own.chain(retained).max().unwrap_or(Micros::ZERO);
        self.generation() | now.saturating_add(stored_for).get()
    }

    /// The generation of the cells of this plan.
    fn generation(&self) -> u64 {
        (self.changes & 1) * GENERATION_BIT
    }
}

/// Unlocks the cell, also on a panic.
impl Drop for LockedWords<'_> {
    fn drop(&mut self) {
        if self.unlock_on_drop {
            self.cell.unlock(self.head);
        }
    }
}

/// The words of the state of one quota in a locked cell.
struct StateWords<'a> {
    cell: Cell<'a>,
    start: usize,
    len: usize,
}

impl AlgorithmState for StateWords<'_> {
    fn get(&self, index: usize) -> u64 {
        self.cell.body(self.start + index).load(Ordering::Relaxed)
    }

    fn set(&mut self, index: usize, word: u64) {
        self.cell.body(self.start + index).store(word, Ordering::Relaxed);
    }
}
