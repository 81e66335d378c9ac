//! The log events of this crate, one struct each.

use crate::health::FailureModes;

/// A server is disconnected, does not reply, or replies too late.
pub(crate) struct StoreUnavailable<'a> {
    pub(crate) store: &'a str,
    pub(crate) cause: &'a str,
    pub(crate) advice: &'a str,
    pub(crate) mode: &'a FailureModes,
}

impl StoreUnavailable<'_> {
    pub(crate) fn emit(self) {
        let Self { store, cause, advice, mode } = self;
        tracing::warn!(%store, cause, advice, %mode, "store unavailable");
    }
}

/// A server is available again, or `server` has replaced it.
pub(crate) struct StoreRecovered<'a> {
    pub(crate) store: &'a str,
    pub(crate) server: &'a str,
    /// The duration of the outage.
    pub(crate) seconds: f64,
    /// The last cause of the outage.
    pub(crate) cause: &'a str,
}

impl StoreRecovered<'_> {
    pub(crate) fn emit(self) {
        let Self { store, server, seconds, cause } = self;
        tracing::warn!(%store, server, seconds, cause, "store available again");
    }
}

/// A server is reachable but returns errors instead of decisions.
pub(crate) struct StoreRejectsDecisions<'a> {
    pub(crate) store: &'a str,
    pub(crate) cause: &'a str,
    pub(crate) advice: &'a str,
    pub(crate) mode: &'a FailureModes,
    /// Rejections of the same cause since the last event.
    pub(crate) suppressed: u64,
}

impl StoreRejectsDecisions<'_> {
    pub(crate) fn emit(self) {
        let Self { store, cause, advice, mode, suppressed } = self;
        tracing::warn!(%store, %cause, advice, %mode, suppressed, "store rejects decisions");
    }
}
