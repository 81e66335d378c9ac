//! One or several quotas for many keys, in memory or in a store.
//!
//! | file | holds |
//! |---|---|
//! | `builder.rs` | settings and build errors |
//! | `bucket.rs`, `blocking.rs` | one key: for tasks, and for threads that can block |
//! | `batch.rs` | one decision over several limiters |
//! | `reservation.rs`, `permit.rs` | charges that are settled or refunded later |
//! | `memory.rs`, `local.rs`, `local_reservation.rs` | the backend in memory |
//! | `overrides.rs` | quotas of single keys |
//! | `remote.rs`, `fallback.rs`, `prefetch.rs`, `queue.rs` | the backend in a store |

mod batch;
mod blocking;
mod bound;
mod bucket;
mod builder;
#[cfg(feature = "tokio")]
mod fallback;
mod local;
mod local_reservation;
mod memory;
mod overrides;
mod permit;
#[cfg(feature = "tokio")]
mod prefetch;
#[cfg(feature = "tokio")]
mod queue;
#[cfg(feature = "tokio")]
mod remote;
mod reservation;

pub use batch::{Check, CombinedReservation};
#[cfg(feature = "tokio")]
pub use batch::{decide_all, reserve_all};
pub use blocking::{BlockingBucket, BlockingLimiter};
pub use bound::{FleetBound, OutageBound};
pub use bucket::Bucket;
pub use builder::{BuildError, Capacity, LimiterBuilder};
#[cfg(feature = "tokio")]
pub use fallback::FailureMode;
pub use local::KeyIdBucket;
pub(crate) use local::{LocalBackend, LocalBucket};
pub(crate) use local_reservation::LocalReservation;
pub use memory::{KeyId, LimiterStats, Overflow, TableSize};
pub(crate) use memory::{LocalCheck, MemoryLimiter, TableFullListener};
pub use overrides::{MAX_OVERRIDE_QUOTAS, OverrideChange, QuotaOverride};
pub use permit::Permit;
#[cfg(feature = "tokio")]
pub use prefetch::TokenPrefetch;
pub use reservation::{Reservation, Settlement};

#[cfg(feature = "tokio")]
use crate::store::Store;
use crate::{denied::DeniedKey, key::LimitKey};
#[cfg(feature = "tokio")]
use remote::RemoteLimiter;
use std::{fmt, sync::Arc};
#[cfg(feature = "tokio")]
use tidegate_core::Demand;
use tidegate_core::{CarryOver, Decision, Quota, SettingError};

/// Limits many keys by one or several quotas, in memory or in a store that a fleet shares. Clones share the state.
///
/// ```
/// use tidegate_limiter::Limiter;
///
/// let limiter = Limiter::new("100/min burst 2")?;
/// assert!(limiter.check("alice").is_allowed());
/// assert!(limiter.check("alice").is_allowed());
/// assert!(!limiter.check("alice").is_allowed());
/// assert!(limiter.check("bob").is_allowed());
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
///
/// A key is any value that implements `Hash` and `Display`; it is neither cloned nor stored. Memory is bounded from the
/// start (see [`LimiterBuilder::capacity`]), and new keys reuse the cells of expired ones.
///
/// | to | use |
/// |---|---|
/// | take tokens now, or be denied | [`check`](Self::check); with a store in a task, [`decide`](Self::decide) |
/// | wait, reserve, refund or acquire a permit in a task | [`key`](Self::key): a [`Bucket`] |
/// | do the same in a thread that can block | [`blocking`](Self::blocking) |
/// | decide over several limiters atomically | [`prepare`](Self::prepare), `decide_all`, `reserve_all` |
///
/// The same quota makes the same decisions in memory and in a store. One line moves it to a store:
///
/// ```
/// # #[cfg(feature = "tokio")] {
/// use tidegate_limiter::Limiter;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let limiter = Limiter::builder()
///     .name("login")
///     // .store(RedisStore::connect("redis://127.0.0.1").await?)
///     .build("5/min")?;
/// assert!(limiter.decide("alice", 1).await.is_allowed());
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// # }).unwrap();
/// # }
/// ```
#[derive(Clone)]
pub struct Limiter {
    backend: LimiterBackend,
}

