//! Whether the service is of use.

use super::DescriptorService;
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};
use tokio::sync::Notify;

/// Whether the service is of use: its store was reached, it has files where it must, and it is not about to stop.
///
/// A store that is lost later does not count by default, as in envoyproxy/ratelimit: a liveness probe would restart the whole
/// fleet for the outage of its store, and Envoy decides what happens to requests meanwhile.
pub struct ServiceHealth {
    service: Arc<DescriptorService>,
    config_requirement: ConfigRequirement,
    store: Option<(Box<StoreProbe>, StoreRequirement)>,
    was_reachable: AtomicBool,
    is_draining: AtomicBool,
    changed: Notify,
}

/// When a service without its store is of no use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreRequirement {
    /// Until it was reached for the first time.
    #[default]
    Startup,
    /// `REDIS_HEALTH_CHECK_ACTIVE_CONNECTION`: whenever it cannot be reached.
    Always,
}

type StoreProbe = dyn Fn() -> Option<String> + Send + Sync;

/// Whether a service without any domain is of use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConfigRequirement {
    /// It is.
    #[default]
    Optional,
    /// `HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED`: it is not.
    Required,
}

/// What is said of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HealthStatus {
    /// It is of use.
    Serving,
    /// It is not, and why.
    NotServing(String),
}

impl ServiceHealth {
    /// The health of a service.
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

    /// Whether it must have files.
    #[must_use]
    pub fn config(self, requirement: ConfigRequirement) -> Self {
        Self { config_requirement: requirement, ..self }
    }

    /// Who knows what is the matter with the store, if anything is, and when that counts.
    #[must_use]
    pub fn store(
        self,
        requirement: StoreRequirement,
        last_error: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self { store: Some((Box::new(last_error), requirement)), ..self }
    }

    /// It is about to stop: from now on it is of no use to new clients.
    pub fn drain(&self) {
        self.is_draining.store(true, Relaxed);
        self.changed.notify_one();
    }

    /// Limits were loaded, or are gone.
    pub(super) fn notify_config_change(&self) {
        self.changed.notify_one();
    }

    /// Waits until something else may be said of it. The store is to be asked from time to time besides.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// What is said of it.
    pub fn status(&self) -> HealthStatus {
        if self.is_draining.load(Relaxed) {
            return HealthStatus::NotServing("about to stop".to_owned());
        }
        if self.config_requirement == ConfigRequirement::Required
            && self.service.config().is_none_or(|set| set.is_empty())
        {
            return HealthStatus::NotServing("no configuration is loaded".to_owned());
        }
        let Some((trouble, need)) = &self.store else { return HealthStatus::Serving };
        if *need == StoreRequirement::Startup && self.was_reachable.load(Relaxed) {
            return HealthStatus::Serving;
        }
        match trouble() {
            Some(trouble) => HealthStatus::NotServing(format!("store unavailable: {trouble}")),
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
