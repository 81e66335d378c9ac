//! A client that is polite.

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

/// A client that keeps a limit of its own and does as servers say; see [`RetryAfterLayer`](super::RetryAfterLayer).
#[derive(Clone)]
pub struct RetryAfterService<S> {
    inner: S,
    settings: Arc<RetryAfterLayer>,
}

impl<S> RetryAfterService<S> {
    pub(super) fn new(inner: S, settings: Arc<RetryAfterLayer>) -> Self {
        Self { inner, settings }
    }

    /// Sends one request: waits until the client is ready, until it may, and for the answer.
    pub async fn send<Q>(&self, request: Q) -> Result<S::Response, RetryAfterError<S::Error>>
    where
        S: Service<Q, Response: ClientResponse, Future: Send> + Clone + Send + 'static,
        Q: ClientRequest + Send + 'static,
    {
        let mut client = self.clone();
        poll_fn(|context| client.poll_ready(context)).await?;
        client.call(request).await
    }

    /// The client inside.
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
        // The one that is ready makes the call; whoever asks next asks its clone.
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

/// A call that waits until it may, is made, and hears what the server says. Dropping it gives up all of that.
pub type RetryAfterFuture<T, E> = Pin<Box<dyn Future<Output = Result<T, RetryAfterError<E>>> + Send>>;

impl<S: fmt::Debug> fmt::Debug for RetryAfterService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryAfterService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
