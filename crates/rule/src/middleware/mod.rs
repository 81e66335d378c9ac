//! Framework-independent settings of middleware other than gates.
//!
//! ```
//! use std::sync::Arc;
//! use tidegate_core::Micros;
//! use tidegate_overload::{AdaptiveLimit, adaptive::LatencyTarget};
//! use tidegate_rule::middleware::{RequestGuard, InFlightEnd};
//!
//! // As many requests in flight as the latency target allows, until the bodies are sent.
//! let limit = Arc::new(AdaptiveLimit::new(LatencyTarget::new(Micros::from_millis(250))?)?);
//! let guard = RequestGuard::new(limit).name("api").in_flight_end(InFlightEnd::Body);
//! // tower: GuardLayer::new(guard); actix-web: GuardMiddleware::new(guard)
//! # Ok::<(), tidegate_core::SettingError>(())
//! ```
//!
//! | noun | meaning |
//! |---|---|
//! | [`RequestGuard`] | a guard in front of requests: a breaker, an adaptive limit, an error throttle |
//! | [`RequestConcurrency`] | a concurrency limit |
//! | [`RequestPriority`] | a concurrency limit that sheds the least important requests first |
//! | [`RequestAccess`] | an access list and bans |
//! | [`RequestBandwidth`] | a bandwidth limit on bodies |
//! | [`ContextExtractor`] | determines the client of a request |
//! | [`Guards`] | one guard per key |
//! | [`MiddlewareOptions`] | the response to rejected requests, and the classification of responses |
//!
//! A layer or middleware takes one of them and passes it the [`RequestHead`](crate::request::RequestHead) of each request, so
//! that every framework has the same options.

mod access;
mod bandwidth;
mod classify;
mod concurrency;
mod context;
mod guard;
mod guards;
mod options;
mod priority;

pub use access::{AccessDenied, AdmittedClient, RequestAccess};
pub use bandwidth::RequestBandwidth;
pub use classify::{InFlightEnd, classify_client, classify_server};
pub use concurrency::{ConcurrencyWait, PermitAcquisition, RequestConcurrency};
pub use context::ContextExtractor;
pub use guard::RequestGuard;
pub use guards::{Guards, GuardsBuilder};
pub use options::{Classify, MiddlewareOptions};
pub use priority::RequestPriority;
