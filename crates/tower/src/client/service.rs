//! The service of a client that honours `Retry-After`.

use super::{
    error::RetryAfterError,
    layer::RetryAfterLayer,
    message::{ClientRequest, ClientResponse},
};
use std::{
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tower_service::Service;

/// A client that honours `Retry-After`; see [`RetryAfterLayer`](super::RetryAfterLayer).
#[derive(Clone)]
pub struct RetryAfterService<S> {
    inner: S,
    settings: Arc<RetryAfterLayer>,
}

impl<S> RetryAfterService<S> {
    pub(super) fn new(inner: S, settings: Arc<RetryAfterLayer>) -> Self {
        Self { inner, settings }
    }

    /// Sends one request: waits until the client is ready and the call is admitted, and returns the response.
    ///
    /// # Errors
    ///
    /// Returns an error if the call is not admitted or fails.
    pub async fn send<Q>(&self, request: Q) -> Result<S::Response, RetryAfterError<S::Error>>
    where
        S: Service<Q, Response: ClientResponse, Future: Send> + Clone + Send + 'static,
        Q: ClientRequest + Send + 'static,
    {
        let mut client = self.clone();
        poll_fn(|context| client.poll_ready(context)).await?;
        client.call(request).await
    }

    /// Returns the inner client.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, Q> Service<Q> for RetryAfterService<S>
where
    S: Service<Q, Response: ClientResponse, Future: Send> + Clone + Send + 'static,
    Q: ClientRequest + Send + 'static,
{
    type Response = S::Response;
    type Error = RetryAfterError<S::Error>;
    type Future = RetryAfterFuture<S::Response, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(RetryAfterError::Failed)
    }

    fn call(&mut self, request: Q) -> Self::Future {
        // Call the instance that is ready; the next caller gets its clone.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let settings = self.settings.clone();
        let key = settings.server_key(&request);
        Box::pin(async move {
            settings.admit(&key).await?;
            let answer = inner.call(request).await.map_err(RetryAfterError::Failed)?;
            settings.record_response(&key, &answer);
            Ok(answer)
        })
    }
}

/// Waits until the call is admitted, makes it, and records the backoff of the response. Dropping it cancels the call.
pub type RetryAfterFuture<T, E> = Pin<Box<dyn Future<Output = Result<T, RetryAfterError<E>>> + Send>>;

impl<S: fmt::Debug> fmt::Debug for RetryAfterService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryAfterService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
