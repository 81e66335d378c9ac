//! The cells of one limiter, counted in one word or in several.

use super::{
    cell::{Cell, LOCK},
    charge::{Charge, Counted},
    plan::{Plan, Plans},
    resets::Resets,
    sketch::Sketch,
    slots::{self, SlotTable},
    table::{OutOfMemory, Place, Stripe, Table},
    wide::{Counts, Former, Layout, Question, Wide},
    word::Word,
};
use crate::{
    clock::Clock,
    limiter::{FullListener, Overflow},
    slots::Awaited,
    sync::{Mutex, MutexGuard, lock},
};
use tidegate_core::{CarryOver, Decision, Demand, Micros, Quota, Receipt, StateEntry};

/// All keys of a limiter.
#[derive(Debug)]
pub(crate) enum Space {
    /// One quota that one word can count.
    Word { table: Table, plans: Box<Plans>, changing: Mutex<Quota> },
    /// Permits without a lease.
    Slots(SlotTable),
    /// Anything else.
    Wide(Wide),
}

/// Where a key is counted, or that there is no room for it.
pub(crate) enum Spot<'a> {
    Own(Cell<'a>),
    /// Until the guard is dropped, see [`Place::Full`].
    Shared(Cell<'a>, Option<MutexGuard<'a, ()>>),
    NoRoom,
}

/// What is given to a key without room under [`Overflow::Deny`]: room is found when other keys are forgotten.
const RETRY_FOR_ROOM: Micros = Micros::from_secs(1);

impl Space {
    /// Cells for some quotas. `former` are those whose states they are to take over.
    pub(crate) fn new(
        quotas: &[Quota],
        layout: Layout,
        keys: u64,
        now: Micros,
        former: &[Former],
    ) -> Result<Self, OutOfMemory> {
        let keeps_others =
            !former.iter().all(|(other, _)| quotas.iter().any(|quota| quota.shares_state(other)));
        if let ([quota], Layout::Together, false) = (quotas, layout, keeps_others)
            && let Some(plan) = Plan::of(quota)
        {
            let table = Table::new(keys, 0)?;
            let plans = Box::new(Plans::new(plan, now, Resets::of_many()));
            return Ok(Self::Word { table, plans, changing: Mutex::new(*quota) });
        }
        if let ([quota], Layout::Together, false) = (quotas, layout, keeps_others)
            && SlotTable::can_count(quota)
        {
            return SlotTable::new(*quota, keys).map(Self::Slots);
        }
        Wide::new(quotas, layout, keys, former).map(Self::Wide)
    }

    /// Words of state behind a cell's head for these quotas.
    pub(crate) fn width(quotas: &[Quota], layout: Layout, former: &[Former]) -> usize {
        match (quotas, layout) {
            ([quota], Layout::Together)
                if former.is_empty() && (Plan::of(quota).is_some() || SlotTable::can_count(quota)) =>
            {
                0
            }
            _ => Wide::width(quotas, layout, former),
        }
    }

    pub(crate) fn table(&self) -> &Table {
        match self {
            Self::Word { table, .. } => table,
            Self::Slots(slots) => slots.table(),
            Self::Wide(wide) => &wide.table,
        }
    }

    /// Who is told when a key finds no room.
    pub(crate) fn listen(&mut self, listener: FullListener) {
        match self {
            Self::Word { table, .. } => table.listen(listener),
            Self::Slots(slots) => slots.listen(listener),
            Self::Wide(wide) => wide.table.listen(listener),
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
            Self::Word { changing, .. } => vec![*lock(changing)],
            Self::Slots(slots) => vec![slots.quota()],
            Self::Wide(wide) => wide.quotas(),
        }
    }

    /// How many tiers a question can name.
    pub(crate) fn tiers(&self) -> usize {
        match self {
            Self::Word { .. } | Self::Slots(_) => 1,
            Self::Wide(wide) => wide.tiers(),
        }
    }

