//! A response that shares its head and its body with others.

use super::{ProxyResponse, ProxyResponseBody, RequestId, X_REQUEST_ID, head, local_response};
use crate::{LocalReply, SharedReply};
use std::sync::Arc;
use tidegate_observe::ResponseOrigin;

/// A response that shares its head and its body with others. An HTTP/1.1 connection writes it without a copy of the head.
pub(crate) struct SharedResponse {
    pub(super) reply: Arc<SharedReply>,
    pub(super) id: RequestId,
    pub(super) body: ProxyResponseBody,
}

impl SharedResponse {
    /// Writes the complete response to a client with HTTP/1.1 whose connection stays open, and records the exchange. `date` is a
    /// field with its line end. Returns itself if the response must be built.
    #[inline]
    pub(crate) fn write(self, out: &mut Vec<u8>, date: &[u8]) -> Option<Self> {
        let Self { reply, id, body } = &self;
        let Some(rendered) = reply.rendered().filter(|_| !body.client.worker.is_closing()) else {
            return Some(self);
        };
        match head::sent_request_id(id, &body.client) {
            Some(id) => rendered.write(out, &[X_REQUEST_ID, b": ", id, b"\r\n", date]),
            None => rendered.write(out, &[date]),
        }
        let Self { reply, mut body, .. } = self;
        let reply = reply.reply();
        body.telemetry.on_response(reply.head.status, ResponseOrigin::Gateway);
        body.telemetry.add_bytes(reply.body.len());
        None
    }

    /// Builds the response.
    pub(crate) fn into_response(self) -> ProxyResponse {
        let Self { reply, id, body } = self;
        let mut head = body.client.worker.heads.take_response();
        head.copy_from(&reply.reply().head);
        let reply = LocalReply { head, body: reply.reply().body.clone() };
        local_response(reply, &id, body)
    }
}
