//! A limiter without keys: one bucket for all callers.

use crate::{
    clock::Clock,
    limiter::{BlockingBucket, Bucket, BuildError, LimiterBuilder, LocalBackend, Overflow},
    memory::{
        CellCharge, CellRequest, KeyTable, ResetCounters, SingleWord, SlotTable, StateLayout, StateSnapshot,
        UNUSED_WORD, WordPlan, WordPlans,
    },
    semaphore::HasWaiters,
    sync::{AtomicU64, Mutex, lock},
    wait::WaitQueues,
};
use std::{fmt, sync::Arc};
use tidegate_core::{Bound, CarryOver, Decision, Demand, Quota};

/// One bucket that all callers share.
///
/// ```
/// use tidegate_limiter::DirectLimiter;
///
/// let throttle = DirectLimiter::new("10/s burst 2")?;
/// assert!(throttle.check().is_allowed());
/// assert_eq!(throttle.check().remaining(), 0);
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
///
/// With `smooth` and `warm-up` it starts as Guava's `RateLimiter` does when it is created. Clones are the same throttle.
#[derive(Clone)]
pub struct DirectLimiter {
    state: Arc<DirectState>,
}

/// What a throttle counts.
pub(crate) struct DirectState {
    /// All there is to count, unless the quota needs more than one word.
    word: AtomicU64,
    plans: WordPlans,
    /// Where a quota that needs more is counted. Asked for only when the word cannot be used, so that those who
    /// can do with the word need not ask.
    key_table: Option<KeyTable>,
    quota: Mutex<Quota>,
    clock: Clock,
    wait_queues: WaitQueues,
}

/// The one key of a throttle that needs more than a word.
const SINGLE_KEY: u64 = 1;

