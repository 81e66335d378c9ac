//! Tidegate as tower layers, for axum, hyper, tonic and whatever else speaks `http`.
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
//! | noun | is |
//! |---|---|
//! | [`LimitLayer`] | a gate in front of a service |
//! | [`GuardLayer`] | a breaker, an adaptive limit or a throttle that follows errors in front of a service, of a server or a client |
//! | [`ConcurrencyLayer`] | so many at once |
//! | [`PriorityLayer`] | the same, where the important lose last |
//! | [`BandwidthLayer`], [`UploadLayer`] | bodies of answers and of requests that move no faster than they may |
//! | [`AccessLayer`] | a list and bans |
//! | `PolicyLayer` | all rules of a policy file in front of a service (feature `policy`) |
//! | [`FactsLayer`] | who sent a request, for attributes deep below |
//! | [`RetryAfterLayer`] | a client that does as servers say |
//! | `RuleInterceptor` | a gate for tonic, where a layer cannot be used |
//! | [`GateBody`], [`PermitBody`] | the body of an answer: the service's own, or that of a refusal |
//! | [`TowerRequestHead`], [`TowerResponseHead`] | requests and answers of `http`, as rules see them |
//! | [`key`] | keys that only requests of `http` have |
//!
//! What a layer does is said without a wire, in [`tidegate_rule`]: a gate for `LimitLayer`, a [`RequestGuard`] for
//! `GuardLayer`, and so on.
//!
//! All clones of a layer and of its services share the gate: connections do not multiply a limit.

mod access;
mod bandwidth;
mod body;
mod client;
mod concurrency;
mod facts;
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

pub use access::AccessLayer;
pub use bandwidth::{BandwidthLayer, DownloadFuture, UploadBandwidth, UploadLayer};
pub use body::GateBody;
pub use client::{
    ClientRequest, ClientResponse, RetryAfterError, RetryAfterFuture, RetryAfterLayer, RetryAfterService,
};
pub use concurrency::{ConcurrencyFuture, ConcurrencyLayer};
pub use facts::{FactsFuture, FactsLayer};
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
pub use tidegate_rule::middleware::{
    Guards, GuardsBuilder, InFlightEnd, RequestAccess, RequestBandwidth, RequestConcurrency, RequestFacts,
    RequestGuard, RequestPriority, classify_client, classify_server,
};
