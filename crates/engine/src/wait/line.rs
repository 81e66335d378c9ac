//! Lines of callers that wait for their turn, one line for each key, with a bounded number of places in all.

use crate::{
    reservation::Reservation,
    sync::{Mutex, MutexGuard, lock},
};
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
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "every place in the line is taken",
            Self::Deadline => "the turn would come after the deadline",
            Self::Expired => "stood in line for longer than the line allows",
            Self::Never => "wants more than is ever granted",
        })
    }
}

impl error::Error for Refused {}

/// All lines of a limiter.
#[derive(Debug)]
pub(crate) struct Lines {
    places: usize,
    ttl: Micros,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    taken: usize,
    next: u64,
    lines: HashMap<u64, BTreeMap<Rank, Arc<Bell>>>,
}

/// Lower goes first: high priority, then early arrival.
type Rank = (std::cmp::Reverse<Priority>, u64);

/// What the holder of a ticket may do.
pub(crate) enum Turn<'a> {
    Go(Reservation<'a>),
    Refuse(Refused),
    /// Look again when the bell rings, or at this moment.
    Wait(Option<Micros>),
}

impl Lines {
    pub(crate) fn new(places: usize, ttl: Micros) -> Self {
        Self { places, ttl, waiting: Mutex::default() }
    }

    pub(crate) fn enter(&self, owner: u64, waiter: Waiter, now: Micros) -> Result<Ticket<'_>, Refused> {
        let mut waiting = lock(&self.waiting);
        if waiting.taken >= self.places {
            return Err(Refused::Full);
        }
        waiting.taken += 1;
        waiting.next += 1;
        let rank = (std::cmp::Reverse(waiter.priority), waiting.next);
        let bell = Arc::new(Bell::default());
        waiting.lines.entry(owner).or_default().insert(rank, bell.clone());
        let deadline = waiter.deadline.map(|deadline| now.plus(deadline.into()));
        let expiry = (self.ttl < Micros::MAX).then(|| now.plus(self.ttl));
        Ok(Ticket { lines: self, owner, rank, bell, cost: waiter.cost, deadline, expiry })
    }

    /// Tells the first in line that something may have changed.
    pub(crate) fn wake_first(&self, owner: u64) {
        let waiting = lock(&self.waiting);
        if waiting.taken > 0
            && let Some((_, bell)) = waiting.lines.get(&owner).and_then(BTreeMap::first_key_value)
        {
            bell.ring();
        }
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

    pub(crate) fn is_first(&self) -> bool {
        let waiting = self.lines.waiting();
        let first = waiting.lines.get(&self.owner).and_then(BTreeMap::first_key_value);
        first.is_some_and(|(rank, _)| *rank == self.rank)
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
            line.remove(&self.rank);
            if line.is_empty() {
                waiting.lines.remove(&self.owner);
            }
        }
        drop(waiting);
        self.lines.wake_first(self.owner);
    }
}

/// Wakes a caller that waits; remembers that it rang if nobody was listening.
#[derive(Debug, Default)]
pub(crate) struct Bell {
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
    pub(crate) fn ring(&self) {
        let before = std::mem::replace(&mut *lock(&self.state), BellState::Rang);
        if let BellState::Listening(waker) = before {
            waker.wake();
        }
    }

    /// Whether it rang since the last time; if not, `waker` is woken when it does.
    pub(crate) fn listen(&self, waker: &Waker) -> bool {
        let mut state = lock(&self.state);
        let rang = matches!(*state, BellState::Rang);
        *state = if rang { BellState::Silent } else { BellState::Listening(waker.clone()) };
        rang
    }
}
