//! The metrics exporter in a build without the feature `otel`: an error.

use std::sync::Arc;
use tidegate_http_server::StartupError;
use tidegate_observe::Observer;
use tidegate_policy::model::Metrics;

/// Cannot be constructed.
pub(crate) enum MetricsExporter {}

impl MetricsExporter {
    pub(crate) fn start(settings: &Metrics, _: &Arc<Observer>) -> Result<Self, StartupError> {
        Self::unsupported(settings)
    }

    pub(crate) fn check(settings: &Metrics) -> Result<(), StartupError> {
        Self::unsupported(settings).map(drop)
    }

    fn unsupported(settings: &Metrics) -> Result<Self, StartupError> {
        let reason =
            "this build cannot export metrics: build it with the feature `otel`, or remove `metrics`";
        Err(StartupError::Metrics { endpoint: settings.endpoint.clone(), reason: reason.to_owned() })
    }
}
