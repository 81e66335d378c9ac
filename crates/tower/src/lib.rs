//! Tidegate as tower layers, for axum, hyper, tonic and whatever else speaks `http`.
//!
//! ```
//! use tidegate_rule::{Declaration, Gate, RequestLimit, request::key};
//! use tidegate_tower::LimitLayer;
//!
//! let per_client = RequestLimit::of(Declaration::of("per-client").quota("100/min burst 20")?)?.key(key::peer());
//! let login = RequestLimit::of(Declaration::of("login").quota("5/min")?)?.key(key::peer()).routes(["/login"]);
//! let layer = LimitLayer::new(Gate::new([per_client, login]));
//! // axum: Router::new().route(…).layer(layer); tonic: Server::builder().layer(layer)
//! # Ok::<(), tidegate_engine::BuildError>(())
//! ```
//!
//! | noun | is |
//! |---|---|
//! | [`LimitLayer`] | a gate in front of a service |
//! | [`GateBody`] | the body of an answer: the service's own, or that of a refusal |
//! | [`HttpHead`], [`HttpReply`] | requests and answers of `http`, as rules see them |
//! | [`key`] | keys that only requests of `http` have |
//!
//! All clones of a layer and of its services share the gate: connections do not multiply a limit.

mod body;
mod grpc;
mod head;
pub mod key;
mod limit;

pub use body::GateBody;
pub use head::{HttpHead, HttpReply};
pub use limit::{Limit, LimitFuture, LimitLayer};
