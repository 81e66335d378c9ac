//! What stands in front of a service beside a gate, said without a wire: to whom it applies, whom it lets in, how it judges.
//!
//! ```
//! use std::sync::Arc;
//! use tidegate_core::Micros;
//! use tidegate_overload::{AdaptiveLimit, adaptive::LatencyTarget};
//! use tidegate_rule::middleware::{RequestGuard, InFlightEnd};
//!
//! // As much in flight as the promised latency allows, until the bodies are sent.
//! let limit = Arc::new(AdaptiveLimit::new(LatencyTarget::new(Micros::from_millis(250))?)?);
//! let guard = RequestGuard::new(limit).name("api").in_flight_end(InFlightEnd::Body);
//! // tower: GuardLayer::new(guard); actix-web: GuardMiddleware::new(guard)
//! # Ok::<(), tidegate_core::SettingError>(())
//! ```
//!
//! | noun | is |
//! |---|---|
//! | [`RequestGuard`] | a guard in front of requests: breakers, adaptive limits, throttles that follow errors |
//! | [`RequestConcurrency`] | so many requests at once |
//! | [`RequestPriority`] | the same, where the important lose last |
//! | [`RequestAccess`] | a list and bans |
//! | [`RequestBandwidth`] | how fast bodies move |
//! | [`RequestFacts`] | who sent a request |
//! | [`Guards`] | a guard for each key |
//! | [`MiddlewareOptions`] | what is said to whoever is not let in, and how the answers to the others count |
//!
//! A layer or a middleware takes one of them, shows it the [`RequestHead`](crate::request::RequestHead) of each request, and does as it
//! says: an option is written here, and every wire has it.

mod access;
mod bandwidth;
mod classify;
mod concurrency;
mod facts;
mod guard;
mod guards;
mod options;
mod priority;

pub use access::{AccessDenied, AdmittedClient, RequestAccess};
pub use bandwidth::RequestBandwidth;
pub use classify::{InFlightEnd, classify_client, classify_server};
pub use concurrency::{RequestConcurrency, SlotAcquisition, SlotWait};
pub use facts::RequestFacts;
pub use guard::RequestGuard;
pub use guards::{Guards, GuardsBuilder};
pub use options::{Classify, MiddlewareOptions};
pub use priority::RequestPriority;
