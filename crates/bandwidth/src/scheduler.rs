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
const WAKE_GRACE: Micros = Micros::from_millis(1);

/// How often one of those behind the first two looks whether both are gone: all of them together, however many wait.
const CHECK_INTERVAL: Micros = Micros::from_millis(10);

/// How long each of them looks away at most: all but one of a crowd may be gone.
const MAX_CHECK_INTERVAL: Micros = Micros::from_secs(1);

/// The numbers that a flow goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SchedulerSettings {
    pub(super) meter: Meter,
    /// The most bytes that one stream takes at a time, and what those who wait are waiting for.
    pub(super) quantum: u64,
    /// Bytes that all streams together may hold between two moves.
    pub(super) max_prepaid: u64,
}

/// The state of one byte rate.
#[derive(Debug)]
pub(super) struct FairScheduler {
    settings: SchedulerSettings,
    level: u64,
    /// The moment that the level holds for.
    at: Micros,
    gate: GateState,
    queue: BTreeMap<StreamRank, Waker>,
    /// How many bytes the stream had moved that is behind all others with something to move.
    virtual_time: u64,
    arrivals: u64,
    streams: u64,
    prepaid: u64,
    /// When the first in line can go.
    due: Micros,
    /// Who was called because it was late, and when.
    woken: Option<(StreamRank, Micros)>,
}

/// Once there is too little room it is waited for a whole piece, so that small chunks do not mean many timers.
#[derive(Clone, Copy, Debug)]
enum GateState {
    Open,
    Closed,
}

/// Lower goes first: few bytes moved, few to move, then early arrival.
type StreamRank = (u64, u64, u64);

/// What a flow knows of one stream.
#[derive(Debug)]
pub(super) struct SchedulerStream {
    /// How many bytes it has moved, counted from where the others are.
    moved: u64,
    rank: Option<StreamRank>,
    /// What it may hold between two moves.
    pub(super) prepaid_limit: u64,
}

/// What a stream asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByteRequest {
    /// The most that it can move.
    pub(super) want: u64,
    /// What it will likely move, and will not go without.
    pub(super) min: u64,
    /// What it was granted before, and has not moved.
    pub(super) refund: u64,
}

/// The answer to a stream that wants to move bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteGrant {
    /// These many are charged: move them, or give them back.
    Granted(u64),
    /// Ask again at this moment; before, it is woken when there is news.
    WaitUntil(Micros),
}

/// Who is to be woken, once the lock is released.
#[derive(Debug, Default)]
#[must_use = "somebody waits for it"]
pub(super) struct Wakers([Option<Waker>; 2]);

impl Wakers {
    pub(super) fn wake(self) {
        self.0.into_iter().flatten().for_each(Waker::wake);
    }
}

impl FairScheduler {
    pub(super) fn new(terms: SchedulerSettings, now: Micros) -> Self {
        Self {
            settings: terms,
            level: 0,
            at: now,
            gate: GateState::Open,
            queue: BTreeMap::new(),
            virtual_time: 0,
            arrivals: 0,
            streams: 0,
            prepaid: 0,
            due: Micros::ZERO,
            woken: None,
        }
    }

    pub(super) fn settings(&self) -> SchedulerSettings {
        self.settings
    }

    /// A stream comes. It starts a piece behind, or those who come and go would always be first.
    pub(super) fn join(&mut self) -> SchedulerStream {
        self.streams += 1;
        SchedulerStream {
            moved: self.virtual_time.saturating_add(self.settings.quantum),
            rank: None,
            prepaid_limit: 0,
        }
    }

    /// A stream goes.
    pub(super) fn leave(&mut self, stream: &mut SchedulerStream) -> Wakers {
        self.streams -= 1;
        self.prepaid -= std::mem::take(&mut stream.prepaid_limit);
        let Some(rank) = stream.rank.take() else { return Wakers::default() };
        let watched = self.queue.keys().take(2).any(|watched| *watched == rank);
        if self.queue.remove(&rank).is_none() || !watched {
            return Wakers::default();
        }
        self.update_due();
        self.first_two_wakers()
    }

