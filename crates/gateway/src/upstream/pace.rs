//! How long a server may take over a request, whose body may still be on its way to it.

use super::Times;
use crate::{
    proxy::{Note, Progress},
    watch::Deadline,
};
use std::task::Context;

/// The patience with a server. While it is sent a body it has `idle` for each piece; from the last piece on it has `response`
/// for its answer, and then `idle` for each piece of that. While a client is to send the next piece, its server is not
/// to blame.
pub(crate) struct Pace {
    times: Times,
    deadline: Deadline,
    /// How far the body of the request has got, where there is one.
    upload: Option<Note>,
    awaited: Awaited,
}

#[derive(Clone, Copy)]
enum Awaited {
    Head,
    Body,
}

impl Pace {
    pub(super) fn new(times: Times, deadline: Deadline) -> Self {
        Self { times, deadline, upload: None, awaited: Awaited::Head }
    }

    /// A request is sent.
    #[inline]
    pub(super) fn start(&mut self, upload: Option<Note>) {
        self.awaited = Awaited::Head;
        self.deadline.set(match upload {
            None => self.times.response,
            Some(_) => self.times.response.min(self.times.idle),
        });
        self.upload = upload;
    }

    /// Something of the answer came.
    #[inline]
    pub(crate) fn arrived(&mut self) {
        self.awaited = Awaited::Body;
        self.deadline.set(self.times.idle);
    }

    /// The answer is complete.
    pub(super) fn rest(&mut self) {
        self.deadline.clear();
        self.upload = None;
    }

    /// Nothing comes: whether the server has had its time. If not, its task is woken when it has.
    #[inline]
    pub(crate) fn is_late(&self, context: &Context<'_>) -> bool {
        if self.deadline.is_over() && self.is_over() {
            return true;
        }
        self.deadline.listen(context);
        false
    }

    /// Looks at what the body has done meanwhile, and moves the deadline if there is time left.
    fn is_over(&self) -> bool {
        let Some(upload) = &self.upload else { return true };
        match (upload.progress(), self.awaited) {
            (Progress::Awaited, _) => self.deadline.set(self.times.idle),
            (Progress::Sent(at), Awaited::Head) => self.deadline.set_from(at, self.times.response),
            (Progress::Taken(at), Awaited::Head) => self.deadline.set_from(at, self.times.idle),
            // It took pieces while none came back.
            (Progress::Taken(at) | Progress::Sent(at), Awaited::Body) => {
                self.deadline.set_from(at, self.times.idle);
            }
        }
        self.deadline.is_over()
    }
}
