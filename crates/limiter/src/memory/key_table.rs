//! The cells of one limiter, counted in one word or in several.

use super::{
    cell::{Cell, LOCK_BIT},
    charge::{CellCharge, CellKind},
    multi_word::{CellRequest, MultiWord, PreviousState, QuotaUnit, StateLayout},
    plan::{WordPlan, WordPlans},
    resets::ResetCounters,
    single_word::SingleWord,
    slots::{self, SlotTable},
    snapshot::StateSnapshot,
    table::{CellLookup, CellTable, OutOfMemory, StripeLock},
};
use crate::{
    clock::Clock,
    limiter::{FullListener, Overflow},
    semaphore::HasWaiters,
    sync::{Mutex, MutexGuard, lock},
};
use tidegate_core::{CarryOver, Decision, Demand, Micros, Quota, Receipt, StateEntry};

/// All keys of a limiter.
#[derive(Debug)]
pub(crate) enum KeyTable {
    /// One quota that one word can count.
    SingleWord { table: CellTable, plans: Box<WordPlans>, quota: Mutex<Quota> },
    /// Permits without a lease.
    Slots(SlotTable),
    /// Anything else.
    MultiWord(MultiWord),
}

/// Where a key is counted, or that there is no room for it.
pub(crate) enum CellRef<'a> {
    Own(Cell<'a>),
    /// Until the guard is dropped, see [`TextSpan::QueueFull`].
    Shared(Cell<'a>, Option<MutexGuard<'a, ()>>),
    Full,
}

/// What is given to a key without room under [`Overflow::Deny`]: room is found when other keys are forgotten.
const RETRY_WHEN_FULL: Micros = Micros::from_secs(1);

impl KeyTable {
    /// Cells for some quotas. `former` are those whose states they are to take over.
    pub(crate) fn new(
        quotas: &[Quota],
        layout: StateLayout,
        keys: u64,
        now: Micros,
        former: &[PreviousState],
    ) -> Result<Self, OutOfMemory> {
        let keeps_others =
            !former.iter().all(|(other, _)| quotas.iter().any(|quota| quota.shares_state(other)));
        if let ([quota], StateLayout::All, false) = (quotas, layout, keeps_others)
            && let Some(plan) = WordPlan::from_quota(quota)
        {
            let table = CellTable::new(keys, 0)?;
            let plans = Box::new(WordPlans::new(plan, now, ResetCounters::striped()));
            return Ok(Self::SingleWord { table, plans, quota: Mutex::new(*quota) });
        }
        if let ([quota], StateLayout::All, false) = (quotas, layout, keeps_others)
            && SlotTable::can_count(quota)
        {
            return SlotTable::new(*quota, keys).map(Self::Slots);
        }
        MultiWord::new(quotas, layout, keys, former).map(Self::MultiWord)
    }

    /// Words of state behind a cell's head for these quotas.
    pub(crate) fn state_len(quotas: &[Quota], layout: StateLayout, former: &[PreviousState]) -> usize {
        match (quotas, layout) {
            ([quota], StateLayout::All)
                if former.is_empty()
                    && (WordPlan::from_quota(quota).is_some() || SlotTable::can_count(quota)) =>
            {
                0
            }
            _ => MultiWord::state_len(quotas, layout, former),
        }
    }

    pub(crate) fn table(&self) -> &CellTable {
        match self {
            Self::SingleWord { table, .. } => table,
            Self::Slots(slots) => slots.table(),
            Self::MultiWord(wide) => &wide.table,
        }
    }

    /// Who is told when a key finds no room.
    pub(crate) fn set_listener(&mut self, listener: FullListener) {
        match self {
            Self::SingleWord { table, .. } => table.set_listener(listener),
            Self::Slots(slots) => slots.set_listener(listener),
            Self::MultiWord(wide) => wide.table.set_listener(listener),
        }
    }

    /// The permits, where that is all there is to count.
    #[inline]
    pub(crate) fn slots(&self) -> Option<&SlotTable> {
        match self {
            Self::Slots(slots) => Some(slots),
            _ => None,
        }
    }

    pub(crate) fn quotas(&self) -> Vec<Quota> {
        match self {
            Self::SingleWord { quota: changing, .. } => vec![*lock(changing)],
            Self::Slots(slots) => vec![slots.quota()],
            Self::MultiWord(wide) => wide.quotas(),
        }
    }

    /// How many tiers a question can name.
    pub(crate) fn tiers(&self) -> usize {
        match self {
            Self::SingleWord { .. } | Self::Slots(_) => 1,
            Self::MultiWord(wide) => wide.tiers(),
        }
    }

