//! Limits for every language, over plain HTTP.
//!
//! ```text
//!   POST /v1/check ──▶ token? ──▶ Body (what is asked) ──▶ Question (rule, key, cost) ──▶ limiter of the rule ──▶ Told
//!   GET  /v1/auth  ──▶ token? ──▶ the request that is meant ─────────────────────────────▶ the whole policy
//! ```
//!
//! | file | answers |
//! |---|---|
//! | `check` | `/v1/check`, `/v1/peek` |
//! | `reserve` | `/v1/reserve`, `/v1/commit`, `/v1/cancel`, `/v1/acquire`, `/v1/release` |
//! | `reset` | `/v1/reset` |
//! | `auth` | `/v1/auth` |
//! | `routes` | `/v1/openapi.json` |
//!
//! Rules are those of the policy, counted where the gateway counts them: a request and a question for the same key are one
//! count.

mod auth;
mod body;
mod check;
mod listener;
mod query;
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

/// What is answered: all of it is there.
pub(crate) type ApiResponse = http::Response<Full<Bytes>>;
