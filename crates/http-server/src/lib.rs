//! The HTTP server of everything that Tidegate serves, and what its APIs share.
//!
//! | noun | is |
//! |---|---|
//! | [`BoundListener`] | a listener that is bound, with its certificate |
//! | [`HttpServer`] | a service and the limits of its connections: accept, TLS, timeouts, drain |
//! | [`ThreadedListener`] | a bound listener, and the threads that serve it |
//! | [`ApiError`] | an error response, as problem+json |
//! | [`Authorization`] | the bearer tokens that an API accepts |
//! | [`MetricFamily`] | a metric, with its text for Prometheus |
//! | [`FileWatch`] | reports when a file of a policy has changed since it was read |
//! | [`Roots`] | whose certificates of servers are trusted |
//! | [`Fault`] | what keeps a server from starting |

mod api_error;
mod authorization;
mod fault;
mod files;
mod json;
mod metrics;
mod query;
mod read_body;
mod server;
mod stream;
mod tls;

pub use api_error::{ApiError, shortened};
pub use authorization::{
    Authorization, Caller, OPERATOR_TOKEN_REQUIRED, OperatorAccess, Operators, Secret, TOKEN_HEADER, bearer,
    unauthorized,
};
pub use fault::Fault;
pub use files::{FileWatch, ReadFiles};
pub use json::json_response;
pub use metrics::{Labels, MetricFamily, MetricKind, MetricValue, prometheus_text};
pub use query::Query;
pub use read_body::{MAX_BODY_SIZE, read_body};
pub use server::{
    Accept, BoundListener, HttpServer, HttpService, Listener, PREFACE, Scheme, ServerThreads,
    ThreadedListener, refresh_certificates, runtime, tls_accept,
};
pub use stream::Stream;
pub use tls::{Certificate, HTTP1, HTTP2, Roots};
