//! Counting in several words: any algorithm, and several quotas of one key side by side, under the cell's lock.
//!
//! ```text
//!   head   LOCK | GENERATION | the moment from which the cell says nothing
//!   body   the latest moment seen, state of the first quota, of the second, …    when all apply together
//!   body   the latest moment seen, which tier wrote it, state of that tier, …    when the call chooses one
//! ```
//!
//! Tiers that share a state have one place for it. Behind all places come those of quotas that counted the keys before and share no
//! state with today's: such a quota finds its state again when it comes back.
//!
//! The lock is a bit of the cell itself, held for one decision; different keys never wait for each other. A caller
//! that read the clock before another did and got the lock after it decides at the other's moment.

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
    AlgorithmKind, AlgorithmState, CarryOver, Decision, Demand, Effect, Micros, Quota, Receipt, StateEntries,
    StateEntry,
};

/// Words of a body: the latest moment it has seen, then states. Under [`StateLayout::Tiers`] the word before a state is the tier that
/// wrote it plus one, or zero.
const LATEST_TIME_WORD: usize = 0;
const FIRST_STATE_WORD: usize = 1;

/// Cells for some quotas, and the quotas.
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
    /// Where the state of each quota is.
    ranges: Box<[StateRange]>,
    /// Quotas that counted the keys before, and share no state with these.
    retained: Box<[(Quota, StateRange)]>,
    layout: StateLayout,
    /// How often the quotas have changed.
    changes: u64,
    /// What wrote the cells of the other generation, and how they carry over.
    previous: Option<(Box<[Quota]>, CarryOver)>,
}

/// The words of a body that hold one state.
#[derive(Clone, Copy, Debug)]
struct StateRange {
    start: usize,
    len: usize,
}

/// A quota that counted keys before, and the words that its states have.
pub(crate) type PreviousState = (Quota, usize);

/// Where states are: of each quota, and of those that counted before; and the words of all.
fn state_ranges(
    quotas: &[Quota],
    layout: StateLayout,
    former: &[PreviousState],
) -> (Vec<StateRange>, Vec<(Quota, StateRange)>, usize) {
    let writers: Vec<_> = former.iter().map(|(quota, _)| *quota).collect();
    let found = StateEntries::match_writers(quotas, &writers, CarryOver::Keep);
    let (mut all, mut end) = (Vec::<StateRange>::with_capacity(quotas.len()), FIRST_STATE_WORD);
    for (index, quota) in quotas.iter().enumerate() {
        let shared = quotas[..index].iter().position(|other| quota.shares_state(other));
        if let (StateLayout::Tiers, Some(shared)) = (layout, shared) {
            all.push(all[shared]);
            continue;
        }
        let together = quotas.iter().zip(&found).filter(|(other, _)| match layout {
            StateLayout::All => std::ptr::eq(*other, quota),
            StateLayout::Tiers => quota.shares_state(other),
        });
        let rooms = together
            .map(|(other, found)| other.state_len().max(found.map_or(0, |former_at| former[former_at].1)));
        let room = rooms.max().unwrap_or(0);
        let start = if layout == StateLayout::Tiers { end + 1 } else { end };
        all.push(StateRange { start, len: room });
        end = start + room;
    }
    let mut others = Vec::new();
    for (index, (quota, room)) in former.iter().enumerate() {
        let is_shared = layout == StateLayout::Tiers && quotas.iter().any(|other| other.shares_state(quota));
        if !found.contains(&Some(index)) && !is_shared && others.len() < MAX_RETAINED_QUOTAS {
            others.push((*quota, StateRange { start: end, len: *room }));
            end += room;
        }
    }
    (all, others, end)
}

/// Quotas whose states are kept though they count no longer.
const MAX_RETAINED_QUOTAS: usize = 8;

/// How several quotas share a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateLayout {
    /// Side by side: all apply to every call.
    All,
    /// In one place, behind a word that names the tier: each call chooses one.
    Tiers,
}

/// What a call asks of a cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellRequest {
    pub(crate) demand: Demand,
    pub(crate) hold: SlotHold,
    pub(crate) tier: usize,
}

impl CellRequest {
    /// A plain demand of the first tier that holds nothing.
    pub(crate) fn new(demand: Demand) -> Self {
        Self { demand, hold: SlotHold::Nothing, tier: 0 }
    }
}

/// Whether a concurrency quota is taken and held, or only looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotHold {
    Permit,
    Nothing,
}

/// What a quota counts: tokens that time gives back, or permits that their holders do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuotaUnit {
    Tokens,
    Permits,
}

