//! Batches of requests: a part of the text of a log, and the spans of the fields in it.

use super::field::MAX_HEADERS;
use std::{any::Any, net::IpAddr};
use tidegate_core::Micros;
use tidegate_policy::compile::{PolicyGate, Prefetch};
use tidegate_rule::request::RequestHead;

/// A part of the text of a batch. Only escaped values are copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchSpan {
    start: u32,
    len: u32,
}

/// Set in spans of the buffer of unescaped values.
const UNESCAPED_BIT: u32 = 1 << 31;

impl BatchSpan {
    /// Creates a span of the text.
    #[inline]
    pub(super) fn new(start: usize, len: usize) -> Self {
        // A batch has a few megabytes, so offsets fit into 31 bits.
        Self { start: start as u32, len: len as u32 }
    }

    pub(super) fn unescaped(start: usize, len: usize) -> Self {
        Self { start: start as u32 | UNESCAPED_BIT, len: len as u32 }
    }

    /// Returns the span without its first bytes.
    #[inline]
    pub(super) fn skip(self, skip: usize) -> Self {
        Self { start: self.start + skip as u32, len: self.len.saturating_sub(skip as u32) }
    }

    /// Returns the first bytes of the span.
    #[inline]
    pub(super) fn prefix(self, len: usize) -> Self {
        Self { len: self.len.min(len as u32), ..self }
    }

    /// Whether the span is empty.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}

/// One request of a log.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogRecord {
    pub(super) time: u64,
    pub(super) time_kind: TimeKind,
    /// The index of the line in its batch.
    pub(super) line: u32,
    pub(super) ip: Option<IpAddr>,
    pub(super) method: BatchSpan,
    pub(super) path: BatchSpan,
    pub(super) query: BatchSpan,
    pub(super) host: BatchSpan,
    pub(super) user: BatchSpan,
    pub(super) headers: [BatchSpan; MAX_HEADERS],
    /// All headers that the line names, as `name:value\n` each, with lowercase names.
    pub(super) header_list: BatchSpan,
    /// The costs that a gateway recorded, as in `reserved 100 tokens` with a line feed each.
    pub(super) cost_list: BatchSpan,
    pub(super) status: u16,
    /// The duration in microseconds.
    pub(super) duration: Option<u32>,
}

/// The meaning of the time of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TimeKind {
    /// There is no time yet.
    #[default]
    Missing,
    /// The time of the request.
    Arrival,
    /// The time of the response.
    Completion,
}

impl LogRecord {
    /// Sets the time. The time of the request takes precedence over that of the response.
    #[inline]
    pub(super) fn set_time(&mut self, time: u64, kind: TimeKind) {
        if kind == TimeKind::Arrival || self.time_kind != TimeKind::Arrival {
            self.time = time;
            self.time_kind = kind;
        }
    }

    /// The arrival time.
    #[inline]
    pub fn time(&self) -> Micros {
        Micros::new(self.time)
    }

    /// Returns the number of the line in a file with this number of lines before the batch.
    #[inline]
    pub(super) fn line_number(&self, lines_before: u64) -> u64 {
        lines_before + u64::from(self.line) + 1
    }

    /// Subtracts the duration if the time is the time of the response.
    #[inline]
    pub(super) fn shift_to_arrival(&mut self) {
        if self.time_kind == TimeKind::Completion {
            self.time_kind = TimeKind::Arrival;
            self.time = self.time.saturating_sub(self.duration.unwrap_or(0).into());
        }
    }
}

/// A batch of lines.
#[derive(Debug, Default)]
pub struct LogBatch {
    pub(super) text: String,
    pub(super) unescaped: String,
    /// Ordered by time.
    pub(super) records: Vec<LogRecord>,
    /// The prepared requests of each policy: a prefix of the records.
    pub(super) prefetch: Vec<Prefetch>,
    pub(super) counts: BatchCounts,
    /// The number of lines of the file before this batch.
    pub(super) lines_before: u64,
}

/// The maximum number of rules for which requests are prepared in one batch. It bounds the memory of a batch if many
/// rules match each request.
const MAX_PREPARED_RULES: usize = 1 << 17;

/// The line statistics of a batch.
#[derive(Clone, Debug, Default)]
pub(super) struct BatchCounts {
    pub(super) lines: u64,
    pub(super) broken: u64,
    /// Lines that were out of order and are sorted.
    pub(super) reordered: u64,
    /// The number of lines by format index.
    pub(super) formats: Vec<u64>,
    /// The first broken lines with their line numbers.
    pub(super) samples: Vec<(u64, String)>,
}

