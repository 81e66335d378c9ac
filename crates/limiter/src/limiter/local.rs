//! One bucket in memory: of a key of a limiter, or of a direct limiter.

use super::{LocalReservation, MemoryLimiter};
use crate::{
    clock::Clock,
    direct,
    memory::{CellCharge, CellRequest, PermitHold, PermitTable, QuotaUnit, StateSnapshot},
    semaphore::HasWaiters,
    wait::WaitQueues,
};
use std::sync::Arc;
#[cfg(feature = "stream")]
use tidegate_core::Quota;
use tidegate_core::{Decision, Demand};

/// A reference to one bucket in memory.
#[derive(Clone, Copy)]
pub(crate) struct LocalBucket<'a> {
    backend: LocalBackendRef<'a>,
}

#[derive(Clone, Copy)]
enum LocalBackendRef<'a> {
    Key { memory: &'a MemoryLimiter, owner: u64, tier: usize },
    Direct(&'a direct::DirectState),
}

/// The bucket of a key in memory; see [`Limiter::bucket_by_id`](super::Limiter::bucket_by_id).
#[derive(Clone, Copy)]
pub struct KeyIdBucket<'a>(pub(super) LocalBucket<'a>);

impl KeyIdBucket<'_> {
    /// Takes `cost` now, or denies.
    #[inline]
    pub fn check(&self, cost: u64) -> Decision {
        self.0.check(cost)
    }

    /// The decision that `cost` would get now. Takes nothing.
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

/// An owned [`LocalBucket`].
#[derive(Clone)]
pub(crate) enum LocalBackend {
    Key { memory: Arc<MemoryLimiter>, owner: u64, tier: usize },
    Direct(Arc<direct::DirectState>),
}

impl LocalBackend {
    #[inline]
    pub(crate) fn bucket(&self) -> LocalBucket<'_> {
        match self {
            Self::Key { memory, owner, tier } => LocalBucket::for_key(memory, *owner, *tier),
            Self::Direct(state) => LocalBucket::for_direct(state),
        }
    }

    #[cfg(feature = "stream")]
    pub(crate) fn quotas(&self) -> Vec<Quota> {
        match self {
            Self::Key { memory, .. } => memory.quotas(),
            Self::Direct(state) => vec![state.quota()],
        }
    }
}

impl<'a> LocalBucket<'a> {
    #[inline]
    pub(crate) fn for_key(memory: &'a MemoryLimiter, owner: u64, tier: usize) -> Self {
        Self { backend: LocalBackendRef::Key { memory, owner, tier } }
    }

    pub(crate) fn for_direct(state: &'a direct::DirectState) -> Self {
        Self { backend: LocalBackendRef::Direct(state) }
    }

    /// The same bucket under another tier, numbered from zero; `None` if there is no such tier.
    pub(crate) fn tier(self, tier: usize) -> Option<Self> {
        match self.backend {
            LocalBackendRef::Key { memory, owner, .. } if tier < memory.tiers() => {
                Some(Self { backend: LocalBackendRef::Key { memory, owner, tier } })
            }
            _ => None,
        }
    }

    /// Takes `cost` now, or denies.
    #[inline]
    pub(crate) fn check(&self, cost: u64) -> Decision {
        match self.backend {
            LocalBackendRef::Key { memory, owner, tier: 0 } => {
                memory.key_table().check(owner, memory.clock(), cost, memory.overflow())
            }
            _ => self.decide(Demand::new(cost)),
        }
    }

    /// Prefetches the state of the key into the processor cache.
    #[inline]
    pub(crate) fn prefetch(&self) {
        if let LocalBackendRef::Key { memory, owner, .. } = self.backend {
            memory.key_table().table().prefetch(owner);
        }
    }

    /// Takes `cost` now, or denies, even if it exceeds the burst: it is then granted as soon as a full burst would be, and
    /// later callers wait until the overdraft is repaid.
    pub(crate) fn check_with_overdraft(&self, cost: u64) -> Decision {
        self.decide(Demand::new(cost).with_overdraft())
    }

    /// The decision that `cost` would get now. Takes nothing.
    #[inline]
    pub(crate) fn peek(&self, cost: u64) -> Decision {
        match self.backend {
            LocalBackendRef::Key { memory, owner, tier: 0 } => {
                memory.key_table().peek(owner, memory.clock(), cost, memory.overflow())
            }
            _ => self.decide(Demand::peek(cost)),
        }
    }

    /// Takes as many tokens as are available, up to `max`, and returns their number. Zero means that none was available; the
    /// decision then contains the time of the next one.
    pub(crate) fn take_up_to(&self, max: u64) -> (u64, Decision) {
        loop {
            let available = self.peek(1);
            // A quota that allows debt can grant one token though none is stored.
            let amount = available.remaining().max(1).min(max);
            if amount == 0 {
                return (0, available);
            }
            // Also checked if nothing is available: the first check of a key may start its refill.
            let decision = self.check(amount);
            if decision.is_granted() {
                return (amount, decision);
            }
            // Another caller can take tokens in between: look again.
            if !available.is_allowed() {
                return (0, decision);
            }
        }
    }

