//! Whose tokens and slots are taken, and what was taken of them: owned, so that it can live in a stream.

use crate::{
    limiter::{LocalBucket, LocalPlace},
    memory::{Charge, Hold},
};
use std::fmt;
use tidegate_core::{Decision, Demand, Micros, Quota};

/// A throttle, or one key of a limiter.
#[derive(Clone)]
pub(super) struct Source(pub(super) LocalPlace);

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quotas: Vec<_> = self.quotas().iter().map(ToString::to_string).collect();
        write!(f, "Source({})", quotas.join(", "))
    }
}

impl Source {
    pub(super) fn bucket(&self) -> LocalBucket<'_> {
        self.0.bucket()
    }

    pub(super) fn quotas(&self) -> Vec<Quota> {
        self.0.quotas()
    }

    /// Takes one token, to be used at a moment that may lie ahead.
    pub(super) fn reserve(&self) -> (Decision, Option<Taken>) {
        let demand = Demand::with_max_wait(1, Micros::MAX);
        let (decision, charge) = self.bucket().take(demand, Hold::Nothing).into_parts();
        let taken = decision.is_granted().then(|| Taken::new(self.clone(), charge));
        (decision, taken)
    }

    /// Charges for work that is done. More than can ever be owed is owed as far as it can be.
    pub(super) fn charge(&self, cost: u64) {
        let mut cost = cost;
        while cost > 0 && !self.bucket().decide(Demand::forced(cost)).is_granted() {
            cost /= 2;
        }
    }

    /// Stands in line for a slot.
    pub(super) async fn slot(self) -> Option<Taken> {
        let (_, charge) = self.bucket().queue_unbounded().await.ok()?.into_parts();
        Some(Taken::new(self, charge))
    }
}

/// A token or a slot that gives itself back when it is dropped.
#[derive(Debug)]
pub(super) struct Taken {
    source: Source,
    charge: Charge,
    outstanding: u64,
}

impl Taken {
    fn new(source: Source, charge: Charge) -> Self {
        Self { source, charge, outstanding: 1 }
    }

    pub(super) fn charged_at(&self) -> Micros {
        self.charge.at
    }

    /// Spends it, as part of the real cost; what is missing is repaid by those who come later.
    pub(super) fn spend(mut self, cost: u64) {
        if cost > 0 {
            self.outstanding = 0;
            self.source.charge(cost - 1);
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.outstanding > 0 {
            self.source.bucket().refund(&self.charge, self.outstanding);
        }
    }
}
