//! Triage: who goes first when there is not enough for all.
//!
//! ```text
//!   slots ┤ user ▉▉▉▉▉▉▉▉▉│·····│ batch ▉▉▉▉▉▉│▒▒▒▒▒▒▒ borrowed
//!         ┼───────────────┼─────┼─────────────┼────────▶
//!          guaranteed to user  kept for what it asks for    what nobody asks for goes to whoever does
//! ```
//!
//! Classes share the slots for work in flight. Each has a share that it gets whenever it asks for it. What is left goes to
//! the more important first: so much is kept free for each class as it has lately been asking for, and a little more for
//! chance, so that a less important one can fill the rest and still not be in its way. What nobody asks for can be used by
//! all.
//!
//! Inside a class that has to turn some away, the less important levels go first, and of one level those users who have
//! lately been given most. They find the last slots of the class closed: as many as arrive from the others within moments.
//!
//! Its surprise: a class that was silent for seconds comes back to slots that others use. It gets its share as fast as they
//! give theirs back, and not before.

mod demand;
mod limit;
mod usage;

pub use limit::{PriorityLimit, PriorityLimitBuilder};

use demand::{ClassDemand, RankThreshold};
use std::{error, fmt};
use tidegate_core::{Micros, Percent, SettingError};
use usage::UsageSketch;

/// A class of requests, with the share of the slots that it is guaranteed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorityClass {
    name: String,
    share: Percent,
}

impl PriorityClass {
    /// A class by name, with its share.
    pub fn new(name: impl Into<String>, share: Percent) -> Self {
        Self { name: name.into(), share }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is guaranteed.
    pub fn share(&self) -> Percent {
        self.share
    }
}

/// Somebody who wants a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityRequest {
    /// Which class, counted from zero, the most important first.
    pub class: usize,
    /// How important it is inside its class: the higher goes first.
    pub level: u8,
    /// Who it is for, as a hash; `None` if all are alike.
    pub user: Option<u64>,
}

impl PriorityRequest {
    /// Somebody of a class, of no particular level or user.
    pub const fn new(class: usize) -> Self {
        Self { class, level: 0, user: None }
    }

    /// The same with a level.
    #[must_use]
    pub const fn level(self, level: u8) -> Self {
        Self { level, ..self }
    }

    /// The same for a user.
    #[must_use]
    pub const fn user(self, user: u64) -> Self {
        Self { user: Some(user), ..self }
    }
}

/// A slot that was given to somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a seat is taken until it is given back"]
pub struct PriorityPermit {
    class: usize,
    acquired_at: Micros,
    in_flight: u32,
}

impl PriorityPermit {
    /// When it was taken.
    pub fn acquired_at(&self) -> Micros {
        self.acquired_at
    }

    /// How many were in flight then, itself included.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }
}

/// Why somebody was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ShedReason {
    /// Every slot is taken.
    Full,
    /// What is free is kept for other classes.
    Reserved,
    /// What is left of its class is kept for those of a higher level, or who have been given less.
    Outranked,
    /// There is no such class.
    UnknownClass,
}

impl fmt::Display for ShedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "every slot is taken",
            Self::Reserved => "what is free is kept for other classes",
            Self::Outranked => "what is left of the class is kept for those who are more important",
            Self::UnknownClass => "there is no such class",
        })
    }
}

impl error::Error for ShedReason {}

/// Gives slots to the important first.
#[derive(Clone, Debug)]
pub struct PriorityScheduler {
    limit: u64,
    in_flight: u64,
    classes: Vec<ClassState>,
    usage: UsageSketch,
}

/// What is known of one class.
#[derive(Clone, Debug)]
struct ClassState {
    class: PriorityClass,
    in_flight: u64,
    demand: ClassDemand,
    threshold: RankThreshold,
}

impl PriorityScheduler {
    /// The classes, the most important first, and how many slots they share.
    pub fn new(classes: impl IntoIterator<Item = PriorityClass>, limit: u32) -> Result<Self, SettingError> {
        let lanes: Vec<_> = classes.into_iter().map(ClassState::new).collect();
        SettingError::require_nonzero("a number of classes", lanes.len() as u64)?;
        SettingError::require_nonzero("a number of slots", limit.into())?;
        let all: u64 = lanes.iter().map(|lane| u64::from(lane.class.share.millionths())).sum();
        if all > u64::from(Percent::FULL.millionths()) {
            let problem = format!("shares of {}% in all", all / 10_000);
            return Err(SettingError::new(problem, "give shares that are not more than 100% together"));
        }
        for (index, lane) in lanes.iter().enumerate() {
            if lanes[..index].iter().any(|other| other.class.name == lane.class.name) {
                let problem = format!("two classes called `{}`", lane.class.name);
                return Err(SettingError::new(problem, "give each class a name of its own"));
            }
        }
        Ok(Self { limit: limit.into(), in_flight: 0, classes: lanes, usage: UsageSketch::default() })
    }

