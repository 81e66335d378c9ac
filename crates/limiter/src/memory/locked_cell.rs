//! Cells that are locked, for a decision that spans several.

use super::{
    cell::Cell,
    charge::CellCharge,
    key_table::KeyTable,
    multi_word::{CellRequest, LockedWords, SlotHold},
    plan::{WordPlan, WordPlans, epoch},
    slots::{LockedSlots, SlotTable},
};
use tidegate_core::{Decision, Micros, Receipt};

impl KeyTable {
    /// Locks a cell of either kind, for a decision that spans several.
    pub(crate) fn lock_cell<'a>(
        &'a self,
        cell: Cell<'a>,
        hold: SlotHold,
        now: Micros,
    ) -> Option<LockedCell<'a>> {
        match (self, hold) {
            (Self::SingleWord { plans, .. }, _) => {
                // Before the word: a receipt must not outlive a reset that forgets what it proves.
                let resets = plans.reset_count(cell.owner);
                let word = cell.lock()?;
                // Read under the lock, and once: all answers are then by the same plan.
                Some(LockedCell::SingleWord { cell, plans, plan: plans.current(), resets, word })
            }
            (Self::Slots(slots), SlotHold::Nothing) => {
                cell.is_owned().then_some(LockedCell::Slots { cell, slots, locked: None })
            }
            (Self::Slots(slots), SlotHold::Permit) => {
                let grip = Some(LockedSlots::lock(cell)?);
                Some(LockedCell::Slots { cell, slots, locked: grip })
            }
            (Self::MultiWord(wide), _) => wide.lock_cell(cell, now).map(LockedCell::MultiWord),
        }
    }
}

/// A locked cell of either kind.
pub(crate) enum LockedCell<'a> {
    SingleWord {
        cell: Cell<'a>,
        plans: &'a WordPlans,
        plan: (u64, WordPlan),
        /// How often its key had been forgotten.
        resets: u64,
        word: u64,
    },
    /// Locked only by those who take permits; without one to give it back, a slot is only looked at.
    Slots {
        cell: Cell<'a>,
        slots: &'a SlotTable,
        locked: Option<LockedSlots<'a>>,
    },
    MultiWord(LockedWords<'a>),
}

impl LockedCell<'_> {
    /// Answers a question on the locked cell, and notes in `charge` what was charged.
    pub(crate) fn decide(&mut self, now: Micros, request: CellRequest, charge: &mut CellCharge) -> Decision {
        match self {
            Self::SingleWord { plans, plan, resets, word, .. } => {
                let (decision, next, receipt) = plans.decide_locked(*plan, *word, now, request.demand);
                charge.charged_at = now;
                if next != *word {
                    charge.receipts.push(Receipt { stored: epoch(plan.0, *resets), ..receipt });
                }
                *word = next;
                decision
            }
            Self::Slots { slots, locked: Some(grip), .. } => {
                let (decision, taken) = slots.decide_locked(grip, request.demand);
                charge.receipts.push(Receipt { cost: taken, ..Receipt::default() });
                decision
            }
            Self::Slots { cell, slots, locked: None } => slots.peek(cell, request.demand),
            Self::MultiWord(held) => {
                held.advance_time(now);
                charge.epoch = held.epoch();
                charge.charged_at = held.now;
                held.decide(request, &mut charge.receipts)
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
