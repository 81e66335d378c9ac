//! `grpc.health.v1.Health`: the health status for gRPC clients.

use tonic_health::{ServingStatus, server::HealthReporter};

/// Reports the health of the server: for the empty service name and for `ratelimit`, as envoyproxy/ratelimit does.
#[derive(Clone, Debug)]
pub struct GrpcHealth {
    reporter: HealthReporter,
}

/// Whether the server is serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServingState {
    /// Serving.
    Serving,
    /// Not serving.
    NotServing,
}

/// The service names in health checks.
const SERVICE_NAMES: [&str; 2] = ["", "ratelimit"];

impl GrpcHealth {
    /// Creates a reporter. The caller sets the status once a configuration is loaded.
    pub(super) fn new() -> Self {
        Self { reporter: HealthReporter::new() }
    }

    pub(super) fn reporter(&self) -> HealthReporter {
        self.reporter.clone()
    }

    /// Sets the status and notifies watchers.
    pub async fn set(&self, serving: ServingState) {
        let status = match serving {
            ServingState::Serving => ServingStatus::Serving,
            ServingState::NotServing => ServingStatus::NotServing,
        };
        for name in SERVICE_NAMES {
            self.reporter.set_service_status(name, status).await;
        }
    }
}
