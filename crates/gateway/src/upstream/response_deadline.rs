//! The deadline of a server's response, while the request body may still be sent.

use super::UpstreamTimeouts;
use crate::{
    deadline::Deadline,
    proxy::{UploadPhase, UploadProgress},
};
use std::task::Context;

/// The deadline of a response. During the upload, the server has `idle` for each frame; after the last frame, `response` for
/// the head of the response, and then `idle` for each frame of the body. The time that the client takes does not count: the
/// time of a frame starts when the gateway waits for it.
pub(crate) struct ResponseDeadline {
    timeouts: UpstreamTimeouts,
    deadline: Deadline,
    /// The progress of the request body, if there is one.
    upload: Option<UploadProgress>,
    phase: ResponsePhase,
}

#[derive(Clone, Copy)]
enum ResponsePhase {
    Head,
    Body,
}

impl ResponseDeadline {
    pub(super) fn new(times: UpstreamTimeouts, deadline: Deadline) -> Self {
        Self { timeouts: times, deadline, upload: None, phase: ResponsePhase::Head }
    }

    /// Starts the deadline of a request.
    #[inline]
    pub(super) fn start(&mut self, upload: Option<UploadProgress>) {
        self.phase = ResponsePhase::Head;
        self.deadline.set(match upload {
            None => self.timeouts.response,
            Some(_) => self.timeouts.response.min(self.timeouts.idle),
        });
        self.upload = upload;
    }

    /// Called when a part of the response arrives.
    #[inline]
    pub(crate) fn on_data(&mut self) {
        self.phase = ResponsePhase::Body;
        self.deadline.clear();
    }

    /// Called when the server must read before more of the request can be sent.
    pub(super) fn on_write_blocked(&self) {
        if let Some(upload) = &self.upload {
            upload.on_write_blocked(self.deadline.now());
        }
    }

    /// Called when the response is complete.
    pub(super) fn clear(&mut self) {
        self.deadline.clear();
        self.upload = None;
    }

    /// Whether the deadline has expired. If not, registers the task to wake.
    #[inline]
    pub(crate) fn poll_expired(&self, context: &Context<'_>) -> bool {
        if !self.deadline.is_set() {
            self.deadline.set(self.timeouts.idle);
        } else if self.deadline.is_expired() && self.is_expired() {
            return true;
        }
        self.deadline.register(context);
        false
    }

    /// Moves the deadline if the upload has made progress; returns whether it has expired.
    fn is_expired(&self) -> bool {
        let Some(upload) = &self.upload else { return true };
        match (upload.phase(), self.phase) {
            (UploadPhase::AwaitingClient, _) => self.deadline.set(self.timeouts.idle),
            (UploadPhase::Complete(at), ResponsePhase::Head) => {
                self.deadline.set_from(at, self.timeouts.response);
            }
            // The server may read the body while it sends the response.
            (UploadPhase::Writable(at), _) | (UploadPhase::Complete(at), ResponsePhase::Body) => {
                self.deadline.set_from(at, self.timeouts.idle);
            }
        }
        self.deadline.is_expired()
    }
}