    /// Takes `cost` now or not at all: the path that must be short. The cell is looked up before the clock is read,
    /// so that it comes from memory meanwhile.
    #[inline(always)]
    pub(crate) fn check(&self, owner: u64, clock: &Clock, cost: u64, overflow: Overflow) -> Decision {
        if let Self::Word { table, plans, .. } = self
            && let Some(cell) = table.nearby(owner)
            && let Some(decision) = cell.try_check(plans, clock, cost)
        {
            return decision;
        }
        self.check_slowly(owner, clock, cost, overflow).repack()
    }

    /// What `cost` would get now, by as short a path.
    #[inline]
    pub(crate) fn peek(&self, owner: u64, clock: &Clock, cost: u64, overflow: Overflow) -> Decision {
        if let Self::Word { table, plans, .. } = self
            && let Some(cell) = table.nearby(owner)
            && let Some(decision) = cell.try_peek(plans, clock, cost)
        {
            return decision;
        }
        self.decide(owner, clock, Question::plain(Demand::probe(cost)), overflow)
    }

    /// A key that has no cell yet, or states of several words; kept out of line, so that the rest stays small.
    #[inline(never)]
    fn check_slowly(&self, owner: u64, clock: &Clock, cost: u64, overflow: Overflow) -> Decision {
        self.decide(owner, clock, Question::plain(Demand::new(cost)), overflow)
    }

    /// Answers a question without keeping receipts.
    pub(crate) fn decide(
        &self,
        owner: u64,
        clock: &Clock,
        question: Question,
        overflow: Overflow,
    ) -> Decision {
        let Self::Word { table, plans, .. } = self else {
            return self.reserve(owner, clock, question, overflow).0;
        };
        if let Some(cell) = table.nearby(owner)
            && let Some(answer) = Word::decide(&cell, plans, clock, question.demand)
        {
            return answer.decision;
        }
        loop {
            let (cell, _guard) = match self.spot(owner, Stripe::Free, clock.now(), overflow) {
                Spot::Own(cell) => (cell, None),
                Spot::Shared(cell, guard) => (cell, guard),
                Spot::NoRoom => return self.no_room(),
            };
            if let Some(answer) = Word::decide(&cell, plans, clock, question.demand) {
                return answer.decision;
            }
        }
    }

    /// Answers a question and keeps the receipts.
    pub(crate) fn reserve(
        &self,
        owner: u64,
        clock: &Clock,
        question: Question,
        overflow: Overflow,
    ) -> (Decision, Charge) {
        let mut charge = Charge::of(&question);
        if let Self::Slots(slots) = self {
            let Some((decision, taken)) = slots.decide(owner, question) else {
                slots.table().tell_full(clock.now());
                return (self.no_room(), charge);
            };
            let cost = if taken.is_some() { question.demand.cost } else { 0 };
            charge.receipts.push(Receipt { cost, ..Receipt::default() });
            return (decision, charge);
        }
        loop {
            let now = clock.now();
            let (cell, counted, _guard) = match self.spot(owner, Stripe::Free, now, overflow) {
                Spot::Own(cell) => (cell, Counted::Own, None),
                Spot::Shared(cell, guard) => (cell, Counted::Shared, guard),
                Spot::NoRoom => return (self.no_room(), charge),
            };
            charge.counted = counted;
            let decided = match self {
                Self::Word { plans, .. } => {
                    Word::decide(&cell, plans, clock, question.demand).map(|answer| {
                        charge.at = answer.at;
                        charge.receipts.push(answer.receipt);
                        answer.decision
                    })
                }
                // Answered above.
                Self::Slots(_) => Some(self.no_room()),
                Self::Wide(wide) => wide.hold(cell, now).map(|mut held| {
                    charge.settlement = held.settlement();
                    charge.at = held.now;
                    held.decide(question, &mut charge.receipts)
                }),
            };
            if let Some(decision) = decided {
                return (decision, charge);
            }
        }
    }