    /// A stream asks to move bytes.
    pub(super) fn request(
        &mut self,
        stream: &mut SchedulerStream,
        request: ByteRequest,
        now: Micros,
        waker: &Waker,
    ) -> (ByteGrant, Wakers) {
        self.undo_charge(stream, request.refund);
        self.advance(now);
        let skipped = self.skip_absent(stream);
        let waited = stream.rank.filter(|rank| self.queue.contains_key(rank));
        let least = request.min.min(request.want).min(self.settings.quantum);
        let rank = waited.unwrap_or_else(|| {
            self.arrivals += 1;
            stream.moved = stream.moved.max(self.virtual_time);
            (stream.moved, least, self.arrivals)
        });

        // Who is at it goes on until it is a piece ahead: small chunks must not mean a change of turns for each.
        let goes_on =
            |first: &StreamRank| waited.is_none() && rank.0 < first.0.saturating_add(self.settings.quantum);
        let is_first = self.queue.keys().next().is_none_or(|first| rank <= *first || goes_on(first));
        let enough = match self.gate {
            GateState::Open => least,
            GateState::Closed => self.settings.quantum,
        };
        if is_first && self.available_bytes() >= enough {
            self.gate = GateState::Open;
            self.queue.remove(&rank);
            let granted = self.grant(stream, request.want);
            self.update_due();
            let wakes = if waited.is_some() { self.first_two_wakers() } else { skipped };
            return (ByteGrant::Granted(granted), wakes);
        }

        stream.rank = Some(rank);
        self.queue.entry(rank).and_modify(|known| known.clone_from(waker)).or_insert_with(|| waker.clone());
        if is_first {
            self.gate = GateState::Closed;
            self.update_due();
        }
        let called_at = self.woken.map_or(Micros::ZERO, |(_, at)| at);
        let until = match self.queue.keys().take(2).position(|watched| *watched == rank) {
            Some(0) => self.due,
            Some(_) => self.due.max(called_at).plus(WAKE_GRACE),
            // Those behind look after both, in turns; who finds the first gone looks after the next at once.
            None if self.at < self.due.plus(WAKE_GRACE) && !self.is_first_woken() => {
                let others = self.queue.len() as u64;
                self.at.plus(Micros::new(CHECK_INTERVAL.get().saturating_mul(others)).min(MAX_CHECK_INTERVAL))
            }
            None => self.at.plus(WAKE_GRACE),
        };
        (ByteGrant::WaitUntil(until), skipped)
    }

    /// Gives back what was granted and not moved.
    pub(super) fn release(&mut self, stream: &mut SchedulerStream, bytes: u64) -> Wakers {
        self.undo_charge(stream, bytes);
        self.update_due();
        let mut wakes = self.first_two_wakers();
        wakes.0[1] = None;
        wakes
    }

    /// Charges bytes that have moved beyond what was granted: an item is not cut. They are repaid before the next.
    pub(super) fn charge(&mut self, stream: &mut SchedulerStream, bytes: u64, now: Micros) {
        self.advance(now);
        self.raise_level(bytes);
        stream.moved = stream.moved.saturating_add(bytes);
        self.update_due();
    }

    /// Goes by other terms from now on. What is owed is kept in bytes or in time, whichever is repaid sooner: so a
    /// faster rate is felt at once, and a slower one does not turn a moment's burst into minutes of silence.
    pub(super) fn reconfigure(&mut self, settings: SchedulerSettings, now: Micros) -> Vec<Waker> {
        self.advance(now);
        let (old, new) = (self.settings.meter, settings.meter);
        let scaled =
            |by: u64, of: u64| (u128::from(self.level) * u128::from(by)).div_ceil(u128::from(of.max(1)));
        let level =
            scaled(new.units_per_token, old.units_per_token).min(scaled(new.units_per_us, old.units_per_us));
        self.level = u64::try_from(level).unwrap_or(LARGEST_EXACT).min(LARGEST_EXACT);
        self.settings = settings;
        self.update_due();
        self.queue.values().cloned().collect()
    }

    /// Whether a flow that is made anew would be the same.
    pub(super) fn is_idle(&mut self, now: Micros) -> bool {
        self.advance(now);
        self.level == 0 && self.streams == 0
    }

    fn grant(&mut self, stream: &mut SchedulerStream, want: u64) -> u64 {
        stream.rank = None;
        // All that is held stays within what may be held, however many streams there are.
        self.prepaid -= stream.prepaid_limit;
        let most = self.settings.max_prepaid;
        stream.prepaid_limit = (most / self.streams.max(1)).min(most - self.prepaid.min(most));
        self.prepaid += stream.prepaid_limit;

        let bytes = want.min(self.settings.quantum).max(stream.prepaid_limit).min(self.available_bytes());
        self.raise_level(bytes);
        let behind = self.queue.keys().next().map_or(stream.moved, |first| first.0.min(stream.moved));
        self.virtual_time = self.virtual_time.max(behind);
        stream.moved = stream.moved.saturating_add(bytes);
        bytes
    }

    fn undo_charge(&mut self, stream: &mut SchedulerStream, bytes: u64) {
        self.level = self.level.saturating_sub(bytes.saturating_mul(self.settings.meter.units_per_token));
        stream.moved = stream.moved.saturating_sub(bytes);
    }