    /// Gives a slot to an arrival, or says why not.
    pub fn try_acquire(
        &mut self,
        now: Micros,
        arrival: PriorityRequest,
    ) -> Result<PriorityPermit, ShedReason> {
        self.advance(now);
        let rank = self.usage.rank(arrival);
        let Some(lane) = self.classes.get_mut(arrival.class) else { return Err(ShedReason::UnknownClass) };
        lane.demand.record_arrival(rank);
        self.check_capacity(arrival.class, rank)?;

        let lane = &mut self.classes[arrival.class];
        lane.in_flight += 1;
        lane.demand.record_admission();
        self.in_flight += 1;
        self.usage.charge(arrival);
        let in_flight = u32::try_from(self.in_flight).unwrap_or(u32::MAX);
        Ok(PriorityPermit { class: arrival.class, acquired_at: now, in_flight })
    }

    /// Takes a slot back.
    pub fn release(&mut self, now: Micros, seat: PriorityPermit) {
        if let Some(lane) = self.classes.get_mut(seat.class) {
            lane.in_flight = lane.in_flight.saturating_sub(1);
            lane.demand.record_completion(now.since(seat.acquired_at));
            self.in_flight = self.in_flight.saturating_sub(1);
        }
    }

    /// Changes the number of slots. What is taken stays taken.
    pub fn resize(&mut self, limit: u32) {
        self.limit = u64::from(limit).max(1);
    }

    /// The classes, the most important first.
    pub fn classes(&self) -> impl Iterator<Item = &PriorityClass> {
        self.classes.iter().map(|lane| &lane.class)
    }

    /// How many are in flight, of all classes.
    pub fn in_flight(&self) -> u32 {
        u32::try_from(self.in_flight).unwrap_or(u32::MAX)
    }

    /// How many of a class are in flight.
    pub fn in_flight_of(&self, class: usize) -> u32 {
        self.classes.get(class).map_or(0, |lane| u32::try_from(lane.in_flight).unwrap_or(u32::MAX))
    }

    /// How many slots there are.
    pub fn limit(&self) -> u32 {
        u32::try_from(self.limit).unwrap_or(u32::MAX)
    }

    fn check_capacity(&self, class: usize, rank: u16) -> Result<(), ShedReason> {
        if self.in_flight >= self.limit {
            return Err(ShedReason::Full);
        }
        let lane = &self.classes[class];
        let guaranteed = lane.guaranteed_slots(self.limit);
        let free = self.limit - self.in_flight;
        let free_to_borrow = free.saturating_sub(self.reserved_for_others(class));
        // Until its share is used up nobody else's wishes matter.
        let allowance = free_to_borrow.max(guaranteed.saturating_sub(lane.in_flight).min(free));
        if allowance == 0 {
            return Err(ShedReason::Reserved);
        }
        let closed = (lane.in_flight + allowance).isqrt().min(lane.threshold.slots);
        let is_outranked = rank < lane.threshold.rank && allowance <= closed;
        if is_outranked { Err(ShedReason::Outranked) } else { Ok(()) }
    }

    /// What a class must leave free for the others: for the less important no more than their share.
    fn reserved_for_others(&self, class: usize) -> u64 {
        let needs =
            self.classes.iter().enumerate().filter(|(index, _)| *index != class).map(|(index, lane)| {
                let wanted = lane.demand.wanted_slots();
                let wanted =
                    if index > class { wanted.min(lane.guaranteed_slots(self.limit)) } else { wanted };
                wanted.saturating_sub(lane.in_flight)
            });
        needs.sum()
    }

    /// Looks at what was asked for since the last time, a few times a second.
    fn advance(&mut self, now: Micros) {
        for lane in &mut self.classes {
            if let Some(bar) = lane.demand.advance(now) {
                lane.threshold = bar;
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
