//! Services whose bodies are shaped.

use super::body::ShapedBody;
use crate::head::RequestHead;
use actix_web::{
    Error, HttpMessage as _,
    body::MessageBody,
    dev::{Payload, Service, ServiceRequest, ServiceResponse},
};
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    task::{Context, Poll},
};
use tidegate_bandwidth::Bandwidth;
use tidegate_rule::surface::RequestBandwidth;

/// A service whose answers move no faster than a bandwidth allows; see [`BandwidthMiddleware`](super::BandwidthMiddleware).
#[derive(Debug)]
pub struct BandwidthService<S> {
    inner: S,
    bandwidth: RequestBandwidth,
}

/// A service that reads requests no faster than a bandwidth allows; see [`UploadMiddleware`](super::UploadMiddleware).
#[derive(Debug)]
pub struct UploadService<S> {
    inner: S,
    bandwidth: RequestBandwidth,
}

impl<S> BandwidthService<S> {
    pub(super) fn new(inner: S, bandwidth: RequestBandwidth) -> Self {
        Self { inner, bandwidth }
    }
}

impl<S> UploadService<S> {
    pub(super) fn new(inner: S, bandwidth: RequestBandwidth) -> Self {
        Self { inner, bandwidth }
    }
}

impl<S, B> Service<ServiceRequest> for BandwidthService<S>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error>,
    B: MessageBody,
{
    type Response = ServiceResponse<ShapedBody<B>>;
    type Error = Error;
    type Future = BandwidthFuture<S::Future>;

    fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&self, request: ServiceRequest) -> Self::Future {
        let bandwidth = self.bandwidth.find(&RequestHead::of(&request));
        BandwidthFuture { inner: self.inner.call(request), bandwidth }
    }
}

impl<S> Service<ServiceRequest> for UploadService<S>
where
    S: Service<ServiceRequest, Error = Error>,
{
    type Response = S::Response;
    type Error = Error;
    type Future = S::Future;

    fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&self, mut request: ServiceRequest) -> Self::Future {
        let payload = request.take_payload();
        // What has no body needs no bandwidth.
        if !matches!(payload, Payload::None) {
            let bandwidth = self.bandwidth.find(&RequestHead::of(&request));
            request.set_payload(Payload::Stream { payload: Box::pin(bandwidth.limit_reads(payload)) });
        }
        self.inner.call(request)
    }
}

pin_project! {
    /// The answer of a service, with a body that moves no faster than a bandwidth allows.
    #[derive(Debug)]
    pub struct BandwidthFuture<F> {
        #[pin]
        inner: F,
        bandwidth: Bandwidth,
    }
}

impl<F, B> Future for BandwidthFuture<F>
where
    F: Future<Output = Result<ServiceResponse<B>, Error>>,
    B: MessageBody,
{
    type Output = Result<ServiceResponse<ShapedBody<B>>, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let shape =
            |response: ServiceResponse<B>| response.map_body(|_, body| ShapedBody::new(body, this.bandwidth));
        this.inner.poll(context).map_ok(shape)
    }
}
