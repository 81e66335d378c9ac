//! A fair scheduler for the streams that share one byte rate. It is pure: time is an argument.
//!
//! ```text
//!   level   9 ms ┤‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾  full: every request waits
//!   (bytes       │  ╱|    ╱|    ╱|
//!   moved)  5 ms ┤-╱-|-╲-╱-|-╲-╱-|-   room for a quantum: the first of the queue moves
//!              0 ┼╱─────────────────▶  no throughput is lost above this level
//! ```
//!
//! While a stream has bytes to move, the level stays between zero and 9 ms of the rate. So any second is exact to
//! 1 %, and a timer may be 5 ms late without a loss of throughput.
//!
//! The queue is ordered by the number of bytes that a stream has moved, relative to the others. So a stream with
//! small chunks precedes one with large chunks until both have moved the same number of bytes. A stream that was
//! idle is placed beside the first, and a new one behind the existing streams.
//!
//! Note that a waiting read can be dropped without notice, so the first of the queue may never poll again. The
//! second one therefore watches the first and skips it when it is late. A skipped stream loses only its position.

use std::{collections::BTreeMap, task::Waker};
use tidegate_core::{LARGEST_EXACT, Micros, algorithm::level::IntegerBucket};

/// How late the first of the queue may be before it is woken, and then before it is skipped. Timers may be late,
/// and that of the second by less than that of the first.
const WAKE_GRACE: Micros = Micros::from_millis(1);

/// How often one of the streams behind the first two checks whether both are abandoned, for all of them together.
const CHECK_INTERVAL: Micros = Micros::from_millis(10);

/// The longest interval between the checks of one stream, because all other streams may be abandoned.
const MAX_CHECK_INTERVAL: Micros = Micros::from_secs(1);

/// The settings of a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SchedulerSettings {
    pub(super) integer_bucket: IntegerBucket,
    /// The maximum number of bytes per grant, and the number of free bytes that a waiting stream waits for.
    pub(super) quantum: u64,
    /// The maximum number of bytes that all streams together have been granted and not moved.
    pub(super) max_prepaid: u64,
}

/// The state of one byte rate.
#[derive(Debug)]
pub(super) struct FairScheduler {
    settings: SchedulerSettings,
    level: u64,
    /// The time of the level.
    at: Micros,
    gate: GateState,
    queue: BTreeMap<StreamRank, Waker>,
    /// The bytes moved by the slowest stream that has bytes to move.
    virtual_time: u64,
    arrivals: u64,
    streams: u64,
    prepaid: u64,
    /// When the first of the queue can move.
    due: Micros,
    /// The first of the queue, if it was woken because it was late, and the time of that.
    woken: Option<(StreamRank, Micros)>,
}

/// After a shortage, a stream waits for a whole quantum, so that small chunks do not need many timers.
#[derive(Clone, Copy, Debug)]
enum GateState {
    Open,
    Closed,
}

/// Lower ranks first: bytes moved, bytes to move, arrival.
type StreamRank = (u64, u64, u64);

/// The state of one stream in the scheduler.
#[derive(Debug)]
pub(super) struct SchedulerStream {
    /// The bytes that it has moved, relative to the others.
    moved: u64,
    rank: Option<StreamRank>,
    /// The number of granted bytes that it may keep between two moves.
    pub(super) prepaid_limit: u64,
}

/// A request for bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByteRequest {
    /// The most that the stream can move.
    pub(super) want: u64,
    /// The expected size of the move, which is the minimum of a grant.
    pub(super) min: u64,
    /// The bytes of an earlier grant that were not moved.
    pub(super) refund: u64,
}

/// The response to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteGrant {
    /// This number of bytes is charged: move them or release them.
    Granted(u64),
    /// Request again at this time, or when woken earlier.
    WaitUntil(Micros),
}

/// The wakers to call after the lock is released.
#[derive(Debug, Default)]
#[must_use = "the streams must be woken"]
pub(super) struct Wakers([Option<Waker>; 2]);

impl Wakers {
    pub(super) fn wake(self) {
        self.0.into_iter().flatten().for_each(Waker::wake);
    }
}