/// Where the state of a limiter is.
#[derive(Clone)]
enum LimiterBackend {
    Memory(Arc<MemoryLimiter>),
    #[cfg(feature = "tokio")]
    Store(Arc<RemoteLimiter>),
}

/// The tier of a call that selects none. Without tiers all quotas apply to it.
const FIRST_TIER: usize = 0;

impl Limiter {
    /// Creates a limiter of one quota in memory, with the system clock and the default capacity.
    pub fn new<Q>(quota: Q) -> Result<Self, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        Self::builder().build(quota)
    }

    /// Returns a builder with default settings.
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder::default()
    }

    /// Takes one token for `key` now, or denies; see [`check_cost`](Self::check_cost).
    #[inline]
    pub fn check<K: LimitKey + ?Sized>(&self, key: &K) -> Decision {
        self.check_cost(key, 1)
    }

    /// Takes `cost` tokens for `key` now, or denies. A cost of zero takes nothing and is a peek.
    ///
    /// In memory it never waits. With a store it blocks this thread until the store replies; use [`decide`](Self::decide) in
    /// a task.
    #[inline]
    pub fn check_cost<K: LimitKey + ?Sized>(&self, key: &K, cost: u64) -> Decision {
        match &self.backend {
            LimiterBackend::Memory(memory) => memory.check_cost(key, cost),
            #[cfg(feature = "tokio")]
            LimiterBackend::Store(_) => self.check_in_store(key, cost),
        }
    }

    /// Never inlined, so that the path in memory stays small.
    #[cfg(feature = "tokio")]
    #[inline(never)]
    fn check_in_store<K: LimitKey + ?Sized>(&self, key: &K, cost: u64) -> Decision {
        self.blocking().key(key).check(cost)
    }

    /// Takes `cost` tokens for `key` now, or denies, without blocking a thread. A cost of zero takes nothing and is a peek.
    #[cfg(feature = "tokio")]
    pub async fn decide(&self, key: &str, cost: u64) -> Decision {
        match &self.backend {
            LimiterBackend::Memory(memory) => memory.check_cost(key, cost),
            LimiterBackend::Store(remote) => match remote.tier_for(key, FIRST_TIER) {
                FIRST_TIER => match remote.spend(key, cost) {
                    Some(decision) => decision,
                    None => remote.check_store(key, cost).await,
                },
                tier => remote.decide(key, tier, Demand::new(cost)).await,
            },
        }
    }

    /// The bucket of one key, with all other operations: wait, reserve, refund, acquire a permit.
    pub fn key<K: LimitKey + ?Sized>(&self, key: &K) -> Bucket {
        match &self.backend {
            LimiterBackend::Memory(memory) => {
                let owner = memory.fingerprint(key);
                let tier = memory.tier_for(owner, FIRST_TIER);
                Bucket::local(LocalBackend::Key { memory: memory.clone(), owner, tier })
            }
            #[cfg(feature = "tokio")]
            LimiterBackend::Store(remote) => Bucket::from_remote(remote.clone(), key.to_string()),
        }
    }

    /// The limiter for threads that can block.
    #[inline]
    pub fn blocking(&self) -> BlockingLimiter<'_> {
        BlockingLimiter::new(self)
    }

    /// The id of a key, for repeated or later calls; `None` if the limiter uses a store.
    #[inline]
    pub fn key_id<K: LimitKey + ?Sized>(&self, key: &K) -> Option<KeyId> {
        self.memory().map(|memory| KeyId(memory.fingerprint(key)))
    }

    /// The bucket of the key with this id, which must be an id of this limiter. Uses the given tier, or the first if there is
    /// no such tier. `None` if the limiter uses a store.
    #[inline]
    pub fn bucket_by_id(&self, id: KeyId, tier: usize) -> Option<KeyIdBucket<'_>> {
        let memory = self.memory()?;
        Some(KeyIdBucket(LocalBucket::for_key(memory, id.0, memory.tier_for(id.0, tier))))
    }

    /// Replaces the quota at run time. Every key keeps its usage, converted as `how` specifies.
    ///
    /// In memory the new quota must have the same algorithm and windows, and need no more state than the old one. Otherwise
    /// build a new limiter with this one as its [predecessor](LimiterBuilder::predecessor).
    ///
    /// # Compared with Go's `golang.org/x/time/rate`
    ///
    /// A change of the rate alone has the same effect as `SetLimit`, to the microsecond. A change of the burst differs from
    /// `SetBurst` by the difference of the bursts: Go keeps the tokens that are available, while here the tokens that were
    /// used stay used. A quota without `burst` has the burst of its amount: from `5/s` to `10/s` both change; write
    /// `10/s burst 5` to change the rate alone. A reservation made before the change refunds nothing when it is cancelled
    /// after it; in Go it does.
    ///
    /// ```
    /// use tidegate_core::CarryOver;
    /// use tidegate_limiter::Limiter;
    ///
    /// let limiter = Limiter::new("1/h burst 1")?;
    /// assert!(limiter.check("alice").is_allowed());
    /// assert!(!limiter.check("alice").is_allowed());
    /// limiter.change("1/h burst 2", CarryOver::default())?;
    /// assert!(limiter.check("alice").is_allowed(), "one of two is used; Go denies for an hour");
    /// assert!(!limiter.check("alice").is_allowed());
    /// # Ok::<(), tidegate_limiter::BuildError>(())
    /// ```
    pub fn change<Q>(&self, quota: Q, how: CarryOver) -> Result<(), BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        let quota = quota.try_into()?;
        self.change_all(&[quota], how)
    }

    /// Replaces all quotas at run time, one by one in their order; see [`change`](Self::change). In a store, the usage of a
    /// key is converted at its next request.
    pub fn change_all(&self, quotas: &[Quota], how: CarryOver) -> Result<(), BuildError> {
        match &self.backend {
            LimiterBackend::Memory(memory) => memory.change_all(quotas, how),
            #[cfg(feature = "tokio")]
            LimiterBackend::Store(remote) => remote.change_all(quotas, how),
        }
    }

    /// Checks whether [`change_all`](Self::change_all) would succeed, and returns its error otherwise. Changes nothing.
    pub fn can_change_all(&self, quotas: &[Quota]) -> Result<(), BuildError> {
        match &self.backend {
            LimiterBackend::Memory(memory) => memory.can_change_all(quotas),
            #[cfg(feature = "tokio")]
            LimiterBackend::Store(remote) => remote.can_change_all(quotas),
        }
    }

    /// Copies the keys of `old`, for a limiter that was built with `old` as its
    /// [predecessor](LimiterBuilder::predecessor). Keys keep their usage under quotas that share a state with those of `old`;
    /// the state of other quotas of `old` is retained in case they return. If this table is too small for all keys, those with
    /// the least usage are dropped first, and limited keys are retained.
    ///
    /// With a store, which holds the state itself, copies what this process counted in memory during outages.
    pub fn take_over(&self, old: &Self) {
        match (&self.backend, &old.backend) {
            (LimiterBackend::Memory(new), LimiterBackend::Memory(old)) => new.take_over(old),
            #[cfg(feature = "tokio")]
            (LimiterBackend::Store(new), LimiterBackend::Store(old)) => new.take_over(old),
            #[cfg(feature = "tokio")]
            _ => {}
        }
    }

    /// The number of tiers; one unless the limiter was built with [`LimiterBuilder::build_tiers`].
    pub fn tiers(&self) -> usize {
        match &self.backend {
            LimiterBackend::Memory(memory) => memory.tiers(),
            #[cfg(feature = "tokio")]
            LimiterBackend::Store(remote) => remote.tiers(),
        }
    }

    /// The current quotas: all of them apply together, or one of them as the tier of a call.
    pub fn quotas(&self) -> Vec<Quota> {
        match &self.backend {
            LimiterBackend::Memory(memory) => memory.quotas(),
            #[cfg(feature = "tokio")]
            LimiterBackend::Store(remote) => remote.quotas(),
        }
    }

    /// Whether its keys can have overrides; see [`LimiterBuilder::overridable`].
    pub fn is_overridable(&self) -> bool {
        match &self.backend {
            LimiterBackend::Memory(memory) => memory.is_overridable(),
            #[cfg(feature = "tokio")]
            LimiterBackend::Store(remote) => remote.is_overridable(),
        }
    }

    /// Checks whether a key can have this quota as its override. Changes nothing.
    pub fn check_override(&self, quota: &Quota) -> Result<(), SettingError> {
        match &self.backend {
            LimiterBackend::Memory(memory) => memory.check_override(quota),
            #[cfg(feature = "tokio")]
            LimiterBackend::Store(remote) => remote.check_override(quota),
        }
    }

    /// The id of a key in [`apply_overrides`](Self::apply_overrides). It is valid for this limiter only.
    pub fn override_id<K: LimitKey + ?Sized>(&self, key: &K) -> u64 {
        match &self.backend {
            LimiterBackend::Memory(memory) => memory.fingerprint(key),
            #[cfg(feature = "tokio")]
            LimiterBackend::Store(remote) => remote.override_id(&key.to_string()),
        }
    }

    /// Sets and removes the overrides of keys: their quotas in place of those of the limiter, until they end. Every key keeps its
    /// usage. Returns the changes that were rejected, by their index; the others are in force.
    ///
    /// ```
    /// use tidegate_core::Micros;
    /// use tidegate_limiter::{Limiter, QuotaOverride};
    ///
    /// let limiter = Limiter::builder().overridable().build("1/h")?;
    /// assert!(limiter.check("alice").is_allowed());
    /// assert!(!limiter.check("alice").is_allowed());
    /// let alice = limiter.override_id("alice");
    /// let more = QuotaOverride { quota: "3/h".parse()?, until: Micros::MAX };
    /// assert!(limiter.apply_overrides(&[(alice, Some(more))]).is_empty());
    /// assert_eq!(limiter.check("alice").remaining(), 1, "two of three are used");
    /// limiter.apply_overrides(&[(alice, None)]);
    /// assert!(!limiter.check("alice").is_allowed());
    /// # Ok::<(), tidegate_limiter::BuildError>(())
    /// ```
    pub fn apply_overrides(&self, changes: &[OverrideChange]) -> Vec<(usize, SettingError)> {
        match &self.backend {
            LimiterBackend::Memory(memory) => memory.apply_overrides(changes),
            #[cfg(feature = "tokio")]
            LimiterBackend::Store(remote) => remote.apply_overrides(changes),
        }
    }

    /// The quotas of overrides. The index of the first one in a decision is the number of [`quotas`](Self::quotas).
    pub fn override_quotas(&self) -> Vec<Quota> {
        match &self.backend {
            LimiterBackend::Memory(memory) => memory.override_quotas(),
            #[cfg(feature = "tokio")]
            LimiterBackend::Store(remote) => remote.override_quotas(),
        }
    }

    /// The worst case of each quota, including outages of the store and the resolution of the clock.
    pub fn bounds(&self) -> Vec<FleetBound> {
        match &self.backend {
            LimiterBackend::Memory(memory) => {
                let bound = |normal| FleetBound { normal, during_outage: OutageBound::NoStore };
                memory.bounds().into_iter().map(bound).collect()
            }
            #[cfg(feature = "tokio")]
            LimiterBackend::Store(remote) => remote.bounds(),
        }
    }

    /// The usage of the table in memory; `None` with a store. Scans every cell: for operators, not for every request.
    pub fn stats(&self) -> Option<LimiterStats> {
        self.memory().map(MemoryLimiter::stats)
    }

    /// The size of the table in memory; `None` with a store. Constant time; [`stats`](Self::stats) returns more.
    pub fn size(&self) -> Option<TableSize> {
        self.memory().map(MemoryLimiter::size)
    }

    /// The keys that [`check`](Self::check) and [`check_cost`](Self::check_cost) denied most often in memory, if the limiter
    /// tracks them ([`LimiterBuilder::track_denied`]).
    pub fn top_denied(&self) -> Vec<DeniedKey> {
        self.memory().map(MemoryLimiter::top_denied).unwrap_or_default()
    }

    /// Whether the state is in memory.
    pub fn is_in_memory(&self) -> bool {
        self.memory().is_some()
    }

    /// Whether both are the same limiter.
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.backend, &other.backend) {
            (LimiterBackend::Memory(one), LimiterBackend::Memory(other)) => Arc::ptr_eq(one, other),
            #[cfg(feature = "tokio")]
            (LimiterBackend::Store(one), LimiterBackend::Store(other)) => Arc::ptr_eq(one, other),
            #[cfg(feature = "tokio")]
            _ => false,
        }
    }

    /// One key, for a stream that owns it.
    #[cfg(feature = "stream")]
    pub(crate) fn local_backend<K: LimitKey + ?Sized>(&self, key: &K) -> Result<LocalBackend, BuildError> {
        match &self.backend {
            LimiterBackend::Memory(memory) => {
                let owner = memory.fingerprint(key);
                let tier = memory.tier_for(owner, FIRST_TIER);
                Ok(LocalBackend::Key { memory: memory.clone(), owner, tier })
            }
            LimiterBackend::Store(remote) => {
                let quota = remote.quotas().into_iter().next().ok_or(BuildError::NoQuota)?;
                Err(BuildError::unsupported_quota(&quota, "a limiter in memory"))
            }
        }
    }

    fn from_memory(memory: MemoryLimiter) -> Self {
        Self { backend: LimiterBackend::Memory(Arc::new(memory)) }
    }

    #[inline]
    pub(crate) fn memory(&self) -> Option<&MemoryLimiter> {
        match &self.backend {
            LimiterBackend::Memory(memory) => Some(memory),
            #[cfg(feature = "tokio")]
            LimiterBackend::Store(_) => None,
        }
    }
}

