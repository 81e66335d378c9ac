//! A refusal by a gate, in the words of the wire that the request came by.

pub(super) use crate::permit::ResponseProtocol;
use bytes::Bytes;
use http::Response;
use tidegate_rule::{Gate, Verdict};

/// A refusal, until the service's body is known.
pub(crate) type BoxedRejection = Box<Response<Bytes>>;

impl ResponseProtocol {
    /// The response to a denied request.
    #[cold]
    pub(crate) fn reject(self, gate: &Gate, verdict: &Verdict) -> BoxedRejection {
        let limited = verdict.to_limited(gate);
        let message = match &limited {
            Some(limited) => limited.client_message(),
            None => "the call lacks what its limit is counted by".into(),
        };
        Box::new(self.respond(gate.rejection_response(verdict), &message, verdict.retry_after()))
    }
}
