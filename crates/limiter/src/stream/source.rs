//! The source of the tokens and slots of a stream, and what was taken from it; owned, so that a stream can hold it.

use crate::{
    limiter::{LocalBackend, LocalBucket},
    memory::{CellCharge, PermitHold},
};
use std::fmt;
use tidegate_core::{Decision, Demand, Micros, Quota};

/// A direct limiter, or one key of a limiter.
#[derive(Clone)]
pub(super) struct StreamSource(pub(super) LocalBackend);

impl fmt::Debug for StreamSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quotas: Vec<_> = self.quotas().iter().map(ToString::to_string).collect();
        write!(f, "StreamSource({})", quotas.join(", "))
    }
}

impl StreamSource {
    pub(super) fn bucket(&self) -> LocalBucket<'_> {
        self.0.bucket()
    }

    pub(super) fn quotas(&self) -> Vec<Quota> {
        self.0.quotas()
    }

    /// Reserves one token, which may be ready only later.
    pub(super) fn reserve(&self) -> (Decision, Option<ReservedToken>) {
        let demand = Demand::with_max_wait(1, Micros::MAX);
        let (decision, charge) = self.bucket().take(demand, PermitHold::Nothing).into_parts();
        let taken = decision.is_granted().then(|| ReservedToken::new(self.clone(), charge));
        (decision, taken)
    }

    /// Charges for work that is done. If the debt would exceed its maximum, charges as much of it as possible.
    pub(super) fn charge(&self, cost: u64) {
        let mut cost = cost;
        while cost > 0 && !self.bucket().decide(Demand::forced(cost)).is_granted() {
            cost /= 2;
        }
    }

    /// Waits in the queue for a slot.
    pub(super) async fn acquire_slot(self) -> Option<ReservedToken> {
        let (_, charge) = self.bucket().queue_unbounded().await.ok()?.into_parts();
        Some(ReservedToken::new(self, charge))
    }
}

/// A token or a slot that is released on drop.
#[derive(Debug)]
pub(super) struct ReservedToken {
    source: StreamSource,
    charge: CellCharge,
    outstanding: u64,
}

impl ReservedToken {
    fn new(source: StreamSource, charge: CellCharge) -> Self {
        Self { source, charge, outstanding: 1 }
    }

    pub(super) fn charged_at(&self) -> Micros {
        self.charge.charged_at
    }

    /// Spends it as part of the actual cost; later callers repay the difference.
    pub(super) fn spend(mut self, cost: u64) {
        if cost > 0 {
            self.outstanding = 0;
            self.source.charge(cost - 1);
        }
    }
}

impl Drop for ReservedToken {
    fn drop(&mut self) {
        if self.outstanding > 0 {
            self.source.bucket().refund(&self.charge, self.outstanding);
        }
    }
}
