//! One quota or several for many keys, counted in memory or in a store.
//!
//! | file | holds |
//! |---|---|
//! | `build.rs` | settings, and why a limiter could not be made |
//! | `bucket.rs`, `blocking.rs` | one key: for tasks, and for threads that can wait |
//! | `batch.rs` | one decision over several limiters |
//! | `reservation.rs`, `permit.rs` | what was taken, and is settled or given back |
//! | `memory.rs`, `local.rs`, `local_reservation.rs` | the backend in memory |
//! | `remote.rs`, `outage.rs`, `prefetch.rs`, `line.rs` | the backend in a store |

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
pub(crate) use memory::{FullListener, LocalCheck, MemoryLimiter};
pub use memory::{KeyId, LimiterStats, Overflow, TableSize};
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
use tidegate_core::{CarryOver, Decision, Quota};

/// Limits many keys by one quota or several, in memory or in a store that a fleet shares. Clones are the same limiter.
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
/// A key is anything that can be hashed and written out; it is neither cloned nor kept. Memory is bounded from the
/// start (see [`LimiterBuilder::capacity`]), and keys whose state has expired make room by themselves.
///
/// | to | use |
/// |---|---|
/// | take now or not at all | [`check`](Self::check); with a store in a task, [`decide`](Self::decide) |
/// | do anything else with one key in a task | [`key`](Self::key): a [`Bucket`] |
/// | do the same in a thread that can wait | [`blocking`](Self::blocking) |
/// | decide over several limiters at once | [`prepare`](Self::prepare), `decide_all`, `reserve_all` |
///
/// The same declaration gives the same decisions in memory and in a store. One line moves it there:
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

/// Where a limiter counts.
#[derive(Clone)]
enum LimiterBackend {
    Memory(Arc<MemoryLimiter>),
    #[cfg(feature = "tokio")]
    Store(Arc<RemoteLimiter>),
}

/// The tier of a call that chooses none; where there are no tiers, all quotas apply to it.
const FIRST_TIER: usize = 0;

