//! The gateway: HTTP in, HTTP out, and a filter in between.
//!
//! ```text
//!            ┌────────────────────────── worker, one thread ──────────────────────────┐
//!   client ──┤ listener ─▶ connection ─▶ head checked ─▶ filter ─▶ server of upstream ├──▶ upstream
//!          ◀─┤           answer, settled ◀──────────────────────── body, as it comes  ├◀──
//!            └────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Workers share nothing but counts: each has its own connections to both sides, so that a request never leaves its
//! thread. A [`RequestFilter`] decides what happens to a request; that of a [`Gateway`] evaluates a policy.
//!
//! | noun | is |
//! |---|---|
//! | [`Gateway`] | a policy in force in front of the servers that it names, with its admin API and decision API |
//! | [`Config`] | what a policy says of listeners, connections and upstreams |
//! | [`RequestFilter`] | decides what happens to a request, settles its response and records its exchange |
//! | [`Action`] | forward, respond, or drop the connection |
//! | [`Tracing`] | where traces of requests are sent, and how many spans arrived |
//! | [`run`] | serves until it is told to stop, then lets requests in flight end |

mod client;
mod config;
mod connection_limit;
mod deadline;
mod gateway;
mod log;
mod metrics;
mod proxy;
mod request_filter;
mod run;
mod telemetry;
mod traces;
mod upstream;
mod worker;

pub use config::{Config, UpstreamId};
pub use gateway::{Gateway, PolicySource, Preflight};
pub use request_filter::{Action, FilterDecision, FilterResult, Origin, Rates, RequestFilter};
pub use run::run;
pub use telemetry::LogNote;
pub use tidegate_admin::{GatewayError, GatewayHandle, ReloadScope};
pub use traces::Tracing;
