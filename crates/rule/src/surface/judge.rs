//! How an answer counts for whoever guards a service, and when a call is over.

use crate::request::Reply;
use tidegate_overload::Report;

/// Until when a call is in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Until {
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
pub fn served(reply: Option<&dyn Reply>) -> Report {
    match reply.map(seen) {
        None | Some(Seen::Trouble) => Report::Failure,
        Some(Seen::Exhausted) => Report::Ignored,
        Some(Seen::Fine) => Report::Success,
    }
}

/// How an answer counts on the side of a client, or where it comes from somebody else, as in a gateway. The same as
/// [`served`], but for `429`: a backend that has had enough is one to be spared.
pub fn called(reply: Option<&dyn Reply>) -> Report {
    match reply.map(seen) {
        None | Some(Seen::Trouble | Seen::Exhausted) => Report::Failure,
        Some(Seen::Fine) => Report::Success,
    }
}

enum Seen {
    Fine,
    Exhausted,
    Trouble,
}

fn seen(reply: &dyn Reply) -> Seen {
    match reply.status() {
        500.. => Seen::Trouble,
        429 => Seen::Exhausted,
        _ => match reply.header("grpc-status") {
            // UNKNOWN, DEADLINE_EXCEEDED, INTERNAL and UNAVAILABLE.
            Some(b"2" | b"4" | b"13" | b"14") => Seen::Trouble,
            // RESOURCE_EXHAUSTED.
            Some(b"8") => Seen::Exhausted,
            _ => Seen::Fine,
        },
    }
}
