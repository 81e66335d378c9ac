//! What was charged, and where.

use super::multi_word::{CellRequest, SlotHold};
use tidegate_core::{Micros, Receipt};

/// Which kind of cell a charge went to, and so where a refund belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CellKind {
    Own,
    Shared,
}

/// What was charged, and where: enough to give it back.
#[derive(Clone, Debug)]
pub(crate) struct CellCharge {
    pub(crate) cell_kind: CellKind,
    pub(crate) hold: SlotHold,
    pub(crate) tier: usize,
    /// The stretch of time in which the receipts are good; kept in the receipt itself where one word counts.
    pub(crate) epoch: u64,
    /// When it was decided.
    pub(crate) charged_at: Micros,
    pub(crate) receipts: Vec<Receipt>,
}

impl CellCharge {
    /// What nothing has been charged for yet.
    pub(crate) fn new(request: &CellRequest) -> Self {
        let CellRequest { hold, tier, .. } = *request;
        Self {
            cell_kind: CellKind::Own,
            hold,
            tier,
            epoch: 0,
            charged_at: Micros::ZERO,
            receipts: Vec::new(),
        }
    }

    /// The proof of a part of it: of what one of several asks wanted of the same cell.
    pub(crate) fn cap_cost(&self, cost: u64) -> Self {
        let part = |receipt: &Receipt| Receipt { cost: receipt.cost.min(cost), ..*receipt };
        Self { receipts: self.receipts.iter().map(part).collect(), ..self.clone() }
    }
}
