//! What is held while a request is served, and what becomes of it with the answer.

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
use std::{ops::Deref, sync::Arc};
use tidegate_limiter::SemaphorePermit;
use tidegate_overload::{Cause, Pass, Report, Settle};
use tidegate_rule::{
    Answer, HeldSlots,
    request::Reply,
    surface::{Guest, Terms, Until},
};

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

impl Held for SemaphorePermit {
    fn end(self: Box<Self>, _: Report) {}
}

impl Held for HeldSlots {
    fn end(self: Box<Self>, _: Report) {}
}

impl Held for Guest {
    fn end(self: Box<Self>, report: Report) {
        self.answered(report);
    }
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

/// Lets a request in that holds this, or answers it.
pub(crate) fn say<B, H: Held>(
    terms: &Arc<Terms>,
    request: ServiceRequest,
    held: Result<H, Cause>,
) -> Said<B, Entered<H>> {
    match held {
        Ok(held) => enter(terms, request, held),
        Err(cause) => Said::Answer(respond(request, terms.refuse(cause).1)),
    }
}

/// Lets a request in that holds this.
pub(crate) fn enter<B, H: Held>(terms: &Arc<Terms>, request: ServiceRequest, held: H) -> Said<B, Entered<H>> {
    Said::Enter(request, Entered { held, terms: terms.clone() })
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