/// With a store.
#[cfg(feature = "tokio")]
impl Limiter {
    /// Whether the limiter uses this store, or memory for `None`.
    pub fn uses_store(&self, store: Option<&Arc<dyn Store>>) -> bool {
        match (self.remote(), store) {
            (Some(remote), Some(store)) => Arc::ptr_eq(remote.store(), store),
            (None, None) => true,
            _ => false,
        }
    }

    /// The most tokens of one key that can expire unspent in this process; zero without prefetch.
    pub fn max_stranded_tokens(&self) -> u64 {
        self.remote().map_or(0, |remote| remote.max_stranded_tokens())
    }

    /// The number of decisions made without the store because it was unavailable.
    pub fn degraded_count(&self) -> u64 {
        self.remote().map_or(0, |remote| remote.degraded_count())
    }

    fn from_remote(remote: RemoteLimiter) -> Self {
        Self { backend: LimiterBackend::Store(Arc::new(remote)) }
    }

    fn remote(&self) -> Option<&Arc<RemoteLimiter>> {
        match &self.backend {
            LimiterBackend::Memory(_) => None,
            LimiterBackend::Store(remote) => Some(remote),
        }
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quotas: Vec<_> = self.quotas().iter().map(ToString::to_string).collect();
        let mut debug = f.debug_struct("Limiter");
        debug.field("quotas", &quotas);
        match &self.backend {
            LimiterBackend::Memory(memory) => debug.field("clock", memory.clock()),
            #[cfg(feature = "tokio")]
            LimiterBackend::Store(remote) => debug.field("store", remote.store()),
        };
        debug.finish_non_exhaustive()
    }
}
