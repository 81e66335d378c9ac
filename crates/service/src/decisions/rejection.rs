//! The response of a policy to a denied request, for a proxy that sends it.

use http::{Response, StatusCode, header};
use tidegate_observe::DenialId;
use tidegate_policy::compile::{PolicyRejection, RejectAction, RejectReason};

/// Builds the response of the rule, with the id of the denial and the time to retry.
pub(super) fn build_response(rejection: PolicyRejection, denial: Option<&DenialId>) -> Response<String> {
    let retry = rejection.retry_after.map(|wait| tidegate_core::header::ceil_seconds(wait.into()));
    let mut response = match rejection.action {
        RejectAction::Response(shared) => {
            let mut response = shared.to_response();
            if let Some(id) = denial {
                response.set_instance(&id.uri());
            }
            response.into()
        }
        // The proxy can neither switch to another upstream nor close the connection on request.
        RejectAction::Upstream(_) | RejectAction::Drop => {
            let mut response = Response::default();
            *response.status_mut() = match rejection.reason {
                RejectReason::Limited => StatusCode::TOO_MANY_REQUESTS,
                RejectReason::NoKey => StatusCode::BAD_REQUEST,
                RejectReason::Unauthenticated => StatusCode::UNAUTHORIZED,
                RejectReason::DenyListed | RejectReason::Banned => StatusCode::FORBIDDEN,
                RejectReason::QueueFull
                | RejectReason::StoreUnavailable
                | RejectReason::Overloaded
                | RejectReason::FeatureOff => StatusCode::SERVICE_UNAVAILABLE,
            };
            response
        }
    };
    let headers = response.headers_mut();
    if let Some(id) = denial {
        id.write_header(headers);
    }
    if let Some(retry) = retry {
        headers.entry(header::RETRY_AFTER).or_insert_with(|| retry.into());
    }
    response
}
