//! The requests of several files in the order of time.
//!
//! Two batches of each file are looked at together, so that a line may stand a whole batch too late and is still in its
//! place. One that comes later than that is passed on late: the clock stands, since time never goes back.

use super::{
    LineFormats, LogError, LogInput, LoggedRequest,
    batch::{BatchCounts, LogBatch, LogRecord},
    input::{BatchPreparer, LogReader, SharedGates},
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use tidegate_core::Micros;
use tidegate_policy::compile::{PolicyGate, Prefetch};

/// The requests of several files, in the order of time.
#[derive(Debug)]
pub struct RequestLog {
    formats: Arc<LineFormats>,
    user_header: Option<Arc<str>>,
    gates: SharedGates,
    /// What it can be read from again; nothing where it cannot.
    inputs: Option<Vec<LogInput>>,
    sources: Vec<MergeSource>,
    bytes_read: Arc<AtomicU64>,
    size: Option<u64>,
    stats: LogStats,
    /// The moment of the last request.
    now: u64,
}

/// What is told of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// What the files are called.
    pub names: Vec<String>,
    /// All lines.
    pub lines: u64,
    /// Lines that are requests.
    pub requests: u64,
    /// Lines that no format could read.
    pub broken: u64,
    /// The first few of them: file, number, text.
    pub samples: Vec<(String, u64, String)>,
    /// How many lines were of each format; only those that there were.
    pub formats: Vec<(String, u64)>,
    /// Lines that stood too late, and were put where they belong.
    pub reordered: u64,
    /// Lines that stood too late for that: their time was taken to be that of the line before.
    pub late: u64,
    /// By how much they were late at most.
    pub max_lateness: Micros,
    /// The first moment.
    pub start: Option<Micros>,
    /// The last moment.
    pub end: Option<Micros>,
}

/// How many broken lines are shown.
const MAX_SAMPLES: usize = 5;

#[derive(Debug)]
struct MergeSource {
    reader: LogReader,
    /// Lines that are passed on, and those that may have to go between them.
    current: BatchCursor,
    lookahead: BatchCursor,
}

/// What is left of a batch.
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
}

/// Requests that follow each other.
#[derive(Clone, Copy, Debug)]
pub struct LoggedRequests<'a> {
    batch: &'a LogBatch,
    /// Where they begin in it.
    offset: usize,
    records: &'a [LogRecord],
    /// The moment of the last request before.
    previous_time: u64,
    headers: &'a [String],
    user_header: Option<&'a str>,
}

impl<'a> LoggedRequests<'a> {
    /// How many they are.
    #[inline]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there are none, which no log gives.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// What was found out ahead for [one of the policies](RequestLog::set_prefetch_policies), and where they begin in it; `None` if nobody
    /// had the time.
    pub fn prefetch(&self, policy: usize) -> Option<(&'a Prefetch, usize)> {
        let prefetch = self.batch.prefetch.get(policy)?;
        (prefetch.len() >= self.offset + self.len()).then_some((prefetch, self.offset))
    }

    /// Each of them, with the time that it is.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (LoggedRequest<'a>, Micros)> + use<'a> {
        let Self { batch, records, previous_time: mut since, headers, user_header, .. } = *self;
        records.iter().map(move |record| {
            since = since.max(record.time);
            (LoggedRequest { batch, record, headers, user_header }, Micros::new(since))
        })
    }
}

/// Where the next request is.
#[derive(Clone, Copy)]
enum CursorKind {
    Current,
    Lookahead,
}

impl RequestLog {
    /// Opens all of them. `user_header` is the header that names the user, where a log has a field for that.
    pub fn open(
        inputs: Vec<LogInput>,
        formats: LineFormats,
        user_header: Option<String>,
    ) -> Result<Self, LogError> {
        Self::open_with(inputs, Arc::new(formats), user_header.map(Into::into))
    }

    /// The same log from its start, if it can be read again.
    pub fn reopen(&self) -> Option<Result<Self, LogError>> {
        let inputs = self.inputs.as_ref()?.iter().map(LogInput::reopen).collect::<Option<Vec<_>>>()?;
        Some(Self::open_with(inputs, self.formats.clone(), self.user_header.clone()))
    }

