//! Settings of limiters, and why one could not be made.

#[cfg(feature = "tokio")]
use super::{FailureMode, TokenPrefetch, remote::RemoteLimiter};
use super::{FullListener, Limiter, MemoryLimiter, Overflow, TableSize};
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

/// How much memory a limiter may take, fixed when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capacity {
    /// Room for this many keys that are limited at the same time.
    Keys(u64),
    /// As many keys as fit in this many bytes.
    Bytes(u64),
}

/// Memory that a limiter takes at most unless told otherwise; untouched parts of it cost nothing.
const DEFAULT_CAPACITY: Capacity = Capacity::Bytes(64 << 20);
/// Places in a waiting line unless told otherwise.
const DEFAULT_MAX_WAITERS: usize = 1_024;

/// Settings of a [`Limiter`] or a [`DirectLimiter`].
#[derive(Clone, Debug)]
pub struct LimiterBuilder {
    clock: Option<Clock>,
    capacity: Capacity,
    overflow: Overflow,
    on_full: Option<FullListener>,
    denied_capacity: usize,
    max_waiters: usize,
    waiter_ttl: Micros,
    /// What the limiter that this one replaces counts, and how it knows its keys.
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
            predecessor: None,
            #[cfg(feature = "tokio")]
            remote_settings: RemoteSettings::default(),
        }
    }
}

/// Where state lives.
#[cfg(feature = "tokio")]
impl LimiterBuilder {
    /// The name of the limiter in its store: all processes that share the store use the same one for the same purpose.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.remote_settings.name);
        self
    }

    /// The store; the memory of this process by default. A limiter in a store needs a [name](Self::name).
    #[must_use]
    pub fn store(self, store: impl Store) -> Self {
        self.shared_store(Arc::new(store))
    }

    /// The same, for a store that several limiters have: only these are decided together in one round trip.
    #[must_use]
    pub fn shared_store(mut self, store: Arc<dyn Store>) -> Self {
        self.remote_settings.store = Some(store);
        self
    }

    /// What is decided while the store is unavailable.
    #[must_use]
    pub fn failure_mode(mut self, mode: FailureMode) -> Self {
        self.remote_settings.failure_mode = mode;
        self
    }

    /// How keys in a store carry over what they used when another process, or an earlier one, had other quotas.
    #[must_use]
    pub fn carry_over(mut self, carry_over: CarryOver) -> Self {
        self.remote_settings.carry_over = carry_over;
        self
    }

    /// Takes tokens of busy keys ahead and spends them in this process: a decision then costs no round trip. What is
    /// admitted stays within the bound that [`Limiter::bounds`] returns. Not for permits, tiers and limiters in memory.
    #[must_use]
    pub fn prefetch(mut self, ahead: TokenPrefetch) -> Self {
        self.remote_settings.prefetch = Some(ahead);
        self
    }
}

impl LimiterBuilder {
    /// The clock; the machine's exact one by default. A limiter in a store counts by the clock of the store, and waits by this one.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// The hard bound on memory; 64 MiB unless told otherwise.
    #[must_use]
    pub fn capacity(self, capacity: Capacity) -> Self {
        Self { capacity, ..self }
    }

    /// What happens to new keys when there is no room.
    #[must_use]
    pub fn overflow(self, overflow: Overflow) -> Self {
        Self { overflow, ..self }
    }

    /// Has a full table told of: when a key finds no room, and then once a minute as long as that happens. The listener is called
    /// in the middle of a decision: it must not take long, and must not ask this limiter.
    #[must_use]
    pub fn on_full(self, listener: impl Fn(TableSize) + Send + Sync + 'static) -> Self {
        Self { on_full: Some(FullListener(Arc::new(listener))), ..self }
    }

    /// Watches which keys [`Limiter::check`] and [`Limiter::check_cost`] deny most, keeping the names of up to `keys`
    /// of them.
    #[must_use]
    pub fn track_denied(self, keys: usize) -> Self {
        Self { denied_capacity: keys, ..self }
    }

    /// How many callers may wait in line, over all keys; 1024 unless told otherwise.
    #[must_use]
    pub fn max_waiters(self, max_waiters: usize) -> Self {
        Self { max_waiters, ..self }
    }

    /// How long a caller may stand in line at the longest, whatever deadline it came with.
    #[must_use]
    pub fn waiter_ttl(self, ttl: Duration) -> Self {
        Self { waiter_ttl: ttl.into(), ..self }
    }

    /// Makes room for what another limiter knows, so that the new one can [take it over](Limiter::take_over). For changes that a limiter
    /// cannot make while it runs: another algorithm, other windows, a longer log, more or fewer quotas.
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

    /// The same table, for what a process counts beside a store, on the clock of the machine.
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

