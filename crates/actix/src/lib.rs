//! Middleware for actix-web.
//!
//! ```
//! use actix_web::{App, web};
//! use tidegate_actix::LimitMiddleware;
//! use tidegate_rule::{RuleConfig, Gate, RequestLimit, request::key};
//!
//! let limit = RequestLimit::from_config(RuleConfig::new("per-client").quota("100/min burst 20")?)?.key(key::peer());
//! let gate = Gate::from(limit);
//! // The closure that `HttpServer::new` takes: it runs once for each worker, and all of them share the gate.
//! let app = move || {
//!     App::new()
//!         .wrap(LimitMiddleware::new(gate.clone()))
//!         .route("/", web::get().to(|| async { "hello" }))
//! };
//! # let _ = app();
//! # Ok::<(), tidegate_limiter::BuildError>(())
//! ```
//!
//! | middleware | does |
//! |---|---|
//! | [`LimitMiddleware`] | asks the rules of a gate, and answers 429 to whoever is refused |
//! | [`GuardMiddleware`] | a breaker, an adaptive limit or a throttle that follows errors; 503 |
//! | [`ConcurrencyMiddleware`] | so many at once, and a line for the others; 503 |
//! | [`PriorityMiddleware`] | so many at once, the important first; 503 |
//! | [`AccessMiddleware`] | keeps out whom a list or a ban keeps out; 403 |
//! | [`BandwidthMiddleware`], [`UploadMiddleware`] | bodies that move no faster than a bandwidth allows |
//! | [`FactsMiddleware`] | tells attributes below of the client |
//!
//! Each goes around an application, a scope or a resource. Of several, the one that is wrapped last runs first.
//!
//! What a middleware does is said without a wire, in [`tidegate_rule`]: a gate for `LimitMiddleware`, a [`RequestGuard`] for
//! `GuardMiddleware`, and so on.
//!
//! None of them keeps state: that is in what they are made with, and is shared by whoever shares that. So make gates, guards,
//! slots and bandwidths outside of the closure that makes applications, and clone them into it.

mod access;
mod bandwidth;
mod concurrency;
mod facts;
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
pub use facts::FactsMiddleware;
pub use guard::GuardMiddleware;
pub use head::{ActixRequestHead, ActixResponseHead};
pub use limit::{LimitMiddleware, LimitTransformService};
pub use middleware::{Middleware, TransformService};
pub use permit::{PermitMessageBody, PermitResponseFuture};
pub use priority::PriorityMiddleware;
pub use tidegate_rule::middleware::{
    Guards, GuardsBuilder, InFlightEnd, RequestAccess, RequestBandwidth, RequestConcurrency, RequestFacts,
    RequestGuard, RequestPriority, classify_client, classify_server,
};
