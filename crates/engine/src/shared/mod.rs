//! A limiter whose state may live anywhere: in this process, or in a store that a fleet shares.

mod bound;
mod build;
mod joint;
mod lease;
mod line;
mod outage;
mod owned;
mod remote;
mod reservation;
mod several;
mod tier;

pub use bound::{FleetBound, OutageBound};
pub use build::SharedLimiterBuilder;
pub use joint::{Claim, OwnedAsk, reserve_all, reserve_all_in_memory};
pub use lease::Ahead;
pub use outage::Outage;
pub use reservation::{SharedPermit, SharedReservation};
pub use several::{SharedAsk, decide_all_shared};
pub use tier::SharedTier;

use crate::{
    limiter::Limiter,
    store::{Choice, Inquiry, Request, Slots, Store, StoreError},
};
use lease::Need;
use outage::Own;
use remote::{Remote, fold, only};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tidegate_core::{CarryOver, Decision, Demand, Micros, Outcome, Quota, Retry};

/// One quota or several for many keys, wherever they are counted.
///
/// The same declaration gives the same decisions in memory and in a store that a fleet shares. What moves it from one
/// to the other is one line:
///
/// ```
/// use tidegate_engine::SharedLimiter;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let limiter = SharedLimiter::builder("login")
///     // .store(RedisStore::connect("redis://127.0.0.1").await?)
///     .build("5/min")?;
/// assert!(limiter.check("alice").await.is_allowed());
/// # Ok::<(), tidegate_engine::BuildError>(())
/// # }).unwrap();
/// ```
pub struct SharedLimiter {
    home: Home,
    /// Decisions that were made without the store.
    degraded: AtomicU64,
}

enum Home {
    Memory(Arc<Limiter>),
    Store(Remote),
}

impl SharedLimiter {
    /// A limiter with this name; all processes that share a store use the same one for the same purpose.
    pub fn builder(name: &str) -> SharedLimiterBuilder {
        SharedLimiterBuilder::new(name)
    }

    /// Takes one token for `key`, now or not at all.
    #[inline]
    pub fn check<'a>(&'a self, key: &'a str) -> impl Future<Output = Decision> + Send + 'a {
        self.check_cost(key, 1)
    }

    /// Takes `cost` tokens for `key`, now or not at all. A cost of zero takes nothing: it is a peek.
    pub async fn check_cost(&self, key: &str, cost: u64) -> Decision {
        match &self.home {
            Home::Memory(limiter) => limiter.check_cost(key, cost),
            Home::Store(Remote { leases: Some(leases), fallback, .. })
                if cost > 0 && !fallback.asks_both() =>
            {
                match leases.spend(key, cost) {
                    Some((decision, Need::Nothing)) => decision,
                    Some((decision, Need::Refill(balance))) => {
                        self.refill(key, leases, balance);
                        decision
                    }
                    // Rare, and a future has room for everything in it.
                    None => Box::pin(self.ask_beside_leases(leases, key, cost)).await,
                }
            }
            Home::Store(remote) => self.put(remote, key, FIRST, Demand::now(cost)).await,
        }
    }

    /// Takes `cost` now or not at all, even if it is larger than the burst; see [`crate::Bucket::check_on_credit`].
    pub async fn check_on_credit(&self, key: &str, cost: u64) -> Decision {
        match &self.home {
            Home::Memory(limiter) => limiter.key(key).check_on_credit(cost),
            Home::Store(remote) => self.put(remote, key, FIRST, Demand::now(cost).on_credit()).await,
        }
    }

    /// What `cost` would get now. Takes nothing.
    pub async fn peek(&self, key: &str, cost: u64) -> Decision {
        match &self.home {
            Home::Memory(limiter) => limiter.key(key).peek(cost),
            Home::Store(remote) => self.put(remote, key, FIRST, Demand::probe(cost)).await,
        }
    }

    /// Takes as much as there is, up to `most`, and says how much that was; see [`crate::Bucket::take_up_to`].
    pub async fn take_up_to(&self, key: &str, most: u64) -> (u64, Decision) {
        self.take_up_to_in(key, FIRST, most).await
    }

