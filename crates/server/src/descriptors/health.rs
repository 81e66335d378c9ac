//! Whether the service is of use.

use super::DescriptorService;
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// Whether the service is of use: its store can be reached, it has files where it must, and it is not about to stop.
pub struct Health {
    service: Arc<DescriptorService>,
    need: ConfigNeed,
    store: Option<Box<Trouble>>,
    is_draining: AtomicBool,
}

type Trouble = dyn Fn() -> Option<String> + Send + Sync;

/// Whether a service without files is of use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConfigNeed {
    /// It is.
    #[default]
    Never,
    /// `HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED`: it is not.
    Loaded,
}

/// What is said of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HealthStatus {
    /// It is of use.
    Serving,
    /// It is not, and why.
    NotServing(String),
}

impl Health {
    /// The health of a service.
    pub fn new(service: Arc<DescriptorService>) -> Self {
        Self { service, need: ConfigNeed::Never, store: None, is_draining: AtomicBool::new(false) }
    }

    /// Whether it must have files.
    #[must_use]
    pub fn config(self, need: ConfigNeed) -> Self {
        Self { need, ..self }
    }

    /// Who knows what is the matter with the store, if anything is.
    #[must_use]
    pub fn store(self, trouble: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        Self { store: Some(Box::new(trouble)), ..self }
    }

    /// It is about to stop: from now on it is of no use to new clients.
    pub fn drain(&self) {
        self.is_draining.store(true, Relaxed);
    }

    /// What is said of it.
    pub fn status(&self) -> HealthStatus {
        if self.is_draining.load(Relaxed) {
            return HealthStatus::NotServing("about to stop".to_owned());
        }
        if self.need == ConfigNeed::Loaded && self.service.loaded().is_none() {
            return HealthStatus::NotServing("no configuration is loaded".to_owned());
        }
        match self.store.as_ref().and_then(|trouble| trouble()) {
            Some(trouble) => HealthStatus::NotServing(format!("the store is away: {trouble}")),
            None => HealthStatus::Serving,
        }
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health").field("status", &self.status()).finish_non_exhaustive()
    }
}
