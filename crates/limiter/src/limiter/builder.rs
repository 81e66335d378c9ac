//! Settings of limiters and build errors.

#[cfg(feature = "tokio")]
use super::{FailureMode, TokenPrefetch, remote::RemoteLimiter};
use super::{Limiter, MemoryLimiter, Overflow, TableFullListener, TableSize};
#[cfg(feature = "tokio")]
use crate::store::Store;
use crate::{
    clock::Clock,
    denied::DeniedKeys,
    direct::DirectLimiter,
    memory::{CellTable, KeyTable, PreviousState, StateLayout},
    store::QuotaSelection,
    wait::{WaitPolicy, WaitQueues},
};
use std::{convert::Infallible, error, fmt, sync::Arc, time::Duration};
#[cfg(feature = "tokio")]
use tidegate_core::CarryOver;
use tidegate_core::{AlgorithmKind, Micros, Quota, QuotaError, SettingError};

/// The memory that a limiter can use, fixed when it is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capacity {
    /// Cells for this number of keys that are limited at the same time.
    Keys(u64),
    /// As many keys as fit in this number of bytes.
    Bytes(u64),
}

/// The default memory bound; untouched pages of it are not resident.
const DEFAULT_CAPACITY: Capacity = Capacity::Bytes(64 << 20);
/// The default number of waiting callers.
const DEFAULT_MAX_WAITERS: usize = 1_024;

/// Settings of a [`Limiter`] or a [`DirectLimiter`].
#[derive(Clone, Debug)]
pub struct LimiterBuilder {
    clock: Option<Clock>,
    capacity: Capacity,
    overflow: Overflow,
    on_full: Option<TableFullListener>,
    denied_capacity: usize,
    max_waiters: usize,
    waiter_ttl: Micros,
    is_overridable: bool,
    /// The states and the hasher of the limiter that this one replaces.
    predecessor: Option<(Vec<PreviousState>, foldhash::quality::RandomState)>,
    #[cfg(feature = "tokio")]
    remote_settings: RemoteSettings,
}

/// Settings of a limiter in a store.
#[cfg(feature = "tokio")]
#[derive(Clone, Debug, Default)]
pub(super) struct RemoteSettings {
    pub(super) name: String,
    pub(super) store: Option<Arc<dyn Store>>,
    pub(super) failure_mode: FailureMode,
    pub(super) carry_over: CarryOver,
    pub(super) prefetch: Option<TokenPrefetch>,
}

impl Default for LimiterBuilder {
    fn default() -> Self {
        Self {
            clock: None,
            capacity: DEFAULT_CAPACITY,
            overflow: Overflow::default(),
            on_full: None,
            denied_capacity: 0,
            max_waiters: DEFAULT_MAX_WAITERS,
            waiter_ttl: Micros::MAX,
            is_overridable: false,
            predecessor: None,
            #[cfg(feature = "tokio")]
            remote_settings: RemoteSettings::default(),
        }
    }
}

/// Settings for stores.
#[cfg(feature = "tokio")]
impl LimiterBuilder {
    /// Sets the name of the limiter in its store: all processes that share a limit use the same name.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.remote_settings.name);
        self
    }

    /// Sets the store; by default the memory of this process. A limiter in a store needs a [name](Self::name).
    #[must_use]
    pub fn store(self, store: impl Store) -> Self {
        self.shared_store(Arc::new(store))
    }

    /// Like [`store`](Self::store), for a store that several limiters share: one round trip can then decide for all of them.
    #[must_use]
    pub fn shared_store(mut self, store: Arc<dyn Store>) -> Self {
        self.remote_settings.store = Some(store);
        self
    }

    /// Sets the decision made while the store is unavailable.
    #[must_use]
    pub fn failure_mode(mut self, mode: FailureMode) -> Self {
        self.remote_settings.failure_mode = mode;
        self
    }

    /// Sets how keys in a store convert usage that was counted under other quotas, by another or an earlier process.
    #[must_use]
    pub fn carry_over(mut self, carry_over: CarryOver) -> Self {
        self.remote_settings.carry_over = carry_over;
        self
    }

    /// Prefetches tokens of busy keys and spends them in this process, without a round trip per decision. The admitted calls
    /// stay within the bound that [`Limiter::bounds`] returns. Not for permits, tiers and limiters in memory.
    #[must_use]
    pub fn prefetch(mut self, ahead: TokenPrefetch) -> Self {
        self.remote_settings.prefetch = Some(ahead);
        self
    }
}

