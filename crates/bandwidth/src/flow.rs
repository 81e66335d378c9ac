//! One byte rate and the streams that share it: who may move how much, and when. Pure: time is an argument.
//!
//! ```text
//!   level   9 ms ┤‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾  no room: whoever asks waits
//!   (bytes       │  ╱|    ╱|    ╱|
//!   moved)  5 ms ┤-╱-|-╲-╱-|-╲-╱-|-   room for a piece: the first in line goes
//!              0 ┼╱─────────────────▶  nothing is lost as long as it does not sink this far
//! ```
//!
//! The level stays between nothing and 9 ms of the rate while a stream has work, so any second sees the rate to
//! within 1 %, and a timer may be 5 ms late without a byte being lost.
//!
//! Those who wait go by how many bytes their stream has moved, counted from where the others are. So who moves small
//! chunks is ahead of who moves large ones until both have moved as much; who comes back from a silence is level with
//! the first, and who comes new is behind those who are there.
//!
//! Its surprise: the first in line may never come back, for a read can be given up without a word. So the second
//! keeps watch, and passes it when it is late. One that was passed has lost nothing but its turn.

use std::{collections::BTreeMap, task::Waker};
use tidegate_core::{LARGEST_EXACT, Micros, algorithm::level::Meter};

/// How late the first in line may be before it is called, and after that before it is passed: all timers may be late,
/// and the second's by less than the first's.
const GRACE: Micros = Micros::from_millis(1);

/// How often one of those behind the first two looks whether both are gone: all of them together, however many wait.
const LOOK: Micros = Micros::from_millis(10);

/// How long each of them looks away at most: all but one of a crowd may be gone.
const LONGEST_LOOK: Micros = Micros::from_secs(1);

/// The numbers that a flow goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) meter: Meter,
    /// The most bytes that one stream takes at a time, and what those who wait are waiting for.
    pub(super) piece: u64,
    /// Bytes that all streams together may hold between two moves.
    pub(super) held: u64,
}

/// The state of one byte rate.
#[derive(Debug)]
pub(super) struct Flow {
    terms: Terms,
    level: u64,
    /// The moment that the level holds for.
    at: Micros,
    gate: Gate,
    line: BTreeMap<Rank, Waker>,
    /// How many bytes the stream had moved that is behind all others with something to move.
    round: u64,
    arrivals: u64,
    streams: u64,
    held: u64,
    /// When the first in line can go.
    due: Micros,
    /// Who was called because it was late, and when.
    called: Option<(Rank, Micros)>,
}

/// Once there is too little room it is waited for a whole piece, so that small chunks do not mean many timers.
#[derive(Clone, Copy, Debug)]
enum Gate {
    Open,
    Shut,
}

/// Lower goes first: few bytes moved, few to move, then early arrival.
type Rank = (u64, u64, u64);

/// What a flow knows of one stream.
#[derive(Debug)]
pub(super) struct Place {
    /// How many bytes it has moved, counted from where the others are.
    moved: u64,
    rank: Option<Rank>,
    /// What it may hold between two moves.
    pub(super) hold: u64,
}

/// What a stream asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    /// The most that it can move.
    pub(super) want: u64,
    /// What it will likely move, and will not go without.
    pub(super) least: u64,
    /// What it was granted before, and has not moved.
    pub(super) returned: u64,
}

/// The answer to a stream that wants to move bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// These many are charged: move them, or give them back.
    Go(u64),
    /// Ask again at this moment; before, it is woken when there is news.
    Wait(Micros),
}

/// Who is to be woken, once the lock is released.
#[derive(Debug, Default)]
#[must_use = "somebody waits for it"]
pub(super) struct Wakes([Option<Waker>; 2]);

