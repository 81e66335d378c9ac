//! Whoever says what a domain says.

use super::{DecisionError, DomainRequest, DomainVerdict};
use std::{future::Future, sync::Arc};

/// Whoever says what a domain says. Wires ask it, and know nothing else of it.
///
/// A wire drops what it waits for when its client has gone: what was counted by then stays counted.
pub trait Decide: Send + Sync + 'static {
    /// Counts what is asked for, and says whether it is let through.
    fn decide(
        &self,
        request: DomainRequest,
    ) -> impl Future<Output = Result<DomainVerdict, DecisionError>> + Send;
}

impl<D: Decide> Decide for Arc<D> {
    fn decide(
        &self,
        ask: DomainRequest,
    ) -> impl Future<Output = Result<DomainVerdict, DecisionError>> + Send {
        self.as_ref().decide(ask)
    }
}
