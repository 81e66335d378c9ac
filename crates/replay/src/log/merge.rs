//! Merges the requests of several files by time.
//!
//! Two batches of each file are merged, so a line may be up to one batch late and is still sorted. A line that is later
//! than that is replayed at the time of the line before it, because the clock never goes back. A line that is ahead of the
//! whole next batch is replayed at the end of that batch, so that one wrong time does not advance the clock. If too many
//! lines are displaced in these ways, the log is rejected.

use super::{
    LineFormats, LogError, LogInput, LoggedRequest,
    batch::{BatchCounts, LogBatch, LogRecord},
    input::{BatchPreparer, LogReader, SharedGates},
    window::SortWindow,
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use tidegate_core::Micros;
use tidegate_policy::compile::{PolicyGate, Prefetch};

/// The requests of several files, ordered by time.
#[derive(Debug)]
pub struct RequestLog {
    formats: Arc<LineFormats>,
    user_key: Option<Arc<str>>,
    window: SortWindow,
    gates: SharedGates,
    /// Inputs for reading the log again; `None` if that is not possible.
    inputs: Option<Vec<LogInput>>,
    sources: Vec<MergeSource>,
    bytes_read: Arc<AtomicU64>,
    size: Option<u64>,
    stats: LogStats,
    /// The time of the last request.
    now: u64,
}

/// The statistics of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// The names of the files.
    pub names: Vec<String>,
    /// The number of lines.
    pub lines: u64,
    /// The number of requests.
    pub requests: u64,
    /// Lines that match no format.
    pub broken: u64,
    /// The first broken lines: file, line number, text.
    pub samples: Vec<(String, u64, String)>,
    /// The number of lines of each format; formats without lines are omitted.
    pub formats: Vec<(String, u64)>,
    /// Lines that were out of order and are sorted.
    pub reordered: u64,
    /// Lines that were too late to be sorted and are replayed at the time of the line before.
    pub late: u64,
    /// The maximum lateness of those.
    pub max_lateness: Micros,
    /// Lines with a wrong time: they are ahead of the lines after them, and are replayed at the time of those.
    pub outliers: u64,
    /// The displaced line that is farthest from its place.
    pub most_displaced: Option<DisplacedLine>,
    /// The time of the first request.
    pub start: Option<Micros>,
    /// The time of the last request.
    pub end: Option<Micros>,
}

/// A line that could not be sorted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisplacedLine {
    /// The name of the file.
    pub file: String,
    /// The number of the line.
    pub line: u64,
    /// The difference between its time and the time at which it is replayed.
    pub distance: Micros,
    /// The direction of the difference.
    pub direction: Displacement,
}

/// The direction in which a line is displaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Displacement {
    /// Its time is before that of the lines before it.
    Behind,
    /// Its time is after that of the lines after it.
    Ahead,
}

/// The number of displaced lines in any log that is accepted.
const MIN_DISPLACED: u64 = 100;
/// The share of displaced lines in a log that is accepted: one in this number of requests.
const REQUESTS_PER_DISPLACED: u64 = 100;

/// Lines at the end of a file are outliers only if they are ahead of all other lines by more than this, and by more than
/// the time that those cover.
const OUTLIER_GAP: u64 = 3_600_000_000;
/// The same for lines that no other line follows.
const LAST_OUTLIER_GAP: u64 = 366 * 24 * 3_600_000_000;
/// The maximum number of outliers at the end of a file: this number, or one percent of its lines.
const MAX_LAST_OUTLIERS: u64 = 3;

/// The number of broken lines that are reported.
const MAX_SAMPLES: usize = 5;

#[derive(Debug)]
struct MergeSource {
    reader: LogReader,
    /// The batch that is returned, and the next one, whose lines may precede lines of the first.
    current: BatchCursor,
    lookahead: BatchCursor,
    /// Whether the reader has no other batches.
    is_ended: bool,
    /// The number of requests so far.
    requests: u64,
    /// The times of the first and the last request so far.
    times: (u64, u64),
    /// The largest line number so far.
    last_line: u64,
}

