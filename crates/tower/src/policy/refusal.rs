//! What becomes of a request that a policy does not let through.

use crate::held::Wire;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, Version, header::CONNECTION};
use tidegate_policy::compile::{DenyReason, PolicyRefusal, RejectAction};
use tidegate_rule::Answer;

/// How a request came, and so how it is answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    wire: Wire,
    version: Version,
}

/// What nginx notes down where it closes a connection without an answer. Here there must be one.
const NO_ANSWER: u16 = 444;

impl Origin {
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        Self { wire: Wire::of(request), version: request.version() }
    }

    /// The answer to a request that is refused.
    #[cold]
    pub(super) fn answer(self, refusal: PolicyRefusal) -> Box<Response<Bytes>> {
        let PolicyRefusal { rule, reason, action, retry_after, .. } = refusal;
        let is_dropped = action == RejectAction::Drop;
        let answer = match action {
            RejectAction::Response(answer) => answer,
            RejectAction::Drop => Answer::new(NO_ANSWER),
            // Refused when the layer was made, and when the policy was replaced.
            RejectAction::Upstream(_) => Answer::new(503),
        };
        let (answer, message) = match self.wire {
            Wire::Http => (answer, String::new()),
            // Another page, or a body in its place, is none for gRPC.
            Wire::Grpc => (answer.status(status_of(reason)), format!("refused by the rule `{rule}`")),
        };
        let mut response = self.wire.respond(answer, &message, retry_after);
        if is_dropped && self.version < Version::HTTP_2 {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Box::new(response)
    }
}

fn status_of(reason: DenyReason) -> u16 {
    match reason {
        DenyReason::Limited => 429,
        DenyReason::NoKey => 400,
        DenyReason::Denied | DenyReason::Banned => 403,
        DenyReason::Guarded => 503,
    }
}
