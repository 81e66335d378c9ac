//! A limiter without keys: one bucket for all callers.

use crate::{
    clock::Clock,
    limiter::{BlockingBucket, Bucket, BuildError, LimiterBuilder, LocalBackend, Overflow},
    memory::{
        CellCharge, CellRequest, KeyTable, PermitTable, ResetCounters, SingleWord, StateLayout,
        StateSnapshot, UNUSED_WORD, WordPlan, WordPlans,
    },
    semaphore::HasWaiters,
    sync::{AtomicU64, Mutex, lock},
    wait::WaitQueues,
};
use std::{fmt, ops::Deref, sync::Arc};
use tidegate_core::{Bound, CarryOver, Decision, Demand, Quota};

/// A limiter without keys: one bucket that all callers share.
///
/// ```
/// use tidegate_limiter::DirectLimiter;
///
/// let limiter = DirectLimiter::new("10/s burst 2")?;
/// assert!(limiter.check().is_allowed());
/// assert_eq!(limiter.check().remaining(), 0);
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
///
/// With `smooth` and `warm-up` it starts in the same state as a new `RateLimiter` of Guava. Clones share the bucket.
#[derive(Clone)]
pub struct DirectLimiter {
    state: Arc<DirectState>,
}

/// The shared state of a `DirectLimiter`.
pub(crate) struct DirectState {
    /// The whole state, if the quota needs only one word.
    word: OwnCacheLines<AtomicU64>,
    plans: WordPlans,
    /// The state of a quota that needs more than one word. Read only if the word is unused, so that the fast path skips it.
    key_table: Option<KeyTable>,
    quota: Mutex<Quota>,
    clock: Clock,
    wait_queues: WaitQueues,
}

/// A value without neighbors in its cache lines: other threads read them while one thread writes the value. Some processors load lines in
/// pairs.
#[repr(align(128))]
struct OwnCacheLines<T>(T);

impl<T> Deref for OwnCacheLines<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// The only key of `key_table`.
const SINGLE_KEY: u64 = 1;

impl DirectLimiter {
    /// Creates a limiter on the system clock.
    pub fn new<Q>(quota: Q) -> Result<Self, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        Self::builder().build(quota)
    }

    /// Returns a builder with default settings.
    pub fn builder() -> DirectLimiterBuilder {
        DirectLimiterBuilder { settings: LimiterBuilder::default() }
    }

    pub(crate) fn from_parts(
        quota: Quota,
        clock: Clock,
        wait_queues: WaitQueues,
    ) -> Result<Self, BuildError> {
        let now = clock.now();
        let (word, plans, key_table) = match WordPlan::from_quota(&quota) {
            Some(plan) => {
                let plans = WordPlans::new(plan, now, ResetCounters::single());
                (plans.empty_word(now), plans, None)
            }
            None => {
                let key_table = KeyTable::new(&[quota], StateLayout::All, 1, now, &[])
                    .map_err(|error| BuildError::OutOfMemory { keys: 1, bytes: error.bytes })?;
                key_table.create(SINGLE_KEY, now);
                (UNUSED_WORD, WordPlans::placeholder(), Some(key_table))
            }
        };
        let quota = Mutex::new(quota);
        let word = OwnCacheLines(AtomicU64::new(word));
        let state = DirectState { word, plans, key_table, quota, clock, wait_queues };
        Ok(Self { state: Arc::new(state) })
    }

    /// Takes one token now, or denies.
    #[inline(always)]
    pub fn check(&self) -> Decision {
        self.check_cost(1)
    }

    /// Takes `cost` tokens now, or denies. A cost of zero takes nothing and is a peek.
    #[inline(always)]
    pub fn check_cost(&self, cost: u64) -> Decision {
        match self.state.word.try_check(&self.state.plans, &self.state.clock, cost) {
            Some(decision) => decision,
            None => self.check_slow(cost).repack(),
        }
    }

    /// Never inlined, so that the fast path stays small.
    #[inline(never)]
    fn check_slow(&self, cost: u64) -> Decision {
        let DirectState { word, plans, clock, .. } = &*self.state;
        let checked = word.retry_check(plans, clock, cost);
        checked.unwrap_or_else(|| self.state.decide(Demand::new(cost)))
    }

    /// The bucket, with all other operations: wait, reserve, acquire a permit.
    pub fn bucket(&self) -> Bucket {
        Bucket::local(LocalBackend::Direct(self.state.clone()))
    }

    /// The bucket for threads that can block.
    pub fn blocking(&self) -> BlockingBucket<'_> {
        BlockingBucket::for_direct(&self.state)
    }

    /// Replaces the quota at run time with another one of the same algorithm; see [`crate::Limiter::change`].
    pub fn change<Q>(&self, quota: Q, how: CarryOver) -> Result<(), BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        self.state.change(quota.try_into()?, how)
    }

    /// The worst case of the quota, including the resolution of the clock.
    pub fn bound(&self) -> Bound {
        self.state.clock.widen_bound(self.quota().bound())
    }

    /// The current quota.
    pub fn quota(&self) -> Quota {
        self.state.quota()
    }

    #[cfg(feature = "stream")]
    pub(crate) fn local_backend(&self) -> LocalBackend {
        LocalBackend::Direct(self.state.clone())
    }
}

