//! The response heads that rules evaluate.

use http::{HeaderValue, response};
use tidegate_rule::request::ResponseHead;

/// The head of a response.
pub(super) struct GatewayResponseHead<'a>(pub(super) &'a response::Parts);

impl ResponseHead for GatewayResponseHead<'_> {
    fn status(&self) -> u16 {
        self.0.status.as_u16()
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.0.headers.get(name).map(HeaderValue::as_bytes)
    }
}
