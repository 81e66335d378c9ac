//! The interface between transports and the service.

use super::{DecisionError, DomainRequest, DomainVerdict};
use std::{future::Future, sync::Arc};

/// Decides requests. Transports depend only on this trait.
///
/// A transport drops the future when its client disconnects; hits counted until then stay counted.
pub trait Decide: Send + Sync + 'static {
    /// Counts a request and decides whether it is allowed.
    fn decide(
        &self,
        request: DomainRequest,
    ) -> impl Future<Output = Result<DomainVerdict, DecisionError>> + Send;
}

impl<D: Decide> Decide for Arc<D> {
    fn decide(
        &self,
        request: DomainRequest,
    ) -> impl Future<Output = Result<DomainVerdict, DecisionError>> + Send {
        self.as_ref().decide(request)
    }
}