impl LimiterBuilder {
    /// Sets the clock; by default [`Clock::system`]. A limiter in a store counts by the clock of the store, and waits by this
    /// one.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// Sets the hard bound on memory; by default 64 MiB.
    #[must_use]
    pub fn capacity(self, capacity: Capacity) -> Self {
        Self { capacity, ..self }
    }

    /// Sets what happens to new keys when the table is full.
    #[must_use]
    pub fn overflow(self, overflow: Overflow) -> Self {
        Self { overflow, ..self }
    }

    /// Calls `listener` when a key finds the table full, and then at most once a minute while that continues. The call happens
    /// inside a decision: the listener must return quickly and must not use this limiter.
    #[must_use]
    pub fn on_full(self, listener: impl Fn(TableSize) + Send + Sync + 'static) -> Self {
        Self { on_full: Some(TableFullListener(Arc::new(listener))), ..self }
    }

    /// Tracks the keys that [`Limiter::check`] and [`Limiter::check_cost`] deny most often, with the names of up to `keys` of
    /// them.
    #[must_use]
    pub fn track_denied(self, keys: usize) -> Self {
        Self { denied_capacity: keys, ..self }
    }

    /// Sets the maximum number of waiting callers over all keys; by default 1024.
    #[must_use]
    pub fn max_waiters(self, max_waiters: usize) -> Self {
        Self { max_waiters, ..self }
    }

    /// Sets the longest time that a caller can wait in the queue, independent of its own deadline.
    #[must_use]
    pub fn waiter_ttl(self, ttl: Duration) -> Self {
        Self { waiter_ttl: ttl.into(), ..self }
    }

    /// Lets keys have quotas of their own; see [`Limiter::apply_overrides`]. Without effect for a limiter of several quotas that
    /// all apply. In memory, a key then needs as much memory as with tiers.
    #[must_use]
    pub fn overridable(self) -> Self {
        Self { is_overridable: true, ..self }
    }

    /// Reserves space for the state of another limiter, so that the new one can [take it over](Limiter::take_over). For changes
    /// that are not possible at run time: another algorithm, other windows, a longer log, more or fewer quotas.
    #[must_use]
    pub fn predecessor(self, old: &Limiter) -> Self {
        match old.memory() {
            Some(old) => self.memory_predecessor(old),
            None => self,
        }
    }

    pub(super) fn memory_predecessor(self, old: &MemoryLimiter) -> Self {
        Self { predecessor: Some((old.key_table().previous_states(), old.hasher())), ..self }
    }

    /// The same settings for the in-memory fallback of a limiter in a store, on the system clock.
    #[cfg(feature = "tokio")]
    pub(super) fn for_fallback(self) -> Self {
        Self {
            clock: None,
            denied_capacity: 0,
            predecessor: None,
            remote_settings: RemoteSettings::default(),
            ..self
        }
    }

