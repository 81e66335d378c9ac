//! The service of a gate.

use super::{
    future::{LimitCheckResult, LimitFuture, LimitResponseAction},
    rejection::ResponseProtocol,
};
use crate::{GateBody, TowerRequestHead, head};
use http::{Request, Response};
use std::{
    mem,
    task::{Context, Poll},
};
use tidegate_rule::{Gate, PendingEvaluation, Verdict, request::AddressKey};
use tower_service::Service;

/// A service with a gate; see [`LimitLayer`](super::LimitLayer).
#[derive(Clone, Debug)]
pub struct LimitService<S> {
    gate: Gate,
    inner: S,
}

impl<S> LimitService<S> {
    /// Wraps a service with a gate.
    pub fn new(gate: impl Into<Gate>, inner: S) -> Self {
        Self { gate: gate.into(), inner }
    }

    /// Returns the inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, B, R> Service<Request<B>> for LimitService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
{
    type Response = Response<GateBody<R>>;
    type Error = S::Error;
    type Future = LimitFuture<S, B>;

    #[inline]
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    #[inline]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        // A request is large. It is passed by value only, so that the fast path moves it once.
        let peer = self.gate.peer_key(|| head::peer_address(request.extensions()));
        match peer.and_then(|peer| check_peer(&self.gate, peer)) {
            Some(LimitCheckResult::Admitted(headers)) => {
                LimitFuture::from_call(self.inner.call(request), LimitResponseAction::WriteHeaders(headers))
            }
            checked => self.call_checked(checked, request),
        }
    }
}

#[inline]
fn check_peer(gate: &Gate, peer: AddressKey) -> Option<LimitCheckResult> {
    let decision = gate.peer_limiter()?.check_cost(&peer, 1);
    Some(LimitCheckResult::from_peer_decision(gate, &decision))
}

impl<S> LimitService<S> {
    /// Calls the service if the limits admit the request. Checks them first if the address of the peer was not enough.
    #[inline(never)]
    fn call_checked<B>(&mut self, checked: Option<LimitCheckResult>, request: Request<B>) -> LimitFuture<S, B>
    where
        S: Service<Request<B>> + Clone,
    {
        let checked = checked.unwrap_or_else(|| {
            LimitCheckResult::from_evaluation(&self.gate, self.gate.check(&TowerRequestHead::new(&request)))
        });
        let on_response = match checked {
            LimitCheckResult::Admitted(headers) => LimitResponseAction::WriteHeaders(headers),
            LimitCheckResult::AdmittedWithReservation(reserved) => LimitResponseAction::Settle(reserved),
            LimitCheckResult::Rejected(verdict) => return self.deny(&verdict, request),
            LimitCheckResult::Pending(verdict) => return self.wait(*verdict, request),
        };
        LimitFuture::from_call(self.inner.call(request), on_response)
    }

    #[cold]
    fn deny<B>(&self, verdict: &Verdict, request: Request<B>) -> LimitFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        let protocol = ResponseProtocol::detect(&request);
        drop(request);
        LimitFuture::from_rejection(protocol.reject(&self.gate, verdict))
    }

    #[inline(never)]
    fn wait<B>(&mut self, verdict: PendingEvaluation<Verdict>, request: Request<B>) -> LimitFuture<S, B>
    where
        S: Service<Request<B>> + Clone,
    {
        // Call the instance that is ready; the next caller gets its clone.
        let clone = self.inner.clone();
        let ready = mem::replace(&mut self.inner, clone);
        LimitFuture::pending(verdict, self.gate.clone(), ready, request)
    }
}
