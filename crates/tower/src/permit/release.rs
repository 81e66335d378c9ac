//! What is held while a request is served, and what is said with it.

use super::protocol::ResponseProtocol;
use crate::head::TowerResponseHead;
use bytes::Bytes;
use http::Response;
use std::sync::Arc;
use tidegate_limiter::SemaphorePermit;
use tidegate_overload::{CallError, CallOutcome, CallPermit, RecordOutcome};
use tidegate_rule::middleware::{AdmittedClient, MiddlewareOptions};

/// What is held while a request is served. Dropping it says nothing of how it ended.
pub(crate) trait RequestPermit: Send + Sync + 'static {
    /// The request was served, in this way.
    fn release(self, report: CallOutcome);
}

impl<G: RecordOutcome<Entry: Send + Sync> + Send + Sync + 'static> RequestPermit for CallPermit<Arc<G>> {
    fn release(self, report: CallOutcome) {
        self.record(report);
    }
}

impl RequestPermit for SemaphorePermit {
    fn release(self, _: CallOutcome) {}
}

impl RequestPermit for AdmittedClient {
    fn release(self, report: CallOutcome) {
        self.record_response(report);
    }
}

/// The answer to a request that was not let in.
#[cold]
pub(crate) fn reject(terms: &MiddlewareOptions, wire: ResponseProtocol, cause: CallError) -> Response<Bytes> {
    let (limited, answer) = terms.refuse(cause);
    let mut response = wire.respond(answer, &limited.client_message(), limited.retry_after());
    response.extensions_mut().insert(limited);
    response
}

/// How an answer counts, or an error instead of one.
pub(crate) fn classify<R>(terms: &MiddlewareOptions, answer: Option<&Response<R>>) -> CallOutcome {
    match answer {
        Some(response) => (terms.classify)(Some(&TowerResponseHead::new(response))),
        None => (terms.classify)(None),
    }
}
