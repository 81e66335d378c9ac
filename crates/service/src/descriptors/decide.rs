//! Whoever says what a domain says.

use super::{DescriptorFault, DomainAsk, DomainVerdict};
use std::{future::Future, sync::Arc};

/// Whoever says what a domain says. Wires ask it, and know nothing else of it.
///
/// A wire drops what it waits for when its client has gone: what was counted by then stays counted.
pub trait Decide: Send + Sync + 'static {
    /// Counts what is asked for, and says whether it is let through.
    fn decide(&self, ask: DomainAsk) -> impl Future<Output = Result<DomainVerdict, DescriptorFault>> + Send;
}

impl<D: Decide> Decide for Arc<D> {
    fn decide(&self, ask: DomainAsk) -> impl Future<Output = Result<DomainVerdict, DescriptorFault>> + Send {
        self.as_ref().decide(ask)
    }
}
