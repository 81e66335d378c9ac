//! A concurrency limit that the important share with the rest, and lose last.

use crate::{
    clock::Clock,
    sync::{Mutex, lock},
};
use foldhash::quality::RandomState;
use std::{
    fmt,
    hash::{BuildHasher, Hash},
    sync::Arc,
    thread,
};
use tidegate_core::{
    Report, SettingError,
    adaptive::{Call, Controller},
    triage::{Arrival, Class, Seat, Shed, Triage},
};

/// Slots for work in flight that several classes share, see [`tidegate_core::triage`]: each class has its share, what is
/// left goes to the more important first, and nothing is left idle.
///
/// Clones share the limit.
///
/// ```
/// use tidegate_core::triage::{Arrival, Class};
/// use tidegate_engine::PriorityLimit;
///
/// let classes = [Class::new("user", "60%".parse()?), Class::new("batch", "10%".parse()?)];
/// let (user, batch) = (0, 1);
/// let limit = PriorityLimit::new(classes, 100)?;
/// let paying = Arrival::of(user).level(9).user(limit.user("alice"));
/// match limit.try_enter(paying) {
///     Ok(attempt) => attempt.succeed(),
///     Err(shed) => println!("not now: {shed:?}"),
/// }
/// assert!(limit.try_enter(Arrival::of(batch)).is_ok(), "nobody else wants it");
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone)]
pub struct PriorityLimit {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    clock: Clock,
    hasher: RandomState,
}

struct State {
    triage: Triage,
    /// Who sets the number of slots, if somebody does.
    controller: Option<Box<dyn Controller>>,
}

/// Settings of a [`PriorityLimit`].
#[derive(Clone, Debug)]
pub struct PriorityLimitBuilder {
    classes: Vec<Class>,
    clock: Option<Clock>,
}

impl PriorityLimit {
    /// The classes, the most important first, and how many slots they share.
    pub fn new(classes: impl IntoIterator<Item = Class>, limit: u32) -> Result<Self, SettingError> {
        Self::builder(classes).build(limit)
    }

    /// A limit with settings of its own, for these classes, the most important first.
    pub fn builder(classes: impl IntoIterator<Item = Class>) -> PriorityLimitBuilder {
        PriorityLimitBuilder { classes: classes.into_iter().collect(), clock: None }
    }

    /// Lets an arrival in, or says why it was turned away.
    pub fn try_enter(&self, arrival: Arrival) -> Result<PriorityAttempt, Shed> {
        let now = self.shared.clock.now();
        let seat = lock(&self.shared.state).triage.arrive(now, arrival)?;
        Ok(PriorityAttempt { limit: self.clone(), seat: Some(seat) })
    }

    /// What stands for a user in an [`Arrival`].
    pub fn user<U: Hash + ?Sized>(&self, user: &U) -> u64 {
        self.shared.hasher.hash_one(user)
    }

    /// Changes the number of slots. What is taken stays taken.
    pub fn resize(&self, limit: u32) -> Result<(), SettingError> {
        SettingError::refuse_zero("a number of slots", limit.into())?;
        lock(&self.shared.state).triage.resize(limit);
        Ok(())
    }

    /// How many slots there are.
    pub fn limit(&self) -> u32 {
        lock(&self.shared.state).triage.limit()
    }

    /// How many of a class are in flight.
    pub fn in_flight_of(&self, class: usize) -> u32 {
        lock(&self.shared.state).triage.in_flight_of(class)
    }

    fn leave(&self, seat: Seat, report: Report) {
        let mut state = lock(&self.shared.state);
        // Read under the lock, so that ends are in order.
        let now = self.shared.clock.now();
        state.triage.leave(now, seat);
        let State { triage, controller } = &mut *state;
        if let Some(controller) = controller {
            let call = Call { start: seat.since(), end: now, in_flight: seat.in_flight(), report };
            triage.resize(controller.record(call));
        }
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
        self.finish(limit, None)
    }

    /// As many slots as a controller finds.
    pub fn build_adaptive(
        self,
        controller: impl Controller + 'static,
    ) -> Result<PriorityLimit, SettingError> {
        self.finish(controller.limit(), Some(Box::new(controller)))
    }

    fn finish(
        self,
        limit: u32,
        controller: Option<Box<dyn Controller>>,
    ) -> Result<PriorityLimit, SettingError> {
        let state = Mutex::new(State { triage: Triage::new(self.classes, limit)?, controller });
        let shared = Shared { state, clock: self.clock.unwrap_or_default(), hasher: RandomState::default() };
        Ok(PriorityLimit { shared: Arc::new(shared) })
    }
}

impl fmt::Debug for PriorityLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.shared.state);
        let classes = state.triage.classes().enumerate();
        let held = classes.map(|(index, class)| (class.name(), state.triage.in_flight_of(index)));
        write!(f, "PriorityLimit({:?} of {})", held.collect::<Vec<_>>(), state.triage.limit())
    }
}

/// Work in flight. Say how it ended; its slot is given back either way, and when it is dropped.
///
/// One that is dropped without a word is ignored; one that is dropped by a panic has failed.
#[must_use = "dropping an attempt ends it"]
pub struct PriorityAttempt {
    limit: PriorityLimit,
    seat: Option<Seat>,
}

impl PriorityAttempt {
    /// It did what it should.
    pub fn succeed(self) {
        self.report(Report::Success);
    }

    /// It failed in a way that tells of overload.
    pub fn fail(self) {
        self.report(Report::Failure);
    }

    /// It tells nothing.
    pub fn ignore(self) {
        self.report(Report::Ignored);
    }

    /// Ends it as told.
    pub fn report(mut self, report: Report) {
        self.end(report);
    }

    fn end(&mut self, report: Report) {
        if let Some(seat) = self.seat.take() {
            self.limit.leave(seat, report);
        }
    }
}

impl Drop for PriorityAttempt {
    fn drop(&mut self) {
        self.end(if thread::panicking() { Report::Failure } else { Report::Ignored });
    }
}

impl fmt::Debug for PriorityAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PriorityAttempt({:?} of {:?})", self.seat, self.limit)
    }
}
