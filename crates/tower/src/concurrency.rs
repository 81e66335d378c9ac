//! A limit on requests in flight, each until the body of its response has been sent.

use crate::{
    head::TowerRequestHead,
    middleware::{MiddlewareLayer, MiddlewareService},
    permit::{PermitBody, PermitFuture, ResponseProtocol, reject},
};
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};
use tidegate_limiter::SemaphorePermit;
use tidegate_rule::middleware::{PermitAcquisition, RequestConcurrency};
use tower_service::Service;

/// Limits requests in flight. Each request holds its slot until its response body has ended or is dropped.
///
/// ```
/// use std::time::Duration;
/// use tidegate_limiter::Semaphore;
/// use tidegate_tower::{ConcurrencyLayer, RequestConcurrency};
///
/// let slots = Semaphore::builder().max_waiters(200).build(64)?;
/// let layer = ConcurrencyLayer::new(RequestConcurrency::new(slots).wait(Duration::from_millis(500)));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// For a limit per client, use a rule with a quota such as `3 at once`.
///
/// A request without a slot gets 503 and `Retry-After`, in gRPC `UNAVAILABLE`. All services of one layer share the slots,
/// also with other users of the semaphore.
pub type ConcurrencyLayer = MiddlewareLayer<RequestConcurrency>;

impl<S, B, R> Service<Request<B>> for MiddlewareService<S, RequestConcurrency>
where
    S: Service<Request<B>, Response = Response<R>, Future: Send> + Clone + Send + 'static,
    B: Send + 'static,
    R: Body,
{
    type Response = Response<PermitBody<R>>;
    type Error = S::Error;
    type Future = ConcurrencyFuture<S::Future, R, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (acquisition, options) =
            (self.settings.acquire(&TowerRequestHead::new(&request)), self.settings.options());
        let waiter = match acquisition {
            PermitAcquisition::Ready(Ok(permit)) => {
                let served = PermitFuture::forward(self.inner.call(request), permit, options.clone());
                return ConcurrencyFuture::immediate(served);
            }
            PermitAcquisition::Ready(Err(cause)) => {
                let rejected = reject(options, ResponseProtocol::detect(&request), cause);
                return ConcurrencyFuture::immediate(PermitFuture::respond(rejected));
            }
            PermitAcquisition::Waiting(waiter) => waiter,
        };
        // Call the instance that is ready; the next caller gets its clone.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let (protocol, options) = (ResponseProtocol::detect(&request), options.clone());
        ConcurrencyFuture::queued(async move {
            match waiter.wait().await {
                Ok(permit) => PermitFuture::forward(inner.call(request), permit, options).await,
                Err(cause) => Ok(reject(&options, protocol, cause).map(PermitBody::from_bytes)),
            }
        })
    }
}

pin_project! {
    /// The response of the service, possibly after a wait, or a rejection. Dropping it leaves the queue or releases the
    /// slot.
    pub struct ConcurrencyFuture<F, R, E> {
        #[pin]
        state: ConcurrencyState<F, R, E>,
    }
}

pin_project! {
    #[project = ConcurrencyStateProjection]
    enum ConcurrencyState<F, R, E> {
        Immediate { #[pin] served: PermitFuture<F, SemaphorePermit> },
        Queued { waiting: QueuedResponse<R, E> },
    }
}

type QueuedResponse<R, E> = Pin<Box<dyn Future<Output = Result<Response<PermitBody<R>>, E>> + Send>>;

impl<F, R, E> ConcurrencyFuture<F, R, E> {
    fn immediate(served: PermitFuture<F, SemaphorePermit>) -> Self {
        Self { state: ConcurrencyState::Immediate { served } }
    }

    fn queued(waiting: impl Future<Output = Result<Response<PermitBody<R>>, E>> + Send + 'static) -> Self {
        Self { state: ConcurrencyState::Queued { waiting: Box::pin(waiting) } }
    }
}

impl<F, R, E> Future for ConcurrencyFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: Body,
{
    type Output = Result<Response<PermitBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            ConcurrencyStateProjection::Immediate { served } => served.poll(context),
            ConcurrencyStateProjection::Queued { waiting } => waiting.as_mut().poll(context),
        }
    }
}

impl<F, R, E> fmt::Debug for ConcurrencyFuture<F, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConcurrencyFuture")
    }
}
