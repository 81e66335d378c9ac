//! A service behind a gate.

use super::{
    answer::Wire,
    future::{After, Checked, LimitFuture},
};
use crate::{GateBody, HttpHead, head};
use http::{Request, Response};
use std::{
    mem,
    task::{Context, Poll},
};
use tidegate_rule::{Gate, Pending, Verdict, request::Address};
use tower_service::Service;

/// A service behind a gate; see [`LimitLayer`](super::LimitLayer).
#[derive(Clone, Debug)]
pub struct Limit<S> {
    gate: Gate,
    inner: S,
}

impl<S> Limit<S> {
    /// This service behind this gate.
    pub fn new(gate: impl Into<Gate>, inner: S) -> Self {
        Self { gate: gate.into(), inner }
    }

    /// The service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, B, R> Service<Request<B>> for Limit<S>
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
        // A request is large. It is moved once as long as nobody else sees it, and so whoever else wants it is given it.
        let peer = self.gate.peer_key(|| head::peer(request.extensions()));
        match peer.and_then(|peer| check_peer(&self.gate, peer)) {
            Some(Checked::Admitted(headers)) => {
                LimitFuture::calling(self.inner.call(request), After::writing(headers))
            }
            Some(checked) => self.proceed(checked, request),
            None => self.call_by_head(request),
        }
    }
}

/// Kept apart, so that the numbers stay in its registers, and little comes back.
#[inline(never)]
fn check_peer(gate: &Gate, peer: Address) -> Option<Checked> {
    gate.check_peer(peer).map(|decision| Checked::of_peer(gate, decision))
}

impl<S> Limit<S> {
    #[inline(never)]
    fn call_by_head<B>(&mut self, request: Request<B>) -> LimitFuture<S, B>
    where
        S: Service<Request<B>> + Clone,
    {
        let checked = Checked::of(&self.gate, self.gate.check(&HttpHead::of(&request)));
        self.proceed(checked, request)
    }

    #[inline(never)]
    fn proceed<B>(&mut self, checked: Checked, request: Request<B>) -> LimitFuture<S, B>
    where
        S: Service<Request<B>> + Clone,
    {
        match checked {
            Checked::Admitted(headers) => {
                LimitFuture::calling(self.inner.call(request), After::writing(headers))
            }
            Checked::Holding(after) => LimitFuture::calling(self.inner.call(request), *after),
            Checked::Denied(verdict) => self.deny(&verdict, request),
            Checked::Pending(verdict) => self.wait(*verdict, request),
        }
    }

    #[cold]
    fn deny<B>(&self, verdict: &Verdict, request: Request<B>) -> LimitFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        let wire = Wire::of(&request);
        drop(request);
        LimitFuture::refused(wire.answer(&self.gate, verdict))
    }

    #[inline(never)]
    fn wait<B>(&mut self, verdict: Pending<Verdict>, request: Request<B>) -> LimitFuture<S, B>
    where
        S: Service<Request<B>> + Clone,
    {
        // Only the service that was found ready may be called, however much later.
        let clone = self.inner.clone();
        let ready = mem::replace(&mut self.inner, clone);
        LimitFuture::pending(verdict, self.gate.clone(), ready, request)
    }
}
