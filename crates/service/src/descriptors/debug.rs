//! Pages for operators.
//!
//! | path | content |
//! |---|---|
//! | `/` | a list of the pages |
//! | `/rlconfig` | the active limits, one per line |
//! | `/stats` | metrics, one name and value per line |
//! | `/metrics` | metrics for Prometheus |
//! | `/healthcheck` | `OK`, or an empty 500 |

use super::{DescriptorService, HealthStatus, ServiceHealth};
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

/// Returns a page of the debug port.
pub fn debug_page(service: &DescriptorService, path: &str) -> Response<Bytes> {
    match path {
        "/" => text_response(StatusCode::OK, PAGE_LIST),
        "/rlconfig" => {
            let lines = service.config().map(|set| set.lines()).unwrap_or_default();
            text_response(StatusCode::OK, lines.iter().fold(String::new(), |all, line| all + line + "\n"))
        }
        "/stats" => text_response(StatusCode::OK, service.stats()),
        "/metrics" => metrics_page(service),
        _ => text_response(StatusCode::NOT_FOUND, "Page not found; / lists the pages.\n"),
    }
}

const PAGE_LIST: &str = "\
/: a list of the pages
/metrics: metrics for Prometheus
/rlconfig: the active limits
/stats: metrics, one name and value per line
";

/// Returns the metrics for Prometheus.
pub fn metrics_page(service: &DescriptorService) -> Response<Bytes> {
    let mut page = text_response(StatusCode::OK, service.prometheus());
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    page.headers_mut().insert(header::CONTENT_TYPE, kind);
    page
}

/// Returns the health page. It does not expose the reason of a failure.
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
