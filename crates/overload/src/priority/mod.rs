//! Priorities: which requests are admitted when there are not enough slots.
//!
//! ```text
//!   slots ┤ user ▉▉▉▉▉▉▉▉▉│·····│ batch ▉▉▉▉▉▉│▒▒▒▒▒▒▒ borrowed
//!         ┼───────────────┼─────┼─────────────┼────────▶
//!          guaranteed to user  reserved for its demand    unused slots are lent to other classes
//! ```
//!
//! Classes share the slots for requests in flight. Each class has a guaranteed share. Other slots go to the more important
//! classes first: for each, the scheduler reserves its recent demand and a margin for random variation, so that a less
//! important class can fill the remaining slots without delaying it. All classes can use slots without demand.
//!
//! Within a class that must shed requests, lower levels are shed first, and within a level the users that were recently
//! admitted most. They cannot use the last slots of the class: as many as the other requests need soon.
//!
//! A class that was idle for seconds finds its slots in use by others. It gets its share as fast as they release slots.

mod demand;
mod limit;
mod usage;

pub use limit::{PriorityLimit, PriorityLimitBuilder};

use demand::{ClassDemand, RankThreshold};
use std::{error, fmt};
use tidegate_core::{Micros, Percent, SettingError};
use usage::UsageSketch;

/// A class of requests with a guaranteed share of the slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorityClass {
    name: String,
    share: Percent,
}

impl PriorityClass {
    /// Creates a class with a name and a share.
    pub fn new(name: impl Into<String>, share: Percent) -> Self {
        Self { name: name.into(), share }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The guaranteed share.
    pub fn share(&self) -> Percent {
        self.share
    }
}

/// A request for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityRequest {
    /// The index of the class; 0 is the most important.
    pub class: usize,
    /// The importance within the class: higher levels are admitted first.
    pub level: u8,
    /// A hash of the user; `None` if users are not distinguished.
    pub user: Option<u64>,
}

impl PriorityRequest {
    /// Creates a request of a class, with level 0 and without a user.
    pub const fn new(class: usize) -> Self {
        Self { class, level: 0, user: None }
    }

    /// Sets the level.
    #[must_use]
    pub const fn level(self, level: u8) -> Self {
        Self { level, ..self }
    }

    /// Sets the user.
    #[must_use]
    pub const fn user(self, user: u64) -> Self {
        Self { user: Some(user), ..self }
    }
}

/// A slot in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a slot is in use until it is released"]
pub struct PriorityPermit {
    class: usize,
    acquired_at: Micros,
    in_flight: u32,
}

impl PriorityPermit {
    /// When it was acquired.
    pub fn acquired_at(&self) -> Micros {
        self.acquired_at
    }

    /// The number of requests in flight at that time, itself included.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }
}

/// The reason why a request was shed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ShedReason {
    /// All slots are in use.
    LimitReached,
    /// The free slots are reserved for other classes.
    Reserved,
    /// The remaining slots of the class are reserved for higher levels, or for users with less recent usage.
    Outranked,
    /// The class does not exist.
    UnknownClass,
}

impl fmt::Display for ShedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LimitReached => "concurrency limit reached",
            Self::Reserved => "remaining slots are reserved for other classes",
            Self::Outranked => "remaining slots of the class are reserved for higher priorities",
            Self::UnknownClass => "unknown priority class",
        })
    }
}

impl error::Error for ShedReason {}

/// Assigns slots by priority.
#[derive(Clone, Debug)]
pub struct PriorityScheduler {
    limit: u64,
    in_flight: u64,
    classes: Vec<ClassState>,
    usage: UsageSketch,
}

/// The state of one class.
#[derive(Clone, Debug)]
struct ClassState {
    class: PriorityClass,
    in_flight: u64,
    demand: ClassDemand,
    threshold: RankThreshold,
}

impl PriorityScheduler {
    /// Creates a scheduler of `limit` slots for these classes, the most important first.
    pub fn new(classes: impl IntoIterator<Item = PriorityClass>, limit: u32) -> Result<Self, SettingError> {
        let states: Vec<_> = classes.into_iter().map(ClassState::new).collect();
        SettingError::require_nonzero("a number of classes", states.len() as u64)?;
        SettingError::require_nonzero("a number of slots", limit.into())?;
        let all: u64 = states.iter().map(|state| u64::from(state.class.share.millionths())).sum();
        if all > u64::from(Percent::FULL.millionths()) {
            let problem = format!("shares add up to {}%", all / 10_000);
            return Err(SettingError::new(problem, "give shares of at most 100% in total"));
        }
        for (index, state) in states.iter().enumerate() {
            if states[..index].iter().any(|other| other.class.name == state.class.name) {
                let problem = format!("duplicate class `{}`", state.class.name);
                return Err(SettingError::new(problem, "give each class a unique name"));
            }
        }
        Ok(Self { limit: limit.into(), in_flight: 0, classes: states, usage: UsageSketch::default() })
    }

