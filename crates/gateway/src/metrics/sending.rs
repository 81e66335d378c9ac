//! Sends metrics to a collector, every so often.

use super::otlp::ExportMetrics;
use crate::traces::{ExportState, Posting, Refusal};
use prost::Message as _;
use std::sync::Arc;
use tidegate_http_server::{Fault, Roots};
use tidegate_observe::Observer;
use tidegate_policy::model::Metrics;
use tokio::{
    task::JoinHandle,
    time::{self, MissedTickBehavior},
};

/// Metrics on their way to a collector, until it is dropped.
pub(crate) struct Sending(JoinHandle<()>);

impl Sending {
    /// Sends from now on. Only inside of a runtime.
    pub(crate) fn start(terms: &Metrics, observer: &Arc<Observer>) -> Result<Self, Fault> {
        Ok(Self(tokio::spawn(send(posting(terms)?, terms.clone(), observer.clone()))))
    }

    /// Whether metrics can be sent there.
    pub(crate) fn check(terms: &Metrics) -> Result<(), Fault> {
        posting(terms).map(drop)
    }
}

fn posting(terms: &Metrics) -> Result<Posting, Fault> {
    let posting = Posting::to(&terms.endpoint, "/v1/metrics", &Roots::default());
    posting.map_err(|reason| Fault::Metrics { endpoint: terms.endpoint.clone(), reason })
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn send(mut posting: Posting, terms: Metrics, observer: Arc<Observer>) {
    let mut turns = time::interval(terms.interval);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut state = ExportState::new("metrics", &terms.endpoint);
    loop {
        turns.tick().await;
        let Some(snapshot) = observer.snapshot() else { continue };
        let message = ExportMetrics::of(&terms.service, &snapshot.metrics(), observer.started, snapshot.now);
        match posting.post(&message.encode_to_vec().into()).await {
            Ok(_) => state.update(0, ""),
            Err(Refusal::Later(why) | Refusal::Never(why)) => state.update(1, &why),
        }
    }
}
