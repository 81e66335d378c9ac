//! What was charged, and where.

use super::wide::{Hold, Question};
use tidegate_core::{Micros, Receipt};

/// Which kind of cell a charge went to, and so where a refund belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    Own,
    Shared,
}

/// What was charged, and where: enough to give it back.
#[derive(Clone, Debug)]
pub(crate) struct Charge {
    pub(crate) counted: Counted,
    pub(crate) hold: Hold,
    pub(crate) tier: usize,
    /// The stretch of time in which the receipts are good; kept in the receipt itself where one word counts.
    pub(crate) settlement: u64,
    /// When it was decided.
    pub(crate) at: Micros,
    pub(crate) receipts: Vec<Receipt>,
}

impl Charge {
    /// What nothing has been charged for yet.
    pub(crate) fn of(question: &Question) -> Self {
        let Question { hold, tier, .. } = *question;
        Self { counted: Counted::Own, hold, tier, settlement: 0, at: Micros::ZERO, receipts: Vec::new() }
    }

    /// The proof of a part of it: of what one of several asks wanted of the same cell.
    pub(crate) fn part(&self, cost: u64) -> Self {
        let part = |receipt: &Receipt| Receipt { cost: receipt.cost.min(cost), ..*receipt };
        Self { receipts: self.receipts.iter().map(part).collect(), ..self.clone() }
    }
}