    /// Acquires a slot for a request, or returns the reason why it is shed.
    pub fn try_acquire(
        &mut self,
        now: Micros,
        request: PriorityRequest,
    ) -> Result<PriorityPermit, ShedReason> {
        self.advance(now);
        let rank = self.usage.rank(request);
        let Some(state) = self.classes.get_mut(request.class) else { return Err(ShedReason::UnknownClass) };
        state.demand.record_arrival(rank);
        self.check_capacity(request.class, rank)?;

        let state = &mut self.classes[request.class];
        state.in_flight += 1;
        state.demand.record_admission();
        self.in_flight += 1;
        self.usage.charge(request);
        let in_flight = u32::try_from(self.in_flight).unwrap_or(u32::MAX);
        Ok(PriorityPermit { class: request.class, acquired_at: now, in_flight })
    }

    /// Releases a slot.
    pub fn release(&mut self, now: Micros, permit: PriorityPermit) {
        if let Some(state) = self.classes.get_mut(permit.class) {
            state.in_flight = state.in_flight.saturating_sub(1);
            state.demand.record_completion(now.saturating_sub(permit.acquired_at));
            self.in_flight = self.in_flight.saturating_sub(1);
        }
    }

    /// Changes the number of slots. Slots in use stay in use.
    pub fn resize(&mut self, limit: u32) {
        self.limit = u64::from(limit).max(1);
    }

    /// The classes, the most important first.
    pub fn classes(&self) -> impl Iterator<Item = &PriorityClass> {
        self.classes.iter().map(|state| &state.class)
    }

    /// The number of requests in flight, of all classes.
    pub fn in_flight(&self) -> u32 {
        u32::try_from(self.in_flight).unwrap_or(u32::MAX)
    }

    /// The number of requests in flight of one class.
    pub fn in_flight_of(&self, class: usize) -> u32 {
        self.classes.get(class).map_or(0, |state| u32::try_from(state.in_flight).unwrap_or(u32::MAX))
    }

    /// The number of slots.
    pub fn limit(&self) -> u32 {
        u32::try_from(self.limit).unwrap_or(u32::MAX)
    }

    fn check_capacity(&self, class: usize, rank: u16) -> Result<(), ShedReason> {
        if self.in_flight >= self.limit {
            return Err(ShedReason::LimitReached);
        }
        let state = &self.classes[class];
        let guaranteed = state.guaranteed_slots(self.limit);
        let free = self.limit - self.in_flight;
        let free_to_borrow = free.saturating_sub(self.reserved_for_others(class));
        // Within its guaranteed share, a class ignores the demand of others.
        let allowance = free_to_borrow.max(guaranteed.saturating_sub(state.in_flight).min(free));
        if allowance == 0 {
            return Err(ShedReason::Reserved);
        }
        let closed = (state.in_flight + allowance).isqrt().min(state.threshold.slots);
        let is_outranked = rank < state.threshold.rank && allowance <= closed;
        if is_outranked { Err(ShedReason::Outranked) } else { Ok(()) }
    }

    /// The slots a class must leave free for others: for less important classes, at most their guaranteed
    /// share.
    fn reserved_for_others(&self, class: usize) -> u64 {
        let needs =
            self.classes.iter().enumerate().filter(|(index, _)| *index != class).map(|(index, state)| {
                let wanted = state.demand.wanted_slots();
                let wanted =
                    if index > class { wanted.min(state.guaranteed_slots(self.limit)) } else { wanted };
                wanted.saturating_sub(state.in_flight)
            });
        needs.sum()
    }

    /// Updates the demand, several times per second.
    fn advance(&mut self, now: Micros) {
        for state in &mut self.classes {
            if let Some(threshold) = state.demand.advance(now) {
                state.threshold = threshold;
            }
        }
        self.usage.advance(now);
    }
}

impl ClassState {
    fn new(class: PriorityClass) -> Self {
        Self { class, in_flight: 0, demand: ClassDemand::default(), threshold: RankThreshold::default() }
    }

    fn guaranteed_slots(&self, limit: u64) -> u64 {
        self.class.share.apply(limit)
    }
}
