//! Tower layers for rate limiting and overload control, for axum, hyper, tonic and other users of the `http` crate.
//!
//! ```
//! use tidegate_rule::{RuleConfig, RequestLimit, request::key};
//! use tidegate_tower::LimitLayer;
//!
//! let per_client = RequestLimit::from_config(RuleConfig::new("per-client").quota("100/min burst 20")?)?.key(key::peer());
//! let login = RequestLimit::from_config(RuleConfig::new("login").quota("5/min")?)?.key(key::peer()).routes(["/login"]);
//! let layer = LimitLayer::new([per_client, login]);
//! // axum: Router::new().route(…).layer(layer); tonic: Server::builder().layer(layer)
//! # Ok::<(), tidegate_limiter::BuildError>(())
//! ```
//!
//! | item | meaning |
//! |---|---|
//! | [`LimitLayer`] | limits requests by a gate of rules |
//! | [`GuardLayer`] | a circuit breaker, an adaptive limit or a throttle, for a server or a client |
//! | [`ConcurrencyLayer`] | limits requests in flight |
//! | [`PriorityLayer`] | limits requests in flight and sheds the least important ones first |
//! | [`BandwidthLayer`], [`UploadLayer`] | limit the bandwidth of response and request bodies |
//! | [`AccessLayer`] | access lists and bans |
//! | `PolicyLayer` | all rules of a policy file (feature `policy`) |
//! | [`ContextLayer`] | provides the client address and the user to attributes and inner layers |
//! | [`RetryLayer`] | a client that retries requests within a budget, bounds their time, and hedges slow ones |
//! | [`RetryAfterLayer`] | a client that honours `Retry-After` and `RateLimit` |
//! | `RuleInterceptor` | a gate as an interceptor of tonic (feature `tonic`) |
//! | [`GateBody`], [`PermitBody`] | the response body: that of the service, or that of a rejection |
//! | [`TowerRequestHead`], [`TowerResponseHead`] | `http` requests and responses as rules see them |
//! | [`key`] | keys from the extensions of `http` requests |
//!
//! The settings of each layer are types of [`tidegate_rule`], independent of the framework: a gate for `LimitLayer`, a
//! [`RequestGuard`] for `GuardLayer`, and so on. All clones of a layer and of its services share them, so more connections
//! do not multiply a limit.
//!
//! It does not read request bodies.

mod access;
mod bandwidth;
mod body;
mod client;
mod concurrency;
mod context;
#[cfg(feature = "tonic")]
mod events;
mod grpc;
mod guard;
mod head;
pub mod key;
mod limit;
mod middleware;
mod permit;
#[cfg(feature = "policy")]
mod policy;
mod priority;
mod retry;

pub use access::AccessLayer;
pub use bandwidth::{BandwidthLayer, DownloadFuture, UploadBandwidth, UploadLayer};
pub use body::GateBody;
pub use client::{
    ClientRequest, ClientResponse, RetryAfterError, RetryAfterFuture, RetryAfterLayer, RetryAfterService,
    ServerBackoff,
};
pub use concurrency::{ConcurrencyFuture, ConcurrencyLayer};
pub use context::{ContextFuture, ContextLayer};
#[cfg(feature = "tonic")]
pub use grpc::RuleInterceptor;
pub use guard::GuardLayer;
#[cfg(feature = "reqwest")]
pub use guard::GuardedCall;
pub use head::{TowerRequestHead, TowerResponseHead};
pub use limit::{LimitFuture, LimitLayer, LimitService};
pub use middleware::{MiddlewareLayer, MiddlewareService};
pub use permit::{PermitBody, PermitFuture};
#[cfg(feature = "policy")]
pub use policy::{BandwidthBody, PolicyFuture, PolicyLayer, PolicyService};
pub use priority::PriorityLayer;
pub use retry::{
    CloneRetries, HttpRetries, RetryClassifier, RetryFuture, RetryLayer, RetryRequest, RetryService,
};
pub use tidegate_rule::middleware::{
    ContextExtractor, Guards, GuardsBuilder, InFlightEnd, RequestAccess, RequestBandwidth,
    RequestConcurrency, RequestGuard, RequestPriority, classify_client, classify_server,
};
