//! Decides requests to a domain.

use super::{
    ConfigLookup, Decide, DecisionError, DomainRequest, DomainVerdict,
    active_config::{ActiveConfig, LimitMatch, QuotaGroup},
    counters::{
        CountPurpose, CountReservation, CountReservations, CounterStores, DescriptorCounters, LocalCache,
    },
    exposition::Exposition,
    metrics::ServiceMetrics,
    settings::{CountingMode, ServiceSettings},
    verdict::build_verdict,
};
use crate::events;
use arc_swap::ArcSwapOption;
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering::Relaxed},
};
use tidegate_limiter::BuildError;

/// Decides requests to a domain: finds the limits that apply, counts the hits and builds the verdict.
pub struct DescriptorService {
    pub(super) settings: ServiceSettings,
    stores: CounterStores,
    pub(super) counters: DescriptorCounters,
    pub(super) over_limit_keys: Option<LocalCache>,
    metrics: ServiceMetrics,
    active_config: ArcSwapOption<ActiveConfig>,
    /// Serializes reloads.
    load_lock: Mutex<()>,
}

impl DescriptorService {
    /// Creates a service without a configuration; see [`load`](Self::load).
    pub fn new(settings: ServiceSettings) -> Result<Self, BuildError> {
        let stores = CounterStores::new(&settings);
        Ok(Self {
            counters: DescriptorCounters::new(&stores, &settings)?,
            over_limit_keys: settings
                .local_cache
                .filter(|_| settings.counting == CountingMode::Reference)
                .map(LocalCache::new),
            metrics: ServiceMetrics::new(settings.max_details),
            active_config: ArcSwapOption::empty(),
            load_lock: Mutex::new(()),
            settings,
            stores,
        })
    }

    /// Activates a configuration. Requests in progress complete with the previous one, and counters keep their values.
    pub fn load(&self, set: Arc<dyn ConfigLookup>) {
        let _loading = self.load_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let previous = self.active_config.load_full();
        let config =
            ActiveConfig::new(set, previous.as_deref(), (&self.stores, &self.settings, &self.metrics));
        self.active_config.store(Some(Arc::new(config)));
        self.metrics.record_config_load();
    }

    /// The active configuration.
    pub fn config(&self) -> Option<Arc<dyn ConfigLookup>> {
        self.active_config.load().as_ref().map(|config| config.set.clone())
    }

    /// The metrics of the service.
    pub fn metrics(&self) -> &ServiceMetrics {
        &self.metrics
    }

    /// The metrics in the Prometheus text format.
    pub fn prometheus(&self) -> String {
        self.exposition().prometheus()
    }

    /// The metrics in the format of `/stats`.
    pub fn stats(&self) -> String {
        self.exposition().stats_page()
    }

    pub(super) fn exposition(&self) -> Exposition {
        let local_cache = self.over_limit_keys.as_ref().map(|over| over.stats().to_vec()).unwrap_or_default();
        Exposition::new(&self.metrics, self.stores.failures(), &local_cache)
    }

    /// Decides a request. Without a store it never waits.
    pub async fn decide(&self, request: DomainRequest) -> Result<DomainVerdict, DecisionError> {
        let (verdict, reserved) = self.decide_for(&request, CountPurpose::Count).await?;
        reserved.into_iter().for_each(CountReservation::keep);
        Ok(verdict)
    }

    /// Decides a request and records its metrics. Returns the reservations that can still be cancelled.
    pub async fn decide_for(
        &self,
        request: &DomainRequest,
        purpose: CountPurpose,
    ) -> Result<(DomainVerdict, CountReservations), DecisionError> {
        let started = self.settings.clock.now();
        let result = self.stores.with_deadline(request.deadline, self.evaluate(request, purpose)).await;
        self.metrics.record_response(self.settings.clock.now().saturating_sub(started).into());
        match &result {
            Ok(_) => {}
            Err(DecisionError::Unavailable(_)) => {
                self.metrics.store_errors.fetch_add(1, Relaxed);
            }
            Err(DecisionError::Invalid(_) | DecisionError::NoConfiguration) => {
                self.metrics.service_errors.fetch_add(1, Relaxed);
            }
        }
        result
    }

    /// The active configuration with its counters.
    pub(super) fn active_config(&self) -> Option<Arc<ActiveConfig>> {
        self.active_config.load_full()
    }

    async fn evaluate(
        &self,
        request: &DomainRequest,
        purpose: CountPurpose,
    ) -> Result<(DomainVerdict, CountReservations), DecisionError> {
        self.validate(request)?;
        let config = self.active_config().ok_or(DecisionError::NoConfiguration)?;
        let Some(domain) = config.set.domain(&request.domain) else {
            self.metrics.record_unknown_domain(&request.domain, request.descriptors.len());
            let matches: Vec<_> = request
                .descriptors
                .iter()
                .map(|_| (LimitMatch::Unmatched(QuotaGroup::NotMember), None))
                .collect();
            return Ok((build_verdict(request, &matches, &self.settings).0, Vec::new()));
        };
        let subjects = config.resolve(domain, request, (&self.settings, &self.metrics));
        let (findings, reserved) = self.count(request, &subjects, purpose).await?;
        let matches: Vec<_> = subjects.into_iter().zip(findings).collect();
        let (verdict, enforced_code) = build_verdict(request, &matches, &self.settings);
        if enforced_code != verdict.overall_code {
            self.metrics.global_shadow_mode.fetch_add(1, Relaxed);
        }
        events::RequestDecided {
            domain: &request.domain,
            descriptors: request.descriptors.len(),
            over_limit: verdict.overall_code,
        }
        .emit();
        Ok((verdict, reserved))
    }

    pub(super) fn validate(&self, request: &DomainRequest) -> Result<(), DecisionError> {
        request.validate(self.settings.max_descriptors, self.settings.max_entries)
    }
}

impl Decide for DescriptorService {
    fn decide(
        &self,
        request: DomainRequest,
    ) -> impl Future<Output = Result<DomainVerdict, DecisionError>> + Send {
        self.decide(request)
    }
}

impl fmt::Debug for DescriptorService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DescriptorService").field("settings", &self.settings).finish_non_exhaustive()
    }
}