    async fn take_up_to_in(&self, key: &str, tier: usize, most: u64) -> (u64, Decision) {
        let remote = match &self.home {
            Home::Memory(limiter) => return limiter.bucket(key, tier).take_up_to(most),
            Home::Store(remote) => remote,
        };
        // As much as there is cannot be asked of both: this process is asked for one, and counts the rest.
        let own = match remote.fallback.before(key, tier, Demand::now(1), Slots::Look) {
            Ok(own) => own,
            Err(denied) => return (0, self.without_store(*denied.decision())),
        };
        let ask = Inquiry { receipt: true, ..remote.inquiry(key, tier, Demand::now(most), Slots::Look) };
        match remote.store.perform(Request::TakeUpTo(ask)).await.and_then(only) {
            Ok(answer) => {
                let decision = fold(&answer, tier);
                let taken = answer.steps.iter().map(|step| step.receipt.cost).max().unwrap_or(0);
                let taken = if decision.is_granted() { taken } else { 0 };
                drop(own);
                if taken > 0 {
                    remote.keep_own(Own::Uncounted, key, tier, Demand::now(taken));
                }
                (taken, decision)
            }
            Err(error) => {
                drop(own);
                self.without_store(remote.fallback.take_up_to(&error, key, tier, most))
            }
        }
    }

    /// Takes `cost` and accepts to wait for it up to `patience`; see [`crate::Bucket::reserve`].
    pub async fn reserve(&self, key: &str, cost: u64, patience: Duration) -> SharedReservation<'_> {
        self.take(key, FIRST, Demand::within(cost, patience.into()), Slots::Look).await
    }

    /// The same, with a reservation that borrows nothing.
    pub async fn reserve_owned(
        &self,
        key: &str,
        cost: u64,
        patience: Duration,
    ) -> SharedReservation<'static> {
        self.take_owned(key, FIRST, Demand::within(cost, patience.into()), Slots::Look).await
    }

    /// Takes a slot that is held until the permit is dropped; see [`crate::Bucket::permit`]. In a store it is a lease,
    /// which is renewed for as long as the permit lives: a process that dies gives its slots back when it expires.
    pub async fn permit(&self, key: &str) -> SharedPermit<'_> {
        let reservation = self.take(key, FIRST, Demand::now(1), Slots::Take).await;
        let line = match &self.home {
            Home::Memory(_) => None,
            Home::Store(remote) => Some(remote.line(key)),
        };
        SharedPermit::new(reservation, line)
    }

    /// The same, with a permit that borrows nothing.
    pub async fn permit_owned(&self, key: &str) -> SharedPermit<'static> {
        let reservation = self.take_owned(key, FIRST, Demand::now(1), Slots::Take).await;
        SharedPermit::new(reservation, self.remote().map(|remote| remote.line(key)))
    }

    /// The limiter in memory, if that is where it counts.
    pub fn in_memory(&self) -> Option<&Arc<Limiter>> {
        match &self.home {
            Home::Memory(limiter) => Some(limiter),
            Home::Store(_) => None,
        }
    }

    /// Whether it counts in this store, or in memory if that is none.
    pub fn is_in(&self, store: Option<&Arc<dyn Store>>) -> bool {
        match (self.remote(), store) {
            (Some(remote), Some(store)) => Arc::ptr_eq(&remote.store, store),
            (None, None) => true,
            _ => false,
        }
    }

    /// Takes `cost` and waits for it, however long that is. The decision is a denial only if waiting does not help.
    pub async fn acquire(&self, key: &str, cost: u64) -> Decision {
        self.wait(key, Demand::within(cost, Micros::MAX)).await
    }

    /// Takes `cost` if it can be had within `timeout`, and waits for it; else answers at once that it cannot.
    pub async fn try_acquire(&self, key: &str, cost: u64, timeout: Duration) -> Decision {
        self.wait(key, Demand::within(cost, timeout.into())).await
    }

    /// Forgets a key: it is as good as new. What it has outstanding then gives nothing back.
    pub async fn reset(&self, key: &str) -> Result<(), StoreError> {
        match &self.home {
            Home::Memory(limiter) => limiter.key(key).reset(),
            Home::Store(remote) => {
                remote.leases.iter().for_each(|leases| leases.forget(key));
                remote.store.perform(Request::Reset(remote.place(key, FIRST))).await?;
            }
        }
        Ok(())
    }

    /// Replaces the quotas while running. Keys carry over what they used as `how` says: in memory at once, in a store
    /// when they are next asked for.
    pub fn change_all(&self, quotas: &[Quota], how: CarryOver) -> Result<(), crate::BuildError> {
        match &self.home {
            Home::Memory(limiter) => limiter.change_all(quotas, how),
            Home::Store(remote) => remote.change_all(quotas, how),
        }
    }

    /// Goes on with what this process has counted beside a store under another limiter, which this one replaces. Where counts are in
    /// memory, see [`Limiter::take_over`].
    pub fn take_over(&self, old: &Self) {
        if let (Home::Store(remote), Home::Store(old)) = (&self.home, &old.home) {
            remote.fallback.take_over(&old.fallback);
        }
    }

    /// The quotas that keys are limited by.
    pub fn quotas(&self) -> Vec<Quota> {
        match &self.home {
            Home::Memory(limiter) => limiter.quotas(),
            Home::Store(remote) => remote.limit.load().quotas().to_vec(),
        }
    }

    /// How many tiers a call can choose from; one unless it was built with [`SharedLimiterBuilder::build_tiers`].
    pub fn tiers(&self) -> usize {
        match &self.home {
            Home::Memory(limiter) => limiter.tiers(),
            Home::Store(remote) => match remote.limit.load().choice() {
                Choice::All => 1,
                Choice::Tier => remote.limit.load().quotas().len(),
            },
        }
    }

    /// The worst case of each quota, outages of the store included; on the clock of the store, or of the limiter in memory.
    pub fn bounds(&self) -> Vec<FleetBound> {
        let remote = match &self.home {
            Home::Memory(limiter) => {
                let bound = |usual| FleetBound { usual, during_outage: OutageBound::NoStore };
                return limiter.bounds().into_iter().map(bound).collect();
            }
            Home::Store(remote) => remote,
        };
        let ahead = remote.leases.as_ref().map_or(Micros::ZERO, |leases| leases.settings().time_to_live());
        let bound = |quota: &Quota| FleetBound {
            usual: quota.bound().ahead(ahead),
            during_outage: remote.fallback.bound(quota),
        };
        self.quotas().iter().map(bound).collect()
    }

    /// The most tokens of one key that this process can let die unspent; zero unless it takes tokens ahead.
    pub fn stranded(&self) -> u64 {
        match &self.home {
            Home::Store(Remote { leases: Some(leases), .. }) => leases.stranded(),
            _ => 0,
        }
    }

    /// How many decisions were made without the store that should have made them.
    pub fn degraded(&self) -> u64 {
        self.degraded.load(Ordering::Relaxed)
    }

    async fn take(&self, key: &str, tier: usize, demand: Demand, slots: Slots) -> SharedReservation<'_> {
        match &self.home {
            Home::Memory(limiter) => SharedReservation::in_memory(limiter.bucket(key, tier), demand, slots),
            Home::Store(remote) => self.take_in_store(remote, key, tier, demand, slots).await,
        }
    }

    async fn take_owned(
        &self,
        key: &str,
        tier: usize,
        demand: Demand,
        slots: Slots,
    ) -> SharedReservation<'static> {
        match &self.home {
            Home::Memory(limiter) => SharedReservation::locally(limiter, key, tier, demand, slots),
            Home::Store(remote) => self.take_in_store(remote, key, tier, demand, slots).await,
        }
    }

    async fn wait(&self, key: &str, demand: Demand) -> Decision {
        if let Home::Memory(limiter) = &self.home {
            let bucket = limiter.key(key);
            return match demand.patience {
                Micros::MAX => bucket.acquire(demand.cost).await,
                patience => bucket.try_acquire(demand.cost, patience.into()).await,
            };
        }
        loop {
            let reservation = self.take(key, FIRST, demand, Slots::Look).await;
            let decision = *reservation.decision();
            match decision.outcome() {
                // A bounded queue of the quota's own is full: there is room later.
                Outcome::Deny(Retry::After(wait)) if demand.patience == Micros::MAX => {
                    let clock = self.remote().map(|remote| remote.clock.clone()).unwrap_or_default();
                    clock.wait_until(clock.now().plus(wait)).await;
                }
                Outcome::Deny(_) => return decision,
                Outcome::Allow | Outcome::Delay(_) => {
                    reservation.ready().await;
                    return reservation.keep();
                }
            }
        }
    }
}