    /// Calls the first in line if it could have gone a while ago and has not come, and then passes it.
    fn skip_absent(&mut self, stream: &SchedulerStream) -> Wakers {
        let Some((&first, waker)) = self.queue.first_key_value() else { return Wakers::default() };
        if stream.rank == Some(first) {
            self.woken = None;
            return Wakers::default();
        }
        if self.at < self.due.plus(WAKE_GRACE) && !(self.at >= self.due && self.is_first_woken()) {
            return Wakers::default();
        }
        let called_at = self.woken.filter(|(called, _)| *called == first).map(|(_, at)| at);
        match called_at {
            Some(at) if self.at >= at.plus(WAKE_GRACE) => {
                self.queue.remove(&first);
                self.update_due();
                // The next is woken now, and so is called already if it can go: of a crowd that is gone none is
                // waited for twice.
                let next = self.queue.keys().next().filter(|_| self.due <= self.at);
                self.woken = next.map(|next| (*next, self.at));
                self.first_two_wakers()
            }
            Some(_) => Wakers::default(),
            None => {
                self.woken = Some((first, self.at));
                Wakers([Some(waker.clone()), None])
            }
        }
    }

    fn is_first_woken(&self) -> bool {
        self.woken.is_some_and(|(called, _)| self.queue.keys().next() == Some(&called))
    }

    /// The first in line and the one that watches it.
    fn first_two_wakers(&self) -> Wakers {
        let mut first = self.queue.values().cloned();
        Wakers([first.next(), first.next()])
    }

    fn update_due(&mut self) {
        let Meter { units_per_token: price, units_per_us: drain, capacity, .. } = self.settings.meter;
        let needed = self.level.saturating_add(self.settings.quantum.saturating_mul(price));
        self.due = self.at.plus(Micros::new(needed.saturating_sub(capacity).div_ceil(drain.max(1))));
    }

    fn advance(&mut self, now: Micros) {
        let drained = self.settings.meter.units_per_us.saturating_mul(now.since(self.at).get());
        self.level = self.level.saturating_sub(drained);
        self.at = self.at.max(now);
    }

    fn raise_level(&mut self, bytes: u64) {
        let units = bytes.saturating_mul(self.settings.meter.units_per_token);
        self.level = self.level.saturating_add(units).min(LARGEST_EXACT);
    }

    fn available_bytes(&self) -> u64 {
        self.settings.meter.capacity.saturating_sub(self.level) / self.settings.meter.units_per_token.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: ByteRequest = ByteRequest { want: 400, min: 400, refund: 0 };

    fn new_scheduler() -> FairScheduler {
        let meter = Meter { units_per_token: 10, units_per_us: 1, capacity: 9_000, queue: 9_000 };
        FairScheduler::new(SchedulerSettings { meter, quantum: 400, max_prepaid: 50 }, Micros::ZERO)
    }

    #[test]
    fn prepaid_bytes_are_shared_by_streams() {
        let mut flow = new_scheduler();
        // However many come and go, each with what it may hold.
        for second in 1..=1_000 {
            let now = Micros::from_secs(second);
            let mut places: Vec<_> = (0..2).map(|_| flow.join()).collect();
            for place in &mut places {
                assert_eq!(flow.request(place, REQUEST, now, Waker::noop()).0, ByteGrant::Granted(400));
            }
            assert_eq!(places.iter().map(|place| place.prepaid_limit).collect::<Vec<_>>(), [25, 25]);
            places.iter_mut().for_each(|place| flow.leave(place).wake());
        }
        let now = Micros::from_secs(2_000);
        let mut alone = flow.join();
        assert_eq!(flow.request(&mut alone, REQUEST, now, Waker::noop()).0, ByteGrant::Granted(400));
        // One that comes later finds its part taken, until the first asks again.
        let mut late = flow.join();
        assert_eq!(flow.request(&mut late, REQUEST, now, Waker::noop()).0, ByteGrant::Granted(400));
        assert_eq!((alone.prepaid_limit, late.prepaid_limit), (50, 0));
        let later = now.plus(Micros::from_millis(9));
        assert_eq!(flow.request(&mut alone, REQUEST, later, Waker::noop()).0, ByteGrant::Granted(400));
        assert_eq!((alone.prepaid_limit, late.prepaid_limit), (25, 0));
    }

    #[test]
    fn wait_time_is_exact() {
        let mut flow = new_scheduler();
        let mut place = flow.join();
        for _ in 0..2 {
            assert_eq!(
                flow.request(&mut place, REQUEST, Micros::ZERO, Waker::noop()).0,
                ByteGrant::Granted(400)
            );
        }
        // 100 of 400 are there, and each takes 10 us.
        let due = Micros::from_millis(3);
        assert_eq!(
            flow.request(&mut place, REQUEST, Micros::ZERO, Waker::noop()).0,
            ByteGrant::WaitUntil(due)
        );
        let just_under = Micros::new(due.get() - 1);
        assert_eq!(flow.request(&mut place, REQUEST, just_under, Waker::noop()).0, ByteGrant::WaitUntil(due));
        assert_eq!(flow.request(&mut place, REQUEST, due, Waker::noop()).0, ByteGrant::Granted(400));
    }
}
