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
//! thread. What happens to a request is up to a [`RequestFilter`]; this crate knows no rules.
//!
//! | noun | is |
//! |---|---|
//! | [`Config`] | what a policy says of listeners, connections and upstreams |
//! | [`BoundListener`] | a listener that is bound, with its certificate |
//! | [`RequestFilter`] | decides what happens to a request, settles its response and records its exchange |
//! | [`Action`] | forward, respond, or drop the connection |
//! | [`FileWatch`] | tells when a file of a policy says something else than was read of it |
//! | [`PolicyFile`] | a policy file in which modes of rules are changed, with a history |
//! | [`Tracing`] | where traces of requests are sent, and how many spans arrived |
//! | [`run`] | serves until it is told to stop, then lets requests in flight end |

mod admin;
mod amend;
mod api_error;
mod authorization;
mod client;
mod config;
mod dashboard;
mod decisions;
pub mod descriptors;
mod fault;
mod files;
mod gateway;
mod http_server;
mod log;
mod metrics;
mod observe;
mod places;
mod proxy;
mod query;
mod read_body;
mod request_filter;
mod reservations;
mod run;
mod stream;
mod telemetry;
mod tls;
mod traces;
mod upstream;
mod watch;
mod worker;

pub use amend::{AmendError, Amended, Change, PolicyFile};
pub use config::{Config, Target};
pub use fault::Fault;
pub use files::{FileWatch, ReadFiles};
pub use gateway::{Gateway, GatewayError, Handle, PolicySource, Preflight, Reloaded};
pub use http_server::BoundListener;
pub use request_filter::{
    Action, AnsweredBy, FilterDecision, FilterResult, Origin, Rates, RequestFilter, Scheme,
};
pub use run::run;
pub use telemetry::LogNote;
pub use tls::Roots;
pub use traces::Tracing;
