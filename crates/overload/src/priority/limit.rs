//! A concurrency limit shared by classes of different priority.

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

/// A concurrency limit shared by several classes, see [`crate::priority`]: each class has a guaranteed share,
/// free slots go to the more important classes first, and unused slots are lent to other classes.
///
/// ```
/// use tidegate_overload::{PriorityLimit, priority::{PriorityRequest, PriorityClass}};
///
/// let classes = [PriorityClass::new("user", "60%".parse()?), PriorityClass::new("batch", "10%".parse()?)];
/// let (user, batch) = (0, 1);
/// let limit = PriorityLimit::new(classes, 100)?;
/// let paying = PriorityRequest::new(user).level(9).user(limit.hash_user("alice"));
/// match limit.try_acquire(paying) {
///     Ok(permit) => permit.succeed(),
///     Err(rejection) => println!("rejected: {rejection}"),
/// }
/// assert!(limit.try_acquire(PriorityRequest::new(batch)).is_ok(), "no other class needs the slot");
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// Share it by reference or in an `Arc`. [`CallPermit`] documents how to record outcomes.
pub struct PriorityLimit {
    state: Mutex<PriorityState>,
    clock: Clock,
    hasher: RandomState,
}

struct PriorityState {
    scheduler: PriorityScheduler,
    /// Sets the number of slots, if adaptive.
    controller: Option<Box<dyn Controller>>,
    /// When a request was last shed for lack of slots.
    last_shed: Option<Micros>,
}

/// The settings of a [`PriorityLimit`].
#[derive(Clone, Debug)]
pub struct PriorityLimitBuilder {
    classes: Vec<PriorityClass>,
    clock: Option<Clock>,
}

impl PriorityLimit {
    /// Creates a limit of `limit` slots for these classes, the most important first.
    pub fn new(classes: impl IntoIterator<Item = PriorityClass>, limit: u32) -> Result<Self, SettingError> {
        Self::builder(classes).build(limit)
    }

    /// Creates a builder for these classes, the most important first.
    pub fn builder(classes: impl IntoIterator<Item = PriorityClass>) -> PriorityLimitBuilder {
        PriorityLimitBuilder { classes: classes.into_iter().collect(), clock: None }
    }

    /// Returns a permit for one request, or the reason why it was shed.
    pub fn try_acquire(&self, request: PriorityRequest) -> Result<CallPermit<&Self>, Rejection> {
        self.admit(request).map(|permit| CallPermit::new(self, permit))
    }

    /// Returns a permit that borrows nothing, for futures that outlive the current scope.
    pub fn try_acquire_owned(
        self: &Arc<Self>,
        request: PriorityRequest,
    ) -> Result<CallPermit<Arc<Self>>, Rejection> {
        self.admit(request).map(|permit| CallPermit::new(self.clone(), permit))
    }

    /// Hashes a user for a [`PriorityRequest`].
    pub fn hash_user<U: Hash + ?Sized>(&self, user: &U) -> u64 {
        self.hasher.hash_one(user)
    }

    /// Changes the number of slots. Slots in use stay in use. A controller overrides it when the next call
    /// ends.
    pub fn resize(&self, limit: u32) -> Result<(), SettingError> {
        SettingError::require_nonzero("a number of slots", limit.into())?;
        lock(&self.state).scheduler.resize(limit);
        Ok(())
    }

    /// The number of slots.
    pub fn limit(&self) -> u32 {
        lock(&self.state).scheduler.limit()
    }

    /// The number of requests in flight, of all classes.
    pub fn in_flight(&self) -> u32 {
        lock(&self.state).scheduler.in_flight()
    }

    /// The number of requests in flight of one class.
    pub fn in_flight_of(&self, class: usize) -> u32 {
        lock(&self.state).scheduler.in_flight_of(class)
    }

    fn admit(&self, request: PriorityRequest) -> Result<PriorityPermit, Rejection> {
        let mut state = lock(&self.state);
        // Read under the lock, so that requests are in order.
        let now = self.clock.now();
        let result = state.scheduler.try_acquire(now, request);
        if result.is_err_and(|shed| shed != ShedReason::UnknownClass) {
            state.last_shed = Some(now);
        }
        result.map_err(Rejection::PriorityShed)
    }
}

impl RecordOutcome for PriorityLimit {
    type Entry = PriorityPermit;

    fn record(&self, permit: PriorityPermit, report: CallOutcome) {
        let mut state = lock(&self.state);
        let now = self.clock.now();
        let PriorityState { scheduler, controller, last_shed } = &mut *state;
        if let Some(controller) = controller {
            let start = permit.acquired_at();
            // Reserved slots count as used: where requests are shed, the limit is reached.
            let is_reached = last_shed.is_some_and(|shed_at| shed_at >= start);
            let min_in_flight = if is_reached { scheduler.limit() } else { 0 };
            let call = CallSample {
                start,
                end: now,
                in_flight: permit.in_flight().max(min_in_flight),
                outcome: report,
            };
            scheduler.resize(controller.record(call));
        }
        scheduler.release(now, permit);
    }
}

impl PriorityLimitBuilder {
    /// Sets the clock; the system clock by default.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// Builds a limit of `limit` slots.
    pub fn build(self, limit: u32) -> Result<PriorityLimit, SettingError> {
        self.build_with(limit, None)
    }

    /// Builds a limit whose number of slots a controller sets.
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
        let scheduler = PriorityScheduler::new(self.classes, limit)?;
        let state = Mutex::new(PriorityState { scheduler, controller, last_shed: None });
        Ok(PriorityLimit { state, clock: self.clock.unwrap_or_default(), hasher: RandomState::default() })
    }
}

impl fmt::Debug for PriorityLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.state);
        let classes = state.scheduler.classes().enumerate();
        let in_flight = classes.map(|(index, class)| (class.name(), state.scheduler.in_flight_of(index)));
        write!(f, "PriorityLimit({:?} of {})", in_flight.collect::<Vec<_>>(), state.scheduler.limit())
    }
}
