//! Locked cells, for a decision over several cells.

use super::{
    cell::Cell,
    charge::CellCharge,
    key_table::KeyTable,
    multi_word::{CellRequest, LockedWords, PermitHold},
    permits::{LockedPermits, PermitTable},
    plan::{WordPlan, WordPlans, epoch},
};
use tidegate_core::{Decision, Micros, Receipt};

impl KeyTable {
    /// Locks a cell of any kind, for a decision over several cells.
    pub(crate) fn lock_cell<'a>(
        &'a self,
        cell: Cell<'a>,
        hold: PermitHold,
        now: Micros,
    ) -> Option<LockedCell<'a>> {
        match (self, hold) {
            (Self::SingleWord { plans, .. }, _) => {
                // Read before the word, so that no receipt outlives a reset of its key.
                let resets = plans.reset_count(cell.owner);
                let word = cell.lock()?;
                // Read once under the lock, so that all decisions use the same plan.
                Some(LockedCell::SingleWord { cell, plans, plan: plans.current(), resets, word })
            }
            (Self::Permits(slots), PermitHold::Nothing) => {
                cell.is_owned().then_some(LockedCell::Permits { cell, slots, locked: None })
            }
            (Self::Permits(slots), PermitHold::Permit) => {
                let locked = Some(LockedPermits::lock(cell)?);
                Some(LockedCell::Permits { cell, slots, locked })
            }
            (Self::MultiWord(words), _) => words.lock_cell(cell, now).map(LockedCell::MultiWord),
        }
    }
}

/// A locked cell of any kind.
pub(crate) enum LockedCell<'a> {
    SingleWord {
        cell: Cell<'a>,
        plans: &'a WordPlans,
        plan: (u64, WordPlan),
        /// The number of resets of its key.
        resets: u64,
        word: u64,
    },
    /// Locked only to acquire permits; a request that cannot release a slot only checks it.
    Permits {
        cell: Cell<'a>,
        slots: &'a PermitTable,
        locked: Option<LockedPermits<'a>>,
    },
    MultiWord(LockedWords<'a>),
}

impl LockedCell<'_> {
    /// Starts the states of a check that charges, also if it is then denied.
    pub(crate) fn begin(&mut self, now: Micros, tier: usize) {
        if let Self::MultiWord(locked) = self {
            locked.advance_time(now);
            locked.begin(tier);
        }
    }

    /// Decides a request on the locked cell, and adds the receipts to `charge`.
    pub(crate) fn decide(&mut self, now: Micros, request: CellRequest, charge: &mut CellCharge) -> Decision {
        match self {
            Self::SingleWord { plans, plan, resets, word, .. } => {
                let (decision, next, receipt) = plans.decide_locked(*plan, *word, now, request.demand);
                charge.charged_at = now;
                if next != *word {
                    charge.receipts.push(Receipt { permits_or_epoch: epoch(plan.0, *resets), ..receipt });
                }
                *word = next;
                decision
            }
            Self::Permits { slots, locked: Some(locked), .. } => {
                let (decision, taken) = slots.decide_locked(locked, request.demand);
                charge.receipts.push(Receipt { cost: taken, ..Receipt::default() });
                decision
            }
            Self::Permits { cell, slots, locked: None } => slots.peek(cell, request.demand),
            Self::MultiWord(locked) => {
                locked.advance_time(now);
                charge.epoch = locked.epoch();
                charge.charged_at = locked.now;
                locked.decide(request, &mut charge.receipts)
            }
        }
    }
}

impl Drop for LockedCell<'_> {
    fn drop(&mut self) {
        if let Self::SingleWord { cell, word, .. } = self {
            cell.unlock(*word);
        }
    }
}
