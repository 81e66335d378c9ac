//! Permits of requests, and the outcome that they record.

use super::protocol::ResponseProtocol;
use crate::head::TowerResponseHead;
use bytes::Bytes;
use http::Response;
use std::sync::Arc;
use tidegate_limiter::SemaphorePermit;
use tidegate_overload::{CallError, CallOutcome, CallPermit, RecordOutcome};
use tidegate_rule::middleware::{AdmittedClient, MiddlewareOptions};

/// A permit that a request holds while it is served. Dropping it records no outcome.
pub(crate) trait RequestPermit: Send + Sync + 'static {
    /// Releases the permit and records the outcome.
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

/// Returns the response to a rejected request.
#[cold]
pub(crate) fn reject(
    options: &MiddlewareOptions,
    protocol: ResponseProtocol,
    cause: CallError,
) -> Response<Bytes> {
    let (limited, answer) = options.reject(cause);
    let mut response = protocol.respond(answer, &limited.client_message(), limited.retry_after());
    response.extensions_mut().insert(limited);
    response
}

/// Returns the outcome of a response, or of an error if there is no response.
pub(crate) fn classify<R>(options: &MiddlewareOptions, answer: Option<&Response<R>>) -> CallOutcome {
    match answer {
        Some(response) => (options.classify)(Some(&TowerResponseHead::new(response))),
        None => (options.classify)(None),
    }
}
