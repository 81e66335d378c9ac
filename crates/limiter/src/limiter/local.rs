//! One bucket in memory: of one key of a limiter, or of a state.

use super::{LocalReservation, Memory};
use crate::{
    clock::Clock,
    memory::{Charge, Counts, Hold, Question, Sketch, SlotTable},
    slots::Awaited,
    throttle,
    wait::Lines,
};
use std::sync::Arc;
#[cfg(feature = "stream")]
use tidegate_core::Quota;
use tidegate_core::{Decision, Demand};

/// One bucket in memory, where it is counted.
#[derive(Clone, Copy)]
pub(crate) struct LocalBucket<'a> {
    place: Place<'a>,
}

#[derive(Clone, Copy)]
enum Place<'a> {
    Key { memory: &'a Memory, owner: u64, tier: usize },
    Throttle(&'a throttle::State),
}

/// The bucket of a key in memory; see [`Limiter::marked`](super::Limiter::marked).
#[derive(Clone, Copy)]
pub struct MarkedBucket<'a>(pub(super) LocalBucket<'a>);

impl MarkedBucket<'_> {
    /// Takes `cost`, now or not at all.
    #[inline]
    pub fn check(&self, cost: u64) -> Decision {
        self.0.check(cost)
    }

    /// What `cost` would get now. Takes nothing.
    #[inline]
    pub fn peek(&self, cost: u64) -> Decision {
        self.0.peek(cost)
    }

    /// Prefetches the state of the key into the processor cache, for a caller that knows its next keys.
    #[inline]
    pub fn prefetch(&self) {
        self.0.prefetch();
    }
}

/// The same, owned.
#[derive(Clone)]
pub(crate) enum LocalPlace {
    Key { memory: Arc<Memory>, owner: u64, tier: usize },
    Throttle(Arc<throttle::State>),
}

impl LocalPlace {
    #[inline]
    pub(crate) fn bucket(&self) -> LocalBucket<'_> {
        match self {
            Self::Key { memory, owner, tier } => LocalBucket::of_key(memory, *owner, *tier),
            Self::Throttle(state) => LocalBucket::of_throttle(state),
        }
    }

    #[cfg(feature = "stream")]
    pub(crate) fn quotas(&self) -> Vec<Quota> {
        match self {
            Self::Key { memory, .. } => memory.quotas(),
            Self::Throttle(state) => vec![state.quota()],
        }
    }
}

impl<'a> LocalBucket<'a> {
    #[inline]
    pub(crate) fn of_key(memory: &'a Memory, owner: u64, tier: usize) -> Self {
        Self { place: Place::Key { memory, owner, tier } }
    }

    pub(crate) fn of_throttle(state: &'a throttle::State) -> Self {
        Self { place: Place::Throttle(state) }
    }

    /// The same bucket under another tier, counted from zero; `None` if there is no such tier.
    pub(crate) fn tier(self, tier: usize) -> Option<Self> {
        match self.place {
            Place::Key { memory, owner, .. } if tier < memory.tiers() => {
                Some(Self { place: Place::Key { memory, owner, tier } })
            }
            _ => None,
        }
    }

    /// Takes `cost`, now or not at all.
    #[inline]
    pub(crate) fn check(&self, cost: u64) -> Decision {
        match self.place {
            Place::Key { memory, owner, tier: 0 } => {
                memory.space().check(owner, memory.clock(), cost, memory.overflow())
            }
            _ => self.decide(Demand::new(cost)),
        }
    }

    /// Prefetches the state of the key into the processor cache.
    #[inline]
    pub(crate) fn prefetch(&self) {
        if let Place::Key { memory, owner, .. } = self.place {
            memory.space().table().approach(owner);
        }
    }

    /// Takes `cost` now or not at all, even if it is larger than the burst: it is then granted as soon as a full
    /// burst would be, and those who come later wait until the rest is repaid.
    pub(crate) fn check_on_credit(&self, cost: u64) -> Decision {
        self.decide(Demand::new(cost).with_overdraft())
    }