impl DirectState {
    pub(crate) fn quota(&self) -> Quota {
        *lock(&self.quota)
    }

    fn change(&self, quota: Quota, how: CarryOver) -> Result<(), BuildError> {
        let mut current = lock(&self.quota);
        let now = self.clock.now();
        let changed = match (&self.key_table, WordPlan::from_quota(&quota)) {
            _ if !quota.shares_state(&current) => Err(()),
            (Some(key_table), _) => key_table.change(&[quota], how, now),
            (None, Some(plan)) => {
                self.plans.change(plan, how);
                self.word.convert_state(&self.plans, now);
                Ok(())
            }
            (None, None) => Err(()),
        };
        changed.map_err(|()| BuildError::incompatible_quota(&[*current], &[quota]))?;
        *current = quota;
        drop(current);
        self.wait_queues.wake_all_first();
        Ok(())
    }

    /// The slot table, if the quota counts nothing but permits.
    pub(crate) fn permit_table(&self) -> Option<(&PermitTable, u64)> {
        self.key_table.as_ref().and_then(KeyTable::permit_table).map(|slots| (slots, SINGLE_KEY))
    }

    pub(crate) fn await_release(&self, cost: u64) -> HasWaiters {
        self.key_table.as_ref().map_or(HasWaiters::Yes, |key_table| key_table.await_release(SINGLE_KEY, cost))
    }

    pub(crate) fn decide(&self, demand: Demand) -> Decision {
        if let Some(key_table) = &self.key_table {
            return key_table.decide(SINGLE_KEY, &self.clock, CellRequest::new(demand), Overflow::Deny);
        }
        match self.word.decide(&self.plans, &self.clock, demand) {
            Some(charged) => charged.decision,
            None => Decision::unlimited(),
        }
    }

    pub(crate) fn reserve(&self, request: CellRequest) -> (Decision, CellCharge) {
        if let Some(key_table) = &self.key_table {
            return key_table.reserve(SINGLE_KEY, &self.clock, request, Overflow::Deny);
        }
        match self.word.decide(&self.plans, &self.clock, request.demand) {
            Some(charged) => {
                let (at, receipts) = (charged.time, vec![charged.receipt]);
                (charged.decision, CellCharge { charged_at: at, receipts, ..CellCharge::new(&request) })
            }
            None => (Decision::unlimited(), CellCharge::new(&request)),
        }
    }

    /// A copy of the state.
    pub(crate) fn snapshot(&self) -> StateSnapshot {
        if let Some(key_table) = &self.key_table {
            return key_table.snapshot(SINGLE_KEY, &self.clock, 0);
        }
        let quota = self.quota();
        let snapshot = self.word.snapshot(&self.plans, quota, &self.clock);
        snapshot.unwrap_or_else(|| StateSnapshot::empty(self.clock.now(), vec![quota]))
    }

    pub(crate) fn refund(&self, charge: &CellCharge, cost: u64) {
        if let Some(key_table) = &self.key_table {
            return key_table.refund(SINGLE_KEY, &self.clock, charge, cost);
        }
        for receipt in &charge.receipts {
            self.word.refund(&self.plans, &self.clock, *receipt, cost);
        }
    }

    pub(crate) fn reset(&self) {
        let now = self.clock.now();
        match &self.key_table {
            Some(key_table) => {
                key_table.reset(SINGLE_KEY, now);
                key_table.create(SINGLE_KEY, now);
            }
            None => self.word.reset(&self.plans, now),
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) fn wait_queues(&self) -> &WaitQueues {
        &self.wait_queues
    }
}

impl fmt::Debug for DirectLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirectLimiter({}, {:?})", self.quota(), self.state.clock)
    }
}

/// Settings of a [`DirectLimiter`].
#[derive(Clone, Debug)]
pub struct DirectLimiterBuilder {
    settings: LimiterBuilder,
}

impl DirectLimiterBuilder {
    /// Sets the clock; by default [`Clock::system`].
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { settings: self.settings.clock(clock) }
    }

    /// Sets the maximum number of waiting callers.
    #[must_use]
    pub fn max_waiters(self, max_waiters: usize) -> Self {
        Self { settings: self.settings.max_waiters(max_waiters) }
    }

    /// Sets the longest time that a caller can wait in the queue, independent of its own deadline.
    #[must_use]
    pub fn waiter_ttl(self, ttl: std::time::Duration) -> Self {
        Self { settings: self.settings.waiter_ttl(ttl) }
    }

    /// Builds the limiter.
    pub fn build<Q>(self, quota: Q) -> Result<DirectLimiter, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        self.settings.build_direct(quota.try_into()?)
    }
}
