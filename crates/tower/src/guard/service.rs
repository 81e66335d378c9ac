//! A service with a guard in front of it.

use crate::{
    head::HttpHead,
    held::{HeldBody, HeldFuture, Wire, refuse},
};
use http::{Request, Response};
use http_body::Body;
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};
use tidegate_overload::{Guard, Pass, Settle};
use tidegate_rule::surface::RequestGuard;
use tower_service::Service;

/// A service with a guard in front of it; see [`GuardLayer`](super::GuardLayer).
///
/// It goes around a client as well as around a server: hyper-util's client and a channel of tonic as they are, and with the
/// feature `reqwest` a `reqwest::Client`, whose requests `send` takes. An answer of 500 or above is a failure there, 429 too
/// with [`for_calls`](RequestGuard::for_calls), and so is an error instead of an answer.
///
/// ```
/// # #[cfg(feature = "reqwest")]
/// # async fn call() -> Result<(), Box<dyn std::error::Error>> {
/// use tidegate_overload::BreakerSettings;
/// use tidegate_overload::Breaker;
/// use tidegate_rule::{Limited, request::key};
/// use tidegate_tower::{GuardLayer, Guards, RequestGuard};
/// use tower_layer::Layer as _;
///
/// let settings = BreakerSettings::builder().over_calls(100).build()?;
/// let breakers = Guards::builder().build(move || Breaker::new(settings.clone()));
/// let http = reqwest::Client::new();
/// let breaker = RequestGuard::by_key(breakers, key::host()).for_calls();
/// let guarded = GuardLayer::new(breaker).layer(http.clone());
///
/// let answer = guarded.send(http.get("https://api.example.com/items").build()?).await?;
/// if let Some(limited) = answer.extensions().get::<Limited>() {
///     println!("not sent, since {limited}");
/// }
/// # Ok(())
/// # }
/// ```
///
/// A refusal has its [`Limited`](tidegate_rule::Limited) among the extensions, to tell it from a 503 that came from afar.
pub struct Guarded<S, G> {
    pub(super) inner: S,
    pub(super) guard: RequestGuard<G>,
}

impl<S, G> Guarded<S, G> {
    pub(super) fn new(inner: S, guard: RequestGuard<G>) -> Self {
        Self { inner, guard }
    }
}

impl<S, G, B, R> Service<Request<B>> for Guarded<S, G>
where
    S: Service<Request<B>, Response = Response<R>>,
    G: Guard + Settle<Entry: Send + Sync> + Send + Sync + 'static,
    R: Body,
{
    type Response = Response<HeldBody<R>>;
    type Error = S::Error;
    type Future = HeldFuture<S::Future, Pass<Arc<G>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let terms = self.guard.terms();
        match self.guard.try_pass(&HttpHead::of(&request)) {
            Ok(pass) => HeldFuture::serving(self.inner.call(request), pass, terms.clone()),
            Err(cause) => HeldFuture::answered(refuse(terms, Wire::of(&request), cause)),
        }
    }
}

impl<S: Clone, G> Clone for Guarded<S, G> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), guard: self.guard.clone() }
    }
}

impl<S: fmt::Debug, G> fmt::Debug for Guarded<S, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded").field("inner", &self.inner).field("guard", &self.guard).finish()
    }
}
