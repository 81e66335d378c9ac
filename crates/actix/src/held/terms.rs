//! How middleware answers whoever it does not let in, and how it judges the answers of those whom it does.

use super::{
    body::HeldBody,
    future::{Admission, Said},
};
use crate::head::ReplyHead;
use actix_web::{
    Error, HttpResponse,
    body::MessageBody,
    dev::{ServiceRequest, ServiceResponse},
    http::{
        StatusCode,
        header::{HeaderName, HeaderValue},
    },
};
use bytes::Bytes;
use std::{borrow::Cow, fmt, ops::Deref, sync::Arc};
use tidegate_core::Report;
use tidegate_engine::{Cause, Pass, Settle, Slot};
use tidegate_rule::{Answer, HeldSlots, Limited, request::Reply};

/// Until when a call is in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Until {
    /// Until the answer's head is there.
    #[default]
    Head,
    /// Until the answer's body has ended, or was given up. A body that breaks off is a failure.
    Body,
}

/// How an answer counts on the side of a server; an error of middleware further inside counts as the answer that it becomes.
///
/// A status of 500 or above is a failure; `429` says nothing, since a limit further inside gave it. Everything else was
/// served, a mistake of the client's too.
pub fn served(reply: Option<&dyn Reply>) -> Report {
    match reply.map(Reply::status) {
        None | Some(500..) => Report::Failure,
        Some(429) => Report::Ignored,
        Some(_) => Report::Success,
    }
}

/// How an answer counts where it comes from somebody else, as in a gateway. The same as [`served`], but for `429`: a backend
/// that has had enough is one to be spared.
pub fn called(reply: Option<&dyn Reply>) -> Report {
    match reply.map(Reply::status) {
        None | Some(429 | 500..) => Report::Failure,
        Some(_) => Report::Success,
    }
}

/// What is held while a request is served. Dropping it says nothing of how it ended.
pub trait Held: 'static {
    /// The request was served, in this way.
    fn end(self: Box<Self>, report: Report);
}

impl<B: Deref<Target: Settle> + 'static> Held for Pass<B> {
    fn end(self: Box<Self>, report: Report) {
        self.report(report);
    }
}

impl Held for Slot {
    fn end(self: Box<Self>, _: Report) {}
}

impl Held for HeldSlots {
    fn end(self: Box<Self>, _: Report) {}
}

/// Translates an answer. What cannot be a header is left out.
pub(crate) fn respond<B>(request: ServiceRequest, answer: Answer) -> ServiceResponse<HeldBody<B>> {
    let status = StatusCode::from_u16(answer.final_status()).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let mut response = HttpResponse::with_body(status, HeldBody::answered(Bytes::from(answer.body)));
    for (name, value) in &answer.headers {
        if let (Ok(name), Ok(value)) =
            (HeaderName::try_from(&**name), HeaderValue::from_bytes(value.as_bytes()))
        {
            response.headers_mut().append(name, value);
        }
    }
    request.into_response(response)
}

/// Shows an answer, or an error as the answer that it becomes.
pub(crate) fn reply_to<B: MessageBody, T>(
    result: &Result<ServiceResponse<B>, Error>,
    read: impl FnOnce(&dyn Reply) -> T,
) -> T {
    match result {
        Ok(response) => read(&ReplyHead::of(response)),
        Err(error) => {
            let response = error.error_response();
            read(&ReplyHead::from_parts(response.status(), response.headers()))
        }
    }
}

/// What middleware says and how it judges.
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

    /// Lets a request in that holds this, or answers it.
    pub(crate) fn say<B, H: Held>(
        self: &Arc<Self>,
        request: ServiceRequest,
        held: Result<H, Cause>,
    ) -> Said<B, Entered<H>> {
        match held {
            Ok(held) => Said::Enter(request, Entered { held, terms: self.clone() }),
            Err(cause) => Said::Answer(self.refuse(request, cause)),
        }
    }

    #[cold]
    fn refuse<B>(&self, request: ServiceRequest, cause: Cause) -> ServiceResponse<HeldBody<B>> {
        respond(request, (self.answer)(&Limited::new(&*self.name, cause)))
    }
}

impl fmt::Debug for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terms").field("name", &self.name).field("until", &self.until).finish_non_exhaustive()
    }
}

/// A request that was let in.
pub struct Entered<H> {
    held: H,
    terms: Arc<Terms>,
}

impl<H: Held> Admission for Entered<H> {
    fn settle<B: MessageBody>(
        self,
        result: Result<ServiceResponse<B>, Error>,
    ) -> Result<ServiceResponse<HeldBody<B>>, Error> {
        let report = reply_to(&result, |reply| (self.terms.classify)(Some(reply)));
        match (result, self.terms.until) {
            (Ok(response), Until::Body) => {
                Ok(response.map_body(|_, body| HeldBody::holding(body, self.held, report)))
            }
            (result, _) => {
                Box::new(self.held).end(report);
                result.map(|response| response.map_body(|_, body| HeldBody::free(body)))
            }
        }
    }
}

/// 503, and when to come back: in a second, where nothing better is known.
fn overloaded(limited: &Limited) -> Answer {
    let answer = Answer::from(limited).status(503);
    match answer.get("retry-after") {
        Some(_) => answer,
        None => answer.header("retry-after", "1"),
    }
}
