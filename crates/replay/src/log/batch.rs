//! Requests of a log, as they are passed on: a piece of its text, and where in it things are.

use super::field::MAX_HEADERS;
use std::{any::Any, net::IpAddr};
use tidegate_core::Micros;
use tidegate_policy::compile::{PolicyGate, Prefetch};
use tidegate_rule::request::RequestHead;

/// A part of the text of a batch. Nothing is copied from a line unless it was escaped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchSpan {
    start: u32,
    len: u32,
}

/// Set in spans of what was unescaped, which is kept beside the text.
const UNESCAPED_BIT: u32 = 1 << 31;

impl BatchSpan {
    /// So many bytes of the text.
    #[inline]
    pub(super) fn new(start: usize, len: usize) -> Self {
        // A batch is of a few megabytes.
        Self { start: start as u32, len: len as u32 }
    }

    pub(super) fn unescaped(start: usize, len: usize) -> Self {
        Self { start: start as u32 | UNESCAPED_BIT, len: len as u32 }
    }

    /// All but its first bytes.
    #[inline]
    pub(super) fn skip(self, skip: usize) -> Self {
        Self { start: self.start + skip as u32, len: self.len.saturating_sub(skip as u32) }
    }

    /// Its first bytes.
    #[inline]
    pub(super) fn prefix(self, len: usize) -> Self {
        Self { len: self.len.min(len as u32), ..self }
    }

    /// Whether there is nothing.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}

/// One request of a log.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogRecord {
    pub(super) time: u64,
    /// Whether that is when it had been answered, and not when it came.
    pub(super) is_completion_time: bool,
    pub(super) ip: Option<IpAddr>,
    pub(super) method: BatchSpan,
    pub(super) path: BatchSpan,
    pub(super) query: BatchSpan,
    pub(super) host: BatchSpan,
    pub(super) user: BatchSpan,
    pub(super) headers: [BatchSpan; MAX_HEADERS],
    pub(super) status: u16,
    /// How long it took, in microseconds.
    pub(super) duration: Option<u32>,
}

impl LogRecord {
    /// When it came.
    #[inline]
    pub fn time(&self) -> Micros {
        Micros::new(self.time)
    }

    /// Goes back to when it came, where the line tells when it had been answered, and how long that took.
    #[inline]
    pub(super) fn shift_to_arrival(&mut self) {
        if self.is_completion_time {
            self.is_completion_time = false;
            self.time = self.time.saturating_sub(self.duration.unwrap_or(0).into());
        }
    }
}

/// Lines that were read together.
#[derive(Debug, Default)]
pub struct LogBatch {
    pub(super) text: String,
    pub(super) unescaped: String,
    /// In the order of time.
    pub(super) records: Vec<LogRecord>,
    /// What policies have to know of the first of these requests, of all or of none of them; one for each policy.
    pub(super) prefetch: Vec<Prefetch>,
    pub(super) counts: BatchCounts,
}

/// For how many rules requests are prepared in one batch. That bounds what a batch takes, however many rules are
/// about each request.
const MAX_PREPARED_RULES: usize = 1 << 17;

/// What is told of the lines of a batch.
#[derive(Clone, Debug, Default)]
pub(super) struct BatchCounts {
    pub(super) lines: u64,
    pub(super) broken: u64,
    /// Lines that were put back into the order of time.
    pub(super) reordered: u64,
    /// By the place of a format.
    pub(super) formats: Vec<u64>,
    /// The first few, with their numbers.
    pub(super) samples: Vec<(u64, String)>,
}

impl LogBatch {
    /// Finds out what these policies have to know of its requests.
    pub(super) fn prepare(&mut self, gates: &[PolicyGate], headers: &[String], user_header: Option<&str>) {
        let mut all = std::mem::take(&mut self.prefetch);
        all.resize_with(gates.len(), Prefetch::default);
        for (gate, prefetch) in gates.iter().zip(&mut all) {
            for record in &self.records {
                if prefetch.rule_count() >= MAX_PREPARED_RULES {
                    break;
                }
                gate.prepare(
                    &gate.view_request(&LoggedRequest { batch: self, record, headers, user_header }),
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
    /// The header that names the user where the log has a field for it.
    pub(super) user_header: Option<&'a str>,
}

impl<'a> LoggedRequest<'a> {
    /// When it was.
    #[inline]
    pub fn time(&self) -> Micros {
        self.record.time()
    }

    /// How long it took, if the log says so.
    pub fn duration(&self) -> Option<Micros> {
        self.record.duration.map(|took| Micros::new(took.into()))
    }

    /// How it was answered; zero if the log does not say so.
    pub fn status(&self) -> u16 {
        self.record.status
    }

    /// The user, if the log says so.
    pub fn user(&self) -> Option<&'a str> {
        self.text_at(self.record.user)
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
        let user = || self.user().filter(|_| self.user_header == Some(name));
        logged.or_else(user).map(str::as_bytes)
    }

    fn for_each_header<'h>(&'h self, name: &str, each: &mut dyn FnMut(&'h [u8])) {
        if let Some(value) = self.header(name) {
            each(value);
        }
    }

    fn extensions(&self) -> Option<&dyn Any> {
        None
    }
}
