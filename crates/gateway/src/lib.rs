//! The gateway: an HTTP reverse proxy that evaluates a policy for each request.
//!
//! ```no_run
//! # async fn serve() -> Result<(), tidegate_gateway::GatewayError> {
//! use tidegate_gateway::{Gateway, PolicySource};
//! use tidegate_rule::Rules;
//!
//! let gateway = Gateway::open(PolicySource::file("policy.yaml"), Rules::new())?;
//! println!("listening on {:?}", gateway.addresses());
//! let stop = async { /* wait for a signal */ };
//! gateway.run(stop).await
//! # }
//! ```
//!
//! ```text
//!            ┌────────────────────────── worker, one thread ──────────────────────────┐
//!   client ──┤ listener ─▶ connection ─▶ check head ─▶ filter ─▶ server of upstream   ├──▶ upstream
//!          ◀─┤         settled response ◀───────────────────────── streamed body      ├◀──
//!            └────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Workers share only counters: each has its own client and upstream connections, so a request never leaves its thread. A
//! [`RequestFilter`] decides about each request; the filter of a [`Gateway`] evaluates a policy.
//!
//! | noun | is |
//! |---|---|
//! | [`Gateway`] | serves a policy, with its admin API and decision API, and reloads it |
//! | [`Config`] | the connection and upstream settings of a policy |
//! | [`RequestFilter`] | decides about a request, and records that its exchange has ended |
//! | [`FilterContext`] | the state of one request: limits its bodies, settles its response, records its exchange |
//! | [`Action`] | forward, respond, or drop the connection |
//! | [`Tracing`] | the export of traces, with counts of sent and lost spans |
//! | [`run`] | serves until shutdown, then drains requests in flight |
//!
//! It stores responses only for fallbacks of rules. It reads the cost of a request from its response, but does not compress or rewrite responses, and it does not terminate protocols other than HTTP/1.1 and HTTP/2.

mod body_writer;
mod client;
mod config;
mod connection_limit;
mod content_decoder;
mod deadline;
mod events;
mod fallback_cache;
mod gateway;
mod head_pool;
pub mod http1;
mod key_set_fetcher;
mod local_reply;
mod log;
mod metrics;
mod proxy;
mod receive_buffer;
mod request_filter;
mod response_reader;
mod run;
mod send_buffer;
mod telemetry;
mod traces;
mod transfer_pace;
mod upstream;
mod worker;

pub use config::{Config, UpstreamId};
pub use fallback_cache::ResponseCopy;
pub use gateway::{Gateway, PolicySource, Preflight};
pub use local_reply::{LocalReply, SharedReply};
pub use request_filter::{
    Action, ConnectionInfo, FilterContext, FilterDecision, FilterResult, ParsedBody, Rates, RequestFilter,
};
pub use response_reader::ResponseReader;
pub use run::run;
pub use telemetry::LogNote;
pub use tidegate_admin::{GatewayError, GatewayHandle, ReloadScope};
pub use traces::Tracing;
