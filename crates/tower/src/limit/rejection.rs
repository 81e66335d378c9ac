//! Rejections by a gate, in the protocol of the request.

pub(super) use crate::permit::ResponseProtocol;
use bytes::Bytes;
use http::Response;
use tidegate_rule::{Gate, Verdict};

/// A rejection response.
pub(crate) type BoxedRejection = Box<Response<Bytes>>;

impl ResponseProtocol {
    /// Returns the response to a denied request.
    #[cold]
    pub(crate) fn reject(self, gate: &Gate, verdict: &Verdict) -> BoxedRejection {
        let limited = verdict.to_limited(gate);
        let message = match &limited {
            Some(limited) => limited.client_message(),
            None => "the call has no rate limit key".into(),
        };
        Box::new(self.respond(gate.rejection_response(verdict), &message, verdict.retry_after()))
    }
}
