//! A client that sends OTLP messages to a collector over HTTP.

use crate::events;
use bytes::Bytes;
use http::StatusCode;
use tidegate_http_server::{HttpClient, Roots};

/// A client of one path of a collector.
pub(crate) struct OtlpClient(HttpClient);

/// Whether a collector accepts all messages. Only changes are logged.
pub(crate) struct ExportState {
    signal: &'static str,
    endpoint: String,
    /// The number of losses since the last success.
    lost: u64,
}

impl ExportState {
    pub(crate) fn new(signal: &'static str, endpoint: &str) -> Self {
        Self { signal, endpoint: endpoint.to_owned(), lost: 0 }
    }

    /// Records the number of losses of the last export.
    pub(crate) fn update(&mut self, lost: u64, reason: &str) {
        let Self { signal, endpoint, lost: before } = &*self;
        match (before, lost) {
            (0, 1..) => events::CollectorUnavailable { signal, endpoint, lost, reason }.emit(),
            (1.., 0) => events::CollectorRecovered { signal, endpoint, lost: *before }.emit(),
            _ => {}
        }
        self.lost = if lost == 0 { 0 } else { self.lost + lost };
    }
}

/// The error of a failed export.
pub(crate) enum ExportError {
    /// A retry may succeed.
    Retryable(String),
    Permanent(String),
}

/// The maximum size of a response.
const MAX_RESPONSE_SIZE: usize = 64 * 1024;

impl OtlpClient {
    /// Parses the endpoint. Does not connect; the first message does.
    pub(crate) fn new(endpoint: &str, path: &str, roots: &Roots) -> Result<Self, String> {
        let url = format!("{}{path}", endpoint.trim_end_matches('/'));
        HttpClient::new(&url, roots, MAX_RESPONSE_SIZE).map(Self)
    }

    /// Sends a message, and returns the body of the response.
    pub(crate) async fn post(&mut self, message: &Bytes) -> Result<Bytes, ExportError> {
        let response = self.0.post("application/x-protobuf", message.clone()).await;
        match response.map_err(ExportError::Retryable)? {
            (status, body) if status.is_success() => Ok(body),
            (
                status @ (StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT),
                _,
            ) => Err(ExportError::Retryable(format!("status {status}"))),
            (status, _) => Err(ExportError::Permanent(format!("status {status}"))),
        }
    }
}
