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
//! | [`StartupError`] | what keeps a server from starting |

mod api_error;
mod authorization;
mod files;
mod json;
mod metrics;
mod query;
mod read_body;
mod server;
mod startup_error;
mod stream;
mod tls;

pub use api_error::{ApiError, truncate};
pub use authorization::{
    ApiCaller, Authorization, OPERATOR_TOKEN_REQUIRED, OperatorAccess, Operators, Secret, TOKEN_HEADER,
    bearer_token, unauthorized,
};
pub use files::{FileWatch, ReadFiles};
pub use json::json_response;
pub use metrics::{MetricFamily, MetricKind, MetricLabels, MetricValue, prometheus_text};
pub use query::Query;
pub use read_body::{MAX_BODY_SIZE, read_body};
pub use server::{
    Accept, BoundListener, HTTP2_PREFACE, HttpServer, HttpService, Listener, Scheme, ServerThreads,
    ThreadedListener, build_runtime, refresh_certificates, tls_accept,
};
pub use startup_error::StartupError;
pub use stream::Stream;
pub use tls::{ALPN_HTTP1, ALPN_HTTP2, Certificate, Roots};
