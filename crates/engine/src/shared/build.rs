//! How a shared limiter is made.

use super::{Ahead, Home, Outage, Remote, SharedLimiter, lease::Leases, line::Queue, outage::Fallback};
use crate::{
    build::{BuildError, LimiterBuilder},
    clock::Clock,
    limiter::Limiter,
    store::{Choice, Limit, Store},
    wait::Manner,
};
use arc_swap::ArcSwap;
use std::sync::{Arc, atomic::AtomicU64};
use tidegate_core::{CarryOver, Quota};

/// Settings of a [`SharedLimiter`].
#[derive(Debug)]
pub struct SharedLimiterBuilder {
    name: String,
    store: Option<Arc<dyn Store>>,
    memory: LimiterBuilder,
    outage: Outage,
    carry_over: CarryOver,
    ahead: Option<Ahead>,
}

impl SharedLimiterBuilder {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            store: None,
            memory: Limiter::builder(),
            outage: Outage::default(),
            carry_over: CarryOver::default(),
            ahead: None,
        }
    }

    /// Where state lives; in this process unless told otherwise.
    #[must_use]
    pub fn store(self, store: impl Store) -> Self {
        self.shared_store(Arc::new(store))
    }

    /// The same, for a store that several limiters have: only these can be asked together.
    #[must_use]
    pub fn shared_store(self, store: Arc<dyn Store>) -> Self {
        Self { store: Some(store), ..self }
    }

    /// What is decided while the store is unavailable.
    #[must_use]
    pub fn on_outage(self, outage: Outage) -> Self {
        Self { outage, ..self }
    }

    /// How keys carry over what they used when another process, or an earlier one, had other quotas.
    #[must_use]
    pub fn carry_over(self, carry_over: CarryOver) -> Self {
        Self { carry_over, ..self }
    }

    /// Takes tokens of busy keys ahead and spends them in this process: a decision then costs no round trip. What is
    /// admitted stays within the bound that [`SharedLimiter::bounds`] tells. Not for permits.
    #[must_use]
    pub fn ahead(self, ahead: Ahead) -> Self {
        Self { ahead: Some(ahead), ..self }
    }

    /// Settings of the limiter in memory, where that is where state lives. Its clock, if it is given one, is also the one
    /// by which callers wait for a store.
    #[must_use]
    pub fn memory(self, memory: LimiterBuilder) -> Self {
        Self { memory, ..self }
    }

    /// Makes a limiter of one quota.
    pub fn build<Q>(self, quota: Q) -> Result<SharedLimiter, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        let quota = quota.try_into()?;
        self.build_all(&[quota])
    }

    /// Makes a limiter of several quotas, all of which apply.
    pub fn build_all(self, quotas: &[Quota]) -> Result<SharedLimiter, BuildError> {
        self.build_choice(quotas, Choice::All)
    }

    /// Makes a limiter of several tiers, one of which applies: the one that a call names, see [`SharedLimiter::tier`].
    /// A key that changes its tier keeps what it has used. All tiers count by the same algorithm; none takes tokens
    /// ahead.
    pub fn build_tiers(self, quotas: &[Quota]) -> Result<SharedLimiter, BuildError> {
        LimiterBuilder::refuse_mixed_tiers(quotas)?;
        self.build_choice(quotas, Choice::Tier)
    }

    fn build_choice(self, quotas: &[Quota], choice: Choice) -> Result<SharedLimiter, BuildError> {
        let home = match self.store {
            None if choice == Choice::Tier => Home::Memory(Arc::new(self.memory.build_tiers(quotas)?)),
            None => Home::Memory(Arc::new(self.memory.build_all(quotas)?)),
            Some(store) => {
                let quotas: Vec<_> = quotas.iter().map(|quota| store.adapt(*quota)).collect();
                let fallback =
                    Arc::new(Fallback::new(self.outage, self.memory.clone().for_outages(), &quotas, choice)?);
                store.add_mode(self.outage);
                let limit_at_once = quotas.iter().map(Quota::limit).min().unwrap_or(0);
                let counts_permits = quotas.iter().any(|quota| quota.rate().is_none());
                let ahead = self.ahead.filter(|_| !counts_permits && choice == Choice::All);
                let leases = ahead.map(|ahead| Arc::new(Leases::new(ahead, limit_at_once)));
                let limit = Limit::new(&self.name, quotas, choice, self.carry_over);
                let clock = self.memory.given_clock().unwrap_or_else(Clock::tokio);
                let queue = Arc::new(Queue::new(self.memory.lines(Manner::Line), clock.clone()));
                let limit = ArcSwap::from_pointee(limit);
                Home::Store(Remote { store, limit, fallback, leases, queue, clock })
            }
        };
        Ok(SharedLimiter { home, degraded: AtomicU64::new(0) })
    }
}
