//! The HTTP server of Tidegate's APIs, with TLS, error responses, bearer tokens, metrics and file watching.
//!
//! ```
//! use http_body_util::Full;
//! use hyper::{Request, Response, body::{Bytes, Incoming}, service::service_fn};
//! use std::convert::Infallible;
//! use tidegate_http_server::{HttpServer, Listener};
//! use tokio::net::TcpListener;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! let service = service_fn(|_: Request<Incoming>| async {
//!     Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("hello"))))
//! });
//! let listener = Listener::new(TcpListener::bind("127.0.0.1:0").await?, None);
//! let stop = async { /* wait for a signal */ };
//! HttpServer::new(service, &Default::default()).serve_until(listener, stop).await;
//! # Ok(())
//! # }
//! ```
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
//! | [`HttpClient`] | a client of one URL |
//! | [`Roots`] | the CA certificates that verify servers |
//! | [`StartupError`] | the error of a server that cannot start |
//!
//! It does not route requests, evaluate rules, or proxy: the gateway has its own connection handling.

mod api_error;
mod authorization;
mod events;
mod files;
mod http_client;
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
    ApiCaller, Authorization, OPERATOR_TOKEN_REQUIRED, Operator, OperatorAccess, Operators, Secret,
    SharedAuthorization, TOKEN_HEADER, bearer_token, unauthorized,
};
pub use files::{FileWatch, ReadFiles};
pub use http_client::HttpClient;
pub use json::json_response;
pub use metrics::{MetricFamily, MetricKind, MetricLabels, MetricValue, prometheus_text};
pub use query::Query;
pub use read_body::{MAX_BODY_SIZE, read_body};
pub use server::{
    Accept, BoundListener, HTTP2_PREFACE, HttpServer, HttpService, Listener, Scheme, ServerThreads,
    ShutdownSignal, ThreadedListener, build_runtime, refresh_certificates, tls_accept,
};
pub use startup_error::StartupError;
pub use stream::Stream;
pub use tls::{ALPN_HTTP1, ALPN_HTTP2, Certificate, Roots};
