//! Whether a server is there: a breaker, so that not every caller finds out for itself.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

/// Answers in a row that may be late before the server counts as away.
const MOST_LATE: u32 = 8;

/// How a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    /// It answers.
    Up,
    /// It does not, and why.
    Down(String),
}

#[derive(Debug)]
pub(crate) struct Health {
    /// The server, for the log.
    server: String,
    down: Mutex<Option<String>>,
    is_down: AtomicBool,
    late: AtomicU32,
    refusal: Mutex<Option<String>>,
    is_refusing: AtomicBool,
    times_down: AtomicU64,
}

impl Health {
    pub(crate) fn new(server: String) -> Self {
        Self {
            server,
            down: Mutex::new(None),
            is_down: AtomicBool::new(false),
            late: AtomicU32::new(0),
            refusal: Mutex::new(None),
            is_refusing: AtomicBool::new(false),
            times_down: AtomicU64::new(0),
        }
    }

    pub(crate) fn mood(&self) -> Mood {
        if !self.is_down.load(Ordering::Acquire) {
            return Mood::Up;
        }
        self.reason().clone().map_or(Mood::Up, Mood::Down)
    }

    /// Why decisions are made without the server, if they are.
    pub(crate) fn trouble(&self) -> Option<String> {
        let away = self.reason().clone();
        away.or_else(|| self.refusal().clone())
    }

    /// How often the server went away.
    pub(crate) fn times_down(&self) -> u64 {
        self.times_down.load(Ordering::Relaxed)
    }

    pub(crate) fn answered(&self) {
        if self.late.load(Ordering::Relaxed) != 0 {
            self.late.store(0, Ordering::Relaxed);
        }
        if self.is_refusing.load(Ordering::Relaxed) && self.is_refusing.swap(false, Ordering::Relaxed) {
            *self.refusal() = None;
            tracing::warn!(server = %self.server, "the store decides again");
        }
    }

    /// It answers, but not with a decision: its memory is full, or a key is not ours.
    pub(crate) fn refused(&self, why: &str) {
        self.late.store(0, Ordering::Relaxed);
        if !self.is_refusing.load(Ordering::Relaxed) {
            *self.refusal() = Some(why.to_owned());
            self.is_refusing.store(true, Ordering::Relaxed);
            tracing::warn!(server = %self.server, why, "the store refuses: decisions are degraded");
        }
    }

    /// Whether the server counts as away from now on.
    pub(crate) fn late(&self, deadline: Duration) -> bool {
        let late = self.late.fetch_add(1, Ordering::Relaxed) + 1;
        late >= MOST_LATE && self.away(&format!("no answer within {deadline:?}, {late} times in a row"))
    }

    /// Whether that is news.
    pub(crate) fn away(&self, why: &str) -> bool {
        let mut reason = self.reason();
        if reason.is_some() {
            return false;
        }
        *reason = Some(why.to_owned());
        self.is_down.store(true, Ordering::Release);
        self.times_down.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(server = %self.server, why, "the store is away: decisions are degraded");
        true
    }

    /// Why it still cannot be reached: that may be another reason than the one it went away for.
    pub(crate) fn still_away(&self, why: String) {
        if let Some(reason) = self.reason().as_mut() {
            *reason = why;
        }
    }

    pub(crate) fn is_back(&self) {
        let mut reason = self.reason();
        self.late.store(0, Ordering::Relaxed);
        self.is_down.store(false, Ordering::Release);
        if reason.take().is_some() {
            tracing::warn!(server = %self.server, "the store is back");
        }
    }

    fn refusal(&self) -> MutexGuard<'_, Option<String>> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reason(&self) -> MutexGuard<'_, Option<String>> {
        self.down.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
