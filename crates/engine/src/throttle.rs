//! A limiter without keys: one bucket for all callers.

use crate::{
    bucket::Bucket,
    build::{BuildError, LimiterBuilder},
    clock::Clock,
    limiter::Overflow,
    memory::{Charge, Layout, Plan, Plans, Question, Resets, Sketch, Space, Word},
    sync::{AtomicU64, Mutex, lock},
    wait::Lines,
};
use std::fmt;
use tidegate_core::{Bound, Decision, Demand, Inherit, Quota};

/// One bucket that all callers share.
///
/// ```
/// use tidegate_engine::Throttle;
///
/// let throttle = Throttle::new("10/s burst 2")?;
/// assert!(throttle.check().is_allowed());
/// assert_eq!(throttle.check().remaining(), 0);
/// # Ok::<(), tidegate_engine::BuildError>(())
/// ```
///
/// With `smooth` and `warm-up` it starts as Guava's `RateLimiter` does when it is created.
pub struct Throttle {
    state: State,
    clock: Clock,
    lines: Lines,
}

enum State {
    Word { word: AtomicU64, plans: Plans, quota: Mutex<Quota> },
    Space(Space),
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
        let state = match Plan::of(&quota) {
            Some(plan) => {
                let plans = Plans::new(plan, now, Resets::of_one());
                State::Word { word: AtomicU64::new(plans.empty(now)), plans, quota: Mutex::new(quota) }
            }
            None => {
                let space = Space::new(&[quota], Layout::Together, 1, now)
                    .map_err(|error| BuildError::OutOfMemory { keys: 1, bytes: error.bytes })?;
                space.create(ONLY, now);
                State::Space(space)
            }
        };
        Ok(Self { state, clock, lines })
    }

    /// Takes one token, now or not at all.
    #[inline(always)]
    pub fn check(&self) -> Decision {
        self.check_cost(1)
    }

    /// Takes `cost` tokens, now or not at all. A cost of zero takes nothing: it is a peek.
    #[inline(always)]
    pub fn check_cost(&self, cost: u64) -> Decision {
        if let State::Word { word, plans, .. } = &self.state
            && let Some(decision) = word.try_check(plans, &self.clock, cost)
        {
            return decision;
        }
        self.check_slowly(cost).in_registers()
    }

    /// Kept out of line, so that the common case stays small.
    #[inline(never)]
    fn check_slowly(&self, cost: u64) -> Decision {
        self.decide(Demand::now(cost))
    }

    /// The bucket, for everything else that can be done with it.
    pub fn bucket(&self) -> Bucket<'_> {
        Bucket::of_throttle(self)
    }

    /// Replaces the quota while running, by another of the same algorithm; see [`crate::Limiter::change`].
    pub fn change<Q>(&self, quota: Q, how: Inherit) -> Result<(), BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        let quota = quota.try_into()?;
        let (old, now) = (self.quota(), self.clock.now());
        let changed = match &self.state {
            _ if old.kind().name() != quota.kind().name() => Err(()),
            State::Space(space) => space.change(&[quota], how, now),
            State::Word { word, plans, quota: current } => match Plan::of(&quota) {
                Some(plan) => {
                    let mut current = lock(current);
                    plans.change(plan, how);
                    word.convert(plans, now);
                    *current = quota;
                    Ok(())
                }
                None => Err(()),
            },
        };
        changed.map_err(|()| BuildError::different_quota(&[old], &[quota]))?;
        self.lines.wake_all_first();
        Ok(())
    }

    /// The worst case of the quota, as this throttle's clock shows time.
    pub fn bound(&self) -> Bound {
        self.clock.blur(self.quota().bound())
    }

    /// The quota that callers are limited by.
    pub fn quota(&self) -> Quota {
        match &self.state {
            State::Word { quota, .. } => *lock(quota),
            State::Space(space) => space.quotas()[0],
        }
    }

    pub(crate) fn decide(&self, demand: Demand) -> Decision {
        match &self.state {
            State::Word { word, plans, .. } => match word.decide(plans, &self.clock, demand) {
                Some(answer) => answer.decision,
                None => Decision::unlimited(),
            },
            State::Space(space) => space.decide(ONLY, &self.clock, Question::plain(demand), Overflow::Deny),
        }
    }

    pub(crate) fn reserve(&self, question: Question) -> (Decision, Charge) {
        match &self.state {
            State::Word { word, plans, .. } => match word.decide(plans, &self.clock, question.demand) {
                Some(answer) => {
                    let (at, receipts) = (answer.at, vec![answer.receipt]);
                    (answer.decision, Charge { at, receipts, ..Charge::of(&question) })
                }
                None => (Decision::unlimited(), Charge::of(&question)),
            },
            State::Space(space) => space.reserve(ONLY, &self.clock, question, Overflow::Deny),
        }
    }

    /// A copy of the state.
    pub(crate) fn sketch(&self) -> Sketch {
        let quota = self.quota();
        match &self.state {
            State::Word { word, plans, .. } => word
                .sketch(plans, quota, &self.clock)
                .unwrap_or_else(|| Sketch::blank(self.clock.now(), vec![quota])),
            State::Space(space) => space.sketch(ONLY, &self.clock, 0),
        }
    }

    pub(crate) fn refund(&self, charge: &Charge, cost: u64) {
        match &self.state {
            State::Word { word, plans, .. } => {
                charge.receipts.iter().for_each(|receipt| word.refund(plans, &self.clock, *receipt, cost));
            }
            State::Space(space) => space.refund(ONLY, &self.clock, charge, cost),
        }
    }

    pub(crate) fn reset(&self) {
        let now = self.clock.now();
        match &self.state {
            State::Word { word, plans, .. } => word.reset(plans, now),
            State::Space(space) => {
                space.reset(ONLY, now);
                space.create(ONLY, now);
            }
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
        write!(f, "Throttle({}, {:?})", self.quota(), self.clock)
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