    /// A limiter of one quota.
    pub fn build<Q>(self, quota: Q) -> Result<Limiter, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        let quota = quota.try_into()?;
        self.build_all(&[quota])
    }

    /// A limiter of several quotas, charged together or not at all.
    pub fn build_all(self, quotas: &[Quota]) -> Result<Limiter, BuildError> {
        self.build_selection(quotas, QuotaSelection::All)
    }

    /// A limiter of several tiers: each call says by which of them a key is limited, see [`crate::Bucket::tier`].
    /// A key that changes its tier keeps what it has used. All tiers count by the same algorithm; none takes tokens ahead.
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
        Self::refuse_mixed_tiers(quotas)?;
        self.build_selection(quotas, QuotaSelection::Tier)
    }

    fn refuse_mixed_tiers(quotas: &[Quota]) -> Result<(), BuildError> {
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

    /// What counts in memory, wherever the limiter is to count.
    pub(crate) fn build_memory(
        self,
        quotas: &[Quota],
        selection: QuotaSelection,
    ) -> Result<MemoryLimiter, BuildError> {
        let layout = match selection {
            QuotaSelection::All => StateLayout::All,
            QuotaSelection::Tier => StateLayout::Tiers,
        };
        if quotas.is_empty() {
            return Err(BuildError::NoQuota);
        }
        let (former, hasher) = self.predecessor.clone().unwrap_or_default();
        let width = KeyTable::state_len(quotas, layout, &former);
        let keys = match self.capacity {
            Capacity::Keys(keys) => keys,
            Capacity::Bytes(bytes) => CellTable::keys_for(bytes, width),
        };
        if keys == 0 {
            return Err(BuildError::ZeroCapacity);
        }
        let lines = self.wait_queues(wait_policy(quotas));
        let clock = self.clock.unwrap_or_default();
        let mut space = KeyTable::new(quotas, layout, keys, clock.now(), &former)
            .map_err(|error| BuildError::OutOfMemory { keys, bytes: error.bytes })?;
        if let Some(listener) = self.on_full {
            space.set_listener(listener);
        }
        let counts_permits = quotas.iter().any(|quota| matches!(quota.kind(), AlgorithmKind::Concurrency(_)));
        let overflow = if counts_permits { Overflow::Deny } else { self.overflow };
        let denied = (self.denied_capacity > 0).then(|| DeniedKeys::new(self.denied_capacity));
        Ok(MemoryLimiter::from_parts(space, clock, hasher, overflow, denied, lines))
    }

    /// The clock, if it is not to be the machine's.
    #[cfg(feature = "tokio")]
    pub(super) fn configured_clock(&self) -> Option<Clock> {
        self.clock.clone()
    }

    #[cfg(feature = "tokio")]
    pub(super) fn remote_settings(&self) -> &RemoteSettings {
        &self.remote_settings
    }

    /// Lines with as many places as were asked for.
    pub(crate) fn wait_queues(&self, manner: WaitPolicy) -> WaitQueues {
        WaitQueues::new(manner, self.max_waiters, self.waiter_ttl)
    }

    /// A throttle: one bucket, no keys.
    pub(crate) fn build_direct(self, quota: Quota) -> Result<DirectLimiter, BuildError> {
        let clock = self.clock.clone().unwrap_or_default();
        let lines = self.wait_queues(wait_policy(&[quota]));
        DirectLimiter::from_parts(quota, clock, lines)
    }
}

/// Shapers promise a time to each caller; with any other quota callers stand in line.
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

/// Why a limiter could not be made or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// The quota is not one.
    Quota(QuotaError),
    /// A setting makes no sense.
    Setting(SettingError),
    /// No quota was given.
    NoQuota,
    /// A limiter in a store has no name.
    NoName,
    /// The capacity leaves no room for a single key.
    ZeroCapacity,
    /// The machine has not the memory that was asked for.
    OutOfMemory {
        /// Keys that the limiter was to hold.
        keys: u64,
        /// What they would have taken.
        bytes: u64,
    },
    /// A quota that counts something else than what it is given for.
    UnsupportedQuota {
        /// What was given.
        quota: String,
        /// What is needed.
        expected: &'static str,
    },
    /// Tiers that count by different algorithms.
    MixedTiers {
        /// The first tier.
        first: String,
        /// One that does not fit it.
        other: String,
    },
    /// A running limiter cannot take this quota.
    IncompatibleQuota {
        /// What it counts.
        old: String,
        /// What it was to count.
        new: String,
    },
}

impl BuildError {
    /// A quota of the wrong kind.
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
            Self::NoQuota => f.write_str("no quota was given; give at least one"),
            Self::NoName => {
                f.write_str("a limiter in a store needs a name; give one with `LimiterBuilder::name`")
            }
            Self::ZeroCapacity => f.write_str("a capacity of zero keys; give room for at least one"),
            Self::OutOfMemory { keys, bytes } => {
                write!(
                    f,
                    "{keys} keys would take {bytes} bytes, more than there are; give a smaller capacity"
                )
            }
            Self::UnsupportedQuota { quota, expected: wanted } => {
                write!(f, "`{quota}` does not fit here; give {wanted}")
            }
            Self::MixedTiers { first, other } => {
                write!(
                    f,
                    "tiers `{first}` and `{other}` count by different algorithms; use one for all tiers"
                )
            }
            Self::IncompatibleQuota { old, new } => {
                write!(f, "`{old}` cannot become `{new}` while running; make a new limiter for it")
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

/// A quota that was made in code is one already.
impl From<Infallible> for BuildError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