    /// Takes `cost` now or not at all: the path that must be short. The cell is looked up before the clock is read,
    /// so that it comes from memory meanwhile.
    #[inline(always)]
    pub(crate) fn check(&self, owner: u64, clock: &Clock, cost: u64, overflow: Overflow) -> Decision {
        if let Self::SingleWord { table, plans, .. } = self
            && let Some(cell) = table.find_fast(owner)
            && let Some(decision) = cell.try_check(plans, clock, cost)
        {
            return decision;
        }
        self.check_slow(owner, clock, cost, overflow).repack()
    }

    /// What `cost` would get now, by as short a path.
    #[inline]
    pub(crate) fn peek(&self, owner: u64, clock: &Clock, cost: u64, overflow: Overflow) -> Decision {
        if let Self::SingleWord { table, plans, .. } = self
            && let Some(cell) = table.find_fast(owner)
            && let Some(decision) = cell.try_peek(plans, clock, cost)
        {
            return decision;
        }
        self.decide(owner, clock, CellRequest::new(Demand::probe(cost)), overflow)
    }

    /// A key that has no cell yet, or states of several words; kept out of line, so that the rest stays small.
    #[inline(never)]
    fn check_slow(&self, owner: u64, clock: &Clock, cost: u64, overflow: Overflow) -> Decision {
        self.decide(owner, clock, CellRequest::new(Demand::new(cost)), overflow)
    }

    /// Answers a question without keeping receipts.
    pub(crate) fn decide(
        &self,
        owner: u64,
        clock: &Clock,
        request: CellRequest,
        overflow: Overflow,
    ) -> Decision {
        let Self::SingleWord { table, plans, .. } = self else {
            return self.reserve(owner, clock, request, overflow).0;
        };
        if let Some(cell) = table.find_fast(owner)
            && let Some(answer) = SingleWord::decide(&cell, plans, clock, request.demand)
        {
            return answer.decision;
        }
        loop {
            let (cell, _guard) = match self.locate(owner, StripeLock::Unlocked, clock.now(), overflow) {
                CellRef::Own(cell) => (cell, None),
                CellRef::Shared(cell, guard) => (cell, guard),
                CellRef::Full => return self.deny_full(),
            };
            if let Some(answer) = SingleWord::decide(&cell, plans, clock, request.demand) {
                return answer.decision;
            }
        }
    }

    /// Answers a question and keeps the receipts.
    pub(crate) fn reserve(
        &self,
        owner: u64,
        clock: &Clock,
        request: CellRequest,
        overflow: Overflow,
    ) -> (Decision, CellCharge) {
        let mut charge = CellCharge::new(&request);
        if let Self::Slots(slots) = self {
            let Some((decision, taken)) = slots.decide(owner, request) else {
                slots.table().notify_full(clock.now());
                return (self.deny_full(), charge);
            };
            let cost = if taken.is_some() { request.demand.cost } else { 0 };
            charge.receipts.push(Receipt { cost, ..Receipt::default() });
            return (decision, charge);
        }
        loop {
            let now = clock.now();
            let (cell, counted, _guard) = match self.locate(owner, StripeLock::Unlocked, now, overflow) {
                CellRef::Own(cell) => (cell, CellKind::Own, None),
                CellRef::Shared(cell, guard) => (cell, CellKind::Shared, guard),
                CellRef::Full => return (self.deny_full(), charge),
            };
            charge.cell_kind = counted;
            let decided = match self {
                Self::SingleWord { plans, .. } => SingleWord::decide(&cell, plans, clock, request.demand)
                    .map(|answer| {
                        charge.charged_at = answer.time;
                        charge.receipts.push(answer.receipt);
                        answer.decision
                    }),
                // Answered above.
                Self::Slots(_) => Some(self.deny_full()),
                Self::MultiWord(wide) => wide.lock_cell(cell, now).map(|mut held| {
                    charge.epoch = held.epoch();
                    charge.charged_at = held.now;
                    held.decide(request, &mut charge.receipts)
                }),
            };
            if let Some(decision) = decided {
                return (decision, charge);
            }
        }
    }

    /// A copy of what is known of a key.
    pub(crate) fn snapshot(&self, owner: u64, clock: &Clock, tier: usize) -> StateSnapshot {
        let cell = self.table().find(owner);
        let sketch = match self {
            Self::SingleWord { plans, quota: changing, .. } => {
                let quota = *lock(changing);
                cell.and_then(|cell| SingleWord::snapshot(&cell, plans, quota, clock))
            }
            Self::Slots(slots) => {
                let states = vec![(slots.quota(), vec![slots.in_flight(owner)])];
                Some(StateSnapshot { time: clock.now(), states })
            }
            Self::MultiWord(wide) => {
                let held = cell.and_then(|cell| wide.lock_cell(cell, clock.now()));
                held.map(|held| held.snapshot(tier))
            }
        };
        sketch.unwrap_or_else(|| StateSnapshot::empty(clock.now(), self.tier_quotas(tier)))
    }

