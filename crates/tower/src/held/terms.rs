//! How a layer answers whoever it does not let in, and how it judges the answers of those whom it does.

use super::wire::Wire;
use crate::{grpc::Code, head::HttpReply};
use bytes::Bytes;
use http::Response;
use std::{borrow::Cow, fmt, sync::Arc};
use tidegate_core::Report;
use tidegate_engine::{Cause, Pass, Settle, Slot};
use tidegate_rule::{Answer, Limited, request::Reply};

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

/// How an answer counts on the side of a client. The same as [`served`], but for `429`: a backend that has had enough is
/// one to be spared.
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
    let code = reply.header("grpc-status").and_then(Code::read);
    match (reply.status(), code) {
        (500.., _) => Seen::Trouble,
        (429, _) => Seen::Exhausted,
        (_, Some(code)) if code.is_trouble() => Seen::Trouble,
        (_, Some(code)) if code.is_exhausted() => Seen::Exhausted,
        _ => Seen::Fine,
    }
}

/// What is held while a request is served. Dropping it says nothing of how it ended.
pub(crate) trait Held: Send + Sync + 'static {
    /// The request was served, in this way.
    fn end(self, report: Report);
}

impl<G: Settle<Entry: Send + Sync> + Send + Sync + 'static> Held for Pass<Arc<G>> {
    fn end(self, report: Report) {
        self.report(report);
    }
}

impl Held for Slot {
    fn end(self, _: Report) {}
}

/// What a layer says and how it judges.
#[derive(Clone)]
pub(crate) struct Terms {
    pub(crate) name: Cow<'static, str>,
    pub(crate) answer: Arc<AnswerTo>,
    pub(crate) classify: Arc<Classify>,
    pub(crate) until: Until,
}

pub(crate) type AnswerTo = dyn Fn(&Limited) -> Answer + Send + Sync;
pub(crate) type Classify = dyn Fn(Option<&dyn Reply>) -> Report + Send + Sync;

impl Terms {
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name: name.into(),
            answer: Arc::new(overloaded),
            classify: Arc::new(served),
            until: Until::Head,
        }
    }

    /// The answer to a request that was not let in.
    #[cold]
    pub(crate) fn refuse(&self, wire: Wire, cause: Cause) -> Response<Bytes> {
        let limited = Limited::new(&*self.name, cause);
        // How a server protects itself is not for clients to know.
        let message = limited.message().unwrap_or("the server cannot take this call now");
        wire.respond((self.answer)(&limited), message, limited.retry_after())
    }

    pub(crate) fn report<R>(&self, answer: Option<&Response<R>>) -> Report {
        match answer {
            Some(response) => (self.classify)(Some(&HttpReply::of(response))),
            None => (self.classify)(None),
        }
    }
}

impl fmt::Debug for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terms").field("name", &self.name).field("until", &self.until).finish_non_exhaustive()
    }
}

/// 503, and when to come back: in a second, where nothing better is known.
fn overloaded(limited: &Limited) -> Answer {
    let answer = Answer::from(limited);
    match answer.get("retry-after") {
        Some(_) => answer,
        None => answer.header("retry-after", "1"),
    }
}