impl Limiter {
    /// A limiter of one quota, on the machine's clock, in memory with the default bound.
    pub fn new<Q>(quota: Q) -> Result<Self, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        Self::builder().build(quota)
    }

    /// A limiter with settings of its own.
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder::default()
    }

    /// Takes one token for `key`, now or not at all; see [`check_cost`](Self::check_cost).
    #[inline]
    pub fn check<K: LimitKey + ?Sized>(&self, key: &K) -> Decision {
        self.check_cost(key, 1)
    }

    /// Takes `cost` tokens for `key`, now or not at all. A cost of zero takes nothing: it is a peek.
    ///
    /// In memory it never waits. With a store it blocks this thread until the store answers; use [`decide`](Self::decide) in a task.
    #[inline]
    pub fn check_cost<K: LimitKey + ?Sized>(&self, key: &K, cost: u64) -> Decision {
        match &self.backend {
            LimiterBackend::Memory(memory) => memory.check_cost(key, cost),
            #[cfg(feature = "tokio")]
            LimiterBackend::Store(_) => self.check_in_store(key, cost),
        }
    }

    /// Kept apart, so that what counts in memory stays small.
    #[cfg(feature = "tokio")]
    #[inline(never)]
    fn check_in_store<K: LimitKey + ?Sized>(&self, key: &K, cost: u64) -> Decision {
        self.blocking().key(key).check(cost)
    }

    /// Takes `cost` tokens for `key`, now or not at all, without blocking a thread. A cost of zero takes nothing: it is a peek.
    #[cfg(feature = "tokio")]
    pub async fn decide(&self, key: &str, cost: u64) -> Decision {
        match &self.backend {
            LimiterBackend::Memory(memory) => memory.check_cost(key, cost),
            LimiterBackend::Store(remote) => match remote.spend(key, cost) {
                Some(decision) => decision,
                None => remote.check_store(key, cost).await,
            },
        }
    }

    /// The bucket of one key, for everything else that can be done with it.
    pub fn key<K: LimitKey + ?Sized>(&self, key: &K) -> Bucket {
        match &self.backend {
            LimiterBackend::Memory(memory) => {
                let owner = memory.fingerprint(key);
                Bucket::local(LocalBackend::Key { memory: memory.clone(), owner, tier: FIRST_TIER })
            }
            #[cfg(feature = "tokio")]
            LimiterBackend::Store(remote) => Bucket::from_remote(remote.clone(), key.to_string()),
        }
    }

    /// The limiter for threads that can wait.
    #[inline]
    pub fn blocking(&self) -> BlockingLimiter<'_> {
        BlockingLimiter::new(self)
    }

    /// What stands for a key, for whoever asks of it later or more than once; `None` if it is counted in a store.
    #[inline]
    pub fn key_id<K: LimitKey + ?Sized>(&self, key: &K) -> Option<KeyId> {
        self.memory().map(|memory| KeyId(memory.fingerprint(key)))
    }

    /// The bucket of the key that `mark` stands for, which must come from this limiter. It counts under this tier, or under
    /// the first if there is no such tier. `None` if the limiter counts in a store.
    #[inline]
    pub fn bucket_by_id(&self, mark: KeyId, tier: usize) -> Option<KeyIdBucket<'_>> {
        let bucket = LocalBucket::for_key(self.memory()?, mark.0, FIRST_TIER);
        Some(KeyIdBucket(match tier {
            FIRST_TIER => bucket,
            tier => bucket.tier(tier).unwrap_or(bucket),
        }))
    }

    /// Replaces the quota while running. Every key keeps its history, carried over as `how` says.
    ///
    /// In memory the new quota must be of the same algorithm and windows, and need no more state than the old one. For anything else make a new limiter
    /// that [replaces](LimiterBuilder::predecessor) this one.
    ///
    /// # Compared with Go's `golang.org/x/time/rate`
    ///
    /// A change of the rate alone does what `SetLimit` does, to the microsecond. A change of the burst differs from `SetBurst`
    /// by the difference of the bursts, so by one token where the burst changes by one: Go keeps the tokens that are
    /// available, and here the tokens that were used stay used. A quota without `burst` has the burst of its amount: from
    /// `5/s` to `10/s` both change; write `10/s burst 5` to change the rate alone. A reservation that was made before the change
    /// gives nothing back when it is cancelled after it; in Go it does.
    ///
    /// ```
    /// use tidegate_core::CarryOver;
    /// use tidegate_limiter::Limiter;
    ///
    /// let limiter = Limiter::new("1/h burst 1")?;
    /// assert!(limiter.check("alice").is_allowed());
    /// assert!(!limiter.check("alice").is_allowed());
    /// limiter.change("1/h burst 2", CarryOver::default())?;
    /// assert!(limiter.check("alice").is_allowed(), "one of two is used; Go waits for an hour");
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

    /// Replaces all quotas while running, one by one in the order they were given; see [`change`](Self::change). In a store keys carry
    /// over what they used when they are next asked for.
    pub fn change_all(&self, quotas: &[Quota], how: CarryOver) -> Result<(), BuildError> {
        match &self.backend {
            LimiterBackend::Memory(memory) => memory.change_all(quotas, how),
            #[cfg(feature = "tokio")]
            LimiterBackend::Store(remote) => remote.change_all(quotas, how),
        }
    }

    /// Whether [`change_all`](Self::change_all) can be done, and if not, why. Changes nothing.
    pub fn can_change_all(&self, quotas: &[Quota]) -> Result<(), BuildError> {
        match &self.backend {
            LimiterBackend::Memory(memory) => memory.can_change_all(quotas),
            #[cfg(feature = "tokio")]
            LimiterBackend::Store(remote) => remote.can_change_all(quotas),
        }
    }

    /// Takes over what `old` knows of its keys, for a limiter that was built to [replace](LimiterBuilder::predecessor) it. Keys keep
    /// what they used under quotas that share a state with those of `old`; what other quotas of `old` counted is kept for the case
    /// that they come back. Where this table is too small for all keys, those that have used least are forgotten first, and limited
    /// ones are kept.
    ///
    /// In a store, which keeps its counts by itself, it goes on with what this process has counted beside the store.
    pub fn take_over(&self, old: &Self) {
        match (&self.backend, &old.backend) {
            (LimiterBackend::Memory(new), LimiterBackend::Memory(old)) => new.take_over(old),
            #[cfg(feature = "tokio")]
            (LimiterBackend::Store(new), LimiterBackend::Store(old)) => new.take_over(old),
            #[cfg(feature = "tokio")]
            _ => {}
        }
    }

    /// How many tiers a call can choose from; one unless it was built with [`LimiterBuilder::build_tiers`].
    pub fn tiers(&self) -> usize {
        match &self.backend {
            LimiterBackend::Memory(memory) => memory.tiers(),
            #[cfg(feature = "tokio")]
            LimiterBackend::Store(remote) => remote.tiers(),
        }
    }

    /// The quotas that keys are limited by: all of them together, or one of the tiers.
    pub fn quotas(&self) -> Vec<Quota> {
        match &self.backend {
            LimiterBackend::Memory(memory) => memory.quotas(),
            #[cfg(feature = "tokio")]
            LimiterBackend::Store(remote) => remote.quotas(),
        }
    }

    /// The worst case of each quota, outages of the store included; on the clock of the store, or of the limiter in memory.
    pub fn bounds(&self) -> Vec<FleetBound> {
        match &self.backend {
            LimiterBackend::Memory(memory) => {
                let bound = |usual| FleetBound { normal: usual, during_outage: OutageBound::NoStore };
                memory.bounds().into_iter().map(bound).collect()
            }
            #[cfg(feature = "tokio")]
            LimiterBackend::Store(remote) => remote.bounds(),
        }
    }

    /// How full the table in memory is; `None` with a store. Looks at every cell: for operators, not for every request.
    pub fn stats(&self) -> Option<LimiterStats> {
        self.memory().map(MemoryLimiter::stats)
    }

    /// How large the table in memory is; `None` with a store. It costs nothing; [`stats`](Self::stats) says more.
    pub fn size(&self) -> Option<TableSize> {
        self.memory().map(MemoryLimiter::size)
    }

    /// The keys that [`check`](Self::check) and [`check_cost`](Self::check_cost) denied most often in memory, if the limiter watches
    /// them ([`LimiterBuilder::track_denied`]).
    pub fn top_denied(&self) -> Vec<DeniedKey> {
        self.memory().map(MemoryLimiter::top_denied).unwrap_or_default()
    }

    /// Whether it counts in memory.
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
                Ok(LocalBackend::Key { memory: memory.clone(), owner, tier: FIRST_TIER })
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
    /// Whether it counts in this store, or in memory if that is none.
    pub fn uses_store(&self, store: Option<&Arc<dyn Store>>) -> bool {
        match (self.remote(), store) {
            (Some(remote), Some(store)) => Arc::ptr_eq(remote.store(), store),
            (None, None) => true,
            _ => false,
        }
    }

    /// The most tokens of one key that this process can let expire unspent; zero unless it takes tokens ahead.
    pub fn max_stranded_tokens(&self) -> u64 {
        self.remote().map_or(0, |remote| remote.max_stranded_tokens())
    }

    /// How many decisions were made without the store that should have made them.
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
