//! A response that shares its text with others.

use super::{ProxyResponse, ProxyResponseBody, RequestId, head, local_response};
use crate::{SharedReply, local_reply::ReplyFields};
use tidegate_observe::ResponseOrigin;

/// A response that shares its text with others. An HTTP/1.1 connection writes it without a head of its own.
pub(crate) struct SharedResponse {
    pub(super) reply: SharedReply,
    pub(super) id: RequestId,
    pub(super) body: ProxyResponseBody,
}

impl SharedResponse {
    /// Writes the complete response to a client with HTTP/1.1, and records the exchange. `connection` is empty, or a field with
    /// its line end; `date` is such a field. Returns itself if the response must be built.
    #[inline]
    pub(crate) fn write(mut self, out: &mut Vec<u8>, connection: &'static [u8], date: &[u8]) -> Option<Self> {
        if self.body.client.worker.is_closing() {
            return Some(self);
        }
        let request_id = head::sent_request_id(&self.id, &self.body.client);
        let Some(length) = self.reply.write(out, &ReplyFields { request_id, connection, date }) else {
            return Some(self);
        };
        self.body.telemetry.on_response(self.reply.status(), ResponseOrigin::Gateway);
        self.body.telemetry.add_bytes(length);
        None
    }

    /// Builds the response.
    pub(crate) fn into_response(self) -> ProxyResponse {
        let Self { reply, id, body } = self;
        local_response(reply.to_reply(), &id, body)
    }
}
