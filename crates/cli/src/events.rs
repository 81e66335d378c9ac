//! The log events of this crate, one struct each.

use std::error::Error;

/// A signal requested the shutdown.
pub(crate) struct ShutdownStarted;

impl ShutdownStarted {
    #[allow(clippy::unused_self, reason = "the form of all events")]
    pub(crate) fn emit(self) {
        tracing::info!("shutting down, draining requests in flight");
    }
}

/// The server behind the example gateway failed.
pub(crate) struct ExampleServerFailed<'a> {
    pub(crate) error: &'a dyn Error,
}

impl ExampleServerFailed<'_> {
    pub(crate) fn emit(self) {
        tracing::error!(error = %self.error, "built-in server failed");
    }
}

/// A variable of envoyproxy/ratelimit is set that has no effect here.
pub(crate) struct VariableIgnored<'a> {
    pub(crate) variable: &'a str,
    pub(crate) reason: &'a str,
}

impl VariableIgnored<'_> {
    pub(crate) fn emit(self) {
        let Self { variable, reason } = self;
        tracing::warn!(%variable, reason, "variable has no effect");
    }
}
