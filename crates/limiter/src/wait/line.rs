//! Lines of callers that wait for their turn, one line for each key, with a bounded number of places in all.

use crate::sync::{Mutex, MutexGuard, lock};
use std::{
    collections::{BTreeMap, HashMap},
    error, fmt,
    sync::Arc,
    task::Waker,
    time::Duration,
};
use tidegate_core::Micros;

/// A caller that stands in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// What it wants to take.
    pub cost: u64,
    /// Who goes first.
    pub priority: Priority,
    /// How long it is willing to wait; `None` for as long as it takes.
    pub deadline: Option<Duration>,
}

impl Waiter {
    /// A caller that wants `cost`, has no priority and waits for as long as it takes.
    pub const fn new(cost: u64) -> Self {
        Self { cost, priority: Priority(0), deadline: None }
    }

    /// The same caller, with a priority.
    #[must_use]
    pub const fn priority(self, priority: Priority) -> Self {
        Self { priority, ..self }
    }

    /// The same caller, with a deadline from now.
    #[must_use]
    pub const fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }
}

/// A class of callers: the higher goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(pub u8);

/// Why a caller left the line with empty hands. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// Every place in the line is taken.
    Full,
    /// Its turn would come after its deadline.
    Deadline,
    /// It stood in line for longer than the line allows.
    Expired,
    /// It wants more than is ever granted.
    Never,
    /// What it waits for is counted in a store that is away, and nobody is to pass without it; worth asking again after
    /// this time.
    StoreAway(Micros),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StoreAway(wait) => {
                return write!(f, "the store that counts is away, try again in {}", wait.rounded());
            }
            Self::Full => "every place in the line is taken",
            Self::Deadline => "the turn would come after the deadline",
            Self::Expired => "stood in line for longer than the line allows",
            Self::Never => "wants more than is ever granted",
        })
    }
}

impl error::Error for Refused {}

/// How callers wait for tokens of a limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Each with a reservation of its own, as in Guava.
    Reserve,
    /// In line, where only the first holds one.
    Line,
}

/// All lines of a limiter.
#[derive(Debug)]
pub(crate) struct Lines {
    manner: Manner,
    places: usize,
    ttl: Micros,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    taken: usize,
    next: u64,
    lines: HashMap<u64, Line>,
}

/// The callers that wait for one key.
#[derive(Debug, Default)]
struct Line {
    waiters: BTreeMap<Rank, Place>,
    /// Who holds a reservation, and must give it back before another may.
    served: Option<Rank>,
}

/// A caller in a line.
#[derive(Debug)]
struct Place {
    bell: Arc<Bell>,
    cost: u64,
}

/// Lower goes first: high priority, then early arrival.
type Rank = (std::cmp::Reverse<Priority>, u64);

impl Line {
    fn first(&self) -> Option<(&Rank, &Place)> {
        self.waiters.first_key_value()
    }

    fn bell_of_first(&self) -> Option<Arc<Bell>> {
        self.first().map(|(_, place)| place.bell.clone())
    }
}

impl Lines {
    pub(crate) fn new(manner: Manner, places: usize, ttl: Micros) -> Self {
        Self { manner, places, ttl, waiting: Mutex::default() }
    }

    pub(crate) fn manner(&self) -> Manner {
        self.manner
    }

    /// Takes a place at the end of a line, if there is one left.
    pub(crate) fn enter(&self, owner: u64, waiter: Waiter, now: Micros) -> Result<Ticket<'_>, Refused> {
        let waiting = self.waiting();
        if waiting.taken >= self.places {
            return Err(Refused::Full);
        }
        let expiry = (self.ttl < Micros::MAX).then(|| now.plus(self.ttl));
        Ok(self.place(waiting, owner, waiter, now, expiry))
    }

    /// Takes a place at the end of a line, however long it is: for callers that agreed to wait.
    pub(crate) fn join(&self, owner: u64, waiter: Waiter, now: Micros) -> Ticket<'_> {
        self.place(self.waiting(), owner, waiter, now, None)
    }

    fn place(
        &self,
        mut waiting: MutexGuard<'_, Waiting>,
        owner: u64,
        waiter: Waiter,
        now: Micros,
        expiry: Option<Micros>,
    ) -> Ticket<'_> {
        waiting.taken += 1;
        waiting.next += 1;
        let rank = (std::cmp::Reverse(waiter.priority), waiting.next);
        let bell = Arc::new(Bell::default());
        let line = waiting.lines.entry(owner).or_default();
        // Whoever was first and is overtaken must hear of it.
        let overtaken = line.first().filter(|(first, _)| rank < **first).map(|(_, place)| place.bell.clone());
        line.waiters.insert(rank, Place { bell: bell.clone(), cost: waiter.cost });
        // Not under the lock: a waker may run whatever it likes.
        drop(waiting);
        overtaken.iter().for_each(|bell| bell.ring());
        let deadline = waiter.deadline.map(|deadline| now.plus(deadline.into()));
        Ticket { lines: self, owner, rank, bell, cost: waiter.cost, deadline, expiry }
    }

    /// Tells the first in line that something may have changed.
    pub(crate) fn wake_first(&self, owner: u64) {
        let first = self.waiting().lines.get(&owner).and_then(Line::bell_of_first);
        first.iter().for_each(|bell| bell.ring());
    }

    /// Tells the first in every line that the quota has changed.
    pub(crate) fn wake_all_first(&self) {
        let bells: Vec<_> = self.waiting().lines.values().filter_map(Line::bell_of_first).collect();
        bells.iter().for_each(|bell| bell.ring());
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.waiting)
    }
}

