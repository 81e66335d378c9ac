//! Tokens that are taken but not yet spent.

use crate::{
    bucket::Bucket,
    memory::{Charge, Hold, Taken},
    slots::Awaited,
};
use std::time::Duration;
use tidegate_core::{Decision, Demand, Micros};

/// Tokens taken ahead of their use: for work that must wait, or whose cost is known only afterwards.
///
/// Dropping it gives everything back that time has not given back already. Keep it with [`keep`](Self::keep), or
/// settle the real cost with [`commit`](Self::commit).
///
/// ```
/// use std::time::Duration;
/// use tidegate_engine::Limiter;
///
/// let limiter = Limiter::new("1000/min")?;
/// let tokens = limiter.key("tenant-7").reserve(400, Duration::ZERO);
/// assert!(tokens.decision().is_granted());
/// tokens.commit(150); // the work turned out to be smaller
/// assert_eq!(limiter.key("tenant-7").peek(0).remaining(), 850);
/// # Ok::<(), tidegate_engine::BuildError>(())
/// ```
///
/// A refund never creates tokens: what has drained since (or belonged to a window that ended) is not given back a
/// second time. A change of quota settles what the limiter has outstanding: it stays charged. So does a reset with what
/// its key has outstanding, and with that of the one in five hundred other keys that are counted with it.
#[derive(Debug)]
#[must_use = "dropping a reservation gives its tokens back"]
pub struct Reservation<'a> {
    bucket: Bucket<'a>,
    decision: Decision,
    /// What is still to be settled; zero when nothing was granted.
    outstanding: u64,
    charge: Charge,
}

impl<'a> Reservation<'a> {
    pub(crate) fn new(bucket: Bucket<'a>, decision: Decision, cost: u64, charge: Charge) -> Self {
        let outstanding = if decision.is_granted() { cost } else { 0 };
        Self { bucket, decision, outstanding, charge }
    }

    /// The answer: allowed now, granted after a delay, or denied.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// What was taken and is still to be settled; zero when nothing was granted.
    pub fn cost(&self) -> u64 {
        self.outstanding
    }

    /// How long to wait before going; zero when it is time, or when nothing was granted.
    pub fn wait(&self) -> Duration {
        match self.decision.is_granted() {
            true => self.ready_at().since(self.bucket.clock().now()).into(),
            false => Duration::ZERO,
        }
    }

    /// Spends the tokens.
    pub fn keep(mut self) -> Decision {
        self.outstanding = 0;
        self.decision
    }

    /// Gives everything back; the same as dropping it.
    pub fn cancel(self) {}

    /// Settles the real cost: gives the rest back, or charges what is missing. The work has been done, so the
    /// missing part is charged even if it must be repaid by those who come later.
    pub fn commit(mut self, cost: u64) {
        if !self.decision.is_granted() {
            return;
        }
        let reserved = std::mem::take(&mut self.outstanding);
        if cost < reserved {
            self.bucket.refund(&self.charge, reserved - cost);
        } else if cost > reserved {
            self.bucket.take(Demand::forced(cost - reserved), Hold::Nothing).keep();
        }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn bucket(&self) -> &Bucket<'a> {
        &self.bucket
    }

    /// The answer and the proof of what was charged, to be settled by the caller.
    #[cfg(feature = "tokio")]
    pub(crate) fn into_parts(mut self) -> (Decision, Charge) {
        self.outstanding = 0;
        (self.decision, self.charge.clone())
    }

    /// The same, to be given back as one who holds this would: a permit gives back its slot and no tokens.
    pub(crate) fn held_as(mut self, hold: Hold) -> Self {
        self.charge.hold = hold;
        self
    }

    pub(crate) fn ready_at(&self) -> Micros {
        self.charge.at.plus(self.decision.wait())
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.outstanding > 0 {
            self.bucket.refund(&self.charge, self.outstanding);
        }
    }
}

/// A slot that gives itself back when it is dropped, by a panic or a cancelled future too.
#[derive(Debug)]
#[must_use = "dropping a permit gives its slot back"]
pub struct Permit<'a> {
    held: Held<'a>,
}

#[derive(Debug)]
enum Held<'a> {
    /// A slot and nothing else.
    Slot(HeldSlot<'a>),
    /// A slot beside other quotas, or tokens, or nothing.
    Reservation(Reservation<'a>),
}

#[derive(Debug)]
struct HeldSlot<'a> {
    bucket: Bucket<'a>,
    decision: Decision,
    taken: Taken<'a>,
}

impl<'a> Permit<'a> {
    pub(crate) fn new(reservation: Reservation<'a>) -> Self {
        Self { held: Held::Reservation(reservation) }
    }

    #[inline]
    pub(crate) fn of_slot(bucket: Bucket<'a>, decision: Decision, taken: Taken<'a>) -> Self {
        Self { held: Held::Slot(HeldSlot { bucket, decision, taken }) }
    }

    /// Whether the slot was granted.
    pub fn decision(&self) -> &Decision {
        match &self.held {
            Held::Slot(slot) => &slot.decision,
            Held::Reservation(reservation) => reservation.decision(),
        }
    }
}

impl Drop for HeldSlot<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.taken.give_back(1) == Awaited::Yes {
            self.bucket.released();
        }
    }
}