    /// Acquires one permit on the fast path, to be released by [`release_permit`](Self::release_permit).
    #[inline]
    pub(crate) fn try_acquire_permit(&self) -> Option<Decision> {
        let (slots, owner) = self.permit_table()?;
        slots.try_acquire_one(owner)
    }

    /// Releases one permit that [`try_acquire_permit`](Self::try_acquire_permit) acquired.
    pub(crate) fn release_permit(&self) {
        if let Some((slots, owner)) = self.permit_table()
            && slots.release(owner, 1) == HasWaiters::Yes
        {
            self.wake_next();
        }
    }

    pub(crate) fn reset(&self) {
        match self.backend {
            LocalBackendRef::Key { memory, owner, .. } => {
                memory.key_table().reset(owner, memory.clock().now());
            }
            LocalBackendRef::Direct(state) => state.reset(),
        }
        self.wait_queues().wake_first(self.owner());
    }

    pub(crate) fn decide(&self, demand: Demand) -> Decision {
        match self.backend {
            LocalBackendRef::Key { memory, owner, tier } => {
                let request = CellRequest { tier, ..CellRequest::new(demand) };
                memory.key_table().decide(owner, memory.clock(), request, memory.overflow())
            }
            LocalBackendRef::Direct(state) => state.decide(demand),
        }
    }

    pub(crate) fn take(&self, demand: Demand, hold: PermitHold) -> LocalReservation<'a> {
        let (decision, charge) = match self.backend {
            LocalBackendRef::Key { memory, owner, tier } => {
                let request = CellRequest { demand, hold, tier };
                memory.key_table().reserve(owner, memory.clock(), request, memory.overflow())
            }
            LocalBackendRef::Direct(state) => state.reserve(CellRequest { demand, hold, tier: 0 }),
        };
        LocalReservation::new(*self, decision, demand.cost, charge)
    }

    /// The unit of each of its quotas.
    pub(crate) fn units(&self, tier: usize) -> Vec<QuotaUnit> {
        match self.backend {
            LocalBackendRef::Key { memory, .. } => memory.key_table().units(tier),
            LocalBackendRef::Direct(state) => vec![QuotaUnit::from_quota(&state.quota())],
        }
    }

    /// A copy of the state.
    pub(crate) fn snapshot(&self) -> StateSnapshot {
        match self.backend {
            LocalBackendRef::Key { memory, owner, tier } => {
                memory.key_table().snapshot(owner, memory.clock(), tier)
            }
            LocalBackendRef::Direct(state) => state.snapshot(),
        }
    }

    pub(crate) fn refund(&self, charge: &CellCharge, cost: u64) {
        match self.backend {
            LocalBackendRef::Key { memory, owner, .. } => {
                memory.key_table().refund(owner, memory.clock(), charge, cost);
            }
            LocalBackendRef::Direct(state) => state.refund(charge, cost),
        }
        self.wait_queues().wake_first(self.owner());
    }

    /// Makes the next release of a permit of this key wake the first waiter.
    pub(crate) fn await_release(&self, cost: u64) -> HasWaiters {
        match self.backend {
            LocalBackendRef::Key { memory, owner, .. } => memory.key_table().await_release(owner, cost),
            LocalBackendRef::Direct(state) => state.await_release(cost),
        }
    }

    /// Wakes the first waiter after a permit was released.
    pub(crate) fn wake_next(&self) {
        self.wait_queues().wake_first(self.owner());
    }

    /// The slot table, if the quota counts nothing but permits.
    #[inline]
    fn permit_table(&self) -> Option<(&'a PermitTable, u64)> {
        match self.backend {
            LocalBackendRef::Key { memory, owner, .. } => {
                memory.key_table().permit_table().map(|slots| (slots, owner))
            }
            LocalBackendRef::Direct(state) => state.permit_table(),
        }
    }

    pub(crate) fn clock(&self) -> &'a Clock {
        match self.backend {
            LocalBackendRef::Key { memory, .. } => memory.clock(),
            LocalBackendRef::Direct(state) => state.clock(),
        }
    }

    pub(crate) fn wait_queues(&self) -> &'a WaitQueues {
        match self.backend {
            LocalBackendRef::Key { memory, .. } => memory.wait_queues(),
            LocalBackendRef::Direct(state) => state.wait_queues(),
        }
    }

    /// The fingerprint of the key; zero for a direct limiter, which has only one bucket.
    pub(crate) fn owner(&self) -> u64 {
        match self.backend {
            LocalBackendRef::Key { owner, .. } => owner,
            LocalBackendRef::Direct(_) => 0,
        }
    }
}