/// A batch and the position in it.
#[derive(Debug, Default)]
struct BatchCursor {
    batch: LogBatch,
    position: usize,
}

impl BatchCursor {
    #[inline]
    fn time(&self) -> Option<u64> {
        self.batch.records.get(self.position).map(|record| record.time)
    }

    fn remaining(&self) -> &[LogRecord] {
        self.batch.records.get(self.position..).unwrap_or_default()
    }

    /// Sets the time of the remaining lines, which are outliers.
    fn move_back(&mut self, time: u64, file: &str, stats: &mut LogStats) {
        let lines_before = self.batch.lines_before;
        for record in self.batch.records.get_mut(self.position..).unwrap_or_default() {
            let lead = Micros::new(record.time.saturating_sub(time));
            record.time = record.time.min(time);
            stats.outliers += 1;
            stats.record_displaced(file, record.line_number(lines_before), lead, Displacement::Ahead);
        }
    }
}

/// A run of consecutive requests.
#[derive(Clone, Copy, Debug)]
pub struct LoggedRequests<'a> {
    batch: &'a LogBatch,
    /// The index of the first record in the batch.
    offset: usize,
    records: &'a [LogRecord],
    /// The time of the request before the first one.
    previous_time: u64,
    headers: &'a [String],
    user_key: Option<&'a str>,
}

impl<'a> LoggedRequests<'a> {
    /// The number of requests.
    #[inline]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether the run is empty. A log never returns an empty run.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The requests prepared for [one of the policies](RequestLog::set_prefetch_policies), and the index of the first one;
    /// `None` if the reader thread did not prepare them.
    pub fn prefetch(&self, policy: usize) -> Option<(&'a Prefetch, usize)> {
        let prefetch = self.batch.prefetch.get(policy)?;
        (prefetch.len() >= self.offset + self.len()).then_some((prefetch, self.offset))
    }

    /// Returns the requests with the time of the replay.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (LoggedRequest<'a>, Micros)> + use<'a> {
        let Self { batch, records, previous_time: mut since, headers, user_key, .. } = *self;
        records.iter().map(move |record| {
            since = since.max(record.time);
            (LoggedRequest { batch, record, headers, user_key }, Micros::new(since))
        })
    }
}

/// The batch of the next request.
#[derive(Clone, Copy)]
enum CursorKind {
    Current,
    Lookahead,
}

impl RequestLog {
    /// Opens all inputs. `user_key` is the key that the user field of the log stands for, as in `header x-user`.
    ///
    /// # Errors
    ///
    /// Returns an error if an input cannot be read, or if its first lines match no format.
    pub fn open(
        inputs: Vec<LogInput>,
        formats: LineFormats,
        user_key: Option<String>,
    ) -> Result<Self, LogError> {
        Self::open_with_window(inputs, formats, user_key, SortWindow::default())
    }

    /// Opens all inputs, and sorts lines within this window.
    ///
    /// # Errors
    ///
    /// Returns an error if an input cannot be read, or if its first lines match no format.
    pub fn open_with_window(
        inputs: Vec<LogInput>,
        formats: LineFormats,
        user_key: Option<String>,
        window: SortWindow,
    ) -> Result<Self, LogError> {
        Self::open_with(inputs, Arc::new(formats), user_key.map(Into::into), window)
    }

    /// Opens the log again from its start, if that is possible.
    pub fn reopen(&self) -> Option<Result<Self, LogError>> {
        let inputs = self.inputs.as_ref()?.iter().map(LogInput::reopen).collect::<Option<Vec<_>>>()?;
        Some(Self::open_with(inputs, self.formats.clone(), self.user_key.clone(), self.window))
    }

