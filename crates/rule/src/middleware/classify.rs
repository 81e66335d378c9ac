//! How an answer counts for whoever guards a service, and when a call is over.

use crate::request::ResponseHead;
use tidegate_overload::CallOutcome;

/// Until when a call is in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InFlightEnd {
    /// Until the answer's head is there.
    #[default]
    Head,
    /// Until the answer's body has ended, or was given up. A body that breaks off counts as an error instead of an answer,
    /// and a status of gRPC in the trailers as the answer's.
    Body,
}

/// How an answer counts on the side of a server; `None` stands for an error instead of an answer.
///
/// A status of 500 or above is a failure, and so is an error; `429` says nothing, since a limit further inside gave it.
/// Everything else was served, a mistake of the client's too. Of gRPC it is the code that counts.
pub fn classify_server(reply: Option<&dyn ResponseHead>) -> CallOutcome {
    match reply.map(response_class) {
        None | Some(ResponseClass::Failure) => CallOutcome::Failure,
        Some(ResponseClass::Exhausted) => CallOutcome::Ignored,
        Some(ResponseClass::Success) => CallOutcome::Success,
    }
}

/// How an answer counts on the side of a client, or where it comes from somebody else, as in a gateway. The same as
/// [`classify_server`], but for `429`: a backend that has had enough is one to be spared.
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
