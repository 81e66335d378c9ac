//! A concurrency limit that the important share with the rest, and lose last.

use crate::{
    CallOutcome, Rejection,
    adaptive::{CallSample, Controller},
    call_guard::{CallPermit, RecordOutcome},
    priority::{PriorityClass, PriorityPermit, PriorityRequest, PriorityScheduler, ShedReason},
};
use foldhash::quality::RandomState;
use std::{
    fmt,
    hash::{BuildHasher, Hash},
    sync::Arc,
};
use tidegate_core::{Micros, SettingError};
use tidegate_limiter::{
    Clock,
    sync::{Mutex, lock},
};

/// Slots for work in flight that several classes share, see [`crate::priority`]: each class has its share, what is
/// left goes to the more important first, and what nobody asks for is lent to whoever does.
///
/// ```
/// use tidegate_overload::{PriorityLimit, priority::{PriorityRequest, PriorityClass}};
///
/// let classes = [PriorityClass::new("user", "60%".parse()?), PriorityClass::new("batch", "10%".parse()?)];
/// let (user, batch) = (0, 1);
/// let limit = PriorityLimit::new(classes, 100)?;
/// let paying = PriorityRequest::new(user).level(9).user(limit.hash_user("alice"));
/// match limit.try_acquire(paying) {
///     Ok(acquire) => acquire.succeed(),
///     Err(rejection) => println!("not now: {rejection}"),
/// }
/// assert!(limit.try_acquire(PriorityRequest::new(batch)).is_ok(), "nobody else wants it");
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// Share it by reference or in an `Arc`; see [`CallPermit`] for how to report.
pub struct PriorityLimit {
    state: Mutex<PriorityState>,
    clock: Clock,
    hasher: RandomState,
}

struct PriorityState {
    scheduler: PriorityScheduler,
    /// Who sets the number of slots, if somebody does.
    controller: Option<Box<dyn Controller>>,
    /// When somebody was last turned away for want of slots.
    last_shed: Option<Micros>,
}

/// Settings of a [`PriorityLimit`].
#[derive(Clone, Debug)]
pub struct PriorityLimitBuilder {
    classes: Vec<PriorityClass>,
    clock: Option<Clock>,
}

impl PriorityLimit {
    /// The classes, the most important first, and how many slots they share.
    pub fn new(classes: impl IntoIterator<Item = PriorityClass>, limit: u32) -> Result<Self, SettingError> {
        Self::builder(classes).build(limit)
    }

    /// A limit with settings of its own, for these classes, the most important first.
    pub fn builder(classes: impl IntoIterator<Item = PriorityClass>) -> PriorityLimitBuilder {
        PriorityLimitBuilder { classes: classes.into_iter().collect(), clock: None }
    }

    /// A pass for one arrival, or why it was turned away.
    pub fn try_acquire(&self, arrival: PriorityRequest) -> Result<CallPermit<&Self>, Rejection> {
        self.admit(arrival).map(|seat| CallPermit::new(self, seat))
    }

    /// A pass that borrows nothing, for futures that outlive their maker.
    pub fn try_acquire_owned(
        self: &Arc<Self>,
        arrival: PriorityRequest,
    ) -> Result<CallPermit<Arc<Self>>, Rejection> {
        self.admit(arrival).map(|seat| CallPermit::new(self.clone(), seat))
    }

    /// What stands for a user in an [`PriorityRequest`].
    pub fn hash_user<U: Hash + ?Sized>(&self, user: &U) -> u64 {
        self.hasher.hash_one(user)
    }

    /// Changes the number of slots. What is taken stays taken. Where a controller sets the number, it does so again when
    /// the next call ends.
    pub fn resize(&self, limit: u32) -> Result<(), SettingError> {
        SettingError::require_nonzero("a number of slots", limit.into())?;
        lock(&self.state).scheduler.resize(limit);
        Ok(())
    }

    /// How many slots there are.
    pub fn limit(&self) -> u32 {
        lock(&self.state).scheduler.limit()
    }

    /// How many are in flight, of all classes.
    pub fn in_flight(&self) -> u32 {
        lock(&self.state).scheduler.in_flight()
    }

    /// How many of a class are in flight.
    pub fn in_flight_of(&self, class: usize) -> u32 {
        lock(&self.state).scheduler.in_flight_of(class)
    }

    fn admit(&self, arrival: PriorityRequest) -> Result<PriorityPermit, Rejection> {
        let mut state = lock(&self.state);
        // Read under the lock, so that arrivals are in order.
        let now = self.clock.now();
        let answer = state.scheduler.try_acquire(now, arrival);
        if answer.is_err_and(|shed| shed != ShedReason::UnknownClass) {
            state.last_shed = Some(now);
        }
        answer.map_err(Rejection::PriorityShed)
    }
}

impl RecordOutcome for PriorityLimit {
    type Entry = PriorityPermit;

    fn record(&self, seat: PriorityPermit, report: CallOutcome) {
        let mut state = lock(&self.state);
        let now = self.clock.now();
        let PriorityState { scheduler: triage, controller, last_shed: refused } = &mut *state;
        if let Some(controller) = controller {
            let start = seat.acquired_at();
            // Slots that are kept free are in use as well: where some are refused, the limit is reached.
            let is_reached = refused.is_some_and(|refused| refused >= start);
            let least = if is_reached { triage.limit() } else { 0 };
            let call =
                CallSample { start, end: now, in_flight: seat.in_flight().max(least), outcome: report };
            triage.resize(controller.record(call));
        }
        triage.release(now, seat);
    }
}

impl PriorityLimitBuilder {
    /// The clock; the machine's unless told otherwise.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// So many slots.
    pub fn build(self, limit: u32) -> Result<PriorityLimit, SettingError> {
        self.build_with(limit, None)
    }

    /// As many slots as a controller finds.
    pub fn build_adaptive(
        self,
        controller: impl Controller + 'static,
    ) -> Result<PriorityLimit, SettingError> {
        self.build_with(controller.limit(), Some(Box::new(controller)))
    }

    fn build_with(
        self,
        limit: u32,
        controller: Option<Box<dyn Controller>>,
    ) -> Result<PriorityLimit, SettingError> {
        let triage = PriorityScheduler::new(self.classes, limit)?;
        let state = Mutex::new(PriorityState { scheduler: triage, controller, last_shed: None });
        Ok(PriorityLimit { state, clock: self.clock.unwrap_or_default(), hasher: RandomState::default() })
    }
}

impl fmt::Debug for PriorityLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.state);
        let classes = state.scheduler.classes().enumerate();
        let held = classes.map(|(index, class)| (class.name(), state.scheduler.in_flight_of(index)));
        write!(f, "PriorityLimit({:?} of {})", held.collect::<Vec<_>>(), state.scheduler.limit())
    }
}