    fn open_with(
        inputs: Vec<LogInput>,
        formats: Arc<LineFormats>,
        user_key: Option<Arc<str>>,
        window: SortWindow,
    ) -> Result<Self, LogError> {
        let gates = SharedGates::default();
        let read = Arc::new(AtomicU64::new(0));
        let size = inputs.iter().map(LogInput::size).sum();
        let names = inputs.iter().map(|input| input.name().to_owned()).collect();
        let stats = LogStats {
            names,
            formats: formats.list.iter().map(|format| (format.name.clone(), 0)).collect(),
            ..LogStats::default()
        };
        let again = inputs.iter().map(LogInput::reopen).collect();
        let sources = Vec::new();
        let mut log = Self {
            formats,
            user_key,
            window,
            gates,
            inputs: again,
            sources,
            bytes_read: read,
            size,
            stats,
            now: 0,
        };
        let mut sources = Vec::new();
        for input in inputs {
            let scout = BatchPreparer {
                gates: log.gates.clone(),
                formats: log.formats.clone(),
                user_key: log.user_key.clone(),
            };
            let reader = LogReader::start(input, window.bytes(), scout, log.bytes_read.clone())?;
            sources.push(MergeSource {
                reader,
                current: BatchCursor::default(),
                lookahead: BatchCursor::default(),
                is_ended: false,
                requests: 0,
                times: (0, 0),
                last_line: 0,
            });
        }
        for mut source in sources {
            source.refill(&mut log.stats)?;
            log.sources.push(source);
        }
        Ok(log)
    }

    /// Lets the reader threads prepare requests for these policies while the consumer is busy. Call it once.
    pub fn set_prefetch_policies(&self, gates: Vec<PolicyGate>) {
        let _ = self.gates.set(gates);
    }

    /// Whether the log can be read again from its start.
    pub fn can_reopen(&self) -> bool {
        self.inputs.is_some()
    }

    /// Returns the time of the first request.
    ///
    /// # Errors
    ///
    /// Returns [`LogError::Empty`] if the log has no requests.
    pub fn start_time(&self) -> Result<Micros, LogError> {
        let first = self.sources.iter().filter_map(MergeSource::next).map(|(time, _)| time).min();
        first.map(Micros::new).ok_or_else(|| LogError::Empty { names: self.stats.names.clone() })
    }

    /// Returns the next request and the time of the replay; `None` at the end.
    #[inline]
    pub fn next_request(&mut self) -> Result<Option<(LoggedRequest<'_>, Micros)>, LogError> {
        Ok(self.next_requests(1)?.and_then(|lines| lines.iter().next()))
    }

