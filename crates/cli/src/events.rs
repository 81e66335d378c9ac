//! The log events of this crate, one struct each.

/// A signal requested the shutdown.
pub(crate) struct ShutdownStarted;

impl ShutdownStarted {
    #[allow(clippy::unused_self, reason = "the form of all events")]
    pub(crate) fn emit(self) {
        tracing::info!("shutting down, draining requests in flight");
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