impl FairScheduler {
    pub(super) fn new(settings: SchedulerSettings, now: Micros) -> Self {
        Self {
            settings,
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

    /// Adds a stream. It starts a quantum behind, or short-lived streams would always be first.
    pub(super) fn join(&mut self) -> SchedulerStream {
        self.streams += 1;
        SchedulerStream {
            moved: self.virtual_time.saturating_add(self.settings.quantum),
            rank: None,
            prepaid_limit: 0,
        }
    }

    /// Removes a stream.
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

    /// Handles a request for bytes.
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

        // The active stream continues until it is a quantum ahead, to avoid a switch after each small chunk.
        let continues =
            |first: &StreamRank| waited.is_none() && rank.0 < first.0.saturating_add(self.settings.quantum);
        let is_first = self.queue.keys().next().is_none_or(|first| rank <= *first || continues(first));
        let enough = match self.gate {
            GateState::Open => least,
            GateState::Closed => self.settings.quantum,
        };
        if is_first && self.available_bytes() >= enough {
            self.gate = GateState::Open;
            self.queue.remove(&rank);
            let granted = self.grant(stream, request.want);
            self.update_due();
            let wakers = if waited.is_some() { self.first_two_wakers() } else { skipped };
            return (ByteGrant::Granted(granted), wakers);
        }

        stream.rank = Some(rank);
        self.queue.entry(rank).and_modify(|known| known.clone_from(waker)).or_insert_with(|| waker.clone());
        if is_first {
            self.gate = GateState::Closed;
            self.update_due();
        }
        let woken_at = self.woken.map_or(Micros::ZERO, |(_, at)| at);
        let until = match self.queue.keys().take(2).position(|watched| *watched == rank) {
            Some(0) => self.due,
            Some(_) => self.due.max(woken_at).saturating_add(WAKE_GRACE),
            // The others check both in turns; one that finds the first abandoned checks again soon.
            None if self.at < self.due.saturating_add(WAKE_GRACE) && !self.is_first_woken() => {
                let others = self.queue.len() as u64;
                self.at.saturating_add(
                    Micros::new(CHECK_INTERVAL.get().saturating_mul(others)).min(MAX_CHECK_INTERVAL),
                )
            }
            None => self.at.saturating_add(WAKE_GRACE),
        };
        (ByteGrant::WaitUntil(until), skipped)
    }

    /// Returns granted bytes that were not moved.
    pub(super) fn release(&mut self, stream: &mut SchedulerStream, bytes: u64) -> Wakers {
        self.undo_charge(stream, bytes);
        self.update_due();
        let mut wakers = self.first_two_wakers();
        wakers.0[1] = None;
        wakers
    }

    /// Charges bytes that were moved without a grant, because an item is not split. The next move waits for them.
    pub(super) fn charge(&mut self, stream: &mut SchedulerStream, bytes: u64, now: Micros) {
        self.advance(now);
        self.raise_level(bytes);
        stream.moved = stream.moved.saturating_add(bytes);
        self.update_due();
    }

    /// Applies new settings. A debt is converted to bytes or to time, whichever is repaid sooner. So a faster rate
    /// applies at once, and a slower one does not turn a short burst into minutes without bytes.
    pub(super) fn reconfigure(&mut self, settings: SchedulerSettings, now: Micros) -> Vec<Waker> {
        self.advance(now);
        let (old, new) = (self.settings.integer_bucket, settings.integer_bucket);
        let scaled =
            |by: u64, of: u64| (u128::from(self.level) * u128::from(by)).div_ceil(u128::from(of.max(1)));
        let level =
            scaled(new.units_per_token, old.units_per_token).min(scaled(new.units_per_us, old.units_per_us));
        self.level = u64::try_from(level).unwrap_or(LARGEST_EXACT).min(LARGEST_EXACT);
        self.settings = settings;
        self.update_due();
        self.queue.values().cloned().collect()
    }

    /// The level if there are no streams; zero if the state equals that of a new scheduler.
    pub(super) fn unused_level(&mut self, now: Micros) -> Option<u64> {
        self.advance(now);
        (self.streams == 0).then_some(self.level)
    }

    fn grant(&mut self, stream: &mut SchedulerStream, want: u64) -> u64 {
        stream.rank = None;
        // The prepaid bytes of all streams together stay within the maximum.
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
        self.level =
            self.level.saturating_sub(bytes.saturating_mul(self.settings.integer_bucket.units_per_token));
        stream.moved = stream.moved.saturating_sub(bytes);
    }

    /// Wakes the first of the queue if it is late, and skips it if it is still late after that.
    fn skip_absent(&mut self, stream: &SchedulerStream) -> Wakers {
        let Some((&first, waker)) = self.queue.first_key_value() else { return Wakers::default() };
        if stream.rank == Some(first) {
            self.woken = None;
            return Wakers::default();
        }
        if self.at < self.due.saturating_add(WAKE_GRACE) && !(self.at >= self.due && self.is_first_woken()) {
            return Wakers::default();
        }
        let woken_at = self.woken.filter(|(woken, _)| *woken == first).map(|(_, at)| at);
        match woken_at {
            Some(at) if self.at >= at.saturating_add(WAKE_GRACE) => {
                self.queue.remove(&first);
                self.update_due();
                // The next one is woken now and counts as woken if it can move, so that a series of abandoned
                // streams is skipped without a second wait for each.
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
        self.woken.is_some_and(|(woken, _)| self.queue.keys().next() == Some(&woken))
    }

    /// The wakers of the first of the queue and of the one that watches it.
    fn first_two_wakers(&self) -> Wakers {
        let mut first = self.queue.values().cloned();
        Wakers([first.next(), first.next()])
    }

    fn update_due(&mut self) {
        let IntegerBucket { units_per_token: price, units_per_us: drain, capacity, .. } =
            self.settings.integer_bucket;
        let needed = self.level.saturating_add(self.settings.quantum.saturating_mul(price));
        self.due =
            self.at.saturating_add(Micros::new(needed.saturating_sub(capacity).div_ceil(drain.max(1))));
    }

    fn advance(&mut self, now: Micros) {
        let drained =
            self.settings.integer_bucket.units_per_us.saturating_mul(now.saturating_sub(self.at).get());
        self.level = self.level.saturating_sub(drained);
        self.at = self.at.max(now);
    }

    fn raise_level(&mut self, bytes: u64) {
        let units = bytes.saturating_mul(self.settings.integer_bucket.units_per_token);
        self.level = self.level.saturating_add(units).min(LARGEST_EXACT);
    }

    fn available_bytes(&self) -> u64 {
        self.settings.integer_bucket.capacity.saturating_sub(self.level)
            / self.settings.integer_bucket.units_per_token.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: ByteRequest = ByteRequest { want: 400, min: 400, refund: 0 };

    fn new_scheduler() -> FairScheduler {
        let integer_bucket = IntegerBucket {
            units_per_token: 10,
            units_per_us: 1,
            capacity: 9_000,
            queue: 9_000,
            initial_level: 0,
        };
        FairScheduler::new(SchedulerSettings { integer_bucket, quantum: 400, max_prepaid: 50 }, Micros::ZERO)
    }

    #[test]
    fn prepaid_bytes_are_shared_by_streams() {
        let mut scheduler = new_scheduler();
        // Streams join and leave repeatedly, with prepaid bytes each.
        for second in 1..=1_000 {
            let now = Micros::from_secs(second);
            let mut streams: Vec<_> = (0..2).map(|_| scheduler.join()).collect();
            for stream in &mut streams {
                assert_eq!(scheduler.request(stream, REQUEST, now, Waker::noop()).0, ByteGrant::Granted(400));
            }
            assert_eq!(streams.iter().map(|stream| stream.prepaid_limit).collect::<Vec<_>>(), [25, 25]);
            streams.iter_mut().for_each(|stream| scheduler.leave(stream).wake());
        }
        let now = Micros::from_secs(2_000);
        let mut alone = scheduler.join();
        assert_eq!(scheduler.request(&mut alone, REQUEST, now, Waker::noop()).0, ByteGrant::Granted(400));
        // A later stream gets no prepaid bytes until the first one requests again.
        let mut late = scheduler.join();
        assert_eq!(scheduler.request(&mut late, REQUEST, now, Waker::noop()).0, ByteGrant::Granted(400));
        assert_eq!((alone.prepaid_limit, late.prepaid_limit), (50, 0));
        let later = now.saturating_add(Micros::from_millis(9));
        assert_eq!(scheduler.request(&mut alone, REQUEST, later, Waker::noop()).0, ByteGrant::Granted(400));
        assert_eq!((alone.prepaid_limit, late.prepaid_limit), (25, 0));
    }

    #[test]
    fn wait_time_is_exact() {
        let mut scheduler = new_scheduler();
        let mut stream = scheduler.join();
        for _ in 0..2 {
            assert_eq!(
                scheduler.request(&mut stream, REQUEST, Micros::ZERO, Waker::noop()).0,
                ByteGrant::Granted(400)
            );
        }
        // 100 of 400 bytes are free, and each takes 10 us.
        let due = Micros::from_millis(3);
        assert_eq!(
            scheduler.request(&mut stream, REQUEST, Micros::ZERO, Waker::noop()).0,
            ByteGrant::WaitUntil(due)
        );
        let just_under = Micros::new(due.get() - 1);
        assert_eq!(
            scheduler.request(&mut stream, REQUEST, just_under, Waker::noop()).0,
            ByteGrant::WaitUntil(due)
        );
        assert_eq!(scheduler.request(&mut stream, REQUEST, due, Waker::noop()).0, ByteGrant::Granted(400));
    }
}
