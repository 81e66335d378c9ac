//! A request that is served at once, or waits for its turn.

use crate::held::{HeldBody, HeldFuture};
use http::Response;
use http_body::Body;
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};
use tidegate_limiter::Slot;

pin_project! {
    /// The answer to a request that was served, had to wait, or was refused. Dropping it leaves the line, or gives the slot
    /// back.
    pub struct ConcurrencyFuture<F, R, E> {
        #[pin]
        turn: Turn<F, R, E>,
    }
}

pin_project! {
    #[project = TurnProjection]
    enum Turn<F, R, E> {
        Now { #[pin] served: HeldFuture<F, Slot> },
        Waiting { waiting: Waiting<R, E> },
    }
}

type Waiting<R, E> = Pin<Box<dyn Future<Output = Result<Response<HeldBody<R>>, E>> + Send>>;

impl<F, R, E> ConcurrencyFuture<F, R, E> {
    pub(super) fn now(served: HeldFuture<F, Slot>) -> Self {
        Self { turn: Turn::Now { served } }
    }

    pub(super) fn waiting(
        waiting: impl Future<Output = Result<Response<HeldBody<R>>, E>> + Send + 'static,
    ) -> Self {
        Self { turn: Turn::Waiting { waiting: Box::pin(waiting) } }
    }
}

impl<F, R, E> Future for ConcurrencyFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: Body,
{
    type Output = Result<Response<HeldBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().turn.project() {
            TurnProjection::Now { served } => served.poll(context),
            TurnProjection::Waiting { waiting } => waiting.as_mut().poll(context),
        }
    }
}

impl<F, R, E> fmt::Debug for ConcurrencyFuture<F, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConcurrencyFuture")
    }
}