    /// Builds a limiter of one quota.
    pub fn build<Q>(self, quota: Q) -> Result<Limiter, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        let quota = quota.try_into()?;
        self.build_all(&[quota])
    }

    /// Builds a limiter of several quotas, charged together or not at all.
    pub fn build_all(self, quotas: &[Quota]) -> Result<Limiter, BuildError> {
        self.build_selection(quotas, QuotaSelection::All)
    }

    /// Builds a limiter of several tiers: each call selects one, see [`crate::Bucket::tier`]. A key that changes its tier
    /// keeps its usage. All tiers use the same algorithm; prefetch does not apply to them.
    ///
    /// ```
    /// use tidegate_limiter::Limiter;
    ///
    /// let (free, pro) = (0, 1);
    /// let limiter = Limiter::builder().build_tiers(&["2/min".parse()?, "100/min".parse()?])?;
    /// let alice = limiter.blocking().key("alice");
    /// assert!(alice.tier(free).unwrap().check(2).is_allowed());
    /// assert!(!alice.tier(free).unwrap().check(1).is_allowed());
    /// assert_eq!(alice.tier(pro).unwrap().peek(1).remaining(), 98);
    /// # Ok::<(), tidegate_limiter::BuildError>(())
    /// ```
    pub fn build_tiers(self, quotas: &[Quota]) -> Result<Limiter, BuildError> {
        Self::reject_mixed_tiers(quotas)?;
        self.build_selection(quotas, QuotaSelection::Tier)
    }

    fn reject_mixed_tiers(quotas: &[Quota]) -> Result<(), BuildError> {
        let Some((first, rest)) = quotas.split_first() else { return Err(BuildError::NoQuota) };
        match rest.iter().find(|quota| quota.kind().name() != first.kind().name()) {
            None => Ok(()),
            Some(other) => Err(BuildError::MixedTiers { first: first.to_string(), other: other.to_string() }),
        }
    }

    fn build_selection(self, quotas: &[Quota], selection: QuotaSelection) -> Result<Limiter, BuildError> {
        #[cfg(feature = "tokio")]
        if let Some(store) = self.remote_settings.store.clone() {
            return RemoteLimiter::build(self, store, quotas, selection).map(Limiter::from_remote);
        }
        self.build_memory(quotas, selection).map(Limiter::from_memory)
    }

    /// Builds the limiter in memory, also as the fallback of a limiter in a store.
    pub(crate) fn build_memory(
        self,
        quotas: &[Quota],
        selection: QuotaSelection,
    ) -> Result<MemoryLimiter, BuildError> {
        let is_overridable = self.has_overrides(quotas, selection);
        let layout = match selection {
            QuotaSelection::All if !is_overridable => StateLayout::All,
            QuotaSelection::All | QuotaSelection::Tier => StateLayout::Tiers,
        };
        if quotas.is_empty() {
            return Err(BuildError::NoQuota);
        }
        let (previous, hasher) = self.predecessor.clone().unwrap_or_default();
        let state_len = KeyTable::state_len(quotas, layout, &previous);
        let keys = match self.capacity {
            Capacity::Keys(keys) => keys,
            Capacity::Bytes(bytes) => CellTable::keys_for(bytes, state_len),
        };
        if keys == 0 {
            return Err(BuildError::ZeroCapacity);
        }
        let wait_queues = self.wait_queues(wait_policy(quotas));
        let clock = self.clock.unwrap_or_default();
        let mut key_table = KeyTable::new(quotas, layout, keys, clock.now(), &previous)
            .map_err(|error| BuildError::OutOfMemory { keys, bytes: error.bytes })?;
        if let Some(listener) = self.on_full {
            key_table.set_listener(listener);
        }
        // A permit of a replaced key could not be released, and a replaced key would get its whole total again.
        let has_rates = quotas.iter().all(|quota| quota.rate().is_some());
        let overflow = if has_rates { self.overflow } else { Overflow::Deny };
        let denied = (self.denied_capacity > 0).then(|| DeniedKeys::new(self.denied_capacity));
        let limiter = MemoryLimiter::from_parts(key_table, clock, hasher, overflow, denied, wait_queues);
        Ok(if is_overridable { limiter.with_overrides() } else { limiter })
    }

    /// Whether a limiter of these quotas has overrides.
    pub(super) fn has_overrides(&self, quotas: &[Quota], selection: QuotaSelection) -> bool {
        self.is_overridable && (selection == QuotaSelection::Tier || quotas.len() == 1)
    }

    /// The clock that was set, if any.
    #[cfg(feature = "tokio")]
    pub(super) fn configured_clock(&self) -> Option<Clock> {
        self.clock.clone()
    }

    #[cfg(feature = "tokio")]
    pub(super) fn remote_settings(&self) -> &RemoteSettings {
        &self.remote_settings
    }

    /// The wait queues with the configured bounds.
    pub(crate) fn wait_queues(&self, policy: WaitPolicy) -> WaitQueues {
        WaitQueues::new(policy, self.max_waiters, self.waiter_ttl)
    }

    /// Builds a limiter without keys.
    pub(crate) fn build_direct(self, quota: Quota) -> Result<DirectLimiter, BuildError> {
        let clock = self.clock.clone().unwrap_or_default();
        let wait_queues = self.wait_queues(wait_policy(&[quota]));
        DirectLimiter::from_parts(quota, clock, wait_queues)
    }
}

