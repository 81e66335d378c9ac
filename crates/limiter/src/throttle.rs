//! A limiter without keys: one bucket for all callers.

use crate::{
    clock::Clock,
    limiter::{BlockingBucket, Bucket, BuildError, LimiterBuilder, LocalPlace, Overflow},
    memory::{Charge, Layout, Plan, Plans, Question, Resets, Sketch, SlotTable, Space, UNUSED, Word},
    slots::Awaited,
    sync::{AtomicU64, Mutex, lock},
    wait::Lines,
};
use std::{fmt, sync::Arc};
use tidegate_core::{Bound, CarryOver, Decision, Demand, Quota};

/// One bucket that all callers share.
///
/// ```
/// use tidegate_limiter::Throttle;
///
/// let throttle = Throttle::new("10/s burst 2")?;
/// assert!(throttle.check().is_allowed());
/// assert_eq!(throttle.check().remaining(), 0);
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
///
/// With `smooth` and `warm-up` it starts as Guava's `RateLimiter` does when it is created. Clones are the same throttle.
#[derive(Clone)]
pub struct Throttle {
    state: Arc<State>,
}

/// What a throttle counts.
pub(crate) struct State {
    /// All there is to count, unless the quota needs more than one word.
    word: AtomicU64,
    plans: Plans,
    /// Where a quota that needs more is counted. Asked for only when the word cannot be used, so that those who
    /// can do with the word need not ask.
    space: Option<Space>,
    quota: Mutex<Quota>,
    clock: Clock,
    lines: Lines,
}

/// The one key of a throttle that needs more than a word.
const ONLY: u64 = 1;

impl Throttle {
    /// A throttle on the machine's clock.
    pub fn new<Q>(quota: Q) -> Result<Self, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        Self::builder().build(quota)
    }

    /// A throttle with settings of its own.
    pub fn builder() -> ThrottleBuilder {
        ThrottleBuilder { settings: LimiterBuilder::default() }
    }

    pub(crate) fn from_parts(quota: Quota, clock: Clock, lines: Lines) -> Result<Self, BuildError> {
        let now = clock.now();
        let (word, plans, space) = match Plan::of(&quota) {
            Some(plan) => {
                let plans = Plans::new(plan, now, Resets::of_one());
                (plans.empty(now), plans, None)
            }
            None => {
                let space = Space::new(&[quota], Layout::Together, 1, now, &[])
                    .map_err(|error| BuildError::OutOfMemory { keys: 1, bytes: error.bytes })?;
                space.create(ONLY, now);
                (UNUSED, Plans::unused(), Some(space))
            }
        };
        let quota = Mutex::new(quota);
        let state = State { word: AtomicU64::new(word), plans, space, quota, clock, lines };
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
            None => self.check_slowly(cost).repack(),
        }
    }

    /// Kept out of line, so that the common case stays small.
    #[inline(never)]
    fn check_slowly(&self, cost: u64) -> Decision {
        self.state.decide(Demand::new(cost))
    }

    /// The bucket, for everything else that can be done with it.
    pub fn bucket(&self) -> Bucket {
        Bucket::local(LocalPlace::Throttle(self.state.clone()))
    }

    /// The same for threads that can wait.
    pub fn blocking(&self) -> BlockingBucket<'_> {
        BlockingBucket::of_throttle(&self.state)
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
        self.state.clock.blur(self.quota().bound())
    }

    /// The quota that callers are limited by.
    pub fn quota(&self) -> Quota {
        self.state.quota()
    }

    #[cfg(feature = "stream")]
    pub(crate) fn place(&self) -> LocalPlace {
        LocalPlace::Throttle(self.state.clone())
    }
}

impl State {
    pub(crate) fn quota(&self) -> Quota {
        *lock(&self.quota)
    }

