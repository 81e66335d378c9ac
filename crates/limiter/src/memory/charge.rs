//! Charges in memory: what was charged, and in which cell.

use super::multi_word::{CellRequest, PermitHold};
use tidegate_core::{Micros, Receipt};

/// The kind of the charged cell, which a refund must use again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CellKind {
    Own,
    Shared,
}

/// A charge in memory, with everything that a refund needs.
#[derive(Clone, Debug)]
pub(crate) struct CellCharge {
    pub(crate) cell_kind: CellKind,
    pub(crate) hold: PermitHold,
    pub(crate) tier: usize,
    /// The epoch in which the receipts are valid; single-word cells store it in the receipt itself.
    pub(crate) epoch: u64,
    /// The time of the decision.
    pub(crate) charged_at: Micros,
    pub(crate) receipts: Vec<Receipt>,
}

impl CellCharge {
    /// An empty charge.
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

    /// The part of the charge that belongs to one of several checks of the same cell.
    pub(crate) fn cap_cost(&self, cost: u64) -> Self {
        let part = |receipt: &Receipt| Receipt { cost: receipt.cost.min(cost), ..*receipt };
        Self { receipts: self.receipts.iter().map(part).collect(), ..self.clone() }
    }
}