    /// Returns between one and `most` requests; `None` at the end.
    ///
    /// # Errors
    ///
    /// Returns an error if an input cannot be read, and at the end [`LogError::OutOfOrder`] if the log is not ordered by time.
    #[inline]
    pub fn next_requests(&mut self, most: usize) -> Result<Option<LoggedRequests<'_>>, LogError> {
        for source in &mut self.sources {
            source.settle(self.now, &mut self.stats)?;
        }
        let place = match self.sources.len() {
            1 => Some(0),
            _ => self.earliest_source(),
        };
        let next = place.and_then(|place| Some((place, self.sources[place].next()?)));
        let Some((place, (time, which))) = next else {
            return self.check_order().map(|()| None);
        };
        let mut before = self.merge_limit(place, which);
        let source = &mut self.sources[place];
        if source.is_ended {
            // The lines after a gap may be outliers, which is checked before they are returned.
            before = before.min(time.saturating_add(OUTLIER_GAP));
        }
        let run = match which {
            CursorKind::Current => &mut source.current,
            CursorKind::Lookahead => &mut source.lookahead,
        };
        let rest = run.batch.records.get(run.position..).unwrap_or_default();
        // The first record is always next; the following ones must precede all other sources.
        let others = rest.iter().take(most).skip(1).take_while(|record| record.time < before);
        let records = &rest[..1 + others.count()];
        let first = run.position;
        run.position += records.len();
        self.stats.requests += records.len() as u64;
        if source.requests == 0 {
            source.times.0 = time;
        }
        source.requests += records.len() as u64;
        let since = self.now;
        for record in records {
            let line = record.line_number(run.batch.lines_before);
            source.last_line = source.last_line.max(line);
            if record.time < self.now {
                self.stats.late += 1;
                let lateness = Micros::new(self.now - record.time);
                self.stats.max_lateness = self.stats.max_lateness.max(lateness);
                self.stats.record_displaced(&source.reader.name, line, lateness, Displacement::Behind);
            }
            self.now = self.now.max(record.time);
            source.times.1 = source.times.1.max(record.time);
        }
        Ok(Some(LoggedRequests {
            batch: &run.batch,
            offset: first,
            records,
            previous_time: since,
            headers: &self.formats.headers,
            user_key: self.user_key.as_deref(),
        }))
    }

    /// Rejects a log with too many displaced lines.
    fn check_order(&self) -> Result<(), LogError> {
        let displaced = self.stats.late + self.stats.outliers;
        if displaced <= MIN_DISPLACED.max(self.stats.requests / REQUESTS_PER_DISPLACED) {
            return Ok(());
        }
        let Some(DisplacedLine { file, line, distance, direction }) = self.stats.most_displaced.clone()
        else {
            return Ok(());
        };
        let most_lines = self.stats.formats.iter().enumerate().max_by_key(|(_, (_, lines))| *lines);
        let format = most_lines.and_then(|(place, _)| self.formats.list.get(place));
        let command = format.and_then(|format| format.sort_command(&file));
        let requests = self.stats.requests;
        Err(LogError::OutOfOrder {
            file,
            line,
            distance,
            direction,
            displaced,
            requests,
            window: self.window,
            command,
        })
    }

    /// The earliest time of any other request; records before it are next.
    fn merge_limit(&self, place: usize, which: CursorKind) -> u64 {
        let elsewhere = self.sources.iter().enumerate().filter(|(other, _)| *other != place);
        let elsewhere = elsewhere.filter_map(|(_, source)| Some(source.next()?.0));
        let MergeSource { current: early, lookahead: later, .. } = &self.sources[place];
        let beside = match which {
            CursorKind::Current => later.time(),
            CursorKind::Lookahead => early.time(),
        };
        elsewhere.chain(beside).min().unwrap_or(u64::MAX)
    }

    /// Returns the number of bytes read, and the total if known.
    pub fn progress(&self) -> (u64, Option<u64>) {
        (self.bytes_read.load(Ordering::Relaxed), self.size)
    }

    /// Returns the statistics so far.
    pub fn stats(&self) -> LogStats {
        let mut stats = self.stats.clone();
        stats.formats.retain(|(_, lines)| *lines > 0);
        stats.end = (stats.requests > 0).then(|| Micros::new(self.now));
        stats
    }

    fn earliest_source(&mut self) -> Option<usize> {
        let times =
            self.sources.iter().enumerate().filter_map(|(place, source)| Some((source.next()?.0, place)));
        times.min().map(|(_, place)| place)
    }
}

impl MergeSource {
    /// Returns the time of the next record and its batch.
    #[inline]
    fn next(&self) -> Option<(u64, CursorKind)> {
        match (self.current.time(), self.lookahead.time()) {
            (Some(early), Some(later)) if later < early => Some((later, CursorKind::Lookahead)),
            (Some(early), _) => Some((early, CursorKind::Current)),
            (None, Some(later)) => Some((later, CursorKind::Lookahead)),
            (None, None) => None,
        }
    }

    /// Moves the lookahead batch to the current one, and reads the next one.
    fn refill(&mut self, stats: &mut LogStats) -> Result<(), LogError> {
        while self.current.time().is_none() && !(self.is_ended && self.lookahead.time().is_none()) {
            let next = self.read_batch(stats)?;
            let early = std::mem::replace(&mut self.current, std::mem::replace(&mut self.lookahead, next));
            self.reader.recycle(early.batch);
        }
        Ok(())
    }

