//! How long a server may take over a request, whose body may still be on its way to it.

use super::UpstreamTimeouts;
use crate::{
    deadline::Deadline,
    proxy::{UploadPhase, UploadProgress},
};
use std::task::Context;

/// The patience with a server. While it is sent a body it has `idle` for each piece; from the last piece on it has `response`
/// for its answer, and then `idle` for each piece of that. While a client is to send the next piece, its server is not
/// to blame.
pub(crate) struct ResponseDeadline {
    timeouts: UpstreamTimeouts,
    deadline: Deadline,
    /// How far the body of the request has got, where there is one.
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

    /// A request is sent.
    #[inline]
    pub(super) fn start(&mut self, upload: Option<UploadProgress>) {
        self.phase = ResponsePhase::Head;
        self.deadline.set(match upload {
            None => self.timeouts.response,
            Some(_) => self.timeouts.response.min(self.timeouts.idle),
        });
        self.upload = upload;
    }

    /// Something of the answer came.
    #[inline]
    pub(crate) fn on_data(&mut self) {
        self.phase = ResponsePhase::Body;
        self.deadline.set(self.timeouts.idle);
    }

    /// The answer is complete.
    pub(super) fn clear(&mut self) {
        self.deadline.clear();
        self.upload = None;
    }

    /// Nothing comes: whether the server has had its time. If not, its task is woken when it has.
    #[inline]
    pub(crate) fn poll_expired(&self, context: &Context<'_>) -> bool {
        if self.deadline.is_expired() && self.is_expired() {
            return true;
        }
        self.deadline.register(context);
        false
    }

    /// Looks at what the body has done meanwhile, and moves the deadline if there is time left.
    fn is_expired(&self) -> bool {
        let Some(upload) = &self.upload else { return true };
        match (upload.phase(), self.phase) {
            (UploadPhase::AwaitingClient, _) => self.deadline.set(self.timeouts.idle),
            (UploadPhase::Complete(at), ResponsePhase::Head) => {
                self.deadline.set_from(at, self.timeouts.response);
            }
            (UploadPhase::Writable(at), ResponsePhase::Head) => {
                self.deadline.set_from(at, self.timeouts.idle);
            }
            // It took pieces while none came back.
            (UploadPhase::Writable(at) | UploadPhase::Complete(at), ResponsePhase::Body) => {
                self.deadline.set_from(at, self.timeouts.idle);
            }
        }
        self.deadline.is_expired()
    }
}
