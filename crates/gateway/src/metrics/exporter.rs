//! Exports metrics to a collector periodically.

use super::otlp::ExportMetricsRequest;
use crate::traces::{ExportError, ExportState, OtlpClient};
use prost::Message as _;
use std::sync::Arc;
use tidegate_http_server::{Roots, StartupError};
use tidegate_observe::Observer;
use tidegate_policy::model::Metrics;
use tokio::{
    task::JoinHandle,
    time::{self, MissedTickBehavior},
};

/// The export of metrics, until it is dropped.
pub(crate) struct MetricsExporter(JoinHandle<()>);

impl MetricsExporter {
    /// Starts the export. Requires a tokio runtime.
    pub(crate) fn start(settings: &Metrics, observer: &Arc<Observer>) -> Result<Self, StartupError> {
        Ok(Self(tokio::spawn(export(connect_client(settings)?, settings.clone(), observer.clone()))))
    }

    /// Checks the settings of the export.
    pub(crate) fn check(settings: &Metrics) -> Result<(), StartupError> {
        connect_client(settings).map(drop)
    }
}

fn connect_client(settings: &Metrics) -> Result<OtlpClient, StartupError> {
    let client = OtlpClient::new(&settings.endpoint, "/v1/metrics", &Roots::default());
    client.map_err(|reason| StartupError::Metrics { endpoint: settings.endpoint.clone(), reason })
}

impl Drop for MetricsExporter {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn export(mut client: OtlpClient, settings: Metrics, observer: Arc<Observer>) {
    let mut ticks = time::interval(settings.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut state = ExportState::new("metrics", &settings.endpoint);
    loop {
        ticks.tick().await;
        let Some(snapshot) = observer.snapshot() else { continue };
        let message = ExportMetricsRequest::new(
            &settings.service,
            &snapshot.metrics(),
            observer.started_at,
            snapshot.now,
        );
        match client.post(&message.encode_to_vec().into()).await {
            Ok(_) => state.update(0, ""),
            Err(ExportError::Retryable(reason) | ExportError::Permanent(reason)) => state.update(1, &reason),
        }
    }
}
