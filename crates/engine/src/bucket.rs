//! The bucket of one key, or of a throttle, and everything that can be done with it.

use crate::{
    clock::Clock,
    limiter::Limiter,
    memory::{Charge, Hold, Question, Sketch, SlotTable},
    reservation::{Permit, Reservation},
    slots::Awaited,
    throttle::Throttle,
    wait::Lines,
};
use std::{fmt, time::Duration};
use tidegate_core::{Decision, Demand};

/// One bucket: of one key of a [`Limiter`], or of a [`Throttle`].
///
/// | to | use |
/// |---|---|
/// | take now or not at all | [`check`](Self::check), [`check_on_credit`](Self::check_on_credit) |
/// | look without taking | [`peek`](Self::peek) |
/// | take what there is | [`take_up_to`](Self::take_up_to) |
/// | take now, settle later | [`reserve`](Self::reserve) |
/// | wait for it | [`acquire`](Self::acquire), [`try_acquire`](Self::try_acquire), [`wait_in_line`](Self::wait_in_line) |
/// | hold a slot while working | [`permit`](Self::permit) |
#[derive(Clone, Copy)]
pub struct Bucket<'a> {
    place: Place<'a>,
}

#[derive(Clone, Copy)]
enum Place<'a> {
    Key { limiter: &'a Limiter, owner: u64, tier: usize },
    Throttle(&'a Throttle),
}

impl<'a> Bucket<'a> {
    pub(crate) fn of_key(limiter: &'a Limiter, owner: u64) -> Self {
        Self { place: Place::Key { limiter, owner, tier: 0 } }
    }

    pub(crate) fn of_throttle(throttle: &'a Throttle) -> Self {
        Self { place: Place::Throttle(throttle) }
    }

    /// The same bucket under another of the limiter's tiers, counted from zero; `None` if there is no such tier.
    /// See [`crate::LimiterBuilder::build_tiers`].
    pub fn tier(self, tier: usize) -> Option<Self> {
        match self.place {
            Place::Key { limiter, owner, .. } if tier < limiter.tiers() => {
                Some(Self { place: Place::Key { limiter, owner, tier } })
            }
            _ => None,
        }
    }

    /// Takes `cost`, now or not at all.
    #[inline]
    pub fn check(&self, cost: u64) -> Decision {
        match self.place {
            Place::Key { limiter, owner, tier: 0 } => {
                limiter.space().check(owner, limiter.clock(), cost, limiter.overflow())
            }
            _ => self.decide(Demand::now(cost)),
        }
    }

    /// Has the processor fetch what is known of the key, while others are asked: for whoever knows ahead what comes.
    #[inline]
    pub fn approach(&self) {
        if let Place::Key { limiter, owner, .. } = self.place {
            limiter.space().table().approach(owner);
        }
    }

    /// Takes `cost` now or not at all, even if it is larger than the burst: it is then granted as soon as a full
    /// burst would be, and those who come later wait until the rest is repaid.
    pub fn check_on_credit(&self, cost: u64) -> Decision {
        self.decide(Demand::now(cost).on_credit())
    }

    /// What `cost` would get now. Takes nothing.
    #[inline]
    pub fn peek(&self, cost: u64) -> Decision {
        match self.place {
            Place::Key { limiter, owner, tier: 0 } => {
                limiter.space().peek(owner, limiter.clock(), cost, limiter.overflow())
            }
            _ => self.decide(Demand::probe(cost)),
        }
    }

    /// Takes as much as there is, up to `most`, and says how much that was. Zero means that there was nothing; the
    /// decision then says when there will be.
    pub fn take_up_to(&self, most: u64) -> (u64, Decision) {
        loop {
            let look = self.peek(1);
            // Who may go on debt may take one, though none is stored.
            let amount = look.remaining().max(1).min(most);
            if amount == 0 || !look.is_allowed() {
                return (0, look);
            }
            // Someone may have been faster: look again.
            let decision = self.check(amount);
            if decision.is_granted() {
                return (amount, decision);
            }
        }
    }

    /// Takes `cost` and accepts to wait for it up to `patience`. If it is granted, the tokens are yours from now
    /// on and the reservation says how long to wait before using them; give it back, or settle it, as you like.
    pub fn reserve(&self, cost: u64, patience: Duration) -> Reservation<'a> {
        self.take(Demand::within(cost, patience.into()), Hold::Nothing)
    }

    /// Takes a slot that gives itself back when the permit is dropped. For concurrency quotas: beside one, the
    /// others are charged and stay charged. Without one it is a reservation that refunds on drop what time has not
    /// given back.
    #[inline]
    pub fn permit(&self) -> Permit<'a> {
        match self.slots().and_then(|(slots, owner)| slots.try_take_one(owner)) {
            Some((decision, taken)) => Permit::of_slot(*self, decision, taken),
            None => Permit::new(self.take(Demand::now(1), Hold::Permit)),
        }
    }

    /// Forgets the key: it is as good as new. Reservations that it has outstanding then give nothing back,
    /// and a key without room of its own (see [`crate::Overflow`]) stays as it is.
    pub fn reset(&self) {
        match self.place {
            Place::Key { limiter, owner, .. } => limiter.space().reset(owner, limiter.clock().now()),
            Place::Throttle(throttle) => throttle.reset(),
        }
        self.lines().wake_first(self.owner());
    }

    pub(crate) fn decide(&self, demand: Demand) -> Decision {
        match self.place {
            Place::Key { limiter, owner, tier } => {
                let question = Question { tier, ..Question::plain(demand) };
                limiter.space().decide(owner, limiter.clock(), question, limiter.overflow())
            }
            Place::Throttle(throttle) => throttle.decide(demand),
        }
    }

    pub(crate) fn take(&self, demand: Demand, hold: Hold) -> Reservation<'a> {
        let (decision, charge) = match self.place {
            Place::Key { limiter, owner, tier } => {
                let question = Question { demand, hold, tier };
                limiter.space().reserve(owner, limiter.clock(), question, limiter.overflow())
            }
            Place::Throttle(throttle) => throttle.reserve(Question { demand, hold, tier: 0 }),
        };
        Reservation::new(*self, decision, demand.cost, charge)
    }

    /// A copy of the state.
    pub(crate) fn sketch(&self) -> Sketch {
        match self.place {
            Place::Key { limiter, owner, tier } => limiter.space().sketch(owner, limiter.clock(), tier),
            Place::Throttle(throttle) => throttle.sketch(),
        }
    }

    pub(crate) fn refund(&self, charge: &Charge, cost: u64) {
        match self.place {
            Place::Key { limiter, owner, .. } => limiter.space().refund(owner, limiter.clock(), charge, cost),
            Place::Throttle(throttle) => throttle.refund(charge, cost),
        }
        self.lines().wake_first(self.owner());
    }

    /// Has the next to give back a permit of this key ring the bell of the first in line.
    pub(crate) fn await_release(&self, cost: u64) -> Awaited {
        match self.place {
            Place::Key { limiter, owner, .. } => limiter.space().await_release(owner, cost),
            Place::Throttle(throttle) => throttle.await_release(cost),
        }
    }

    /// Tells the first in line that a permit was given back.
    pub(crate) fn released(&self) {
        self.lines().wake_first(self.owner());
    }

    /// The permits, where that is all there is to count.
    #[inline]
    fn slots(&self) -> Option<(&'a SlotTable, u64)> {
        match self.place {
            Place::Key { limiter, owner, .. } => limiter.space().slots().map(|slots| (slots, owner)),
            Place::Throttle(throttle) => throttle.slots(),
        }
    }

    pub(crate) fn clock(&self) -> &'a Clock {
        match self.place {
            Place::Key { limiter, .. } => limiter.clock(),
            Place::Throttle(throttle) => throttle.clock(),
        }
    }

    pub(crate) fn lines(&self) -> &'a Lines {
        match self.place {
            Place::Key { limiter, .. } => limiter.lines(),
            Place::Throttle(throttle) => throttle.lines(),
        }
    }

    /// What stands for the key; a throttle has only one.
    pub(crate) fn owner(&self) -> u64 {
        match self.place {
            Place::Key { owner, .. } => owner,
            Place::Throttle(_) => 0,
        }
    }
}

impl fmt::Debug for Bucket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Place::Key { limiter, owner, .. } => write!(f, "Bucket({owner:016x} of {limiter:?})"),
            Place::Throttle(throttle) => write!(f, "Bucket({throttle:?})"),
        }
    }
}