/// Shapers assign a time to each caller; with any other quota callers wait in a queue.
fn wait_policy(quotas: &[Quota]) -> WaitPolicy {
    let shapes = |quota: &Quota| {
        matches!(
            quota.kind(),
            AlgorithmKind::LeakyBucket(_) | AlgorithmKind::Smooth(_) | AlgorithmKind::WarmUp(_)
        )
    };
    match quotas.iter().any(shapes) {
        true => WaitPolicy::Reserve,
        false => WaitPolicy::Queue,
    }
}

/// Why a limiter could not be built or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// The quota is invalid.
    Quota(QuotaError),
    /// A setting is invalid.
    Setting(SettingError),
    /// No quota was given.
    NoQuota,
    /// A limiter in a store has no name.
    NoName,
    /// The capacity does not fit a single key.
    ZeroCapacity,
    /// The memory for the table could not be allocated.
    OutOfMemory {
        /// The number of keys.
        keys: u64,
        /// The size of the table in bytes.
        bytes: u64,
    },
    /// The quota has a kind that is not supported here.
    UnsupportedQuota {
        /// The given quota.
        quota: String,
        /// The kind that is supported.
        expected: &'static str,
    },
    /// The tiers use different algorithms.
    MixedTiers {
        /// The first tier.
        first: String,
        /// A tier with another algorithm.
        other: String,
    },
    /// The quota cannot be changed at run time.
    IncompatibleQuota {
        /// The current quotas.
        old: String,
        /// The requested quotas.
        new: String,
    },
}

impl BuildError {
    /// The error for a quota of an unsupported kind.
    #[doc(hidden)]
    pub fn unsupported_quota(quota: &Quota, expected: &'static str) -> Self {
        Self::UnsupportedQuota { quota: quota.to_string(), expected }
    }

    #[doc(hidden)]
    pub fn incompatible_quota(old: &[Quota], new: &[Quota]) -> Self {
        let list =
            |quotas: &[Quota]| quotas.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
        Self::IncompatibleQuota { old: list(old), new: list(new) }
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quota(error) => error.fmt(f),
            Self::Setting(error) => error.fmt(f),
            Self::NoQuota => f.write_str("no quota; add at least one"),
            Self::NoName => {
                f.write_str("a limiter in a store needs a name; set one with `LimiterBuilder::name`")
            }
            Self::ZeroCapacity => f.write_str("capacity is zero keys; set at least one"),
            Self::OutOfMemory { keys, bytes } => {
                write!(f, "{keys} keys need {bytes} bytes, which cannot be allocated; set a smaller capacity")
            }
            Self::UnsupportedQuota { quota, expected } => {
                write!(f, "quota `{quota}` is not supported here; use {expected}")
            }
            Self::MixedTiers { first, other } => {
                write!(f, "tiers `{first}` and `{other}` use different algorithms; use one for all tiers")
            }
            Self::IncompatibleQuota { old, new } => {
                write!(f, "cannot change `{old}` to `{new}` at run time; build a new limiter")
            }
        }
    }
}

impl error::Error for BuildError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Quota(error) => Some(error),
            Self::Setting(error) => Some(error),
            _ => None,
        }
    }
}

impl From<QuotaError> for BuildError {
    fn from(error: QuotaError) -> Self {
        Self::Quota(error)
    }
}

impl From<SettingError> for BuildError {
    fn from(error: SettingError) -> Self {
        Self::Setting(error)
    }
}

/// A quota that is built in code needs no parsing.
impl From<Infallible> for BuildError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