impl Wakes {
    pub(super) fn wake(self) {
        self.0.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Flow {
    pub(super) fn new(terms: Terms, now: Micros) -> Self {
        Self {
            terms,
            level: 0,
            at: now,
            gate: Gate::Open,
            line: BTreeMap::new(),
            round: 0,
            arrivals: 0,
            streams: 0,
            held: 0,
            due: Micros::ZERO,
            called: None,
        }
    }

    pub(super) fn terms(&self) -> Terms {
        self.terms
    }

    /// A stream comes. It starts a piece behind, or those who come and go would always be first.
    pub(super) fn join(&mut self) -> Place {
        self.streams += 1;
        Place { moved: self.round.saturating_add(self.terms.piece), rank: None, hold: 0 }
    }

    /// A stream goes.
    pub(super) fn leave(&mut self, place: &mut Place) -> Wakes {
        self.streams -= 1;
        self.held -= std::mem::take(&mut place.hold);
        let Some(rank) = place.rank.take() else { return Wakes::default() };
        let watched = self.line.keys().take(2).any(|watched| *watched == rank);
        if self.line.remove(&rank).is_none() || !watched {
            return Wakes::default();
        }
        self.note_due();
        self.first_two()
    }

    /// A stream asks to move bytes.
    pub(super) fn ask(&mut self, place: &mut Place, ask: Ask, now: Micros, waker: &Waker) -> (Turn, Wakes) {
        self.refund(place, ask.returned);
        self.advance(now);
        let passed = self.pass_the_absent(place);
        let waited = place.rank.filter(|rank| self.line.contains_key(rank));
        let least = ask.least.min(ask.want).min(self.terms.piece);
        let rank = waited.unwrap_or_else(|| {
            self.arrivals += 1;
            place.moved = place.moved.max(self.round);
            (place.moved, least, self.arrivals)
        });

        // Who is at it goes on until it is a piece ahead: small chunks must not mean a change of turns for each.
        let goes_on = |first: &Rank| waited.is_none() && rank.0 < first.0.saturating_add(self.terms.piece);
        let is_first = self.line.keys().next().is_none_or(|first| rank <= *first || goes_on(first));
        let enough = match self.gate {
            Gate::Open => least,
            Gate::Shut => self.terms.piece,
        };
        if is_first && self.room() >= enough {
            self.gate = Gate::Open;
            self.line.remove(&rank);
            let granted = self.grant(place, ask.want);
            self.note_due();
            let wakes = if waited.is_some() { self.first_two() } else { passed };
            return (Turn::Go(granted), wakes);
        }

        place.rank = Some(rank);
        self.line.entry(rank).and_modify(|known| known.clone_from(waker)).or_insert_with(|| waker.clone());
        if is_first {
            self.gate = Gate::Shut;
            self.note_due();
        }
        let called_at = self.called.map_or(Micros::ZERO, |(_, at)| at);
        let until = match self.line.keys().take(2).position(|watched| *watched == rank) {
            Some(0) => self.due,
            Some(_) => self.due.max(called_at).plus(GRACE),
            // Those behind look after both, in turns; who finds the first gone looks after the next at once.
            None if self.at < self.due.plus(GRACE) && !self.is_first_called() => {
                let others = self.line.len() as u64;
                self.at.plus(Micros::new(LOOK.get().saturating_mul(others)).min(LONGEST_LOOK))
            }
            None => self.at.plus(GRACE),
        };
        (Turn::Wait(until), passed)
    }

    /// Gives back what was granted and not moved.
    pub(super) fn give_back(&mut self, place: &mut Place, bytes: u64) -> Wakes {
        self.refund(place, bytes);
        self.note_due();
        let mut wakes = self.first_two();
        wakes.0[1] = None;
        wakes
    }

    /// Charges bytes that have moved beyond what was granted: an item is not cut. They are repaid before the next.
    pub(super) fn charge(&mut self, place: &mut Place, bytes: u64, now: Micros) {
        self.advance(now);
        self.raise(bytes);
        place.moved = place.moved.saturating_add(bytes);
        self.note_due();
    }

    /// Goes by other terms from now on. What is owed is kept in bytes or in time, whichever is repaid sooner: so a
    /// faster rate is felt at once, and a slower one does not turn a moment's burst into minutes of silence.
    pub(super) fn change(&mut self, terms: Terms, now: Micros) -> Vec<Waker> {
        self.advance(now);
        let (old, new) = (self.terms.meter, terms.meter);
        let scaled =
            |by: u64, of: u64| (u128::from(self.level) * u128::from(by)).div_ceil(u128::from(of.max(1)));
        let level = scaled(new.price, old.price).min(scaled(new.drain, old.drain));
        self.level = u64::try_from(level).unwrap_or(LARGEST_EXACT).min(LARGEST_EXACT);
        self.terms = terms;
        self.note_due();
        self.line.values().cloned().collect()
    }

    /// Whether a flow that is made anew would be the same.
    pub(super) fn is_idle(&mut self, now: Micros) -> bool {
        self.advance(now);
        self.level == 0 && self.streams == 0
    }

    fn grant(&mut self, place: &mut Place, want: u64) -> u64 {
        place.rank = None;
        // All that is held stays within what may be held, however many streams there are.
        self.held -= place.hold;
        let most = self.terms.held;
        place.hold = (most / self.streams.max(1)).min(most - self.held.min(most));
        self.held += place.hold;

        let bytes = want.min(self.terms.piece).max(place.hold).min(self.room());
        self.raise(bytes);
        let behind = self.line.keys().next().map_or(place.moved, |first| first.0.min(place.moved));
        self.round = self.round.max(behind);
        place.moved = place.moved.saturating_add(bytes);
        bytes
    }

    fn refund(&mut self, place: &mut Place, bytes: u64) {
        self.level = self.level.saturating_sub(bytes.saturating_mul(self.terms.meter.price));
        place.moved = place.moved.saturating_sub(bytes);
    }

    /// Calls the first in line if it could have gone a while ago and has not come, and then passes it.
    fn pass_the_absent(&mut self, place: &Place) -> Wakes {
        let Some((&first, waker)) = self.line.first_key_value() else { return Wakes::default() };
        if place.rank == Some(first) {
            self.called = None;
            return Wakes::default();
        }
        if self.at < self.due.plus(GRACE) && !(self.at >= self.due && self.is_first_called()) {
            return Wakes::default();
        }
        let called_at = self.called.filter(|(called, _)| *called == first).map(|(_, at)| at);
        match called_at {
            Some(at) if self.at >= at.plus(GRACE) => {
                self.line.remove(&first);
                self.note_due();
                // The next is woken now, and so is called already if it can go: of a crowd that is gone none is
                // waited for twice.
                let next = self.line.keys().next().filter(|_| self.due <= self.at);
                self.called = next.map(|next| (*next, self.at));
                self.first_two()
            }
            Some(_) => Wakes::default(),
            None => {
                self.called = Some((first, self.at));
                Wakes([Some(waker.clone()), None])
            }
        }
    }

    fn is_first_called(&self) -> bool {
        self.called.is_some_and(|(called, _)| self.line.keys().next() == Some(&called))
    }

    /// The first in line and the one that watches it.
    fn first_two(&self) -> Wakes {
        let mut first = self.line.values().cloned();
        Wakes([first.next(), first.next()])
    }

    fn note_due(&mut self) {
        let Meter { price, drain, capacity, .. } = self.terms.meter;
        let needed = self.level.saturating_add(self.terms.piece.saturating_mul(price));
        self.due = self.at.plus(Micros::new(needed.saturating_sub(capacity).div_ceil(drain.max(1))));
    }

    fn advance(&mut self, now: Micros) {
        let drained = self.terms.meter.drain.saturating_mul(now.since(self.at).get());
        self.level = self.level.saturating_sub(drained);
        self.at = self.at.max(now);
    }

    fn raise(&mut self, bytes: u64) {
        let units = bytes.saturating_mul(self.terms.meter.price);
        self.level = self.level.saturating_add(units).min(LARGEST_EXACT);
    }

    fn room(&self) -> u64 {
        self.terms.meter.capacity.saturating_sub(self.level) / self.terms.meter.price.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASK: Ask = Ask { want: 400, least: 400, returned: 0 };

    fn flow() -> Flow {
        let meter = Meter { price: 10, drain: 1, capacity: 9_000, queue: 9_000 };
        Flow::new(Terms { meter, piece: 400, held: 50 }, Micros::ZERO)
    }

    #[test]
    fn all_streams_together_hold_a_little() {
        let mut flow = flow();
        // However many come and go, each with what it may hold.
        for second in 1..=1_000 {
            let now = Micros::from_secs(second);
            let mut places: Vec<_> = (0..2).map(|_| flow.join()).collect();
            for place in &mut places {
                assert_eq!(flow.ask(place, ASK, now, Waker::noop()).0, Turn::Go(400));
            }
            assert_eq!(places.iter().map(|place| place.hold).collect::<Vec<_>>(), [25, 25]);
            places.iter_mut().for_each(|place| flow.leave(place).wake());
        }
        let now = Micros::from_secs(2_000);
        let mut alone = flow.join();
        assert_eq!(flow.ask(&mut alone, ASK, now, Waker::noop()).0, Turn::Go(400));
        // One that comes later finds its part taken, until the first asks again.
        let mut late = flow.join();
        assert_eq!(flow.ask(&mut late, ASK, now, Waker::noop()).0, Turn::Go(400));
        assert_eq!((alone.hold, late.hold), (50, 0));
        let later = now.plus(Micros::from_millis(9));
        assert_eq!(flow.ask(&mut alone, ASK, later, Waker::noop()).0, Turn::Go(400));
        assert_eq!((alone.hold, late.hold), (25, 0));
    }

    #[test]
    fn the_wait_is_exact() {
        let mut flow = flow();
        let mut place = flow.join();
        for _ in 0..2 {
            assert_eq!(flow.ask(&mut place, ASK, Micros::ZERO, Waker::noop()).0, Turn::Go(400));
        }
        // 100 of 400 are there, and each takes 10 us.
        let due = Micros::from_millis(3);
        assert_eq!(flow.ask(&mut place, ASK, Micros::ZERO, Waker::noop()).0, Turn::Wait(due));
        let just_under = Micros::new(due.get() - 1);
        assert_eq!(flow.ask(&mut place, ASK, just_under, Waker::noop()).0, Turn::Wait(due));
        assert_eq!(flow.ask(&mut place, ASK, due, Waker::noop()).0, Turn::Go(400));
    }
}