/// One that counts where `limiter` does.
impl From<Arc<Limiter>> for SharedLimiter {
    fn from(limiter: Arc<Limiter>) -> Self {
        Self { home: Home::Memory(limiter), degraded: AtomicU64::new(0) }
    }
}

/// What was taken ahead and not spent goes back.
impl Drop for SharedLimiter {
    fn drop(&mut self) {
        let (Home::Store(remote), Ok(runtime)) = (&self.home, tokio::runtime::Handle::try_current()) else {
            return;
        };
        for (key, charge, cost) in remote.leases.iter().flat_map(|leases| leases.empty()) {
            let refund = Request::Refund { place: remote.place(&key, FIRST), charge, cost };
            drop(runtime.spawn(remote.store.perform(refund)));
        }
    }
}

/// The tier of a call that chooses none; where there are no tiers, all quotas apply to it.
const FIRST: usize = 0;

impl fmt::Debug for SharedLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quotas: Vec<_> = self.quotas().iter().map(ToString::to_string).collect();
        let mut debug = f.debug_struct("SharedLimiter");
        debug.field("quotas", &quotas);
        match &self.home {
            Home::Memory(_) => debug.field("home", &"memory"),
            Home::Store(remote) => debug.field("home", &remote.store),
        };
        debug.finish_non_exhaustive()
    }
}