    /// Reads the next batch; an empty one at the end.
    fn read_batch(&mut self, stats: &mut LogStats) -> Result<BatchCursor, LogError> {
        let batch = if self.is_ended { None } else { self.reader.next_batch()? };
        match &batch {
            Some(batch) => stats.add(&self.reader.name, batch),
            None => self.is_ended = true,
        }
        Ok(BatchCursor { batch: batch.unwrap_or_default(), position: 0 })
    }

    /// Reads batches as needed, and moves outliers back to the time of the lines after them.
    fn settle(&mut self, now: u64, stats: &mut LogStats) -> Result<(), LogError> {
        if self.current.time().is_none() {
            self.refill(stats)?;
        }
        while self.current.time().is_some() && self.lookahead.time().is_none() && !self.is_ended {
            let next = self.read_batch(stats)?;
            let done = std::mem::replace(&mut self.lookahead, next);
            if let Some(last) = done.batch.records.last()
                && !self.is_ended
            {
                // The remaining lines of the current batch are ahead of the whole batch after them.
                self.current.move_back(now.max(last.time), &self.reader.name, stats);
            }
            self.reader.recycle(done.batch);
        }
        match self.next() {
            Some((time, _)) if self.is_ended && self.requests > 0 => self.settle_end(time, now, stats),
            _ => {}
        }
        Ok(())
    }

    /// Moves outliers at the end of a file back. `time` is that of the next line.
    #[inline]
    fn settle_end(&mut self, time: u64, now: u64, stats: &mut LogStats) {
        let (first, last) = self.times;
        let gap = time.saturating_sub(last);
        if gap <= OUTLIER_GAP.max(last.saturating_sub(first)) {
            return;
        }
        let cursors = [&self.current, &self.lookahead];
        let rest = cursors.iter().map(|cursor| cursor.remaining().len() as u64).sum::<u64>();
        if rest > MAX_LAST_OUTLIERS.max(self.requests / 100) || rest * 2 > self.requests {
            return;
        }
        // Lines after a pause are the last ones of their file; outliers have at least as many other lines after them.
        let has_lines_after = |cursor: &BatchCursor| {
            let mut lines =
                cursor.remaining().iter().map(|record| record.line_number(cursor.batch.lines_before));
            lines.all(|line| line + rest <= self.last_line)
        };
        if gap > LAST_OUTLIER_GAP || cursors.into_iter().all(has_lines_after) {
            for cursor in [&mut self.current, &mut self.lookahead] {
                cursor.move_back(now.max(last), &self.reader.name, stats);
            }
        }
    }
}

impl LogStats {
    fn record_displaced(&mut self, file: &str, line: u64, distance: Micros, direction: Displacement) {
        if self.most_displaced.as_ref().is_none_or(|most| distance > most.distance) {
            self.most_displaced = Some(DisplacedLine { file: file.to_owned(), line, distance, direction });
        }
    }

    fn add(&mut self, name: &str, batch: &LogBatch) {
        let BatchCounts { lines, broken, reordered, formats, samples } = &batch.counts;
        self.lines += lines;
        self.broken += broken;
        self.reordered += reordered;
        self.formats.iter_mut().zip(formats).for_each(|((_, all), lines)| *all += lines);
        let room = MAX_SAMPLES.saturating_sub(self.samples.len());
        let samples = samples.iter().take(room).map(|(line, text)| (name.to_owned(), *line, text.clone()));
        self.samples.extend(samples);
        let first = batch.records.first().map(super::LogRecord::time);
        self.start = match (self.start, first) {
            (Some(start), Some(first)) => Some(start.min(first)),
            (start, first) => start.or(first),
        };
    }
}

#[cfg(test)]
mod tests;