/// A place in a line; dropping it leaves the line.
pub(crate) struct Ticket<'a> {
    lines: &'a Lines,
    owner: u64,
    rank: Rank,
    bell: Arc<Bell>,
    cost: u64,
    deadline: Option<Micros>,
    expiry: Option<Micros>,
}

impl Ticket<'_> {
    pub(crate) fn cost(&self) -> u64 {
        self.cost
    }

    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }

    /// What those before this caller want to take.
    pub(crate) fn costs_before(&self) -> Vec<u64> {
        let waiting = self.lines.waiting();
        let Some(line) = waiting.lines.get(&self.owner) else { return Vec::new() };
        // The one that is served holds its tokens already.
        let before = line.waiters.range(..self.rank).filter(|(rank, _)| Some(**rank) != line.served);
        before.map(|(_, place)| place.cost).collect()
    }

    /// Whether nobody is before this caller.
    pub(crate) fn is_first(&self) -> bool {
        let waiting = self.lines.waiting();
        let first = waiting.lines.get(&self.owner).and_then(Line::first);
        first.is_some_and(|(rank, _)| *rank == self.rank)
    }

    /// Whether it is this caller's turn to hold a reservation.
    pub(crate) fn may_be_served(&self) -> bool {
        let mut waiting = self.lines.waiting();
        let Some(line) = waiting.lines.get_mut(&self.owner) else { return false };
        let is_first = line.first().is_some_and(|(rank, _)| *rank == self.rank);
        let is_free = line.served.is_none_or(|served| served == self.rank);
        if is_first && is_free {
            line.served = Some(self.rank);
        }
        is_first && is_free
    }

    /// Lets the first in line be served: this caller holds nothing any more.
    pub(crate) fn step_back(&self) {
        let mut waiting = self.lines.waiting();
        if let Some(line) = waiting.lines.get_mut(&self.owner)
            && line.served == Some(self.rank)
        {
            line.served = None;
            let first = line.bell_of_first();
            drop(waiting);
            first.iter().for_each(|bell| bell.ring());
        }
    }

    /// When it is too late for this caller.
    pub(crate) fn latest(&self) -> Option<Micros> {
        match (self.deadline, self.expiry) {
            (Some(deadline), Some(expiry)) => Some(deadline.min(expiry)),
            (deadline, expiry) => deadline.or(expiry),
        }
    }

    /// Why it is too late, once it is.
    pub(crate) fn overdue(&self, now: Micros) -> Option<Refused> {
        self.latest().filter(|latest| now > *latest).map(|_| self.too_late())
    }

    /// Which of its ends comes first.
    pub(crate) fn too_late(&self) -> Refused {
        match (self.deadline, self.expiry) {
            (Some(deadline), Some(expiry)) if expiry < deadline => Refused::Expired,
            (None, Some(_)) => Refused::Expired,
            _ => Refused::Deadline,
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut waiting = self.lines.waiting();
        waiting.taken -= 1;
        if let Some(line) = waiting.lines.get_mut(&self.owner) {
            line.waiters.remove(&self.rank);
            line.served = line.served.filter(|served| *served != self.rank);
            if line.waiters.is_empty() {
                waiting.lines.remove(&self.owner);
            }
        }
        drop(waiting);
        self.lines.wake_first(self.owner);
    }
}

/// Wakes a caller that waits; remembers that it rang if nobody was listening.
#[derive(Debug, Default)]
pub struct Bell {
    state: Mutex<BellState>,
}

#[derive(Debug, Default)]
enum BellState {
    #[default]
    Silent,
    Listening(Waker),
    Rang,
}

impl Bell {
    /// Wakes the caller that waits.
    pub fn ring(&self) {
        let before = std::mem::replace(&mut *lock(&self.state), BellState::Rang);
        if let BellState::Listening(waker) = before {
            waker.wake();
        }
    }

    /// Whether it rang since the last time; if not, `waker` is woken when it does.
    pub fn listen(&self, waker: &Waker) -> bool {
        let mut state = lock(&self.state);
        let rang = matches!(*state, BellState::Rang);
        *state = if rang { BellState::Silent } else { BellState::Listening(waker.clone()) };
        rang
    }
}