    /// A copy of what is known of a key.
    pub(crate) fn sketch(&self, owner: u64, clock: &Clock, tier: usize) -> Sketch {
        let cell = self.table().find(owner);
        let sketch = match self {
            Self::Word { plans, changing, .. } => {
                let quota = *lock(changing);
                cell.and_then(|cell| Word::sketch(&cell, plans, quota, clock))
            }
            Self::Slots(slots) => {
                let states = vec![(slots.quota(), vec![slots.held(owner)])];
                Some(Sketch { at: clock.now(), states })
            }
            Self::Wide(wide) => {
                let held = cell.and_then(|cell| wide.hold(cell, clock.now()));
                held.map(|held| held.sketch(tier))
            }
        };
        sketch.unwrap_or_else(|| Sketch::blank(clock.now(), self.quotas_of(tier)))
    }

    /// What each receipt of a question for `tier` is of.
    pub(crate) fn kinds(&self, tier: usize) -> Vec<Counts> {
        match self {
            Self::Word { .. } => vec![Counts::Tokens],
            Self::Slots(_) => vec![Counts::Permits],
            Self::Wide(_) => self.quotas_of(tier).iter().map(Counts::of).collect(),
        }
    }

    /// The quotas that apply to a question for `tier`.
    fn quotas_of(&self, tier: usize) -> Vec<Quota> {
        match self.tiers() {
            1 => self.quotas(),
            _ => self.quotas().into_iter().skip(tier).take(1).collect(),
        }
    }

    /// The answer to a key that there is no room for.
    pub(crate) fn no_room(&self) -> Decision {
        Decision::deny(self.limit(), RETRY_FOR_ROOM)
    }

