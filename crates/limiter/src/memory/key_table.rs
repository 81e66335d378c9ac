//! The cells of one limiter, in one of three representations.

use super::{
    cell::{Cell, LOCK_BIT},
    charge::{CellCharge, CellKind},
    multi_word::{CellRequest, MultiWord, PreviousState, QuotaUnit, StateLayout},
    permits::{self, PermitTable},
    plan::{WordPlan, WordPlans},
    resets::ResetCounters,
    single_word::SingleWord,
    snapshot::StateSnapshot,
    table::{CellLookup, CellTable, OutOfMemory, StripeLock},
};
use crate::{
    clock::Clock,
    limiter::{Overflow, TableFullListener},
    semaphore::HasWaiters,
    sync::{Mutex, MutexGuard, lock},
};
use tidegate_core::{CarryOver, Decision, Demand, Micros, Quota, Receipt, StateEntry};

/// All keys of a limiter.
#[derive(Debug)]
pub(crate) enum KeyTable {
    /// One quota whose state fits in one word.
    SingleWord { table: CellTable, plans: Box<WordPlans>, quota: Mutex<Quota> },
    /// Permits without a lease.
    Permits(PermitTable),
    /// Any other quotas.
    MultiWord(MultiWord),
}

/// The cell of a key, or `Full` if it has no cell.
pub(crate) enum CellRef<'a> {
    Own(Cell<'a>),
    /// Valid until the guard is dropped, see [`CellLookup::TableFull`].
    Shared(Cell<'a>, Option<MutexGuard<'a, ()>>),
    TableFull,
}

/// The retry time of a key without a cell under [`Overflow::Deny`]: cells become free when other keys expire.
const RETRY_WHEN_TABLE_FULL: Micros = Micros::from_secs(1);

impl KeyTable {
    /// Allocates cells for some quotas. `previous` are the quotas whose states will be imported.
    pub(crate) fn new(
        quotas: &[Quota],
        layout: StateLayout,
        keys: u64,
        now: Micros,
        previous: &[PreviousState],
    ) -> Result<Self, OutOfMemory> {
        let retains_states =
            !previous.iter().all(|(other, _)| quotas.iter().any(|quota| quota.shares_state(other)));
        if let ([quota], StateLayout::All, false) = (quotas, layout, retains_states)
            && let Some(plan) = WordPlan::from_quota(quota)
        {
            let table = CellTable::new(keys, 0)?;
            let plans = Box::new(WordPlans::new(plan, now, ResetCounters::striped()));
            return Ok(Self::SingleWord { table, plans, quota: Mutex::new(*quota) });
        }
        if let ([quota], StateLayout::All, false) = (quotas, layout, retains_states)
            && PermitTable::can_count(quota)
        {
            return PermitTable::new(*quota, keys).map(Self::Permits);
        }
        MultiWord::new(quotas, layout, keys, previous).map(Self::MultiWord)
    }

    /// The number of words of state behind the head of a cell for these quotas.
    pub(crate) fn state_len(quotas: &[Quota], layout: StateLayout, previous: &[PreviousState]) -> usize {
        match (quotas, layout) {
            ([quota], StateLayout::All)
                if previous.is_empty()
                    && (WordPlan::from_quota(quota).is_some() || PermitTable::can_count(quota)) =>
            {
                0
            }
            _ => MultiWord::state_len(quotas, layout, previous),
        }
    }

    pub(crate) fn table(&self) -> &CellTable {
        match self {
            Self::SingleWord { table, .. } => table,
            Self::Permits(slots) => slots.table(),
            Self::MultiWord(multi_word) => &multi_word.table,
        }
    }

    /// Sets the callback of a full table.
    pub(crate) fn set_listener(&mut self, listener: TableFullListener) {
        match self {
            Self::SingleWord { table, .. } => table.set_listener(listener),
            Self::Permits(slots) => slots.set_listener(listener),
            Self::MultiWord(multi_word) => multi_word.table.set_listener(listener),
        }
    }

