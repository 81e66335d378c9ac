//! What becomes of a request that a policy does not let through.

use crate::held::Wire;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, Version, header::CONNECTION};
use tidegate_policy::compile::{Instead, Refusal, Why};
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
    pub(super) fn answer(self, refusal: Refusal) -> Box<Response<Bytes>> {
        let Refusal { rule, why, instead, retry_after, .. } = refusal;
        let is_dropped = instead == Instead::Drop;
        let answer = match instead {
            Instead::Answer(answer) => answer,
            Instead::Drop => Answer::new(NO_ANSWER),
            // Refused when the layer was made, and when the policy was replaced.
            Instead::Upstream(_) => Answer::new(503),
        };
        let (answer, message) = match self.wire {
            Wire::Http => (answer, String::new()),
            // Another page, or a body in its place, is none for gRPC.
            Wire::Grpc => (answer.status(status_of(why)), format!("refused by the rule `{rule}`")),
        };
        let mut response = self.wire.respond(answer, &message, retry_after);
        if is_dropped && self.version < Version::HTTP_2 {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Box::new(response)
    }
}

fn status_of(why: Why) -> u16 {
    match why {
        Why::Limited => 429,
        Why::NoKey => 400,
        Why::Denied | Why::Banned => 403,
        Why::Guarded => 503,
    }
}
