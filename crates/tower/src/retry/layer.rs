//! The layer and the service of a client with retries.

use super::classify::{CloneRetries, HttpRetries, RetryClassifier};
use std::{
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tidegate_limiter::Clock;
use tidegate_overload::{CallError, Retrier};
use tower_layer::Layer;
use tower_service::Service;

/// Retries the requests of a client within a budget, bounds their time, and hedges slow ones.
///
/// ```
/// # #[cfg(feature = "reqwest")]
/// # async fn call() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tidegate_overload::Retrier;
/// use tidegate_tower::RetryLayer;
/// use tower_layer::Layer as _;
///
/// let retrier = Retrier::builder()
///     .max(2)
///     .attempt_time_limit(Duration::from_secs(1))
///     .time_limit(Duration::from_secs(5))
///     .hedge_after(Duration::from_millis(200))
///     .build()?;
/// let http = reqwest::Client::new();
/// let retry = RetryLayer::new(retrier).layer(http.clone());
///
/// let response = retry.send(http.get("https://api.example.com/items").build()?).await?;
/// # Ok(())
/// # }
/// ```
///
/// [`HttpRetries`] decides what is retried: idempotent requests, after connection errors, 502, 503, 504, and 429 with
/// `Retry-After`. A request whose body cannot be copied is sent once. The time limits end with the head of the response; they
/// do not bound its body. [`RetryLayer::for_clone`] is for other protocols.
///
/// Put breakers and limits inside, so that each attempt is checked by them. An attempt that a time limit cancels is a failure
/// for them. All services of one layer share the budget.
#[derive(Debug)]
pub struct RetryLayer<P = HttpRetries> {
    retrier: Retrier,
    classifier: Arc<P>,
}

impl RetryLayer {
    /// Creates a layer for HTTP clients.
    pub fn new(retrier: Retrier) -> Self {
        Self::with_classifier(retrier, HttpRetries::new())
    }
}

impl RetryLayer<CloneRetries> {
    /// Creates a layer for any service whose requests can be cloned; every error is retried.
    pub fn for_clone(retrier: Retrier) -> Self {
        Self::with_classifier(retrier, CloneRetries)
    }
}

impl<P> RetryLayer<P> {
    /// Creates a layer with another decision about requests and results.
    pub fn with_classifier(retrier: Retrier, classifier: P) -> Self {
        Self { retrier, classifier: Arc::new(classifier) }
    }
}

impl<P> Clone for RetryLayer<P> {
    fn clone(&self) -> Self {
        Self { retrier: self.retrier.clone(), classifier: self.classifier.clone() }
    }
}

impl<S, P> Layer<S> for RetryLayer<P> {
    type Service = RetryService<S, P>;

    fn layer(&self, inner: S) -> RetryService<S, P> {
        let Self { retrier, classifier } = self;
        RetryService { inner, retrier: retrier.clone(), classifier: classifier.clone() }
    }
}

/// A client with retries; see [`RetryLayer`].
pub struct RetryService<S, P = HttpRetries> {
    inner: S,
    retrier: Retrier,
    classifier: Arc<P>,
}

/// The attempts of one request. Dropping it cancels them.
pub type RetryFuture<T, E> = Pin<Box<dyn Future<Output = Result<T, CallError<E>>> + Send>>;

impl<S, P> RetryService<S, P> {
    /// Sends one request: waits until the client is ready, and returns the response.
    ///
    /// # Errors
    ///
    /// Returns the error of the last attempt, or [`CallError::TimeLimitExceeded`].
    pub async fn send<Q>(&self, request: Q) -> Result<S::Response, CallError<S::Error>>
    where
        S: Service<Q, Response: Send, Error: Send, Future: Send> + Clone + Send + 'static,
        P: RetryClassifier<Q, S::Response, S::Error> + Send + Sync + 'static,
        Q: Send + 'static,
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

impl<S, P, Q> Service<Q> for RetryService<S, P>
where
    S: Service<Q, Response: Send, Error: Send, Future: Send> + Clone + Send + 'static,
    P: RetryClassifier<Q, S::Response, S::Error> + Send + Sync + 'static,
    Q: Send + 'static,
{
    type Response = S::Response;
    type Error = CallError<S::Error>;
    type Future = RetryFuture<S::Response, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(CallError::Failed)
    }

    fn call(&mut self, request: Q) -> Self::Future {
        // Call the instance that is ready; the next caller gets its clone.
        let clone = self.inner.clone();
        let mut ready = std::mem::replace(&mut self.inner, clone);
        let (retrier, classifier) = (self.retrier.clone(), self.classifier.clone());
        let Some(copy) = classifier.clone_request(&request) else {
            return Box::pin(async move {
                retrier.attempt_once(ready.call(request)).await?.map_err(CallError::Failed)
            });
        };
        Box::pin(async move {
            let other = ready.clone();
            let (mut copy, copier) = (Some(copy), classifier.clone());
            let next = move || {
                let following = copy.as_ref().and_then(|copy| copier.clone_request(copy));
                Some((other.clone(), std::mem::replace(&mut copy, following)?))
            };
            let attempt = |_, (mut client, request): (S, Q)| async move {
                poll_fn(|context| client.poll_ready(context)).await?;
                client.call(request).await
            };
            let clock = Clock::system();
            let classify = move |result: &Result<_, _>| classifier.classify(result, clock.now());
            let result = retrier.attempt_with_inputs((ready, request), next, classify, attempt).await?;
            result.map_err(CallError::Failed)
        })
    }
}

impl<S: Clone, P> Clone for RetryService<S, P> {
    fn clone(&self) -> Self {
        let Self { inner, retrier, classifier } = self;
        Self { inner: inner.clone(), retrier: retrier.clone(), classifier: classifier.clone() }
    }
}

impl<S: fmt::Debug, P> fmt::Debug for RetryService<S, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inner, retrier, .. } = self;
        f.debug_struct("RetryService").field("inner", inner).field("retrier", retrier).finish_non_exhaustive()
    }
}