impl DirectLimiter {
    /// A throttle on the machine's clock.
    pub fn new<Q>(quota: Q) -> Result<Self, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        Self::builder().build(quota)
    }

    /// A throttle with settings of its own.
    pub fn builder() -> DirectLimiterBuilder {
        DirectLimiterBuilder { settings: LimiterBuilder::default() }
    }

    pub(crate) fn from_parts(
        quota: Quota,
        clock: Clock,
        wait_queues: WaitQueues,
    ) -> Result<Self, BuildError> {
        let now = clock.now();
        let (word, plans, space) = match WordPlan::from_quota(&quota) {
            Some(plan) => {
                let plans = WordPlans::new(plan, now, ResetCounters::single());
                (plans.empty_word(now), plans, None)
            }
            None => {
                let space = KeyTable::new(&[quota], StateLayout::All, 1, now, &[])
                    .map_err(|error| BuildError::OutOfMemory { keys: 1, bytes: error.bytes })?;
                space.create(SINGLE_KEY, now);
                (UNUSED_WORD, WordPlans::placeholder(), Some(space))
            }
        };
        let quota = Mutex::new(quota);
        let state =
            DirectState { word: AtomicU64::new(word), plans, key_table: space, quota, clock, wait_queues };
        Ok(Self { state: Arc::new(state) })
    }

    /// Takes one token, now or not at all.
    #[inline(always)]
    pub fn check(&self) -> Decision {
        self.check_cost(1)
    }

    /// Takes `cost` tokens, now or not at all. A cost of zero takes nothing: it is a peek.
    #[inline(always)]
    pub fn check_cost(&self, cost: u64) -> Decision {
        match self.state.word.try_check(&self.state.plans, &self.state.clock, cost) {
            Some(decision) => decision,
            None => self.check_slow(cost).repack(),
        }
    }

    /// Kept out of line, so that the common case stays small.
    #[inline(never)]
    fn check_slow(&self, cost: u64) -> Decision {
        self.state.decide(Demand::new(cost))
    }

    /// The bucket, for everything else that can be done with it.
    pub fn bucket(&self) -> Bucket {
        Bucket::local(LocalBackend::Direct(self.state.clone()))
    }

    /// The same for threads that can wait.
    pub fn blocking(&self) -> BlockingBucket<'_> {
        BlockingBucket::for_direct(&self.state)
    }

    /// Replaces the quota while running, by another of the same algorithm; see [`crate::Limiter::change`].
    pub fn change<Q>(&self, quota: Q, how: CarryOver) -> Result<(), BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        self.state.change(quota.try_into()?, how)
    }

    /// The worst case of the quota, as this throttle's clock shows time.
    pub fn bound(&self) -> Bound {
        self.state.clock.widen_bound(self.quota().bound())
    }

    /// The quota that callers are limited by.
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
            (Some(space), _) => space.change(&[quota], how, now),
            (None, Some(plan)) => {
                self.plans.change(plan, how);
                self.word.convert(&self.plans, now);
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

    /// The permits, where that is all there is to count.
    pub(crate) fn slots(&self) -> Option<(&SlotTable, u64)> {
        self.key_table.as_ref().and_then(KeyTable::slots).map(|slots| (slots, SINGLE_KEY))
    }

    pub(crate) fn await_release(&self, cost: u64) -> HasWaiters {
        self.key_table.as_ref().map_or(HasWaiters::Yes, |space| space.await_release(SINGLE_KEY, cost))
    }

    pub(crate) fn decide(&self, demand: Demand) -> Decision {
        if let Some(space) = &self.key_table {
            return space.decide(SINGLE_KEY, &self.clock, CellRequest::new(demand), Overflow::Deny);
        }
        match self.word.decide(&self.plans, &self.clock, demand) {
            Some(answer) => answer.decision,
            None => Decision::unlimited(),
        }
    }

    pub(crate) fn reserve(&self, request: CellRequest) -> (Decision, CellCharge) {
        if let Some(space) = &self.key_table {
            return space.reserve(SINGLE_KEY, &self.clock, request, Overflow::Deny);
        }
        match self.word.decide(&self.plans, &self.clock, request.demand) {
            Some(answer) => {
                let (at, receipts) = (answer.time, vec![answer.receipt]);
                (answer.decision, CellCharge { charged_at: at, receipts, ..CellCharge::new(&request) })
            }
            None => (Decision::unlimited(), CellCharge::new(&request)),
        }
    }

    /// A copy of the state.
    pub(crate) fn snapshot(&self) -> StateSnapshot {
        if let Some(space) = &self.key_table {
            return space.snapshot(SINGLE_KEY, &self.clock, 0);
        }
        let quota = self.quota();
        let sketch = self.word.snapshot(&self.plans, quota, &self.clock);
        sketch.unwrap_or_else(|| StateSnapshot::empty(self.clock.now(), vec![quota]))
    }

    pub(crate) fn refund(&self, charge: &CellCharge, cost: u64) {
        if let Some(space) = &self.key_table {
            return space.refund(SINGLE_KEY, &self.clock, charge, cost);
        }
        for receipt in &charge.receipts {
            self.word.refund(&self.plans, &self.clock, *receipt, cost);
        }
    }

    pub(crate) fn reset(&self) {
        let now = self.clock.now();
        match &self.key_table {
            Some(space) => {
                space.reset(SINGLE_KEY, now);
                space.create(SINGLE_KEY, now);
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
    /// The clock; the machine's exact one unless told otherwise.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { settings: self.settings.clock(clock) }
    }

    /// How many callers may wait in line.
    #[must_use]
    pub fn max_waiters(self, max_waiters: usize) -> Self {
        Self { settings: self.settings.max_waiters(max_waiters) }
    }

    /// How long a caller may stand in line at the longest, whatever deadline it came with.
    #[must_use]
    pub fn waiter_ttl(self, ttl: std::time::Duration) -> Self {
        Self { settings: self.settings.waiter_ttl(ttl) }
    }

    /// Makes the throttle.
    pub fn build<Q>(self, quota: Q) -> Result<DirectLimiter, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        self.settings.build_direct(quota.try_into()?)
    }
}
