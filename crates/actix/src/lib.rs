//! actix-web middleware for rate limiting and overload control.
//!
//! ```
//! use actix_web::{App, web};
//! use tidegate_actix::LimitMiddleware;
//! use tidegate_rule::{RuleConfig, Gate, RequestLimit, request::key};
//!
//! let limit = RequestLimit::from_config(RuleConfig::new("per-client").quota("100/min burst 20")?)?.key(key::peer());
//! let gate = Gate::from(limit);
//! // The factory closure of `HttpServer::new` runs once per worker; all workers share the gate.
//! let app = move || {
//!     App::new()
//!         .wrap(LimitMiddleware::new(gate.clone()))
//!         .route("/", web::get().to(|| async { "hello" }))
//! };
//! # let _ = app();
//! # Ok::<(), tidegate_limiter::BuildError>(())
//! ```
//!
//! | item | meaning |
//! |---|---|
//! | [`LimitMiddleware`] | limits requests by a gate of rules; rejects with 429 |
//! | [`GuardMiddleware`] | a circuit breaker, an adaptive limit or a throttle; rejects with 503 |
//! | [`ConcurrencyMiddleware`] | limits requests in flight, with a queue; rejects with 503 |
//! | [`PriorityMiddleware`] | limits requests in flight and sheds the least important ones first; rejects with 503 |
//! | [`AccessMiddleware`] | access lists and bans; rejects with 403 |
//! | [`BandwidthMiddleware`], [`UploadMiddleware`] | limit the bandwidth of response and request bodies |
//! | [`ContextMiddleware`] | provides the client address and the user to attributes and inner middleware |
//! | [`ActixRequestHead`], [`ActixResponseHead`] | requests and responses as rules see them |
//! | [`key`] | keys from the extensions of requests |
//!
//! Each can wrap an application, a scope or a resource. The middleware that is wrapped last runs first.
//!
//! The settings of each middleware are types of [`tidegate_rule`], independent of the framework: a gate for
//! `LimitMiddleware`, a [`RequestGuard`] for `GuardMiddleware`, and so on.
//!
//! Middleware has no state of its own; the state is in its settings, and clones share it. Create gates, guards, semaphores
//! and bandwidths outside of the factory closure, and clone them into it; otherwise each worker has its own limit.
//!
//! It does not read request bodies, and it does not retry requests.

mod access;
mod bandwidth;
mod concurrency;
mod context;
mod guard;
mod head;
pub mod key;
mod limit;
mod middleware;
mod permit;
mod priority;

pub use access::AccessMiddleware;
pub use bandwidth::{BandwidthFuture, BandwidthMiddleware, PayloadBandwidth, ShapedBody, UploadMiddleware};
pub use concurrency::ConcurrencyMiddleware;
pub use context::ContextMiddleware;
pub use guard::GuardMiddleware;
pub use head::{ActixRequestHead, ActixResponseHead};
pub use limit::{LimitMiddleware, LimitTransformService};
pub use middleware::{Middleware, TransformService};
pub use permit::{PermitMessageBody, PermitResponseFuture};
pub use priority::PriorityMiddleware;
pub use tidegate_rule::middleware::{
    ContextExtractor, Guards, GuardsBuilder, InFlightEnd, RequestAccess, RequestBandwidth,
    RequestConcurrency, RequestGuard, RequestPriority, classify_client, classify_server,
};