    /// The slot table, if the quota counts nothing but permits.
    #[inline]
    pub(crate) fn permit_table(&self) -> Option<&PermitTable> {
        match self {
            Self::Permits(slots) => Some(slots),
            _ => None,
        }
    }

    pub(crate) fn quotas(&self) -> Vec<Quota> {
        match self {
            Self::SingleWord { quota: quota_lock, .. } => vec![*lock(quota_lock)],
            Self::Permits(slots) => vec![slots.quota()],
            Self::MultiWord(multi_word) => multi_word.quotas(),
        }
    }

    /// The number of tiers.
    pub(crate) fn tiers(&self) -> usize {
        match self {
            Self::SingleWord { .. } | Self::Permits(_) => 1,
            Self::MultiWord(multi_word) => multi_word.tiers(),
        }
    }

    /// Adds tiers whose states share the words of others; `Err` if there are no tiers, or a state does not fit.
    pub(crate) fn add_tiers(&self, quotas: &[Quota]) -> Result<(), ()> {
        match self {
            Self::MultiWord(multi_word) => multi_word.add_tiers(quotas),
            Self::SingleWord { .. } | Self::Permits(_) => Err(()),
        }
    }

    /// Takes `cost` now, or denies: the fast path. Looks the cell up before it reads the clock, so that the memory access
    /// overlaps with it.
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

    /// The decision that `cost` would get now, on the fast path.
    #[inline]
    pub(crate) fn peek(&self, owner: u64, clock: &Clock, cost: u64, overflow: Overflow) -> Decision {
        if let Self::SingleWord { table, plans, .. } = self
            && let Some(cell) = table.find_fast(owner)
            && let Some(decision) = cell.try_peek(plans, clock, cost)
        {
            return decision;
        }
        self.decide(owner, clock, CellRequest::new(Demand::peek(cost)), overflow)
    }

    /// A key without a cell, a state of several words, or another clock. Never inlined, so that the fast path stays small.
    #[inline(never)]
    fn check_slow(&self, owner: u64, clock: &Clock, cost: u64, overflow: Overflow) -> Decision {
        if let Self::SingleWord { table, plans, .. } = self
            && let Some(cell) = table.find_fast(owner)
            && let Some(decision) = cell.retry_check(plans, clock, cost)
        {
            return decision;
        }
        self.decide(owner, clock, CellRequest::new(Demand::new(cost)), overflow)
    }

