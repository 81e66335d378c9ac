//! The collector, to which spans are sent by OTLP over HTTP.

use super::{
    Counts, Tracing,
    otlp::{Export, Exported, Resource, ResourceSpans, Scope, ScopeSpans},
    posting::{ExportState, Posting, Refusal},
    trace::{self, Trace},
};
use crate::telemetry::RequestRecord;
use bytes::Bytes;
use prost::Message as _;
use std::{sync::Arc, time::Duration};
use tidegate_http_server::{Fault, Roots};
use tokio::time;

/// A collector.
pub(super) struct Collector {
    posting: Posting,
    resource: Resource,
    /// Why the last batch was lost, until it is logged.
    reason: Option<String>,
    state: ExportState,
}

/// Attempts for a batch, with a pause after the first, which doubles.
const ATTEMPTS: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(250);

const SCHEMA: &str = "https://opentelemetry.io/schemas/1.37.0";

impl Collector {
    /// Whether it is there is seen when there is something to send: a gateway does not wait for it.
    pub(super) fn of(tracing: &Tracing, roots: &Roots) -> Result<Self, Fault> {
        let endpoint = tracing.terms.endpoint.clone();
        let posting = Posting::to(&endpoint, "/v1/traces", roots);
        let posting = posting.map_err(|reason| Fault::Traces { endpoint: endpoint.clone(), reason })?;
        let state = ExportState::new("traces", &endpoint);
        Ok(Self { posting, resource: Resource::of(&tracing.terms.service), reason: None, state })
    }

    /// Sends these together, a few times if need be, and counts how many arrived.
    pub(super) async fn send(&mut self, records: &[Arc<RequestRecord>], counts: &Counts) {
        let spans = records.iter().filter_map(|record| record.trace.as_ref()).map(Trace::spans).sum();
        let message = self.message(records);
        let mut pause = FIRST_PAUSE;
        for attempt in 1..=ATTEMPTS {
            let posted = self.posting.post(&message).await;
            let why = match posted {
                Ok(said) => {
                    // What is not understood complains of nothing.
                    let partly = Exported::decode(said).ok().and_then(|exported| exported.partly);
                    let rejected = partly.map_or(0, |partly| u64::try_from(partly.rejected).unwrap_or(0));
                    let rejected = rejected.min(spans);
                    counts.given_up(rejected);
                    counts.arrived(spans - rejected);
                    return;
                }
                Err(Refusal::Later(_)) if attempt < ATTEMPTS => {
                    time::sleep(pause).await;
                    pause *= 2;
                    continue;
                }
                Err(Refusal::Later(why) | Refusal::Never(why)) => why,
            };
            self.reason = Some(why);
            counts.given_up(spans);
            return;
        }
    }

    /// Logs when losses begin and end; this many spans were lost since the last call.
    pub(super) fn log_losses(&mut self, lost: u64) {
        let reason = self.reason.take();
        self.state.update(lost, reason.as_deref().unwrap_or("it takes fewer than there are"));
    }

    fn message(&self, records: &[Arc<RequestRecord>]) -> Bytes {
        let mut spans = Vec::with_capacity(records.len() * 2);
        records.iter().for_each(|record| trace::write(record, &mut spans));
        let scopes = vec![ScopeSpans { scope: Some(Scope::ours()), spans, schema: SCHEMA.to_owned() }];
        let resources = vec![ResourceSpans { resource: Some(self.resource.clone()), scopes }];
        Export { resources }.encode_to_vec().into()
    }
}
