//! Sends spans to a collector by OTLP over HTTP.

use super::{
    SpanCounters, Tracing,
    otlp::{ExportTraceRequest, ExportTraceResponse, Resource, ResourceSpans, Scope, ScopeSpans},
    otlp_client::{ExportError, ExportState, OtlpClient},
    trace::{self, Trace},
};
use crate::telemetry::RequestRecord;
use bytes::Bytes;
use prost::Message as _;
use std::{sync::Arc, time::Duration};
use tidegate_http_server::{Roots, StartupError};
use tokio::time;

/// A client of a trace collector.
pub(super) struct TraceCollector {
    client: OtlpClient,
    resource: Resource,
    /// The error of the last lost batch, until it is logged.
    loss_reason: Option<String>,
    state: ExportState,
}

/// The number of attempts for a batch, with exponential backoff.
const MAX_ATTEMPTS: u32 = 4;
const INITIAL_BACKOFF: Duration = Duration::from_millis(250);

const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.37.0";

impl TraceCollector {
    /// Does not connect; the first batch does.
    pub(super) fn new(tracing: &Tracing, roots: &Roots) -> Result<Self, StartupError> {
        let endpoint = tracing.settings.endpoint.clone();
        let client = OtlpClient::new(&endpoint, "/v1/traces", roots);
        let client = client.map_err(|reason| StartupError::Traces { endpoint: endpoint.clone(), reason })?;
        let state = ExportState::new("traces", &endpoint);
        Ok(Self { client, resource: Resource::new(&tracing.settings.service), loss_reason: None, state })
    }

    /// Sends a batch with retries, and counts sent and lost spans.
    pub(super) async fn send(&mut self, records: &[Arc<RequestRecord>], counts: &SpanCounters) {
        let spans = records.iter().filter_map(|record| record.trace.as_ref()).map(Trace::span_count).sum();
        let message = self.encode_request(records);
        let mut pause = INITIAL_BACKOFF;
        for attempt in 1..=MAX_ATTEMPTS {
            let result = self.client.post(&message).await;
            let reason = match result {
                Ok(body) => {
                    // A response that cannot be decoded counts as success.
                    let partial =
                        ExportTraceResponse::decode(body).ok().and_then(|exported| exported.partial_success);
                    let rejected =
                        partial.map_or(0, |partial| u64::try_from(partial.rejected_spans).unwrap_or(0));
                    let rejected = rejected.min(spans);
                    counts.on_lost(rejected);
                    counts.on_sent(spans - rejected);
                    return;
                }
                Err(ExportError::Retryable(_)) if attempt < MAX_ATTEMPTS => {
                    time::sleep(pause).await;
                    pause *= 2;
                    continue;
                }
                Err(ExportError::Retryable(reason) | ExportError::Permanent(reason)) => reason,
            };
            self.loss_reason = Some(reason);
            counts.on_lost(spans);
            return;
        }
    }

    /// Logs when losses begin and end; `lost` spans were lost since the last call.
    pub(super) fn log_losses(&mut self, lost: u64) {
        let reason = self.loss_reason.take();
        self.state.update(lost, reason.as_deref().unwrap_or("queue full, or spans rejected"));
    }

    fn encode_request(&self, records: &[Arc<RequestRecord>]) -> Bytes {
        let mut spans = Vec::with_capacity(records.len() * 2);
        records.iter().for_each(|record| trace::write_spans(record, &mut spans));
        let scopes =
            vec![ScopeSpans { scope: Some(Scope::tidegate()), spans, schema: SCHEMA_URL.to_owned() }];
        let resources = vec![ResourceSpans { resource: Some(self.resource.clone()), scopes }];
        ExportTraceRequest { resources }.encode_to_vec().into()
    }
}
