//! A service with a gate in front of it.

use super::headers::Told;
use crate::{
    head::RequestHead,
    held::{Admission, HeldBody, HeldFuture, Said, reply_to, respond},
};
use actix_web::{
    Error,
    body::MessageBody,
    dev::{Service, ServiceRequest, ServiceResponse},
};
use std::{
    fmt,
    rc::Rc,
    task::{Context, Poll},
};
use tidegate_overload::Report;
use tidegate_rule::{Asked, Gate, Rulings};

/// A service with a gate in front of it; see [`LimitMiddleware`](super::LimitMiddleware).
pub struct LimitService<S> {
    /// Shared with those who wait for their turn.
    inner: Rc<S>,
    gate: Gate,
}

impl<S> LimitService<S> {
    pub(super) fn new(inner: S, gate: Gate) -> Self {
        Self { inner: Rc::new(inner), gate }
    }
}

impl<S, B> Service<ServiceRequest> for LimitService<S>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<HeldBody<B>>;
    type Error = Error;
    type Future = HeldFuture<S::Future, B, Admitted>;

    fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&self, request: ServiceRequest) -> Self::Future {
        // The extensions are borrowed by the head, and no longer.
        let asked = self.gate.ask(&RequestHead::of(&request));
        let gate = self.gate.clone();
        match asked {
            Asked::Now(rulings) => HeldFuture::now(&*self.inner, say(gate, request, rulings)),
            Asked::Later(asking) => {
                HeldFuture::later(&self.inner, async move { say(gate, request, asking.await) })
            }
        }
    }
}

fn say<B>(gate: Gate, request: ServiceRequest, rulings: Rulings) -> Said<B, Admitted> {
    let verdict = gate.verdict(&rulings);
    if !verdict.is_admitted() {
        return Said::Answer(respond(request, gate.answer_to(&verdict)));
    }
    let told = Told::of(&gate, &verdict);
    let held = rulings.holds_anything().then(|| Box::new((gate, rulings)));
    Said::Enter(request, Admitted { held, told })
}

/// A request that a gate let in: what is settled or given back with the answer, if there is anything, and what the answer will
/// tell.
pub struct Admitted {
    held: Option<Box<(Gate, Rulings)>>,
    told: Told,
}

impl Admission for Admitted {
    fn settle<B: MessageBody>(
        self,
        result: Result<ServiceResponse<B>, Error>,
    ) -> Result<ServiceResponse<HeldBody<B>>, Error> {
        let slots = self.held.map(|held| {
            let (gate, rulings) = *held;
            reply_to(&result, |reply| rulings.settle(&gate, reply))
        });
        let mut response = result?;
        self.told.write(response.headers_mut());
        Ok(response.map_body(|_, body| match slots.filter(|slots| !slots.is_empty()) {
            Some(slots) => HeldBody::holding(body, slots, Report::Ignored),
            None => HeldBody::free(body),
        }))
    }
}

impl<S> fmt::Debug for LimitService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LimitService").field(&self.gate).finish()
    }
}