    fn open_with(
        inputs: Vec<LogInput>,
        formats: Arc<LineFormats>,
        user_header: Option<Arc<str>>,
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
            user_header,
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
                user_header: log.user_header.clone(),
            };
            let reader = LogReader::start(input, scout, log.bytes_read.clone())?;
            sources.push(MergeSource {
                reader,
                current: BatchCursor::default(),
                lookahead: BatchCursor::default(),
            });
        }
        for mut source in sources {
            source.refill(&mut log.stats)?;
            log.sources.push(source);
        }
        Ok(log)
    }

    /// From now on, what these policies have to know of requests is found out where they are read, as long as that is faster
    /// than whoever takes them. To be called once.
    pub fn set_prefetch_policies(&self, gates: Vec<PolicyGate>) {
        let _ = self.gates.set(gates);
    }

    /// Whether it can be read from its start again.
    pub fn can_reopen(&self) -> bool {
        self.inputs.is_some()
    }

    /// The moment of the first request, or that there is none.
    pub fn start_time(&self) -> Result<Micros, LogError> {
        let first = self.sources.iter().filter_map(MergeSource::next).map(|(time, _)| time).min();
        first.map(Micros::new).ok_or_else(|| LogError::Empty { names: self.stats.names.clone() })
    }

    /// The next request, and the time that it is; `None` at the end.
    #[inline]
    pub fn next_request(&mut self) -> Result<Option<(LoggedRequest<'_>, Micros)>, LogError> {
        Ok(self.next_requests(1)?.and_then(|lines| lines.iter().next()))
    }

    /// The next requests: at most so many, and at least one unless there are no more.
    #[inline]
    pub fn next_requests(&mut self, most: usize) -> Result<Option<LoggedRequests<'_>>, LogError> {
        let place = match self.sources.len() {
            1 => Some(0),
            _ => self.earliest_source(),
        };
        let Some(place) = place else { return Ok(None) };
        if self.sources[place].current.time().is_none() {
            self.sources[place].refill(&mut self.stats)?;
        }
        let Some((_, which)) = self.sources[place].next() else {
            return Ok(None);
        };
        let before = self.merge_limit(place, which);
        let source = &mut self.sources[place];
        let run = match which {
            CursorKind::Current => &mut source.current,
            CursorKind::Lookahead => &mut source.lookahead,
        };
        let rest = run.batch.records.get(run.position..).unwrap_or_default();
        // The first is the next one, whatever others there are.
        let others = rest.iter().take(most).skip(1).take_while(|record| record.time < before);
        let records = &rest[..1 + others.count()];
        let first = run.position;
        run.position += records.len();
        self.stats.requests += records.len() as u64;
        let since = self.now;
        for record in records {
            if record.time < self.now {
                self.stats.late += 1;
                self.stats.max_lateness = self.stats.max_lateness.max(Micros::new(self.now - record.time));
            }
            self.now = self.now.max(record.time);
        }
        Ok(Some(LoggedRequests {
            batch: &run.batch,
            offset: first,
            records,
            previous_time: since,
            headers: &self.formats.headers,
            user_header: self.user_header.as_deref(),
        }))
    }

    /// Before which moment the next requests of a run come for certain.
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

    /// Bytes that were read, and how many there are in all if that is known.
    pub fn progress(&self) -> (u64, Option<u64>) {
        (self.bytes_read.load(Ordering::Relaxed), self.size)
    }

    /// What there is to tell of what was read so far.
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
    /// The time of the next line. Before a later one comes, all that may go before it has to be read.
    #[inline]
    fn next(&self) -> Option<(u64, CursorKind)> {
        match (self.current.time(), self.lookahead.time()) {
            (Some(early), Some(later)) if later < early => Some((later, CursorKind::Lookahead)),
            (Some(early), _) => Some((early, CursorKind::Current)),
            (None, Some(later)) => Some((later, CursorKind::Lookahead)),
            (None, None) => None,
        }
    }

    /// What was later is early now, and another batch is later.
    fn refill(&mut self, stats: &mut LogStats) -> Result<(), LogError> {
        while self.current.time().is_none() {
            let next = self.reader.next_batch()?;
            let is_end = next.is_none();
            if let Some(batch) = &next {
                stats.add(&self.reader.name, batch);
            }
            let later = BatchCursor { batch: next.unwrap_or_default(), position: 0 };
            let early = std::mem::replace(&mut self.current, std::mem::replace(&mut self.lookahead, later));
            self.reader.recycle(early.batch);
            if is_end {
                break;
            }
        }
        Ok(())
    }
}

impl LogStats {
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
