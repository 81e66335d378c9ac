//! What was taken in memory, by a caller that is still there.

use super::LocalBucket;
use crate::memory::{CellCharge, SlotHold};
use std::time::Duration;
use tidegate_core::{Decision, Micros};

/// What was taken in memory, and is given back when it is dropped.
#[must_use = "dropping a reservation gives its tokens back"]
pub(crate) struct LocalReservation<'a> {
    bucket: LocalBucket<'a>,
    decision: Decision,
    /// What is still to be settled; zero when nothing was granted.
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

    /// How long to wait before going; zero when it is time, or when nothing was granted.
    pub(crate) fn wait(&self) -> Duration {
        match self.decision.is_granted() {
            true => self.ready_at().since(self.bucket.clock().now()).into(),
            false => Duration::ZERO,
        }
    }

    /// The answer and the proof of what was charged, to be settled by the caller.
    pub(crate) fn into_parts(mut self) -> (Decision, CellCharge) {
        self.outstanding = 0;
        (self.decision, self.charge.clone())
    }

    /// The same, to be given back as one who holds this would: a permit gives back its slot and no tokens.
    pub(crate) fn with_hold(mut self, hold: SlotHold) -> Self {
        self.charge.hold = hold;
        self
    }

    pub(crate) fn ready_at(&self) -> Micros {
        self.charge.charged_at.plus(self.decision.wait())
    }
}

impl Drop for LocalReservation<'_> {
    fn drop(&mut self) {
        if self.outstanding > 0 {
            self.bucket.refund(&self.charge, self.outstanding);
        }
    }
}