impl LogBatch {
    /// Prepares the requests for these policies.
    pub(super) fn prepare(&mut self, gates: &[PolicyGate], headers: &[String], user_key: Option<&str>) {
        let mut all = std::mem::take(&mut self.prefetch);
        all.resize_with(gates.len(), Prefetch::default);
        for (gate, prefetch) in gates.iter().zip(&mut all) {
            for record in &self.records {
                if prefetch.rule_count() >= MAX_PREPARED_RULES {
                    break;
                }
                gate.prepare(
                    &gate.view_request(&LoggedRequest { batch: self, record, headers, user_key }),
                    prefetch,
                );
            }
        }
        self.prefetch = all;
    }

    #[inline]
    fn get(&self, span: BatchSpan) -> &str {
        let BatchSpan { start, len } = span;
        let (text, start) = match start & UNESCAPED_BIT {
            0 => (&self.text, start as usize),
            _ => (&self.unescaped, (start & !UNESCAPED_BIT) as usize),
        };
        text.get(start..start + len as usize).unwrap_or_default()
    }
}

/// One request of a log, as a policy sees it.
#[derive(Clone, Copy, Debug)]
pub struct LoggedRequest<'a> {
    pub(super) batch: &'a LogBatch,
    pub(super) record: &'a LogRecord,
    pub(super) headers: &'a [String],
    /// The key of the user, as in `header x-user`, where the log has a field for it.
    pub(super) user_key: Option<&'a str>,
}

impl<'a> LoggedRequest<'a> {
    /// The arrival time.
    #[inline]
    pub fn time(&self) -> Micros {
        self.record.time()
    }

    /// The duration, if the log has it.
    pub fn duration(&self) -> Option<Micros> {
        self.record.duration.map(|took| Micros::new(took.into()))
    }

    /// The status of the response; zero if the log does not have it.
    pub fn status(&self) -> u16 {
        self.record.status
    }

    /// The user, if the log has one.
    pub fn user(&self) -> Option<&'a str> {
        self.text_at(self.record.user)
    }

    /// The costs that its response stated, by the names of the rules.
    pub fn stated_costs(&self) -> Vec<(String, u64)> {
        self.listed_costs("stated ").map(|(rule, cost)| (rule.to_owned(), cost)).collect()
    }

    /// Returns the recorded costs of one kind, with the names of their rules.
    fn listed_costs(&self, kind: &str) -> impl Iterator<Item = (&'a str, u64)> {
        let lines = self.batch.get(self.record.cost_list).lines();
        lines.filter_map(move |line| {
            let (cost, rule) = line.strip_prefix(kind)?.split_once(' ')?;
            Some((rule, cost.parse().ok()?))
        })
    }

    /// Returns the values of a header in the header list.
    fn listed_headers(&self, name: &str) -> impl Iterator<Item = &'a str> {
        let lines = self.batch.get(self.record.header_list).lines();
        lines.filter_map(move |line| line.strip_prefix(name)?.strip_prefix(':'))
    }

    #[inline]
    fn text_at(&self, span: BatchSpan) -> Option<&'a str> {
        match span.is_empty() {
            true => None,
            false => Some(self.batch.get(span)),
        }
    }
}

impl RequestHead for LoggedRequest<'_> {
    #[inline]
    fn method(&self) -> &str {
        self.batch.get(self.record.method)
    }

    #[inline]
    fn path(&self) -> &str {
        self.batch.get(self.record.path)
    }

    fn query(&self) -> Option<&str> {
        self.text_at(self.record.query)
    }

    fn host(&self) -> Option<&str> {
        self.text_at(self.record.host)
    }

    fn route(&self) -> Option<&str> {
        None
    }

    #[inline]
    fn peer(&self) -> Option<IpAddr> {
        self.record.ip
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        let place = self.headers.iter().position(|known| known == name);
        let logged = place.and_then(|place| self.text_at(*self.record.headers.get(place)?));
        let listed = || self.listed_headers(name).next();
        let is_user = || self.user_key.and_then(|key| key.strip_prefix("header ")) == Some(name);
        let user = || self.user().filter(|_| is_user());
        logged.or_else(listed).or_else(user).map(str::as_bytes)
    }

    fn for_each_header<'h>(&'h self, name: &str, each: &mut dyn FnMut(&'h [u8])) {
        let mut listed = self.listed_headers(name).peekable();
        if listed.peek().is_some() {
            listed.for_each(|value| each(value.as_bytes()));
        } else if let Some(value) = self.header(name) {
            each(value);
        }
    }

    fn recorded_key(&self, key: &str) -> Option<&str> {
        self.user().filter(|_| self.user_key == Some(key))
    }

    fn extensions(&self) -> Option<&dyn Any> {
        None
    }

    fn recorded_cost(&self, rule: &str) -> Option<u64> {
        self.listed_costs("reserved ").find(|(name, _)| *name == rule).map(|(_, cost)| cost)
    }
}
