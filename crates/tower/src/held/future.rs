//! A request that is being served, and what it holds meanwhile.

use super::{
    body::HeldBody,
    terms::{Held, report},
};
use bytes::Bytes;
use http::Response;
use http_body::Body;
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tidegate_rule::surface::{Terms, Until};

pin_project! {
    /// The answer to a request that was let in, or to one that was not. Dropping it gives back what it holds.
    pub struct HeldFuture<F, H> {
        #[pin]
        state: State<F, H>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<F, H> {
        Served { #[pin] inner: F, held: Option<H>, terms: Arc<Terms> },
        Answered { response: Option<Response<Bytes>> },
    }
}

impl<F, H> HeldFuture<F, H> {
    pub(crate) fn serving(inner: F, held: H, terms: Arc<Terms>) -> Self {
        Self { state: State::Served { inner, held: Some(held), terms } }
    }

    pub(crate) fn answered(response: Response<Bytes>) -> Self {
        Self { state: State::Answered { response: Some(response) } }
    }
}

impl<F, H, R, E> Future for HeldFuture<F, H>
where
    F: Future<Output = Result<Response<R>, E>>,
    H: Held,
    R: Body,
{
    type Output = Result<Response<HeldBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (inner, held, terms) = match self.project().state.project() {
            StateProjection::Served { inner, held, terms } => (inner, held, terms),
            StateProjection::Answered { response } => {
                // Polled again after it was done: there is nothing to say, and nothing to panic about.
                let Some(response) = response.take() else { return Poll::Pending };
                return Poll::Ready(Ok(response.map(HeldBody::answered)));
            }
        };
        let result = ready!(inner.poll(context));
        let report = report(terms, result.as_ref().ok());
        let held = held.take();
        Poll::Ready(match (result, held, terms.until) {
            (Ok(response), Some(held), Until::Body) => {
                Ok(response.map(|body| HeldBody::holding(body, held, report, terms)))
            }
            (result, held, _) => {
                held.into_iter().for_each(|held| held.end(report));
                result.map(|response| response.map(HeldBody::free))
            }
        })
    }
}

impl<F, H> fmt::Debug for HeldFuture<F, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeldFuture")
    }
}
