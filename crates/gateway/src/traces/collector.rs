//! The collector, to which spans are sent by OTLP over HTTP.

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

/// A collector.
pub(super) struct TraceCollector {
    client: OtlpClient,
    resource: Resource,
    /// Why the last batch was lost, until it is logged.
    loss_reason: Option<String>,
    state: ExportState,
}

/// Attempts for a batch, with a pause after the first, which doubles.
const MAX_ATTEMPTS: u32 = 4;
const INITIAL_BACKOFF: Duration = Duration::from_millis(250);

const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.37.0";

impl TraceCollector {
    /// Whether it is there is seen when there is something to send: a gateway does not wait for it.
    pub(super) fn new(tracing: &Tracing, roots: &Roots) -> Result<Self, StartupError> {
        let endpoint = tracing.settings.endpoint.clone();
        let posting = OtlpClient::new(&endpoint, "/v1/traces", roots);
        let posting =
            posting.map_err(|reason| StartupError::Traces { endpoint: endpoint.clone(), reason })?;
        let state = ExportState::new("traces", &endpoint);
        Ok(Self {
            client: posting,
            resource: Resource::new(&tracing.settings.service),
            loss_reason: None,
            state,
        })
    }

    /// Sends these together, a few times if need be, and counts how many arrived.
    pub(super) async fn send(&mut self, records: &[Arc<RequestRecord>], counts: &SpanCounters) {
        let spans = records.iter().filter_map(|record| record.trace.as_ref()).map(Trace::span_count).sum();
        let message = self.encode_request(records);
        let mut pause = INITIAL_BACKOFF;
        for attempt in 1..=MAX_ATTEMPTS {
            let posted = self.client.post(&message).await;
            let why = match posted {
                Ok(said) => {
                    // What is not understood complains of nothing.
                    let partly =
                        ExportTraceResponse::decode(said).ok().and_then(|exported| exported.partial_success);
                    let rejected =
                        partly.map_or(0, |partly| u64::try_from(partly.rejected_spans).unwrap_or(0));
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
                Err(ExportError::Retryable(why) | ExportError::Permanent(why)) => why,
            };
            self.loss_reason = Some(why);
            counts.on_lost(spans);
            return;
        }
    }

    /// Logs when losses begin and end; this many spans were lost since the last call.
    pub(super) fn log_losses(&mut self, lost: u64) {
        let reason = self.loss_reason.take();
        self.state.update(lost, reason.as_deref().unwrap_or("it takes fewer than there are"));
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
