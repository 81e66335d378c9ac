//! What is held while a request is served, and what is said with it.

use super::protocol::ResponseProtocol;
use crate::head::TowerResponseHead;
use bytes::Bytes;
use http::Response;
use std::sync::Arc;
use tidegate_limiter::SemaphorePermit;
use tidegate_overload::{Cause, Pass, Report, Settle};
use tidegate_rule::surface::{Guest, Terms};

/// What is held while a request is served. Dropping it says nothing of how it ended.
pub(crate) trait RequestPermit: Send + Sync + 'static {
    /// The request was served, in this way.
    fn release(self, report: Report);
}

impl<G: Settle<Entry: Send + Sync> + Send + Sync + 'static> RequestPermit for Pass<Arc<G>> {
    fn release(self, report: Report) {
        self.report(report);
    }
}

impl RequestPermit for SemaphorePermit {
    fn release(self, _: Report) {}
}

impl RequestPermit for Guest {
    fn release(self, report: Report) {
        self.answered(report);
    }
}

/// The answer to a request that was not let in.
#[cold]
pub(crate) fn reject(terms: &Terms, wire: ResponseProtocol, cause: Cause) -> Response<Bytes> {
    let (limited, answer) = terms.refuse(cause);
    let mut response = wire.respond(answer, &limited.told(), limited.retry_after());
    response.extensions_mut().insert(limited);
    response
}

/// How an answer counts, or an error instead of one.
pub(crate) fn classify<R>(terms: &Terms, answer: Option<&Response<R>>) -> Report {
    match answer {
        Some(response) => (terms.classify)(Some(&TowerResponseHead::new(response))),
        None => (terms.classify)(None),
    }
}
