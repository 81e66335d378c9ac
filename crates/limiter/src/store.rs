//! Where state lives, when that is not in this process.

use std::{
    error, fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, atomic::AtomicU64},
};
use tidegate_core::{CarryOver, ChargeResult, Demand, Quota, Receipt};

/// A store that several processes share. It owns the clock, and decides each request as a whole.
///
/// The memory of this process is no store in this sense: nothing there has to be waited for. A [`Limiter`](crate::Limiter) counts in either.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Does what is asked, all of it or nothing.
    ///
    /// An error means that the answer is not known. What was asked may have been done nevertheless, but never twice.
    fn execute(&self, request: StoreRequest) -> StoreFuture<Result<StoreReply, StoreError>>;

    /// The quota as this store counts it: one that a crashed holder could block for ever gets a lease here.
    fn effective_quota(&self, quota: Quota) -> Quota {
        quota
    }

    /// Where it can be asked; only at home unless it says otherwise.
    fn runtime_affinity(&self) -> RuntimeAffinity {
        RuntimeAffinity::CreatingRuntime
    }

    /// Waits until it can be asked for the first time; an error if it turns out that it cannot.
    fn ready(&self) -> StoreFuture<Result<(), StoreError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Waits until it is available again after it was not: what is held there may be lost.
    fn wait_recovered(&self) -> StoreFuture<()> {
        Box::pin(std::future::pending())
    }

    /// Learns what one of its limiters does without it, to report it when it is unavailable.
    #[cfg(feature = "tokio")]
    fn add_failure_mode(&self, _mode: crate::FailureMode) {}

    /// Why decisions are made without it at the moment, if they are and it knows.
    fn last_error(&self) -> Option<String> {
        None
    }
}

/// On which runtimes a store can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeAffinity {
    /// On the one that it was made on.
    CreatingRuntime,
    /// On any: what has to go on while its caller stands still or has gone does so at home.
    AnyRuntime,
}

/// An answer that is on its way.
pub type StoreFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What keys of one limiter are counted by.
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
    /// The one that the call chooses.
    Tier,
}

impl StoreLimit {
    /// Quotas under a name that all processes of a fleet use for them.
    pub fn new(name: &str, quotas: Vec<Quota>, choice: QuotaSelection, carry_over: CarryOver) -> Self {
        let tags = quotas.iter().map(Quota::tag).collect();
        Self {
            name: name.to_owned(),
            quotas,
            tags,
            selection: choice,
            carry_over,
            store_tag: AtomicU64::new(0),
        }
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

    /// Which of them apply.
    pub fn selection(&self) -> QuotaSelection {
        self.selection
    }

    /// A number for the store's own use; zero at first.
    pub fn store_tag(&self) -> &AtomicU64 {
        &self.store_tag
    }

    /// How a key carries over what it used under another quota.
    pub fn carry_over(&self) -> CarryOver {
        self.carry_over
    }
}

/// One key of one limiter.
#[derive(Clone, Debug)]
pub struct KeyRef {
    /// What it is counted by.
    pub limit: Arc<StoreLimit>,
    /// The key.
    pub key: String,
    /// The tier that applies, where there are tiers.
    pub tier: usize,
}

impl KeyRef {
    /// The quotas that apply, by their places in the limit.
    pub fn quota_indices(&self) -> std::ops::Range<usize> {
        match self.limit.selection {
            QuotaSelection::All => 0..self.limit.quotas.len(),
            QuotaSelection::Tier => self.tier..self.tier + 1,
        }
    }
}

/// One question about one key.
#[derive(Clone, Debug)]
pub struct StoreCheck {
    /// Where.
    pub key_ref: KeyRef,
    /// What.
    pub demand: Demand,
    /// Whether slots are taken, or only looked at.
    pub slot_mode: SlotMode,
    /// Whether the caller may give back what it is charged, and so needs a receipt.
    pub receipt: bool,
}

/// What a question does to quotas that count permits in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotMode {
    /// Take them: somebody will give them back.
    Acquire,
    /// Only look whether there is one.
    Peek,
}

/// What is asked of a store.
#[derive(Clone, Debug)]
pub enum StoreRequest {
    /// Decide all questions; charge all or none. All of them have the same effect.
    Decide(Vec<StoreCheck>),
    /// Take as much as there is, up to the cost of the demand.
    TakeUpTo(StoreCheck),
    /// Give back up to `cost` of what was charged.
    Refund {
        /// Where it was charged.
        key_ref: KeyRef,
        /// What was charged.
        charge: StoreCharge,
        /// How much to give back.
        cost: u64,
    },
    /// Forget a key.
    Reset(KeyRef),
    /// Hold what expires for longer.
    Renew {
        /// Where it is held.
        key_ref: KeyRef,
        /// Proof that it is.
        receipt: Receipt,
    },
}

/// What a store says.
#[derive(Clone, Debug)]
pub enum StoreReply {
    /// An answer to each question, in their order.
    Decided(Vec<StoreDecision>),
    /// It is done.
    Done,
    /// What is held now, or `None` if it had expired.
    Renewed(Option<Receipt>),
}

/// The answer to one question: a step of each quota that applies.
#[derive(Clone, Debug)]
pub struct StoreDecision {
    /// In the order of the quotas.
    pub steps: Vec<ChargeResult>,
    /// How often the key had been forgotten: what was charged before is settled by the next time.
    pub generation: u64,
}

impl StoreDecision {
    /// Proof of what was charged.
    pub fn charge(&self) -> StoreCharge {
        let receipts = self.steps.iter().map(|step| step.receipt).collect();
        StoreCharge { receipts, generation: self.generation }
    }
}

/// Proof of what was charged to a key: a receipt of each quota that applied.
#[derive(Clone, Debug, Default)]
pub struct StoreCharge {
    /// In the order of the quotas.
    pub receipts: Vec<Receipt>,
    /// See [`StoreDecision::generation`].
    pub generation: u64,
}

/// Why a store has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// It did not answer by the deadline. That alone does not make it unavailable, and what it may have charged is given
    /// back when it answers.
    Timeout,
    /// It cannot be reached, or went away in mid-answer.
    Unavailable(String),
    /// It answered that it cannot do this.
    Rejected(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => f.write_str("the store did not answer in time"),
            Self::Unavailable(why) => write!(f, "the store is away: {why}"),
            Self::Rejected(why) => write!(f, "the store refused: {why}"),
        }
    }
}

impl error::Error for StoreError {}
