//! The decision API: rate limits over plain HTTP, for programs in any language.
//!
//! ```text
//!   POST /v1/check ──▶ token? ──▶ QueryBatch ──▶ RuleQuery (rule, key, cost) ──▶ limiter of the rule ──▶ RuleResponse
//!   GET  /v1/auth  ──▶ token? ──▶ original request ──▶ the whole policy
//! ```
//!
//! | file | serves |
//! |---|---|
//! | `check` | `/v1/check`, `/v1/peek` |
//! | `reserve` | `/v1/reserve`, `/v1/commit`, `/v1/cancel`, `/v1/acquire`, `/v1/release` |
//! | `reset` | `/v1/reset` |
//! | `auth` | `/v1/auth` |
//! | `envoy` | Envoy's rate limit protocol over gRPC, on its own listener |
//! | `routes` | `/v1/openapi.json` |
//!
//! The rules are those of the policy. The API and the gateway share their counters: a request and a query for the same key
//! charge the same quota.

mod auth;
mod body;
mod check;
pub mod envoy;
mod listener;
mod query;
mod rejection;
mod reserve;
mod reset;
mod response;
mod routes;
mod state;
#[cfg(test)]
mod tests;

pub use body::{Confirmation, JsonMembers, QueryBatch};
use bytes::Bytes;
use http_body_util::Full;
pub use listener::{bind, server};
pub use reset::{MEMBERS as RESET, handle as reset};
pub use state::AppState;

/// A response with a buffered body.
pub(crate) type ApiResponse = http::Response<Full<Bytes>>;
