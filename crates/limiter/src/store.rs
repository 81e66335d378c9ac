//! The interface of stores: limiter state that several processes share.

use std::{
    error, fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};
use tidegate_core::{CarryOver, ChargeResult, Demand, Micros, Quota, Receipt};

/// The default prefix of all keys in a store.
pub const DEFAULT_PREFIX: &str = "tidegate";

/// The default time that a decision waits for a store: long enough that a busy machine does not exceed it by chance.
pub const DEFAULT_DEADLINE: Duration = Duration::from_millis(500);

/// A store that several processes share. It owns the clock and executes each request atomically.
///
/// The memory of this process is not a `Store`, because its decisions need no waiting. A [`Limiter`](crate::Limiter) can
/// use either.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Executes a request, all of it or nothing.
    ///
    /// # Errors
    ///
    /// An error means that the result is unknown. The request may have been executed, but never twice.
    fn execute(&self, request: StoreRequest) -> StoreFuture<Result<StoreReply, StoreError>>;

    /// The quota as this store enforces it: a quota whose slots a crashed holder would block forever gets a lease.
    fn effective_quota(&self, quota: Quota) -> Quota {
        quota
    }

    /// The runtimes that can call this store; by default only the one that created it.
    fn runtime_affinity(&self) -> RuntimeAffinity {
        RuntimeAffinity::CreatingRuntime
    }

    /// Waits until the store can be called for the first time, or fails.
    fn ready(&self) -> StoreFuture<Result<(), StoreError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Waits until the store recovers from an outage, in which it may have lost its state.
    fn wait_recovered(&self) -> StoreFuture<()> {
        Box::pin(std::future::pending())
    }

    /// Records the failure mode of a limiter that uses this store, to report it during an outage.
    #[cfg(feature = "tokio")]
    fn add_failure_mode(&self, _mode: crate::FailureMode) {}

    /// Executes a request about the overrides of all processes that share this store.
    fn overrides(&self, _request: OverrideRequest) -> StoreFuture<Result<OverrideReply, StoreError>> {
        let error = StoreError::ErrorReply("the store keeps no overrides".to_owned());
        Box::pin(std::future::ready(Err(error)))
    }

    /// The error that currently makes limiters decide without this store, if there is one.
    fn last_error(&self) -> Option<String> {
        None
    }
}

/// The runtimes that can call a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeAffinity {
    /// Only the runtime that created it.
    CreatingRuntime,
    /// Any runtime: the store runs on its own runtime what must continue after the caller blocks or is dropped.
    AnyRuntime,
}

/// The future of a store call.
pub type StoreFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The name and the quotas that the keys of one limiter share.
#[derive(Debug)]
pub struct StoreLimit {
    name: String,
    quotas: Vec<Quota>,
    tags: Vec<u16>,
    selection: QuotaSelection,
    carry_over: CarryOver,
    store_tag: AtomicU64,
}

/// Which of several quotas apply to a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuotaSelection {
    /// All of them.
    #[default]
    All,
    /// The one that the call selects.
    Tier,
}

impl StoreLimit {
    /// Creates a limit under a name that all processes of a fleet use.
    pub fn new(name: &str, quotas: Vec<Quota>, selection: QuotaSelection, carry_over: CarryOver) -> Self {
        let tags = quotas.iter().map(Quota::tag).collect();
        Self { name: name.to_owned(), quotas, tags, selection, carry_over, store_tag: AtomicU64::new(0) }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All quotas.
    pub fn quotas(&self) -> &[Quota] {
        &self.quotas
    }

    /// Their tags; see [`Quota::tag`].
    pub fn tags(&self) -> &[u16] {
        &self.tags
    }

    /// Which of the quotas apply to a call.
    pub fn selection(&self) -> QuotaSelection {
        self.selection
    }

    /// A number for the store's own use; initially zero.
    pub fn store_tag(&self) -> &AtomicU64 {
        &self.store_tag
    }

    /// How a key carries over its usage from a changed quota.
    pub fn carry_over(&self) -> CarryOver {
        self.carry_over
    }
}

/// One key of one limiter.
#[derive(Clone, Debug)]
pub struct KeyRef {
    /// The limit that applies to the key.
    pub limit: Arc<StoreLimit>,
    /// The key.
    pub key: String,
    /// The tier that applies, if the limit has tiers.
    pub tier: usize,
}

impl KeyRef {
    /// The indices of the quotas that apply.
    pub fn quota_indices(&self) -> std::ops::Range<usize> {
        match self.limit.selection {
            QuotaSelection::All => 0..self.limit.quotas.len(),
            QuotaSelection::Tier => self.tier..self.tier + 1,
        }
    }
}

/// A check of one key.
#[derive(Clone, Debug)]
pub struct StoreCheck {
    /// The key to check.
    pub key_ref: KeyRef,
    /// The demand: cost, longest wait and effect.
    pub demand: Demand,
    /// Whether slots are acquired or only checked.
    pub permit_mode: PermitMode,
    /// Whether the caller may refund the charge, and so needs a receipt.
    pub receipt: bool,
}

/// What a check does to quotas that limit permits in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermitMode {
    /// Acquires the slots; the caller releases them later.
    Acquire,
    /// Only checks whether a slot is free.
    Peek,
}

