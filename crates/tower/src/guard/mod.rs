//! Circuit breakers, adaptive limits and throttles for services.
//!
//! ```text
//!   call ──▶ guard ──permit──▶ inner ──▶ head ──▶ body
//!              │                           └─ or ──┴──▶ outcome
//!              └──rejection──▶ 503, Retry-After
//! ```

#[cfg(feature = "reqwest")]
mod reqwest;

#[cfg(feature = "reqwest")]
pub use reqwest::GuardedCall;

use crate::{
    head::TowerRequestHead,
    middleware::{MiddlewareLayer, MiddlewareService},
    permit::{PermitBody, PermitFuture, ResponseProtocol, reject},
};
use http::{Request, Response};
use http_body::Body;
use std::{
    sync::Arc,
    task::{Context, Poll},
};
use tidegate_overload::{CallGuard, CallPermit, RecordOutcome};
use tidegate_rule::middleware::RequestGuard;
use tower_service::Service;

/// Protects a service with a guard: a `Breaker`, an `AdaptiveLimit`, a `ClientThrottle`, an `ErrorThrottle`, or a custom
/// one.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_core::Micros;
/// use tidegate_overload::{AdaptiveLimit, Breaker, BreakerSettings, adaptive::LatencyTarget};
/// use tidegate_rule::request::key;
/// use tidegate_tower::{GuardLayer, Guards, RequestGuard, InFlightEnd};
///
/// // A server: as many requests in flight as the latency target allows, until the bodies are sent.
/// let limit = Arc::new(AdaptiveLimit::new(LatencyTarget::new(Micros::from_millis(250))?)?);
/// let server = GuardLayer::new(RequestGuard::new(limit).name("api").in_flight_end(InFlightEnd::Body));
///
/// // A client: a breaker for each host.
/// let settings = BreakerSettings::builder().count_window(100).build()?;
/// let breakers = Guards::builder().max_keys(100).build(move || Breaker::new(settings.clone()));
/// let client = GuardLayer::new(RequestGuard::by_key(breakers, key::host()).for_client_calls());
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// A rejected request gets 503 and `Retry-After`, in gRPC `UNAVAILABLE`, and the service is not called. The guard ignores
/// cancelled calls, except those that exceed a time limit of a [`RetryLayer`](crate::RetryLayer), which are failures. All
/// services of one layer share the guard.
///
/// It also wraps clients: the client of hyper-util, a channel of tonic, and with the feature `reqwest` a `reqwest::Client`,
/// whose requests `send` sends. Errors and statuses of 500 or above are failures, and so is 429 with
/// [`for_client_calls`](RequestGuard::for_client_calls).
///
/// ```
/// # #[cfg(feature = "reqwest")]
/// # async fn call() -> Result<(), Box<dyn std::error::Error>> {
/// use tidegate_overload::{Breaker, BreakerSettings};
/// use tidegate_rule::{Limited, request::key};
/// use tidegate_tower::{GuardLayer, Guards, RequestGuard};
/// use tower_layer::Layer as _;
///
/// let settings = BreakerSettings::builder().count_window(100).build()?;
/// let breakers = Guards::builder().build(move || Breaker::new(settings.clone()));
/// let http = reqwest::Client::new();
/// let breaker = RequestGuard::by_key(breakers, key::host()).for_client_calls();
/// let guarded = GuardLayer::new(breaker).layer(http.clone());
///
/// let response = guarded.send(http.get("https://api.example.com/items").build()?).await?;
/// if let Some(limited) = response.extensions().get::<Limited>() {
///     println!("not sent: {limited}");
/// }
/// # Ok(())
/// # }
/// ```
///
/// A rejection has a [`Limited`](tidegate_rule::Limited) in its extensions, which distinguishes it from a 503 of the
/// server.
pub type GuardLayer<G> = MiddlewareLayer<RequestGuard<G>>;

impl<S, G, B, R> Service<Request<B>> for MiddlewareService<S, RequestGuard<G>>
where
    S: Service<Request<B>, Response = Response<R>>,
    G: CallGuard + RecordOutcome<Entry: Send + Sync> + Send + Sync + 'static,
    R: Body,
{
    type Response = Response<PermitBody<R>>;
    type Error = S::Error;
    type Future = PermitFuture<S::Future, CallPermit<Arc<G>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let options = self.settings.options();
        match self.settings.try_acquire(&TowerRequestHead::new(&request)) {
            Ok(permit) => PermitFuture::forward(self.inner.call(request), permit, options.clone()),
            Err(cause) => PermitFuture::respond(reject(options, ResponseProtocol::detect(&request), cause)),
        }
    }
}
