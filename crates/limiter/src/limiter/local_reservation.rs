//! Reservations in memory that borrow their bucket.

use super::LocalBucket;
use crate::memory::{CellCharge, PermitHold};
use std::time::Duration;
use tidegate_core::{Decision, Micros};

/// A charge in memory that is refunded on drop.
#[must_use = "dropping a reservation refunds its tokens"]
pub(crate) struct LocalReservation<'a> {
    bucket: LocalBucket<'a>,
    decision: Decision,
    /// The cost that is not settled yet; zero if nothing was granted.
    outstanding: u64,
    charge: CellCharge,
}

impl<'a> LocalReservation<'a> {
    pub(crate) fn new(bucket: LocalBucket<'a>, decision: Decision, cost: u64, charge: CellCharge) -> Self {
        let outstanding = if decision.is_granted() { cost } else { 0 };
        Self { bucket, decision, outstanding, charge }
    }

    pub(crate) fn decision(&self) -> &Decision {
        &self.decision
    }

    /// The remaining wait until the tokens may be used; zero if they are ready or nothing was granted.
    pub(crate) fn wait(&self) -> Duration {
        match self.decision.is_granted() {
            true => self.ready_at().saturating_sub(self.bucket.clock().now()).into(),
            false => Duration::ZERO,
        }
    }

    /// The decision and the charge, which the caller settles.
    pub(crate) fn into_parts(mut self) -> (Decision, CellCharge) {
        self.outstanding = 0;
        (self.decision, self.charge.clone())
    }

    /// Sets what a refund returns: a permit releases its slot and refunds no tokens.
    pub(crate) fn with_hold(mut self, hold: PermitHold) -> Self {
        self.charge.hold = hold;
        self
    }

    pub(crate) fn ready_at(&self) -> Micros {
        self.charge.charged_at.saturating_add(self.decision.wait())
    }
}

impl Drop for LocalReservation<'_> {
    fn drop(&mut self) {
        if self.outstanding > 0 {
            self.bucket.refund(&self.charge, self.outstanding);
        }
    }
}