    /// Decides a request without receipts.
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
            && let Some(charged) = SingleWord::decide(&cell, plans, clock, request.demand)
        {
            return charged.decision;
        }
        loop {
            let (cell, _guard) = match self.locate(owner, StripeLock::Unlocked, clock.now(), overflow) {
                CellRef::Own(cell) => (cell, None),
                CellRef::Shared(cell, guard) => (cell, guard),
                CellRef::TableFull => return self.deny_table_full(),
            };
            if let Some(charged) = SingleWord::decide(&cell, plans, clock, request.demand) {
                return charged.decision;
            }
        }
    }

    /// Decides a request and returns the receipts.
    pub(crate) fn reserve(
        &self,
        owner: u64,
        clock: &Clock,
        request: CellRequest,
        overflow: Overflow,
    ) -> (Decision, CellCharge) {
        let mut charge = CellCharge::new(&request);
        if let Self::Permits(slots) = self {
            let Some((decision, taken)) = slots.decide(owner, request) else {
                slots.table().notify_table_full(clock.now());
                return (self.deny_table_full(), charge);
            };
            let cost = if taken.is_some() { request.demand.cost } else { 0 };
            charge.receipts.push(Receipt { cost, ..Receipt::default() });
            return (decision, charge);
        }
        loop {
            let now = clock.now();
            let (cell, cell_kind, _guard) = match self.locate(owner, StripeLock::Unlocked, now, overflow) {
                CellRef::Own(cell) => (cell, CellKind::Own, None),
                CellRef::Shared(cell, guard) => (cell, CellKind::Shared, guard),
                CellRef::TableFull => return (self.deny_table_full(), charge),
            };
            charge.cell_kind = cell_kind;
            let decided = match self {
                Self::SingleWord { plans, .. } => SingleWord::decide(&cell, plans, clock, request.demand)
                    .map(|charged| {
                        charge.charged_at = charged.time;
                        charge.receipts.push(charged.receipt);
                        charged.decision
                    }),
                // Handled above.
                Self::Permits(_) => Some(self.deny_table_full()),
                Self::MultiWord(multi_word) => multi_word.lock_cell(cell, now).map(|mut locked| {
                    charge.epoch = locked.epoch();
                    charge.charged_at = locked.now;
                    locked.decide(request, &mut charge.receipts)
                }),
            };
            if let Some(decision) = decided {
                return (decision, charge);
            }
        }
    }

    /// A copy of the state of a key.
    pub(crate) fn snapshot(&self, owner: u64, clock: &Clock, tier: usize) -> StateSnapshot {
        let cell = self.table().find(owner);
        let snapshot = match self {
            Self::SingleWord { plans, quota: quota_lock, .. } => {
                let quota = *lock(quota_lock);
                cell.and_then(|cell| SingleWord::snapshot(&cell, plans, quota, clock))
            }
            Self::Permits(slots) => {
                let states = vec![(slots.quota(), vec![slots.in_flight(owner)])];
                Some(StateSnapshot { time: clock.now(), states })
            }
            Self::MultiWord(multi_word) => {
                let locked = cell.and_then(|cell| multi_word.lock_cell(cell, clock.now()));
                locked.map(|locked| locked.snapshot(tier))
            }
        };
        snapshot.unwrap_or_else(|| StateSnapshot::empty(clock.now(), self.tier_quotas(tier)))
    }

    /// The unit of each receipt of a request for `tier`.
    pub(crate) fn units(&self, tier: usize) -> Vec<QuotaUnit> {
        match self {
            Self::SingleWord { .. } => vec![QuotaUnit::Tokens],
            Self::Permits(_) => vec![QuotaUnit::Permits],
            Self::MultiWord(_) => self.tier_quotas(tier).iter().map(QuotaUnit::from_quota).collect(),
        }
    }

    /// The quotas that apply to a request for `tier`.
    fn tier_quotas(&self, tier: usize) -> Vec<Quota> {
        match self.tiers() {
            1 => self.quotas(),
            _ => self.quotas().into_iter().skip(tier).take(1).collect(),
        }
    }

    /// The denial of a key without a cell.
    pub(crate) fn deny_table_full(&self) -> Decision {
        Decision::deny(self.limit(), RETRY_WHEN_TABLE_FULL)
    }

    /// Finds or assigns the cell of a key.
    pub(crate) fn locate(
        &self,
        owner: u64,
        stripe: StripeLock,
        now: Micros,
        overflow: Overflow,
    ) -> CellRef<'_> {
        let lookup = match self {
            Self::SingleWord { table, plans, .. } => {
                table.find_or_insert(owner, stripe, overflow, &plans.states_at(now))
            }
            Self::Permits(slots) => slots.locate(owner, stripe),
            Self::MultiWord(multi_word) => {
                multi_word.table.find_or_insert(owner, stripe, overflow, &multi_word.states_at(now))
            }
        };
        if !matches!(lookup, CellLookup::Own(_)) {
            self.table().notify_table_full(now);
        }
        match (lookup, overflow) {
            (CellLookup::Own(cell) | CellLookup::Replaced(cell), _) => CellRef::Own(cell),
            (CellLookup::TableFull(cell, guard), Overflow::Replace | Overflow::Share) => {
                CellRef::Shared(cell, guard)
            }
            (CellLookup::TableFull(..), Overflow::Deny) => CellRef::TableFull,
        }
    }

    /// Refunds up to `cost` of each receipt.
    pub(crate) fn refund(&self, owner: u64, clock: &Clock, charge: &CellCharge, cost: u64) {
        if let Self::Permits(slots) = self {
            let acquired: u64 = charge.receipts.iter().map(|receipt| receipt.cost).sum();
            slots.release(owner, cost.min(acquired));
            return;
        }
        let cell = match charge.cell_kind {
            CellKind::Own => self.table().find(owner),
            CellKind::Shared => Some(self.table().shared_cell(owner)),
        };
        // A key without a cell has expired: there is nothing to refund.
        let Some(cell) = cell else { return };
        match self {
            Self::SingleWord { plans, .. } => {
                for receipt in &charge.receipts {
                    SingleWord::refund(&cell, plans, clock, *receipt, cost);
                }
            }
            Self::Permits(_) => {}
            Self::MultiWord(multi_word) => {
                if let Some(mut locked) = multi_word.lock_cell(cell, clock.now()) {
                    locked.refund(charge, cost);
                }
            }
        }
    }

    /// Writes the initial state of a new limiter into the cell of a key.
    pub(crate) fn create(&self, owner: u64, now: Micros) {
        if let (Self::MultiWord(multi_word), CellRef::Own(cell)) =
            (self, self.locate(owner, StripeLock::Unlocked, now, Overflow::Deny))
            && let Some(mut locked) = multi_word.lock_cell(cell, now)
        {
            locked.create();
        }
    }

    /// Resets a key.
    pub(crate) fn reset(&self, owner: u64, now: Micros) {
        let Some(cell) = self.table().find(owner) else { return };
        match self {
            Self::SingleWord { plans, .. } => SingleWord::reset(&cell, plans, now),
            // Permits in flight are released by their holders.
            Self::Permits(_) => {}
            Self::MultiWord(multi_word) => {
                if let Some(mut locked) = multi_word.lock_cell(cell, now) {
                    locked.reset();
                }
            }
        }
    }

    /// Makes the next release of a permit of this key report a waiter, if it does not always do so. Returns `No` if `cost` is
    /// free already.
    pub(crate) fn await_release(&self, owner: u64, cost: u64) -> HasWaiters {
        match self {
            Self::Permits(slots) => slots.await_release(owner, cost),
            _ => HasWaiters::Yes,
        }
    }

    /// Whether the states of these quotas fit in the cells.
    pub(crate) fn has_room_for(&self, quotas: &[Quota]) -> bool {
        match (self, quotas) {
            (Self::SingleWord { .. }, [quota]) => WordPlan::from_quota(quota).is_some(),
            (Self::Permits(_), [quota]) => PermitTable::can_count(quota),
            (Self::MultiWord(multi_word), quotas) => multi_word.has_room_for(quotas),
            (Self::SingleWord { .. } | Self::Permits(_), _) => false,
        }
    }

    /// Replaces the quotas; `Err` if the states of the new ones do not fit in the cells.
    pub(crate) fn change(&self, quotas: &[Quota], how: CarryOver, now: Micros) -> Result<(), ()> {
        match self {
            Self::SingleWord { table, plans, quota: quota_lock } => {
                let [quota] = quotas else { return Err(()) };
                let plan = WordPlan::from_quota(quota).ok_or(())?;
                let mut current = lock(quota_lock);
                let _stripes = table.lock_all();
                plans.change(plan, how);
                *current = *quota;
                for cell in table.cells() {
                    cell.convert_state(plans, now);
                }
                Ok(())
            }
            Self::Permits(slots) => match quotas {
                [quota] => slots.change(*quota),
                _ => Err(()),
            },
            Self::MultiWord(multi_word) => multi_word.change(quotas, how, now),
        }
    }

    /// The quotas whose states a replacement of this table would import, with the number of words of each. Excludes permits
    /// without a lease, which are released where they were acquired.
    pub(crate) fn previous_states(&self) -> Vec<PreviousState> {
        match self {
            Self::SingleWord { quota: quota_lock, .. } => {
                let quota = *lock(quota_lock);
                vec![(quota, quota.state_len())]
            }
            Self::Permits(_) => Vec::new(),
            Self::MultiWord(multi_word) => multi_word.previous_states(),
        }
    }

    /// Imports the states of all keys of a table that this one replaces. Both must use the same fingerprints.
    pub(crate) fn take_over(&self, old: &Self, clock: &Clock) {
        let now = clock.now();
        // In a smaller table the limited keys stay. Keys with permits or totals are not replaced.
        let has_rates = self.quotas().iter().all(|quota| quota.rate().is_some());
        let overflow = if has_rates { Overflow::Replace } else { Overflow::Deny };
        for cell in old.table().cells().filter(|cell| !cell.is_shared()) {
            let entries = match old {
                Self::SingleWord { plans, quota: quota_lock, .. } => {
                    let quota = *lock(quota_lock);
                    let snapshot = SingleWord::snapshot(&cell, plans, quota, clock);
                    snapshot.map(|snapshot| snapshot.states).unwrap_or_default()
                }
                Self::Permits(_) => Vec::new(),
                Self::MultiWord(multi_word) => {
                    let locked = multi_word.lock_cell(cell, now);
                    locked
                        .map(|locked| locked.entries())
                        .unwrap_or_default()
                        .into_iter()
                        .map(|entry| (entry.writer, entry.state))
                        .collect()
                }
            };
            let entries: Vec<_> =
                entries.into_iter().map(|(writer, state)| StateEntry { writer, state }).collect();
            // Skip expired keys.
            let is_live = entries.iter().any(|StateEntry { writer, state }| {
                writer.forgotten_after(state.clone().as_mut_slice(), now) > Micros::ZERO
            });
            if is_live && let CellRef::Own(own) = self.locate(cell.owner, StripeLock::Unlocked, now, overflow)
            {
                self.take_over_key(own, &entries, clock);
            }
        }
    }

    fn take_over_key(&self, cell: Cell<'_>, entries: &[StateEntry], clock: &Clock) {
        match self {
            Self::SingleWord { plans, quota: quota_lock, .. } => {
                // Locked until the word is written: the state is in units of this quota.
                let quota = lock(quota_lock);
                for StateEntry { writer, state } in
                    entries.iter().filter(|entry| quota.shares_state(&entry.writer))
                {
                    let mut state = state.clone();
                    quota.convert_state(writer, state.as_mut_slice(), clock.now());
                    SingleWord::import_state(&cell, plans, clock, &state);
                }
            }
            Self::Permits(_) => {}
            Self::MultiWord(multi_word) => {
                if let Some(mut locked) = multi_word.lock_cell(cell, clock.now()) {
                    locked.take_over(entries);
                }
            }
        }
    }

    /// The number of keys that have not expired.
    pub(crate) fn live_keys(&self, now: Micros) -> u64 {
        let heads = self.table().cells().filter(|cell| !cell.is_shared());
        let heads = heads.map(|cell| cell.head().load(crate::sync::Ordering::Relaxed) & !LOCK_BIT);
        let live = match self {
            Self::SingleWord { plans, .. } => {
                heads.filter(|head| *head != 0 && !plans.is_expired(*head, now)).count()
            }
            Self::Permits(_) => heads.filter(|head| !permits::is_expired(*head)).count(),
            Self::MultiWord(_) => {
                heads.filter(|head| *head != 0 && !MultiWord::is_expired(*head, now)).count()
            }
        };
        live as u64
    }

    pub(crate) fn limit(&self) -> u64 {
        match self {
            Self::SingleWord { plans, .. } => plans.limit(),
            Self::Permits(slots) => slots.limit(),
            Self::MultiWord(multi_word) => multi_word.limit(),
        }
    }
}