impl QuotaUnit {
    pub(crate) fn from_quota(quota: &Quota) -> Self {
        if is_concurrency(quota) { Self::Permits } else { Self::Tokens }
    }
}

impl SlotHold {
    /// What the demand is to this quota: without a permit that could give it back, a slot is only looked at.
    pub(super) fn apply_to(self, quota: &Quota, demand: Demand) -> Demand {
        match self {
            Self::Nothing if is_concurrency(quota) => Demand { effect: Effect::Probe, ..demand },
            _ => demand,
        }
    }
}

/// A cell that this thread alone may change until it is dropped.
pub(crate) struct LockedWords<'a> {
    cell: Cell<'a>,
    head: u64,
    plan: Guard<Arc<QuotaPlan>>,
    resets: &'a ResetCounters,
    /// The moment at which the cell is held: the caller's, or a later one that the cell has seen.
    pub(crate) now: Micros,
    /// Whether it is unlocked when this is dropped.
    unlock_on_drop: bool,
}

impl MultiWord {
    pub(crate) fn new(
        quotas: &[Quota],
        layout: StateLayout,
        keys: u64,
        former: &[PreviousState],
    ) -> Result<Self, OutOfMemory> {
        let (places, others, width) = state_ranges(quotas, layout, former);
        let table = CellTable::new(keys, width)?;
        let (quotas, places, others) = (quotas.into(), places.into(), others.into());
        let plan = QuotaPlan { quotas, ranges: places, retained: others, layout, changes: 0, previous: None };
        Ok(Self {
            table,
            plan: ArcSwap::from_pointee(plan),
            change_lock: Mutex::new(()),
            resets: ResetCounters::striped(),
        })
    }

    /// Words that the body of a cell needs.
    pub(crate) fn state_len(quotas: &[Quota], layout: StateLayout, former: &[PreviousState]) -> usize {
        state_ranges(quotas, layout, former).2
    }

    /// The quotas whose states it has, with the words of each.
    pub(crate) fn previous_states(&self) -> Vec<PreviousState> {
        let plan = self.plan.load();
        let own = plan.quotas.iter().zip(&plan.ranges).map(|(quota, place)| (*quota, place.len));
        own.chain(plan.retained.iter().map(|(quota, place)| (*quota, place.len))).collect()
    }

