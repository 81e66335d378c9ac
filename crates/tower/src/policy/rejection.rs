//! What becomes of a request that a policy does not let through.

use crate::permit::ResponseProtocol;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, Version, header::CONNECTION};
use tidegate_policy::compile::{DenyReason, PolicyRefusal, RejectAction};
use tidegate_rule::RejectionResponse;

/// How a request came, and so how it is answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestProtocol {
    protocol: ResponseProtocol,
    version: Version,
}

/// What nginx notes down where it closes a connection without an answer. Here there must be one.
const NO_RESPONSE_STATUS: u16 = 444;

impl RequestProtocol {
    pub(super) fn detect<B>(request: &Request<B>) -> Self {
        Self { protocol: ResponseProtocol::detect(request), version: request.version() }
    }

    /// The answer to a request that is refused.
    #[cold]
    pub(super) fn reject(self, refusal: PolicyRefusal) -> Box<Response<Bytes>> {
        let PolicyRefusal { rule, reason, action, retry_after, .. } = refusal;
        let is_dropped = action == RejectAction::Drop;
        let answer = match action {
            RejectAction::Response(answer) => answer,
            RejectAction::Drop => RejectionResponse::new(NO_RESPONSE_STATUS),
            // Refused when the layer was made, and when the policy was replaced.
            RejectAction::Upstream(_) => RejectionResponse::new(503),
        };
        let (answer, message) = match self.protocol {
            ResponseProtocol::Http => (answer, String::new()),
            // Another page, or a body in its place, is none for gRPC.
            ResponseProtocol::Grpc => {
                (answer.status(reason_status(reason)), format!("refused by the rule `{rule}`"))
            }
        };
        let mut response = self.protocol.respond(answer, &message, retry_after);
        if is_dropped && self.version < Version::HTTP_2 {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Box::new(response)
    }
}

fn reason_status(reason: DenyReason) -> u16 {
    match reason {
        DenyReason::Limited => 429,
        DenyReason::NoKey => 400,
        DenyReason::Denied | DenyReason::Banned => 403,
        DenyReason::Guarded => 503,
    }
}
