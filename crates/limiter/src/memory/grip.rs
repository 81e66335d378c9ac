//! Cells that are locked, for a decision that spans several.

use super::{
    cell::Cell,
    charge::Charge,
    plan::{Plan, Plans, settlement},
    slots::{SlotGrip, SlotTable},
    space::Space,
    wide::{Held, Hold, Question},
};
use tidegate_core::{Decision, Micros, Receipt};

impl Space {
    /// Locks a cell of either kind, for a decision that spans several.
    pub(crate) fn hold<'a>(&'a self, cell: Cell<'a>, hold: Hold, now: Micros) -> Option<Gripped<'a>> {
        match (self, hold) {
            (Self::Word { plans, .. }, _) => {
                // Before the word: a receipt must not outlive a reset that forgets what it proves.
                let resets = plans.resets_of(cell.owner);
                let word = cell.lock()?;
                // Read under the lock, and once: all answers are then by the same plan.
                Some(Gripped::Word { cell, plans, plan: plans.current(), resets, word })
            }
            (Self::Slots(slots), Hold::Nothing) => {
                cell.is_ours().then_some(Gripped::Slots { cell, slots, grip: None })
            }
            (Self::Slots(slots), Hold::Permit) => {
                let grip = Some(SlotGrip::of(cell)?);
                Some(Gripped::Slots { cell, slots, grip })
            }
            (Self::Wide(wide), _) => wide.hold(cell, now).map(Gripped::Wide),
        }
    }
}

/// A locked cell of either kind.
pub(crate) enum Gripped<'a> {
    Word {
        cell: Cell<'a>,
        plans: &'a Plans,
        plan: (u64, Plan),
        /// How often its key had been forgotten.
        resets: u64,
        word: u64,
    },
    /// Locked only by those who take permits; without one to give it back, a slot is only looked at.
    Slots {
        cell: Cell<'a>,
        slots: &'a SlotTable,
        grip: Option<SlotGrip<'a>>,
    },
    Wide(Held<'a>),
}

impl Gripped<'_> {
    /// Answers a question on the locked cell, and notes in `charge` what was charged.
    pub(crate) fn decide(&mut self, now: Micros, question: Question, charge: &mut Charge) -> Decision {
        match self {
            Self::Word { plans, plan, resets, word, .. } => {
                let (decision, next, receipt) = plans.decide_locked(*plan, *word, now, question.demand);
                charge.at = now;
                if next != *word {
                    charge.receipts.push(Receipt { stored: settlement(plan.0, *resets), ..receipt });
                }
                *word = next;
                decision
            }
            Self::Slots { slots, grip: Some(grip), .. } => {
                let (decision, taken) = slots.decide_gripped(grip, question.demand);
                charge.receipts.push(Receipt { cost: taken, ..Receipt::default() });
                decision
            }
            Self::Slots { cell, slots, grip: None } => slots.look(cell, question.demand),
            Self::Wide(held) => {
                held.see(now);
                charge.settlement = held.settlement();
                charge.at = held.now;
                held.decide(question, &mut charge.receipts)
            }
        }
    }
}

impl Drop for Gripped<'_> {
    fn drop(&mut self) {
        if let Self::Word { cell, word, .. } = self {
            cell.unlock(*word);
        }
    }
}
