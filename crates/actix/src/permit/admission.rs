//! Permits of requests, and the outcome that they record.

use super::{
    body::PermitMessageBody,
    future::{AdmittedServiceRequest, MiddlewareDecision},
};
use crate::head::ActixResponseHead;
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
use tidegate_overload::{CallError, CallOutcome, CallPermit, RecordOutcome};
use tidegate_rule::{
    RejectionResponse, RequestPermits,
    middleware::{AdmittedClient, InFlightEnd, MiddlewareOptions},
    request::ResponseHead,
};

/// A permit that a request holds while it is served. Dropping it records no outcome.
pub trait BodyPermit: 'static {
    /// Releases the permit and records the outcome.
    fn release(self: Box<Self>, report: CallOutcome);
}

impl<B: Deref<Target: RecordOutcome> + 'static> BodyPermit for CallPermit<B> {
    fn release(self: Box<Self>, report: CallOutcome) {
        self.record(report);
    }
}

impl BodyPermit for SemaphorePermit {
    fn release(self: Box<Self>, _: CallOutcome) {}
}

impl BodyPermit for RequestPermits {
    fn release(self: Box<Self>, _: CallOutcome) {}
}

impl BodyPermit for AdmittedClient {
    fn release(self: Box<Self>, report: CallOutcome) {
        self.record_response(report);
    }
}

/// Returns a rejection response. Invalid headers are omitted.
pub(crate) fn respond<B>(
    request: ServiceRequest,
    answer: RejectionResponse,
) -> ServiceResponse<PermitMessageBody<B>> {
    let status = StatusCode::from_u16(answer.final_status()).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let mut response =
        HttpResponse::with_body(status, PermitMessageBody::from_bytes(Bytes::from(answer.body)));
    for (name, value) in &answer.headers {
        if let (Ok(name), Ok(value)) =
            (HeaderName::try_from(&**name), HeaderValue::from_bytes(value.as_bytes()))
        {
            response.headers_mut().append(name, value);
        }
    }
    request.into_response(response)
}

/// Calls `read` with the response, or with the response that an error becomes.
pub(crate) fn with_response_head<B: MessageBody, T>(
    result: &Result<ServiceResponse<B>, Error>,
    read: impl FnOnce(&dyn ResponseHead) -> T,
) -> T {
    match result {
        Ok(response) => read(&ActixResponseHead::new(response)),
        Err(error) => {
            let response = error.error_response();
            read(&ActixResponseHead::from_parts(response.status(), response.headers()))
        }
    }
}

/// Admits a request with a permit, or rejects it.
pub(crate) fn admit_or_reject<B, H: BodyPermit>(
    options: &Arc<MiddlewareOptions>,
    request: ServiceRequest,
    permit: Result<H, CallError>,
) -> MiddlewareDecision<B, PermittedRequest<H>> {
    match permit {
        Ok(permit) => admit(options, request, permit),
        Err(cause) => MiddlewareDecision::Respond(respond(request, options.reject(cause).1)),
    }
}

/// Admits a request with a permit.
pub(crate) fn admit<B, H: BodyPermit>(
    options: &Arc<MiddlewareOptions>,
    request: ServiceRequest,
    permit: H,
) -> MiddlewareDecision<B, PermittedRequest<H>> {
    MiddlewareDecision::Forward(request, PermittedRequest { permit, options: options.clone() })
}

/// An admitted request with its permit.
pub struct PermittedRequest<H> {
    permit: H,
    options: Arc<MiddlewareOptions>,
}

impl<H: BodyPermit> AdmittedServiceRequest for PermittedRequest<H> {
    fn settle<B: MessageBody>(
        self,
        result: Result<ServiceResponse<B>, Error>,
    ) -> Result<ServiceResponse<PermitMessageBody<B>>, Error> {
        let report = with_response_head(&result, |reply| (self.options.classify)(Some(reply)));
        match (result, self.options.in_flight_end) {
            (Ok(response), InFlightEnd::Body) => {
                Ok(response.map_body(|_, body| PermitMessageBody::with_permit(body, self.permit, report)))
            }
            (result, _) => {
                Box::new(self.permit).release(report);
                result.map(|response| response.map_body(|_, body| PermitMessageBody::without_permit(body)))
            }
        }
    }
}
