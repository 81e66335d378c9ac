//! The response to a request that a policy rejects.

use crate::permit::ResponseProtocol;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, Version, header::CONNECTION};
use tidegate_policy::compile::{PolicyRejection, RejectAction, RejectReason};
use tidegate_rule::RejectionResponse;

/// The protocol and the HTTP version of a request, which determine the response.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestProtocol {
    protocol: ResponseProtocol,
    version: Version,
}

/// The status that nginx logs when it closes a connection without a response. A service must return a response.
const NO_RESPONSE_STATUS: u16 = 444;

impl RequestProtocol {
    pub(super) fn detect<B>(request: &Request<B>) -> Self {
        Self { protocol: ResponseProtocol::detect(request), version: request.version() }
    }

    /// Returns the response to a rejected request.
    #[cold]
    pub(super) fn reject(self, rejection: PolicyRejection) -> Box<Response<Bytes>> {
        let PolicyRejection { rule, reason, action, retry_after, .. } = rejection;
        let is_dropped = action == RejectAction::Drop;
        let answer = match action {
            RejectAction::Response(answer) => answer.to_response(),
            RejectAction::Drop => RejectionResponse::new(NO_RESPONSE_STATUS),
            // Unreachable: such policies are rejected when the layer is created and when the policy is replaced.
            RejectAction::Upstream(_) => RejectionResponse::new(503),
        };
        let (answer, message) = match self.protocol {
            ResponseProtocol::Http => (answer, String::new()),
            // A redirect or a body does not apply to gRPC.
            ResponseProtocol::Grpc => {
                (answer.status(reason_status(reason)), format!("denied by rule `{rule}`"))
            }
        };
        let mut response = self.protocol.respond(answer, &message, retry_after);
        if is_dropped && self.version < Version::HTTP_2 {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Box::new(response)
    }
}

fn reason_status(reason: RejectReason) -> u16 {
    match reason {
        RejectReason::Limited => 429,
        RejectReason::NoKey => 400,
        RejectReason::Unauthenticated => 401,
        RejectReason::DenyListed | RejectReason::Banned => 403,
        RejectReason::QueueFull
        | RejectReason::StoreUnavailable
        | RejectReason::Overloaded
        | RejectReason::FeatureOff => 503,
    }
}