/// A request to a store.
#[derive(Clone, Debug)]
pub enum StoreRequest {
    /// Decide all checks; charge all or none. All of them have the same effect.
    Decide(Vec<StoreCheck>),
    /// Take as many tokens as are available, up to the cost of the demand.
    TakeUpTo(StoreCheck),
    /// Refund up to `cost` of a charge.
    Refund {
        /// The key that was charged.
        key_ref: KeyRef,
        /// The charge.
        charge: StoreCharge,
        /// How much to refund.
        cost: u64,
    },
    /// Reset a key.
    Reset(KeyRef),
    /// Extend the lease of a charge.
    Renew {
        /// The key that was charged.
        key_ref: KeyRef,
        /// The receipt of the charge.
        receipt: Receipt,
    },
}

/// A request about the overrides of all processes that share a store. The store does not read them, except for the number of
/// the change, which it adds as the first member `change`.
#[derive(Clone, Debug)]
pub enum OverrideRequest {
    /// Set or remove an override, if the last change is the expected one.
    Change {
        /// The id of the override.
        id: u64,
        /// The number of the last change, zero if there must be no override; `None` for any.
        expected: Option<u64>,
        /// The change as JSON, without its opening brace and its number.
        members: String,
        /// The end of the override; `None` removes it.
        until: Option<Micros>,
        /// The time of the change.
        now: Micros,
        /// The maximum number of overrides.
        max: usize,
    },
    /// Return the changes after one, in their order.
    ChangesAfter {
        /// The number of the last known change.
        change: u64,
        /// The maximum number of changes in the reply.
        limit: usize,
        /// Whether it is the first of several requests.
        is_first: bool,
    },
    /// Return the last hundred changes, the newest first.
    History,
}

/// The reply to an [`OverrideRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverrideReply {
    /// The change has this number.
    Changed(u64),
    /// The last change is another one: this, as JSON, or none.
    Conflict(Option<String>),
    /// There is no override to remove.
    Absent,
    /// The maximum number of overrides is reached.
    Full,
    /// A part of the changes.
    Changes(OverrideChanges),
    /// The last changes, as JSON.
    History(Vec<String>),
}

/// A part of the changes of overrides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverrideChanges {
    /// Whether the known changes are no longer valid, and these start from the first one.
    pub is_reset: bool,
    /// The last change in this part.
    pub last: u64,
    /// The last change in the store.
    pub latest: u64,
    /// The last change of each override, as JSON.
    pub lines: Vec<String>,
}

/// The reply of a store.
#[derive(Clone, Debug)]
pub enum StoreReply {
    /// One decision per check, in order.
    Decided(Vec<StoreDecision>),
    /// The request was executed.
    Done,
    /// The new receipt, or `None` if the lease had expired.
    Renewed(Option<Receipt>),
}

/// The decision of one check: one result for each quota that applies.
#[derive(Clone, Debug)]
pub struct StoreDecision {
    /// In the order of the quotas.
    pub results: Vec<ChargeResult>,
    /// The number of resets of the key. A charge of an earlier generation cannot be refunded.
    pub generation: u64,
}

impl StoreDecision {
    /// The receipts of this decision.
    pub fn charge(&self) -> StoreCharge {
        let receipts = self.results.iter().map(|result| result.receipt).collect();
        StoreCharge { receipts, generation: self.generation }
    }
}

/// The receipts of a charge: one for each quota that applied.
#[derive(Clone, Debug, Default)]
pub struct StoreCharge {
    /// In the order of the quotas.
    pub receipts: Vec<Receipt>,
    /// See [`StoreDecision::generation`].
    pub generation: u64,
}

/// Why a store call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// No reply before the deadline. This alone does not make the store unavailable; a late charge is refunded.
    Timeout,
    /// The store cannot be reached, or the connection was lost before the reply.
    Unavailable(String),
    /// The store replied with an error.
    ErrorReply(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => f.write_str("store timed out"),
            Self::Unavailable(why) => write!(f, "store unavailable: {why}"),
            Self::ErrorReply(why) => write!(f, "store rejected the request: {why}"),
        }
    }
}

impl error::Error for StoreError {}
