//! What is held while a request is served, and what is said with it.

use super::wire::Wire;
use crate::head::HttpReply;
use bytes::Bytes;
use http::Response;
use std::sync::Arc;
use tidegate_limiter::SemaphorePermit;
use tidegate_overload::{Cause, Pass, Report, Settle};
use tidegate_rule::surface::{Guest, Terms};

/// What is held while a request is served. Dropping it says nothing of how it ended.
pub(crate) trait Held: Send + Sync + 'static {
    /// The request was served, in this way.
    fn end(self, report: Report);
}

impl<G: Settle<Entry: Send + Sync> + Send + Sync + 'static> Held for Pass<Arc<G>> {
    fn end(self, report: Report) {
        self.report(report);
    }
}

impl Held for SemaphorePermit {
    fn end(self, _: Report) {}
}

impl Held for Guest {
    fn end(self, report: Report) {
        self.answered(report);
    }
}

/// The answer to a request that was not let in.
#[cold]
pub(crate) fn refuse(terms: &Terms, wire: Wire, cause: Cause) -> Response<Bytes> {
    let (limited, answer) = terms.refuse(cause);
    let mut response = wire.respond(answer, &limited.told(), limited.retry_after());
    response.extensions_mut().insert(limited);
    response
}

/// How an answer counts, or an error instead of one.
pub(crate) fn report<R>(terms: &Terms, answer: Option<&Response<R>>) -> Report {
    match answer {
        Some(response) => (terms.classify)(Some(&HttpReply::of(response))),
        None => (terms.classify)(None),
    }
}
