//! The health of the service.

use super::DescriptorService;
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};
use tokio::sync::Notify;

/// The health of the service. It is healthy if its store was reachable, a required configuration is loaded, and it is not
/// draining.
///
/// By default a later outage of the store does not make it unhealthy, as in envoyproxy/ratelimit: a liveness probe would
/// restart all instances for an outage of the store, while Envoy handles failed requests on its own.
pub struct ServiceHealth {
    service: Arc<DescriptorService>,
    config_requirement: ConfigRequirement,
    store: Option<(Box<StoreProbe>, StoreRequirement)>,
    was_reachable: AtomicBool,
    is_draining: AtomicBool,
    changed: Notify,
}

/// When the service requires its store to be healthy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreRequirement {
    /// Until the store was reachable for the first time.
    #[default]
    Startup,
    /// `REDIS_HEALTH_CHECK_ACTIVE_CONNECTION`: at any time.
    Always,
}

type StoreProbe = dyn Fn() -> Option<String> + Send + Sync;

/// Whether the service requires a configuration to be healthy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConfigRequirement {
    /// It is healthy without any domain.
    #[default]
    Optional,
    /// `HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED`: it is unhealthy without a domain.
    Required,
}

/// The status of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HealthStatus {
    /// Healthy.
    Serving,
    /// Unhealthy, with the reason.
    NotServing(String),
}

impl ServiceHealth {
    /// Creates the health of a service, without requirements.
    pub fn new(service: Arc<DescriptorService>) -> Self {
        Self {
            service,
            config_requirement: ConfigRequirement::Optional,
            store: None,
            was_reachable: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
            changed: Notify::new(),
        }
    }

    /// Sets whether a configuration is required.
    #[must_use]
    pub fn config(self, requirement: ConfigRequirement) -> Self {
        Self { config_requirement: requirement, ..self }
    }

    /// Sets when the store is required. `last_error` returns the current error of the store, if there is one.
    #[must_use]
    pub fn store(
        self,
        requirement: StoreRequirement,
        last_error: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self { store: Some((Box::new(last_error), requirement)), ..self }
    }

    /// Marks the service as draining: it is unhealthy from now on.
    pub fn drain(&self) {
        self.is_draining.store(true, Relaxed);
        self.changed.notify_one();
    }

    /// Signals that the configuration changed.
    pub(super) fn notify_config_change(&self) {
        self.changed.notify_one();
    }

    /// Waits for a possible change of the status. Changes of the store are not signalled; poll for them.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns the current status.
    pub fn status(&self) -> HealthStatus {
        if self.is_draining.load(Relaxed) {
            return HealthStatus::NotServing("draining".to_owned());
        }
        if self.config_requirement == ConfigRequirement::Required
            && self.service.config().is_none_or(|set| set.is_empty())
        {
            return HealthStatus::NotServing("no configuration loaded".to_owned());
        }
        let Some((last_error, requirement)) = &self.store else { return HealthStatus::Serving };
        if *requirement == StoreRequirement::Startup && self.was_reachable.load(Relaxed) {
            return HealthStatus::Serving;
        }
        match last_error() {
            Some(error) => HealthStatus::NotServing(format!("store unavailable: {error}")),
            None => {
                self.was_reachable.store(true, Relaxed);
                HealthStatus::Serving
            }
        }
    }
}

impl fmt::Debug for ServiceHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceHealth").field("status", &self.status()).finish_non_exhaustive()
    }
}
