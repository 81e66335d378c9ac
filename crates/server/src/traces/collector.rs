//! The collector, to which spans are sent by OTLP over HTTP.

use super::{
    Counts, Tracing,
    otlp::{Export, Exported, Resource, ResourceSpans, Scope, ScopeSpans},
    posting::{Posting, Refusal},
    trace::Trace,
};
use crate::{Fault, Roots};
use bytes::Bytes;
use prost::Message as _;
use std::time::Duration;
use tokio::time;

/// A collector.
pub(super) struct Collector {
    endpoint: String,
    posting: Posting,
    resource: Resource,
    /// Why the last batch was lost, until it is told.
    why: Option<String>,
    mood: Mood,
}

/// What was said last, so that it is not said for each batch.
enum Mood {
    Well,
    Losing { since: u64 },
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
        Ok(Self {
            posting,
            resource: Resource::of(&tracing.terms.service),
            why: None,
            mood: Mood::Well,
            endpoint,
        })
    }

    /// Sends these together, a few times if need be, and counts how many arrived.
    pub(super) async fn send(&mut self, traces: &[Box<Trace>], counts: &Counts) {
        let spans = traces.iter().map(|trace| trace.spans()).sum();
        let message = self.message(traces);
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
            self.why = Some(why);
            counts.given_up(spans);
            return;
        }
    }

    /// Tells of losses once, and of their end.
    pub(super) fn tell(&mut self, lost: u64) {
        let (endpoint, why) = (&self.endpoint, self.why.take());
        match (&mut self.mood, lost) {
            (Mood::Well, 0) => {}
            (Mood::Well, lost) => {
                let why = why.unwrap_or_else(|| "it takes fewer than there are".to_owned());
                tracing::warn!(
                    endpoint,
                    lost,
                    why,
                    "the collector does not take all spans; no request waits for it"
                );
                self.mood = Mood::Losing { since: lost };
            }
            (Mood::Losing { since }, 0) => {
                tracing::info!(endpoint, lost = *since, "the collector takes all spans again");
                self.mood = Mood::Well;
            }
            (Mood::Losing { since }, lost) => *since += lost,
        }
    }

    fn message(&self, traces: &[Box<Trace>]) -> Bytes {
        let mut spans = Vec::with_capacity(traces.len() * 2);
        traces.iter().for_each(|trace| trace.write(&mut spans));
        let scopes = vec![ScopeSpans { scope: Some(Scope::ours()), spans, schema: SCHEMA.to_owned() }];
        let resources = vec![ResourceSpans { resource: Some(self.resource.clone()), scopes }];
        Export { resources }.encode_to_vec().into()
    }
}
