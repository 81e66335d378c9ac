//! Classifies responses for guards.

use crate::request::ResponseHead;
use tidegate_overload::CallOutcome;

/// When a call stops being in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InFlightEnd {
    /// At the head of the response.
    #[default]
    Head,
    /// At the end of the body of the response, or when it is dropped. An aborted body counts as an error
    /// instead of a response, and a gRPC status in the trailers as that of the response.
    Body,
}

/// Classifies a response on the server side; `None` is an error instead of a response.
///
/// A status of 500 or above is a failure, and so is an error; `429` is ignored, since an inner limit caused
/// it. All others are successes, client errors included. For gRPC the status code counts.
pub fn classify_server(reply: Option<&dyn ResponseHead>) -> CallOutcome {
    match reply.map(response_class) {
        None | Some(ResponseClass::Failure) => CallOutcome::Failure,
        Some(ResponseClass::Exhausted) => CallOutcome::Ignored,
        Some(ResponseClass::Success) => CallOutcome::Success,
    }
}

/// Classifies a response on the client side, or of another server, as in a gateway. Like [`classify_server`],
/// but `429` is a failure: an overloaded backend should get fewer calls.
pub fn classify_client(reply: Option<&dyn ResponseHead>) -> CallOutcome {
    match reply.map(response_class) {
        None | Some(ResponseClass::Failure | ResponseClass::Exhausted) => CallOutcome::Failure,
        Some(ResponseClass::Success) => CallOutcome::Success,
    }
}

enum ResponseClass {
    Success,
    Exhausted,
    Failure,
}

fn response_class(reply: &dyn ResponseHead) -> ResponseClass {
    match reply.status() {
        500.. => ResponseClass::Failure,
        429 => ResponseClass::Exhausted,
        _ => match reply.header("grpc-status") {
            // UNKNOWN, DEADLINE_EXCEEDED, INTERNAL and UNAVAILABLE.
            Some(b"2" | b"4" | b"13" | b"14") => ResponseClass::Failure,
            // RESOURCE_EXHAUSTED.
            Some(b"8") => ResponseClass::Exhausted,
            _ => ResponseClass::Success,
        },
    }
}