    fn change(&self, quota: Quota, how: CarryOver) -> Result<(), BuildError> {
        let mut current = lock(&self.quota);
        let now = self.clock.now();
        let changed = match (&self.space, Plan::of(&quota)) {
            _ if !quota.shares_state(&current) => Err(()),
            (Some(space), _) => space.change(&[quota], how, now),
            (None, Some(plan)) => {
                self.plans.change(plan, how);
                self.word.convert(&self.plans, now);
                Ok(())
            }
            (None, None) => Err(()),
        };
        changed.map_err(|()| BuildError::different_quota(&[*current], &[quota]))?;
        *current = quota;
        drop(current);
        self.lines.wake_all_first();
        Ok(())
    }

    /// The permits, where that is all there is to count.
    pub(crate) fn slots(&self) -> Option<(&SlotTable, u64)> {
        self.space.as_ref().and_then(Space::slots).map(|slots| (slots, ONLY))
    }

    pub(crate) fn await_release(&self, cost: u64) -> Awaited {
        self.space.as_ref().map_or(Awaited::Yes, |space| space.await_release(ONLY, cost))
    }

    pub(crate) fn decide(&self, demand: Demand) -> Decision {
        if let Some(space) = &self.space {
            return space.decide(ONLY, &self.clock, Question::plain(demand), Overflow::Deny);
        }
        match self.word.decide(&self.plans, &self.clock, demand) {
            Some(answer) => answer.decision,
            None => Decision::unlimited(),
        }
    }

    pub(crate) fn reserve(&self, question: Question) -> (Decision, Charge) {
        if let Some(space) = &self.space {
            return space.reserve(ONLY, &self.clock, question, Overflow::Deny);
        }
        match self.word.decide(&self.plans, &self.clock, question.demand) {
            Some(answer) => {
                let (at, receipts) = (answer.at, vec![answer.receipt]);
                (answer.decision, Charge { at, receipts, ..Charge::of(&question) })
            }
            None => (Decision::unlimited(), Charge::of(&question)),
        }
    }

    /// A copy of the state.
    pub(crate) fn sketch(&self) -> Sketch {
        if let Some(space) = &self.space {
            return space.sketch(ONLY, &self.clock, 0);
        }
        let quota = self.quota();
        let sketch = self.word.sketch(&self.plans, quota, &self.clock);
        sketch.unwrap_or_else(|| Sketch::blank(self.clock.now(), vec![quota]))
    }

    pub(crate) fn refund(&self, charge: &Charge, cost: u64) {
        if let Some(space) = &self.space {
            return space.refund(ONLY, &self.clock, charge, cost);
        }
        for receipt in &charge.receipts {
            self.word.refund(&self.plans, &self.clock, *receipt, cost);
        }
    }

    pub(crate) fn reset(&self) {
        let now = self.clock.now();
        match &self.space {
            Some(space) => {
                space.reset(ONLY, now);
                space.create(ONLY, now);
            }
            None => self.word.reset(&self.plans, now),
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) fn lines(&self) -> &Lines {
        &self.lines
    }
}

impl fmt::Debug for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Throttle({}, {:?})", self.quota(), self.state.clock)
    }
}

/// Settings of a [`Throttle`].
#[derive(Clone, Debug)]
pub struct ThrottleBuilder {
    settings: LimiterBuilder,
}

impl ThrottleBuilder {
    /// The clock; the machine's exact one unless told otherwise.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { settings: self.settings.clock(clock) }
    }

    /// How many callers may wait in line.
    #[must_use]
    pub fn waiting_places(self, places: usize) -> Self {
        Self { settings: self.settings.waiting_places(places) }
    }

    /// How long a caller may stand in line at the longest, whatever deadline it came with.
    #[must_use]
    pub fn waiting_ttl(self, ttl: std::time::Duration) -> Self {
        Self { settings: self.settings.waiting_ttl(ttl) }
    }

    /// Makes the throttle.
    pub fn build<Q>(self, quota: Q) -> Result<Throttle, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        self.settings.build_throttle(quota.try_into()?)
    }
}
