//! The service of a policy.

use super::{
    body::BandwidthBody,
    future::{PolicyFuture, PolicyResponseAction},
    rejection::RequestProtocol,
};
use crate::{GateBody, TowerRequestHead};
use http::{Request, Response};
use std::{
    mem,
    sync::Arc,
    task::{Context, Poll},
};
use tidegate_policy::compile::{LivePolicy, PolicyResult};
use tidegate_rule::Evaluation;
use tower_service::Service;

/// A service with a policy; see [`PolicyLayer`](super::PolicyLayer).
#[derive(Clone, Debug)]
pub struct PolicyService<S> {
    policy: Arc<LivePolicy>,
    inner: S,
}

impl<S> PolicyService<S> {
    pub(super) fn new(live: Arc<LivePolicy>, inner: S) -> Self {
        Self { policy: live, inner }
    }

    /// Returns the inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, B, R> Service<Request<B>> for PolicyService<S>
where
    S: Service<Request<BandwidthBody<B>>, Response = Response<R>> + Clone,
{
    type Response = Response<GateBody<BandwidthBody<R>>>;
    type Error = S::Error;
    type Future = PolicyFuture<S, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        match self.policy.check(&TowerRequestHead::new(&request)) {
            Evaluation::Ready(PolicyResult::Admitted(admission)) => {
                let call =
                    self.inner.call(request.map(|body| BandwidthBody::new(body, admission.request_rates())));
                PolicyFuture::from_call(call, PolicyResponseAction::from_admission(admission))
            }
            Evaluation::Ready(PolicyResult::Rejected(rejection)) => {
                PolicyFuture::from_rejection(RequestProtocol::detect(&request).reject(*rejection))
            }
            Evaluation::Pending(result) => {
                // Call the instance that is ready; the next caller gets its clone.
                let clone = self.inner.clone();
                let ready = mem::replace(&mut self.inner, clone);
                PolicyFuture::pending(result, ready, request)
            }
        }
    }
}