    /// What each receipt of a question for `tier` is of.
    pub(crate) fn units(&self, tier: usize) -> Vec<QuotaUnit> {
        match self {
            Self::SingleWord { .. } => vec![QuotaUnit::Tokens],
            Self::Slots(_) => vec![QuotaUnit::Permits],
            Self::MultiWord(_) => self.tier_quotas(tier).iter().map(QuotaUnit::from_quota).collect(),
        }
    }

    /// The quotas that apply to a question for `tier`.
    fn tier_quotas(&self, tier: usize) -> Vec<Quota> {
        match self.tiers() {
            1 => self.quotas(),
            _ => self.quotas().into_iter().skip(tier).take(1).collect(),
        }
    }

    /// The answer to a key that there is no room for.
    pub(crate) fn deny_full(&self) -> Decision {
        Decision::deny(self.limit(), RETRY_WHEN_FULL)
    }

    /// The cell in which a key is counted.
    pub(crate) fn locate(
        &self,
        owner: u64,
        stripe: StripeLock,
        now: Micros,
        overflow: Overflow,
    ) -> CellRef<'_> {
        let place = match self {
            Self::SingleWord { table, plans, .. } => {
                table.find_or_insert(owner, stripe, overflow, &plans.states_at(now))
            }
            Self::Slots(slots) => slots.locate(owner, stripe),
            Self::MultiWord(wide) => wide.table.find_or_insert(owner, stripe, overflow, &wide.states_at(now)),
        };
        if !matches!(place, CellLookup::Own(_)) {
            self.table().notify_full(now);
        }
        match (place, overflow) {
            (CellLookup::Own(cell) | CellLookup::Replaced(cell), _) => CellRef::Own(cell),
            (CellLookup::Full(cell, guard), Overflow::Replace | Overflow::Share) => {
                CellRef::Shared(cell, guard)
            }
            (CellLookup::Full(..), Overflow::Deny) => CellRef::Full,
        }
    }

    /// Gives back up to `cost` of what the receipts prove.
    pub(crate) fn refund(&self, owner: u64, clock: &Clock, charge: &CellCharge, cost: u64) {
        if let Self::Slots(slots) = self {
            let held: u64 = charge.receipts.iter().map(|receipt| receipt.cost).sum();
            slots.release(owner, cost.min(held));
            return;
        }
        let cell = match charge.cell_kind {
            CellKind::Own => self.table().find(owner),
            CellKind::Shared => Some(self.table().shared_cell(owner)),
        };
        // A key that was forgotten has already got everything back.
        let Some(cell) = cell else { return };
        match self {
            Self::SingleWord { plans, .. } => {
                for receipt in &charge.receipts {
                    SingleWord::refund(&cell, plans, clock, *receipt, cost);
                }
            }
            Self::Slots(_) => {}
            Self::MultiWord(wide) => {
                if let Some(mut held) = wide.lock_cell(cell, clock.now()) {
                    held.refund(charge, cost);
                }
            }
        }
    }

    /// Writes the state of a limiter that is created now into the cell of a key.
    pub(crate) fn create(&self, owner: u64, now: Micros) {
        if let (Self::MultiWord(wide), CellRef::Own(cell)) =
            (self, self.locate(owner, StripeLock::Unlocked, now, Overflow::Deny))
            && let Some(mut held) = wide.lock_cell(cell, now)
        {
            held.create();
        }
    }

    /// Forgets a key.
    pub(crate) fn reset(&self, owner: u64, now: Micros) {
        let Some(cell) = self.table().find(owner) else { return };
        match self {
            Self::SingleWord { plans, .. } => SingleWord::reset(&cell, plans, now),
            // Permits in flight are facts: their holders will give them back.
            Self::Slots(_) => {}
            Self::MultiWord(wide) => {
                if let Some(mut held) = wide.lock_cell(cell, now) {
                    held.reset();
                }
            }
        }
    }

    /// Has the next to give back a permit of this key tell so, where that is not always done; or finds that `cost` is
    /// free already.
    pub(crate) fn await_release(&self, owner: u64, cost: u64) -> HasWaiters {
        match self {
            Self::Slots(slots) => slots.await_release(owner, cost),
            _ => HasWaiters::Yes,
        }
    }

    /// Whether the cells can hold what these quotas count.
    pub(crate) fn has_room_for(&self, quotas: &[Quota]) -> bool {
        match (self, quotas) {
            (Self::SingleWord { .. }, [quota]) => WordPlan::from_quota(quota).is_some(),
            (Self::Slots(_), [quota]) => SlotTable::can_count(quota),
            (Self::MultiWord(wide), quotas) => wide.has_room_for(quotas),
            (Self::SingleWord { .. } | Self::Slots(_), _) => false,
        }
    }

    /// Replaces the quotas; `Err` when the cells have no room for what the new ones count.
    pub(crate) fn change(&self, quotas: &[Quota], how: CarryOver, now: Micros) -> Result<(), ()> {
        match self {
            Self::SingleWord { table, plans, quota: changing } => {
                let [quota] = quotas else { return Err(()) };
                let plan = WordPlan::from_quota(quota).ok_or(())?;
                let mut current = lock(changing);
                let _still = table.lock_all();
                plans.change(plan, how);
                *current = *quota;
                for cell in table.cells() {
                    cell.convert(plans, now);
                }
                Ok(())
            }
            Self::Slots(slots) => match quotas {
                [quota] => slots.change(*quota),
                _ => Err(()),
            },
            Self::MultiWord(wide) => wide.change(quotas, how, now),
        }
    }

    /// The quotas whose states a space would take over that replaces this one, with the words of each. Permits without a lease are
    /// given back where they were taken.
    pub(crate) fn previous_states(&self) -> Vec<PreviousState> {
        match self {
            Self::SingleWord { quota: changing, .. } => {
                let quota = *lock(changing);
                vec![(quota, quota.state_len())]
            }
            Self::Slots(_) => Vec::new(),
            Self::MultiWord(wide) => wide.previous_states(),
        }
    }

    /// Takes over the states of all keys of a space that this one replaces. Both must know keys by the same fingerprints.
    pub(crate) fn take_over(&self, old: &Self, clock: &Clock) {
        let now = clock.now();
        // In a smaller table the keys stay that are limited. Permits are given back by their holders alone.
        let counts_permits = self.quotas().iter().any(|quota| quota.rate().is_none());
        let overflow = if counts_permits { Overflow::Deny } else { Overflow::Replace };
        for cell in old.table().cells().filter(|cell| !cell.is_shared()) {
            let entries = match old {
                Self::SingleWord { plans, quota: changing, .. } => {
                    let quota = *lock(changing);
                    let sketch = SingleWord::snapshot(&cell, plans, quota, clock);
                    sketch.map(|sketch| sketch.states).unwrap_or_default()
                }
                Self::Slots(_) => Vec::new(),
                Self::MultiWord(wide) => {
                    let held = wide.lock_cell(cell, now);
                    held.map(|held| held.entries())
                        .unwrap_or_default()
                        .into_iter()
                        .map(|it| (it.writer, it.state))
                        .collect()
                }
            };
            let entries: Vec<_> =
                entries.into_iter().map(|(writer, words)| StateEntry { writer, state: words }).collect();
            // A key that says nothing need not be known.
            let says_something = entries.iter().any(|StateEntry { writer, state: words }| {
                let look = writer.decide(words.clone().as_mut_slice(), now, Demand::probe(0)).decision;
                look.reset_after() > Micros::ZERO
            });
            if says_something
                && let CellRef::Own(own) = self.locate(cell.owner, StripeLock::Unlocked, now, overflow)
            {
                self.take_over_key(own, &entries, clock);
            }
        }
    }

    fn take_over_key(&self, cell: Cell<'_>, entries: &[StateEntry], clock: &Clock) {
        match self {
            Self::SingleWord { plans, quota: changing, .. } => {
                // Held until the word is written: the state is in units of this quota.
                let quota = lock(changing);
                for StateEntry { writer, state: words } in
                    entries.iter().filter(|entry| quota.shares_state(&entry.writer))
                {
                    let mut words = words.clone();
                    quota.carry_over(writer, words.as_mut_slice(), clock.now());
                    SingleWord::import_state(&cell, plans, clock, &words);
                }
            }
            Self::Slots(_) => {}
            Self::MultiWord(wide) => {
                if let Some(mut held) = wide.lock_cell(cell, clock.now()) {
                    held.take_over(entries);
                }
            }
        }
    }

    /// Keys that would answer differently from a new one.
    pub(crate) fn live_keys(&self, now: Micros) -> u64 {
        let heads = self.table().cells().filter(|cell| !cell.is_shared());
        let heads = heads.map(|cell| cell.head().load(crate::sync::Ordering::Relaxed) & !LOCK_BIT);
        let live = match self {
            Self::SingleWord { plans, .. } => {
                heads.filter(|head| *head != 0 && !plans.is_expired(*head, now)).count()
            }
            Self::Slots(_) => heads.filter(|head| !slots::is_expired(*head)).count(),
            Self::MultiWord(_) => {
                heads.filter(|head| *head != 0 && !MultiWord::is_expired(*head, now)).count()
            }
        };
        live as u64
    }

    pub(crate) fn limit(&self) -> u64 {
        match self {
            Self::SingleWord { plans, .. } => plans.limit(),
            Self::Slots(slots) => slots.limit(),
            Self::MultiWord(wide) => wide.limit(),
        }
    }
}