    /// The cell in which a key is counted.
    pub(crate) fn spot(&self, owner: u64, stripe: Stripe, now: Micros, overflow: Overflow) -> Spot<'_> {
        let place = match self {
            Self::Word { table, plans, .. } => table.find_or_insert(owner, stripe, overflow, &plans.at(now)),
            Self::Slots(slots) => slots.spot(owner, stripe),
            Self::Wide(wide) => wide.table.find_or_insert(owner, stripe, overflow, &wide.at(now)),
        };
        if !matches!(place, Place::Own(_)) {
            self.table().tell_full(now);
        }
        match (place, overflow) {
            (Place::Own(cell) | Place::Replaced(cell), _) => Spot::Own(cell),
            (Place::Full(cell, guard), Overflow::Replace | Overflow::Share) => Spot::Shared(cell, guard),
            (Place::Full(..), Overflow::Deny) => Spot::NoRoom,
        }
    }

    /// Gives back up to `cost` of what the receipts prove.
    pub(crate) fn refund(&self, owner: u64, clock: &Clock, charge: &Charge, cost: u64) {
        if let Self::Slots(slots) = self {
            let held: u64 = charge.receipts.iter().map(|receipt| receipt.cost).sum();
            slots.give_back(owner, cost.min(held));
            return;
        }
        let cell = match charge.counted {
            Counted::Own => self.table().find(owner),
            Counted::Shared => Some(self.table().shared_cell(owner)),
        };
        // A key that was forgotten has already got everything back.
        let Some(cell) = cell else { return };
        match self {
            Self::Word { plans, .. } => {
                for receipt in &charge.receipts {
                    Word::refund(&cell, plans, clock, *receipt, cost);
                }
            }
            Self::Slots(_) => {}
            Self::Wide(wide) => {
                if let Some(mut held) = wide.hold(cell, clock.now()) {
                    held.refund(charge, cost);
                }
            }
        }
    }

    /// Writes the state of a limiter that is created now into the cell of a key.
    pub(crate) fn create(&self, owner: u64, now: Micros) {
        if let (Self::Wide(wide), Spot::Own(cell)) =
            (self, self.spot(owner, Stripe::Free, now, Overflow::Deny))
            && let Some(mut held) = wide.hold(cell, now)
        {
            held.create();
        }
    }

    /// Forgets a key.
    pub(crate) fn reset(&self, owner: u64, now: Micros) {
        let Some(cell) = self.table().find(owner) else { return };
        match self {
            Self::Word { plans, .. } => Word::reset(&cell, plans, now),
            // Permits in flight are facts: their holders will give them back.
            Self::Slots(_) => {}
            Self::Wide(wide) => {
                if let Some(mut held) = wide.hold(cell, now) {
                    held.reset();
                }
            }
        }
    }

    /// Has the next to give back a permit of this key tell so, where that is not always done; or finds that `cost` is
    /// free already.
    pub(crate) fn await_release(&self, owner: u64, cost: u64) -> Awaited {
        match self {
            Self::Slots(slots) => slots.await_release(owner, cost),
            _ => Awaited::Yes,
        }
    }

    /// Whether the cells can hold what these quotas count.
    pub(crate) fn has_room_for(&self, quotas: &[Quota]) -> bool {
        match (self, quotas) {
            (Self::Word { .. }, [quota]) => Plan::of(quota).is_some(),
            (Self::Slots(_), [quota]) => SlotTable::can_count(quota),
            (Self::Wide(wide), quotas) => wide.has_room_for(quotas),
            (Self::Word { .. } | Self::Slots(_), _) => false,
        }
    }

    /// Replaces the quotas; `Err` when the cells have no room for what the new ones count.
    pub(crate) fn change(&self, quotas: &[Quota], how: CarryOver, now: Micros) -> Result<(), ()> {
        match self {
            Self::Word { table, plans, changing } => {
                let [quota] = quotas else { return Err(()) };
                let plan = Plan::of(quota).ok_or(())?;
                let mut current = lock(changing);
                let _still = table.stand_still();
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
            Self::Wide(wide) => wide.change(quotas, how, now),
        }
    }

    /// The quotas whose states a space would take over that replaces this one, with the words of each. Permits without a lease are
    /// given back where they were taken.
    pub(crate) fn former(&self) -> Vec<Former> {
        match self {
            Self::Word { changing, .. } => {
                let quota = *lock(changing);
                vec![(quota, quota.state_len())]
            }
            Self::Slots(_) => Vec::new(),
            Self::Wide(wide) => wide.former(),
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
                Self::Word { plans, changing, .. } => {
                    let quota = *lock(changing);
                    let sketch = Word::sketch(&cell, plans, quota, clock);
                    sketch.map(|sketch| sketch.states).unwrap_or_default()
                }
                Self::Slots(_) => Vec::new(),
                Self::Wide(wide) => {
                    let held = wide.hold(cell, now);
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
            if says_something && let Spot::Own(own) = self.spot(cell.owner, Stripe::Free, now, overflow) {
                self.take_over_key(own, &entries, clock);
            }
        }
    }

    fn take_over_key(&self, cell: Cell<'_>, entries: &[StateEntry], clock: &Clock) {
        match self {
            Self::Word { plans, changing, .. } => {
                // Held until the word is written: the state is in units of this quota.
                let quota = lock(changing);
                for StateEntry { writer, state: words } in
                    entries.iter().filter(|entry| quota.shares_state(&entry.writer))
                {
                    let mut words = words.clone();
                    quota.carry_over(writer, words.as_mut_slice(), clock.now());
                    Word::adopt(&cell, plans, clock, &words);
                }
            }
            Self::Slots(_) => {}
            Self::Wide(wide) => {
                if let Some(mut held) = wide.hold(cell, clock.now()) {
                    held.take_over(entries);
                }
            }
        }
    }

    /// Keys that would answer differently from a new one.
    pub(crate) fn live(&self, now: Micros) -> u64 {
        let heads = self.table().cells().filter(|cell| !cell.is_shared());
        let heads = heads.map(|cell| cell.head().load(crate::sync::Ordering::Relaxed) & !LOCK);
        let live = match self {
            Self::Word { plans, .. } => {
                heads.filter(|head| *head != 0 && !plans.is_spent(*head, now)).count()
            }
            Self::Slots(_) => heads.filter(|head| !slots::is_spent(*head)).count(),
            Self::Wide(_) => heads.filter(|head| *head != 0 && !Wide::is_spent(*head, now)).count(),
        };
        live as u64
    }

    pub(crate) fn limit(&self) -> u64 {
        match self {
            Self::Word { plans, .. } => plans.limit(),
            Self::Slots(slots) => slots.limit(),
            Self::Wide(wide) => wide.limit(),
        }
    }
}