    /// What `cost` would get now. Takes nothing.
    #[inline]
    pub(crate) fn peek(&self, cost: u64) -> Decision {
        match self.place {
            Place::Key { memory, owner, tier: 0 } => {
                memory.space().peek(owner, memory.clock(), cost, memory.overflow())
            }
            _ => self.decide(Demand::probe(cost)),
        }
    }

    /// Takes as much as there is, up to `most`, and says how much that was. Zero means that there was nothing; the
    /// decision then says when there will be.
    pub(crate) fn take_up_to(&self, most: u64) -> (u64, Decision) {
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

    /// Takes one slot by the shortest way, to be given back by [`release_slot`](Self::release_slot).
    #[inline]
    pub(crate) fn try_take_slot(&self) -> Option<Decision> {
        let (slots, owner) = self.slots()?;
        slots.try_take_one(owner)
    }

    /// Gives back one slot that was taken by [`try_take_slot`](Self::try_take_slot).
    pub(crate) fn release_slot(&self) {
        if let Some((slots, owner)) = self.slots()
            && slots.give_back(owner, 1) == Awaited::Yes
        {
            self.released();
        }
    }

    pub(crate) fn reset(&self) {
        match self.place {
            Place::Key { memory, owner, .. } => memory.space().reset(owner, memory.clock().now()),
            Place::Throttle(state) => state.reset(),
        }
        self.lines().wake_first(self.owner());
    }

    pub(crate) fn decide(&self, demand: Demand) -> Decision {
        match self.place {
            Place::Key { memory, owner, tier } => {
                let question = Question { tier, ..Question::plain(demand) };
                memory.space().decide(owner, memory.clock(), question, memory.overflow())
            }
            Place::Throttle(state) => state.decide(demand),
        }
    }

    pub(crate) fn take(&self, demand: Demand, hold: Hold) -> LocalReservation<'a> {
        let (decision, charge) = match self.place {
            Place::Key { memory, owner, tier } => {
                let question = Question { demand, hold, tier };
                memory.space().reserve(owner, memory.clock(), question, memory.overflow())
            }
            Place::Throttle(state) => state.reserve(Question { demand, hold, tier: 0 }),
        };
        LocalReservation::new(*self, decision, demand.cost, charge)
    }

    /// What each of its quotas counts.
    pub(crate) fn kinds(&self, tier: usize) -> Vec<Counts> {
        match self.place {
            Place::Key { memory, .. } => memory.space().kinds(tier),
            Place::Throttle(state) => vec![Counts::of(&state.quota())],
        }
    }

    /// A copy of the state.
    pub(crate) fn sketch(&self) -> Sketch {
        match self.place {
            Place::Key { memory, owner, tier } => memory.space().sketch(owner, memory.clock(), tier),
            Place::Throttle(state) => state.sketch(),
        }
    }

    pub(crate) fn refund(&self, charge: &Charge, cost: u64) {
        match self.place {
            Place::Key { memory, owner, .. } => memory.space().refund(owner, memory.clock(), charge, cost),
            Place::Throttle(state) => state.refund(charge, cost),
        }
        self.lines().wake_first(self.owner());
    }

    /// Has the next to give back a permit of this key ring the bell of the first in line.
    pub(crate) fn await_release(&self, cost: u64) -> Awaited {
        match self.place {
            Place::Key { memory, owner, .. } => memory.space().await_release(owner, cost),
            Place::Throttle(state) => state.await_release(cost),
        }
    }

    /// Wakes the first waiter after a permit was released.
    pub(crate) fn released(&self) {
        self.lines().wake_first(self.owner());
    }

    /// The permits, where that is all there is to count.
    #[inline]
    fn slots(&self) -> Option<(&'a SlotTable, u64)> {
        match self.place {
            Place::Key { memory, owner, .. } => memory.space().slots().map(|slots| (slots, owner)),
            Place::Throttle(state) => state.slots(),
        }
    }

    pub(crate) fn clock(&self) -> &'a Clock {
        match self.place {
            Place::Key { memory, .. } => memory.clock(),
            Place::Throttle(state) => state.clock(),
        }
    }

    pub(crate) fn lines(&self) -> &'a Lines {
        match self.place {
            Place::Key { memory, .. } => memory.lines(),
            Place::Throttle(state) => state.lines(),
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
