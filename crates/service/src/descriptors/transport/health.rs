//! `grpc.health.v1.ServiceHealth`: whether to ask here.

use tonic_health::{ServingStatus, server::HealthReporter};

/// Tells clients whether to ask here. It speaks for the server as a whole (``) and for `ratelimit`, as the reference service
/// calls itself.
#[derive(Clone, Debug)]
pub struct GrpcHealth {
    reporter: HealthReporter,
}

/// Whether to ask here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServingState {
    /// It is.
    Yes,
    /// Not now, or no more.
    No,
}

/// What clients call it.
const SERVICE_NAMES: [&str; 2] = ["", "ratelimit"];

impl GrpcHealth {
    /// Not serving, until somebody says so: there may be nothing loaded yet.
    pub(super) fn new() -> Self {
        Self { reporter: HealthReporter::new() }
    }

    pub(super) fn reporter(&self) -> HealthReporter {
        self.reporter.clone()
    }

    /// Says it from now on, also to those who watch.
    pub async fn set(&self, serving: ServingState) {
        let status = match serving {
            ServingState::Yes => ServingStatus::Serving,
            ServingState::No => ServingStatus::NotServing,
        };
        for name in SERVICE_NAMES {
            self.reporter.set_service_status(name, status).await;
        }
    }
}
