//! Pages for operators.
//!
//! | path | says |
//! |---|---|
//! | `/` | which pages there are |
//! | `/rlconfig` | the limits that are in force, a line each |
//! | `/stats` | metrics, a name and a number in each line |
//! | `/metrics` | metrics for Prometheus |
//! | `/healthcheck` | `OK`, or an empty 500 |

use super::{DescriptorService, HealthStatus, ServiceHealth};
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

/// A page of the debug port.
pub fn debug_page(service: &DescriptorService, path: &str) -> Response<Bytes> {
    match path {
        "/" => text_response(StatusCode::OK, PAGE_LIST),
        "/rlconfig" => {
            let lines = service.config().map(|set| set.lines()).unwrap_or_default();
            text_response(StatusCode::OK, lines.iter().fold(String::new(), |all, line| all + line + "\n"))
        }
        "/stats" => text_response(StatusCode::OK, service.stats()),
        "/metrics" => metrics_page(service),
        _ => text_response(StatusCode::NOT_FOUND, "There is no such page; / lists those that are.\n"),
    }
}

const PAGE_LIST: &str = "\
/: the pages that are
/metrics: metrics for Prometheus
/rlconfig: the limits that are in force
/stats: metrics, a name and a number in each line
";

/// Metrics for Prometheus.
pub fn metrics_page(service: &DescriptorService) -> Response<Bytes> {
    let mut page = text_response(StatusCode::OK, service.prometheus());
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    page.headers_mut().insert(header::CONTENT_TYPE, kind);
    page
}

/// Whether the service is of use. Why it is not is not told to strangers.
pub fn health_page(health: &ServiceHealth) -> Response<Bytes> {
    match health.status() {
        HealthStatus::Serving => text_response(StatusCode::OK, "OK"),
        HealthStatus::NotServing(_) => text_response(StatusCode::INTERNAL_SERVER_ERROR, ""),
    }
}

fn text_response(status: StatusCode, text: impl Into<String>) -> Response<Bytes> {
    let mut page = Response::new(Bytes::from(text.into()));
    *page.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    page.headers_mut().insert(header::CONTENT_TYPE, kind);
    page
}