    /// What cells mean at `now`.
    pub(crate) fn states_at(&self, now: Micros) -> MultiWordAt<'_> {
        MultiWordAt { multi_word: self, now }
    }

    /// A head that says nothing at `now`.
    pub(crate) fn empty_head(&self, now: Micros) -> u64 {
        self.plan.load().generation() | now.get()
    }

    /// Whether a cell says nothing any more.
    pub(crate) fn is_expired(head: u64, now: Micros) -> bool {
        head & VALUE_MASK < now.get()
    }

    /// Locks a cell at `now`; `None` when it went to another key.
    pub(crate) fn lock_cell<'a>(&'a self, cell: Cell<'a>, now: Micros) -> Option<LockedWords<'a>> {
        let head = cell.lock()?;
        Some(self.wrap_locked(cell, head, now))
    }

    /// A cell that the caller has locked.
    fn wrap_locked<'a>(&'a self, cell: Cell<'a>, head: u64, now: Micros) -> LockedWords<'a> {
        // Read under the lock: a cell can then be behind the plan, but never ahead of it.
        let mut held = LockedWords {
            cell,
            head,
            plan: self.plan.load(),
            resets: &self.resets,
            now,
            unlock_on_drop: true,
        };
        held.advance_time(now);
        held.apply_change();
        held
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

    /// Whether each of these quotas reads the states of the one in its place, and needs no more words than that has.
    pub(crate) fn has_room_for(&self, quotas: &[Quota]) -> bool {
        let old = self.plan.load();
        let pairs = quotas.iter().zip(&*old.quotas).zip(&old.ranges);
        let fits =
            pairs.clone().all(|((new, old), place)| new.shares_state(old) && new.state_len() <= place.len);
        // Tiers that shared no state still share none, and the other way round.
        let (old_places, ..) = state_ranges(&old.quotas, old.layout, &[]);
        let (new_places, ..) = state_ranges(quotas, old.layout, &[]);
        let alike = old_places.iter().zip(&new_places).enumerate().all(|(index, _)| {
            let group =
                |places: &[StateRange]| places.iter().position(|place| place.start == places[index].start);
            group(&old_places) == group(&new_places)
        });
        quotas.len() == old.quotas.len() && fits && alike
    }

    /// Replaces the quotas and brings every cell over. Refused when a new one needs more words than its place has.
    pub(crate) fn change(&self, quotas: &[Quota], how: CarryOver, now: Micros) -> Result<(), ()> {
        let _guard = lock(&self.change_lock);
        if !self.has_room_for(quotas) {
            return Err(());
        }
        let old = self.plan.load_full();
        let _still = self.table.lock_all();
        self.plan.store(Arc::new(QuotaPlan {
            quotas: quotas.into(),
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

/// What cells mean at some moment.
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
        let mut held = self.multi_word.wrap_locked(cell, head, self.now);
        let tiers = if held.plan.layout == StateLayout::Tiers { held.plan.quotas.len() } else { 1 };
        let mut least: Option<EvictionScore> = None;
        for tier in 0..tiers {
            let question = CellRequest { tier, ..CellRequest::new(Demand::probe(1)) };
            let decision = held.decide(question, &mut Vec::new());
            if !decision.is_allowed() {
                return None;
            }
            let found = EvictionScore::new(&decision, held.head);
            least = Some(least.filter(|least| least.remaining <= found.remaining).unwrap_or(found));
        }
        held.unlock_on_drop = least.is_none();
        least
    }

    fn on_evict(&self, owner: u64) {
        self.multi_word.resets.increment(owner);
    }

    /// A window ends at the same time for all.
    const IS_RANKED: bool = false;
}

impl LockedWords<'_> {
    /// The stretch of time in which receipts of now are good.
    pub(crate) fn epoch(&self) -> u64 {
        epoch(self.plan.changes, self.resets.get(self.cell.owner))
    }

    /// Time goes on, but never back.
    pub(crate) fn advance_time(&mut self, now: Micros) {
        let latest = self.cell.body(LATEST_TIME_WORD);
        self.now = now.max(Micros::new(latest.load(Ordering::Relaxed)));
        latest.store(self.now.get(), Ordering::Relaxed);
    }

    /// Answers a question. Receipts go to `receipts`, one for each quota that was asked.
    pub(crate) fn decide(&mut self, request: CellRequest, receipts: &mut Vec<Receipt>) -> Decision {
        let CellRequest { demand, hold, tier } = request;
        if self.plan.layout == StateLayout::Tiers {
            let Some(quota) = self.plan.quotas.get(tier) else { return Decision::unlimited() };
            let demand = hold.apply_to(quota, demand);
            return self.decide_tier(demand, tier, receipts);
        }
        // One quota leaves a denied state alone by itself; with several, look at all before charging any.
        if self.plan.quotas.len() > 1 {
            let probed = self.decide_all(Demand { effect: Effect::Probe, ..demand }, hold, receipts);
            if !probed.is_granted() {
                return probed;
            }
            receipts.clear();
        }
        self.decide_all(demand, hold, receipts)
    }

    /// Asks every quota; all are charged or none.
    fn decide_all(&mut self, demand: Demand, hold: SlotHold, receipts: &mut Vec<Receipt>) -> Decision {
        let (mut fold, now) = (MostRestrictive::default(), self.now);
        let mut spent_at = 0;
        for (quota, mut words) in self.plan.states(self.cell) {
            let step = quota.decide(&mut words, now, hold.apply_to(quota, demand));
            spent_at = spent_at.max(now.plus(step.decision.reset_after()).get());
            receipts.push(step.receipt);
            fold.add(step.decision);
        }
        let decision = fold.finish();
        if decision.is_granted() && demand.effect == Effect::Charge {
            self.extend_expiry(spent_at);
        }
        decision
    }

    /// Asks one tier, with the history that the key has under another.
    fn decide_tier(&mut self, demand: Demand, tier: usize, receipts: &mut Vec<Receipt>) -> Decision {
        let Some(quota) = self.plan.quotas.get(tier) else { return Decision::unlimited() };
        let now = self.now;
        let mut words = self.plan.words(self.cell, tier);
        let step = match self.plan.writer(self.cell, tier) {
            Some((written, writer)) if written != tier => {
                quota.decide_carried(writer, &mut words, now, demand)
            }
            _ => quota.decide(&mut words, now, demand),
        };
        if step.decision.is_granted() && demand.effect == Effect::Charge && demand.cost > 0 {
            self.plan.set_writer(self.cell, tier, Some(tier));
            self.extend_expiry(now.plus(step.decision.reset_after()).get());
        }
        receipts.push(step.receipt);
        step.decision.with_quota(tier)
    }

    /// A state as `quota` finds it in the place of `tier`.
    fn carried_state(&self, tier: usize) -> Vec<u64> {
        let (quota, place) = (&self.plan.quotas[tier], self.plan.ranges[tier]);
        let words = self.plan.words(self.cell, tier);
        let mut state: Vec<u64> = (0..place.len).map(|index| words.get(index)).collect();
        if let Some((_, writer)) = self.plan.writer(self.cell, tier).filter(|(written, _)| *written != tier) {
            quota.carry_over(writer, state.as_mut_slice(), self.now);
        }
        state
    }

    /// A copy of the state, as a question for `tier` would find it.
    pub(crate) fn snapshot(&self, tier: usize) -> StateSnapshot {
        let copy = |(quota, words): (&Quota, StateWords<'_>)| {
            (*quota, (0..words.len).map(|index| words.get(index)).collect())
        };
        let states = match self.plan.layout {
            StateLayout::All => self.plan.states(self.cell).map(copy).collect(),
            StateLayout::Tiers => {
                let quota = self.plan.quotas.get(tier);
                quota.map(|quota| (*quota, self.carried_state(tier))).into_iter().collect()
            }
        };
        StateSnapshot { time: self.now, states }
    }

    /// After a charge: for as long as before, at least.
    fn extend_expiry(&mut self, spent_at: u64) {
        self.head = self.plan.generation() | spent_at.max(self.head & VALUE_MASK);
    }

    /// Gives back up to `cost` of each receipt. A change of quota or tier settles what was outstanding before it,
    /// and a permit gives back only its slot where there are slots; but slots are held until they are given back.
    pub(crate) fn refund(&mut self, charge: &CellCharge, cost: u64) {
        let is_settled = charge.epoch != self.epoch()
            || (charge.hold == SlotHold::Permit && self.plan.quotas.iter().any(is_concurrency));
        let asked = match self.plan.layout {
            StateLayout::All => 0..self.plan.quotas.len(),
            StateLayout::Tiers => charge.tier..charge.tier + 1,
        };
        for (index, receipt) in asked.zip(&charge.receipts) {
            let Some((written, writer)) = self.plan.writer(self.cell, index) else { continue };
            if (written == index && !is_settled) || is_concurrency(writer) {
                writer.refund(&mut self.plan.words(self.cell, index), self.now, *receipt, cost);
            }
        }
        self.head = self.plan.head(self.cell, self.now);
    }

    /// Forgets the key, but for permits in flight: their holders will give them back.
    pub(crate) fn reset(&mut self) {
        self.resets.increment(self.cell.owner);
        let forgotten = |(quota, _): &(&Quota, StateWords<'_>)| !is_concurrency(quota);
        for (_, mut words) in
            self.plan.states(self.cell).chain(self.plan.retained(self.cell)).filter(forgotten)
        {
            (0..words.len).for_each(|index| words.set(index, 0));
        }
        for (index, quota) in self.plan.quotas.iter().enumerate() {
            if !is_concurrency(quota) {
                self.plan.set_writer(self.cell, index, None);
            }
        }
        self.head = self.plan.head(self.cell, self.now);
    }

    /// Writes the states of a limiter that is created now.
    pub(crate) fn create(&mut self) {
        for (quota, mut words) in self.plan.states(self.cell) {
            quota.create(&mut words, self.now);
        }
        self.head = self.plan.head(self.cell, self.now);
    }

    /// Brings a cell of the generation before over to the current quotas.
    fn apply_change(&mut self) {
        if self.head & GENERATION_BIT == self.plan.generation() {
            return;
        }
        if matches!(self.plan.previous, Some((_, CarryOver::Reset))) {
            self.reset();
        }
        let Some((old, _)) = &self.plan.previous else { return };
        for index in 0..self.plan.quotas.len() {
            // The tier that wrote a state does so in its own place.
            if let Some((written, quota)) =
                self.plan.writer(self.cell, index).filter(|(written, _)| *written == index)
            {
                quota.carry_over(&old[written], &mut self.plan.words(self.cell, index), self.now);
            }
        }
        self.head = self.plan.head(self.cell, self.now);
    }

    /// The states and the quotas that wrote them.
    pub(crate) fn entries(&self) -> Vec<StateEntry> {
        let entry = |(writer, words): (&Quota, StateWords<'_>)| StateEntry {
            writer: *writer,
            state: (0..words.len).map(|index| words.get(index)).collect(),
        };
        self.plan.states(self.cell).chain(self.plan.retained(self.cell)).map(entry).collect()
    }

    /// Takes over what another limiter knows of the key.
    pub(crate) fn take_over(&mut self, entries: &[StateEntry]) {
        let others: Vec<_> = self.plan.retained.iter().map(|(quota, _)| *quota).collect();
        let own = self.plan.quotas.len();
        let wanted: Vec<Quota> = self.plan.quotas.iter().copied().chain(others).collect();
        let writers: Vec<_> = entries.iter().map(|entry| entry.writer).collect();
        for (index, found) in
            StateEntries::match_writers(&wanted, &writers, CarryOver::Keep).into_iter().enumerate()
        {
            let Some(StateEntry { writer, state: words }) = found.map(|found| &entries[found]) else {
                continue;
            };
            let (place, quota) = match index.checked_sub(own) {
                None => (self.plan.ranges[index], &wanted[index]),
                Some(other) => (self.plan.retained[other].1, &wanted[index]),
            };
            let mut words = words.clone();
            words.resize(place.len.max(words.len()), 0);
            // What counts no longer is only kept, to the last digit.
            if index < own || quota != writer {
                quota.carry_over(writer, words.as_mut_slice(), self.now);
            }
            let mut body = StateWords { cell: self.cell, start: place.start, len: place.len };
            words.iter().take(place.len).enumerate().for_each(|(at, word)| body.set(at, *word));
            if index < own {
                self.plan.set_writer(self.cell, index, Some(index));
            }
        }
        self.head = self.plan.head(self.cell, self.now);
    }
}

impl QuotaPlan {
    /// Each quota that has a state in `cell`, which the caller holds, with that state.
    fn states<'a>(&'a self, cell: Cell<'a>) -> impl Iterator<Item = (&'a Quota, StateWords<'a>)> {
        let written = (0..self.quotas.len()).filter(move |index| match self.layout {
            StateLayout::All => true,
            StateLayout::Tiers => self.writer(cell, *index).is_some_and(|(written, _)| written == *index),
        });
        written.map(move |index| (&self.quotas[index], self.words(cell, index)))
    }

    /// The same for quotas that counted before.
    fn retained<'a>(&'a self, cell: Cell<'a>) -> impl Iterator<Item = (&'a Quota, StateWords<'a>)> {
        let body = move |place: StateRange| StateWords { cell, start: place.start, len: place.len };
        self.retained.iter().map(move |(quota, place)| (quota, body(*place)))
    }

    /// The words in the place of a quota.
    fn words<'a>(&self, cell: Cell<'a>, index: usize) -> StateWords<'a> {
        let StateRange { start, len: room } = self.ranges[index];
        StateWords { cell, start, len: room }
    }

    /// Who wrote the state in the place of a quota: that quota itself, or the tier that wrote it last.
    fn writer(&self, cell: Cell<'_>, index: usize) -> Option<(usize, &Quota)> {
        let written = match self.layout {
            StateLayout::All => index,
            StateLayout::Tiers => {
                let tier =
                    cell.body(self.ranges.get(index)?.start - 1).load(Ordering::Relaxed).checked_sub(1)?;
                usize::try_from(tier).ok()?
            }
        };
        self.quotas.get(written).map(|quota| (written, quota))
    }

    /// Notes which tier wrote the state in the place of a quota, where there are tiers.
    fn set_writer(&self, cell: Cell<'_>, index: usize, tier: Option<usize>) {
        if self.layout == StateLayout::Tiers {
            let word = cell.body(self.ranges[index].start - 1);
            word.store(tier.map_or(0, |tier| tier as u64 + 1), Ordering::Relaxed);
        }
    }

    /// The head that tells when the states in `cell` say nothing any more.
    fn head(&self, cell: Cell<'_>, now: Micros) -> u64 {
        let resets = self.states(cell).chain(self.retained(cell)).map(|(quota, mut words)| {
            let look = quota.decide(&mut words, now, Demand::probe(0));
            now.plus(look.decision.reset_after()).get()
        });
        self.generation() | resets.max().unwrap_or(0)
    }

    /// The generation of its cells.
    fn generation(&self) -> u64 {
        (self.changes & 1) * GENERATION_BIT
    }
}

fn is_concurrency(quota: &Quota) -> bool {
    matches!(quota.kind(), AlgorithmKind::Concurrency(_))
}

/// Unlocks, whatever happened while the cell was held.
impl Drop for LockedWords<'_> {
    fn drop(&mut self) {
        if self.unlock_on_drop {
            self.cell.unlock(self.head);
        }
    }
}

/// The words of one quota's state in a cell that is held.
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
